"""Texts in a .csv or .jsonl file: `text`, and where there are such `text_pair` and `label`.

Tokens are `texts`' work. Other columns are passed over, unless their name is nearly one of these: then it is a misspelling
that would go unnoticed. Rule: a line that is broken is named by its number and stops the reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.documents.nearest import closest
from serving.errors import UserError
from serving.export.data import texts
from serving.export.data.class_names import ClassNames
from serving.export.data.dataset import TEXTS, Dataset
from serving.export.data.text_files import csv_rows, read_lines
from serving.export.exported_model import NUMPY_TYPES
from serving.export.progress import Progress
from serving.repository import Tensor
from serving.repository.preprocessing import TextPreprocessing

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
    arrays = texts.encode(tokenizer, preprocessing, [line.text for line in lines], pairs, length, progress)
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
        raise UserError(f"{where}: column {twice[0]!r} stands there twice")
    if "text" not in columns:
        raise UserError(f"{where}: column 'text' is missing; there are {', '.join(columns)[:200] or 'none'}")
