"""Texts in a .csv or .jsonl file, and the arrays of token ids that a model takes for them.

Columns are `text`, and where there are such `text_pair` and `label`; others are ignored, unless their name is nearly one of
these: then it is a misspelling that would go unnoticed. Rows have the longest text's length, because they are one array; a client
pads to the longest of a batch, and the mask makes both the same to the model. How a text becomes tokens is in `preprocessing/`.
Rule: a broken line is named by its number and stops the reading; a byte that is not UTF-8 is never replaced.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.documents.nearest import closest, nearest
from serving.errors import UserError
from serving.export.data.dataset import MAX_BYTES, TEXTS, ClassNames, Dataset
from serving.export.exported_model import NUMPY_TYPES
from serving.export.progress import Progress, silent
from serving.preprocessing.texts import WORDS, open_tokenizer, padded, tokenized
from serving.repository import Tensor
from serving.repository.preprocessing import TextPreprocessing

_CHUNK = 256  # texts between two steps of the progress


def encode(
    tokenizer: bytes,
    preprocessing: TextPreprocessing,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    length: int | None = None,
    progress: Progress = silent,
) -> dict[str, NDArray[np.int64]]:
    """Model input -> int64 [n, length]. `pairs`: the second text of each row. `length` None: the longest text's."""
    for word in preprocessing.inputs:
        if word not in WORDS:
            raise UserError(f"preprocessing: the tokenizer makes no {word!r}{nearest(word, WORDS)}")
    limit = preprocessing.max_length if length is None else min(length, preprocessing.max_length)
    encoded = _encoded(tokenizer, limit, texts, pairs, progress)
    ids = [one.ids for one in encoded]
    longest = max(map(len, ids))
    if longest > limit:
        raise UserError(f"the model's tokenizer does not cut texts to {limit} tokens: its own marks need more")
    longest = length or longest
    if len(texts) * longest * 8 * len(preprocessing.inputs) > MAX_BYTES:
        raise UserError(f"{len(texts)} texts of up to {longest} tokens are more than {MAX_BYTES >> 30} GiB; give fewer")
    return padded(preprocessing, ids, [one.type_ids for one in encoded], longest)


def _encoded(
    tokenizer: bytes, limit: int, texts: Sequence[str], pairs: Sequence[str] | None, progress: Progress
) -> list[Any]:
    opened = open_tokenizer(tokenizer, limit)
    encoded: list[Any] = []
    for start in range(0, len(texts), _CHUNK):
        progress("reading texts", start, len(texts))
        part = slice(start, start + _CHUNK)
        encoded += tokenized(opened, texts[part], None if pairs is None else pairs[part])
    progress("reading texts", len(texts), len(texts))
    return encoded


COLUMNS = ("text", "text_pair", "label")
_ALIKE = 0.78  # of difflib's 0..1: 'lable', 'labels' and 'Text' are caught, 'id', 'title' and 'context' are not


@dataclass(frozen=True, slots=True)
class _Line:
    where: str
    text: str
    pair: str | None
    label: int | float | None


def read(
    path: Path,
    inputs: tuple[Tensor, ...],
    num_labels: int | None,
    preprocessing: TextPreprocessing,
    beside: Mapping[str, bytes],
    labels: tuple[str, ...] | None,
    progress: Progress,
) -> Dataset:
    length = _length(path, inputs, preprocessing)
    if preprocessing.tokenizer not in beside:
        raise UserError(f"{path}: the model's {preprocessing.tokenizer} is not there; give its inputs as .npz")
    classes = ClassNames(labels, num_labels)
    lines = [line(where, row, classes) for where, row in rows_of(path)]
    if not lines:
        raise UserError(f"{path} holds no text")
    has_pairs = _all_or_none(lines, "text_pair", [line.pair is not None for line in lines])
    has_labels = _all_or_none(lines, "label", [line.label is not None for line in lines])
    pairs = [line.pair or "" for line in lines] if has_pairs else None
    tokenizer = beside[preprocessing.tokenizer]
    arrays = encode(tokenizer, preprocessing, [line.text for line in lines], pairs, length, progress)
    known = [line.label for line in lines if line.label is not None]
    dtype = np.int64 if num_labels is not None else None
    types = {tensor.name: NUMPY_TYPES[tensor.datatype] for tensor in inputs}
    given = {name: values.astype(types[name], copy=False) for name, values in arrays.items()}
    return Dataset(path.name, given, np.asarray(known, dtype) if has_labels else None, TEXTS)


def _length(path: Path, inputs: tuple[Tensor, ...], preprocessing: TextPreprocessing) -> int | None:
    """The one length that the model's inputs have, None for any."""
    made = set(preprocessing.inputs.values())
    if made != {tensor.name for tensor in inputs}:
        raise UserError(
            f"{path} gives {', '.join(sorted(made))}, but the model takes "
            f"{', '.join(tensor.name for tensor in inputs)}; give its inputs as .npz"
        )
    if odd := [t for t in inputs if len(t.shape) != 1 or t.datatype not in ("INT64", "INT32")]:
        tensor = odd[0]
        raise UserError(
            f"{path}: tokens are whole numbers [length], but {tensor.name} is {tensor.datatype} "
            f"{list(tensor.shape)}; give its inputs as .npz"
        )
    return next((tensor.shape[0] for tensor in inputs if tensor.shape[0] != -1), None)


def rows_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, column -> value) of each line."""
    return csv_rows(path, _check_columns) if path.suffix == ".csv" else jsonl_rows(path)


def line(where: str, row: Mapping[str, Any], classes: ClassNames) -> _Line:
    for name in ("text", "text_pair"):
        value = row.get(name)
        if value is None and name == "text_pair":
            continue
        if not isinstance(value, str) or not value.strip():
            raise UserError(
                f"{where}: {name} is {'missing' if value is None else 'empty' if value == '' else 'no text'}"
            )
    label = row.get("label")
    if label is not None and (isinstance(label, bool) or not isinstance(label, str | int | float)):
        raise UserError(f"{where}: label is neither text nor a number")
    known = None if label is None or label == "" else classes.value(label, where)
    return _Line(where, row["text"], row.get("text_pair"), known)


def _all_or_none(lines: list[_Line], column: str, is_there: list[bool]) -> bool:
    if any(is_there) and not all(is_there):
        raise UserError(f"{lines[is_there.index(False)].where}: {column} is missing, and other lines have one")
    return all(is_there)


def jsonl_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    checked: set[str] = set()
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: want an object with the key 'text'")
        if not checked.issuperset(row):
            _check_columns(where, list(row))
            checked.update(row)
        yield where, row


def _check_columns(where: str, columns: list[str]) -> None:
    for name in columns:
        if name not in COLUMNS and (meant := closest(name, COLUMNS, _ALIKE)):
            raise UserError(f"{where}: unknown column {name!r}; did you mean {meant!r}?")
    if twice := [name for name in columns if name in COLUMNS and columns.count(name) > 1]:
        raise UserError(f"{where}: column {twice[0]!r} appears twice")
    if "text" not in columns:
        raise UserError(f"{where}: column 'text' is missing; there are {', '.join(columns)[:200] or 'none'}")


_BOM = b"\xef\xbb\xbf"  # spreadsheets put it in front


def read_lines(path: Path) -> Iterator[str]:
    """Lines with their ends, as `csv` wants them. The file is closed before the first: who stops in the middle leaves nothing open."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(io.BytesIO(content.removeprefix(_BOM)), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} line {number}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"
            ) from None


def csv_rows(path: Path, check_header: Callable[[str, list[str]], None]) -> Iterator[tuple[str, dict[str, str]]]:
    """(place, column -> value) of each line after the header. `check_header` raises what is wrong about that."""
    reader = csv.reader(read_lines(path), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        check_header(f"{path} line 1", header)
        for row in reader:
            where = f"{path} line {reader.line_num}"
            if row and len(row) != len(header):
                raise UserError(f"{where}: want {len(header)} values as in the header, got {len(row)}")
            if row:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: {error}") from None
