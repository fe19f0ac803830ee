"""What one campaign sends: made once, before its first run, so that every run of every arm sends the same inputs in the same order.

From the words of the campaign file to arrays that fit the model that is served. Real texts and photographs are cut, padded and
normalised by the very code that the model's gate was judged with, as its files in the model repository say. Deliberately not here: how
other arrays are made (`sending/inputs.py`) and how they become requests (`sending/bodies.py`). Rule: the packages that read texts and
images are imported only when they are needed, by the campaign and never by a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadtest.campaign_file import ARRAYS, TEXTS
from loadtest.errors import PayloadError
from loadtest.records import Payload
from loadtest.sending import inputs
from loadtest.sending.bodies import Array, Arrays, Body, Signature, Tensor, encode, signature
from loadtest.sending.inputs import Inputs, fitted, num_that_fit
from serving.documents.reader import read_text
from serving.installation import how_to_add

if TYPE_CHECKING:
    from serving.repository.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing


@dataclass(frozen=True, slots=True)
class RequestSource:
    """`first`: one row alone, to find out whether an arm answers at all. `payload`: what the report says of all this."""

    given: Inputs
    first: Body
    payload: Payload


def prepare(
    asked: Payload, model: str, metadata: dict[str, Any], folder: Path, repository: Path | None, seed: int
) -> RequestSource:
    """`folder`: where the campaign's files are. `repository`: where the model's lie, None: as `tandem up` finds it. Raises PayloadError."""
    try:
        takes = signature(metadata)
        given, what, remark = _made(asked, model, takes, folder, repository, seed)
        first = next(inputs.batches(takes, given, 1))
        body = encode(takes, *first, asked.encoding)
        if given.num_inputs < asked.batch_size:
            raise PayloadError(f"{given.num_inputs} inputs are too few for a batch of {asked.batch_size}")
    except (ValueError, KeyError) as error:
        raise error if isinstance(error, PayloadError) else PayloadError(str(error)) from error
    facts = replace(asked, what=what, remark=remark, num_distinct=given.num_distinct, digest=given.digest)
    return RequestSource(given, body, facts)


def _made(
    asked: Payload, model: str, takes: Signature, folder: Path, repository: Path | None, seed: int
) -> tuple[Inputs, str, str | None]:
    """The inputs, what they are in words, and what a reader must know."""
    if asked.data == "digits":
        return inputs.digits(takes), "real handwritten digits", None
    if asked.data == "random":
        length = asked.length or inputs.LENGTH
        given = inputs.noise(takes, asked.encoding, seed, length)
        opened = any(tensor.is_dynamic for tensor in takes.inputs)
        return given, "random inputs" + (f" of length {length}" if opened else ""), None
    if asked.data.endswith(ARRAYS):
        return inputs.read_npz(folder / asked.data, takes), f"inputs of {Path(asked.data).name}", None
    if repository is not None and not repository.is_dir():
        raise PayloadError(f"--model-repository {repository} is no directory")
    lies_in = folder / asked.model_repository if asked.model_repository else repository or _default_repository()
    if asked.data == "photographs":
        given, remark = photographs(takes, model, lies_in, asked.encoding)
        return given, "parts of two real photographs", remark
    file = folder / asked.data if asked.data.endswith(TEXTS) else SENTENCES
    what = f"texts of {file.name}" if asked.data.endswith(TEXTS) else "English texts of mixed length"
    return texts(takes, model, lies_in, file, asked.encoding, seed), what, None


def _default_repository() -> Path:
    from serving.repository.layout import default_repository

    return default_repository()


SENTENCES = Path(__file__).resolve().parents[1] / "payloads" / "sentences.txt"
PREPROCESSING = "preprocessing.json"
# What nearly every published classifier of photographs is trained with (ImageNet's channels), for a model that says nothing.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MAX_PHOTOGRAPHS = 64  # 50 ms each to turn, cut and scale, before a campaign's first run
NUM_TEXT_BYTES = 512 * 8 * 3  # of one text, for a start: cut at the length that such models end at, three inputs


def texts(model: Signature, name: str, repository: Path, file: Path, encoding: str, seed: int) -> Inputs:
    """int64 token ids of a file's lines, in an order of the seed. Raises PayloadError."""
    lines = list(
        dict.fromkeys(line.strip() for line in read_text(file, "the texts", PayloadError).splitlines() if line.strip())
    )
    if not lines:
        raise PayloadError(f"{file} holds no text")
    lines = [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))]
    folder, says = _preprocessing(name, repository, "texts")
    rules = _of_texts(says, name)
    encode = _encoder()
    try:
        tokenizer = (folder / rules.tokenizer).read_bytes()
    except OSError as error:
        raise PayloadError(f"{folder / rules.tokenizer} cannot be read: {error.strerror}") from None
    chosen = lines[: num_that_fit(NUM_TEXT_BYTES, encoding)]
    return fitted(dict(encode(tokenizer, rules, chosen)), model, f"{file}, as {folder / PREPROCESSING} says")


def photographs(model: Signature, name: str, repository: Path, encoding: str) -> tuple[Inputs, str | None]:
    """float32 [n, 3, H, W]: parts of two photographs, turned and lit in many ways. Also what a reader must know, None: nothing.

    Raises PayloadError.
    """
    if len(model.inputs) != 1 or model.inputs[0].datatype != "FP32" or not _is_image(model.inputs[0]):
        told = ", ".join(f"{given.name!r} {given.datatype} {list(given.shape)}" for given in model.inputs)
        raise PayloadError(f"photographs need a model of one FP32 image [3, H, W]; {name} takes {told}")
    (given,) = model.inputs
    rules, remark = _of_images(given, name, repository)
    decode, views = _photographs()
    count = min(MAX_PHOTOGRAPHS, num_that_fit(3 * rules.height * rules.width * 4, encoding))
    pixels = np.stack([decode(view, rules) for view in views(count)])
    return fitted({given.name: pixels}, model, "photographs"), remark


def _is_image(given: Tensor) -> bool:
    return len(given.shape) == 3 and given.shape[0] == 3


def _of_images(given: Tensor, name: str, repository: Path) -> tuple[ImagePreprocessing, str | None]:
    from serving.repository.preprocessing import ImagePreprocessing

    try:
        folder, says = _preprocessing(name, repository, "photographs")
    except _Missing:
        height, width = given.shape[1:]
        if given.is_dynamic:
            raise PayloadError(f"{name} takes images of any size, and no {PREPROCESSING} says of which") from None
        remark = f"No {PREPROCESSING} lies beside {name}: the photographs were scaled as ImageNet's."
        return ImagePreprocessing(given.name, height, width, None, "bicubic", MEAN, STD, "RGB", "none"), remark
    if not isinstance(says, ImagePreprocessing):
        raise PayloadError(f"{folder / PREPROCESSING} is not of images: {name} takes no photographs")
    if any(wanted not in (-1, has) for wanted, has in zip(given.shape[1:], (says.height, says.width), strict=True)):
        raise PayloadError(
            f"{folder / PREPROCESSING} is of images of {says.height}×{says.width}; {name} takes {list(given.shape)}"
        )
    return replace(says, input=given.name), None


def _of_texts(says: Preprocessing, name: str) -> TextPreprocessing:
    from serving.repository.preprocessing import TextPreprocessing

    if not isinstance(says, TextPreprocessing):
        raise PayloadError(f"the {PREPROCESSING} of {name} is of images: it takes no texts")
    return says


class _Missing(PayloadError):
    pass


def _preprocessing(name: str, repository: Path, kind: str) -> tuple[Path, Preprocessing]:
    from serving.repository.layout import PRECISIONS
    from serving.repository.preprocessing import from_json
    from serving.repository.record import RecordError

    for folder in (repository / f"{name}-{variant}" for variant in ("fp32", *PRECISIONS)):
        try:
            return folder, from_json((folder / PREPROCESSING).read_text(encoding="utf-8"), str(folder / PREPROCESSING))
        except FileNotFoundError:
            continue
        except (RecordError, OSError, UnicodeDecodeError) as error:
            raise PayloadError(str(error).rstrip(".")) from None
    raise _Missing(
        f"{kind}: no {PREPROCESSING} of {name} in {repository}; name the model's repository with --model-repository, "
        "or send an .npz that `tandem export --payload` wrote"
    )


def _encoder() -> Callable[[bytes, TextPreprocessing, list[str]], Arrays]:
    try:
        from serving.export.data.texts import encode
    except ModuleNotFoundError as error:
        raise _lacking("texts", error) from None
    return _ours(encode)


def _photographs() -> tuple[Callable[[bytes, ImagePreprocessing], Array], Callable[[int], list[bytes]]]:
    try:
        from serving.export.recipes.photographs import calibration
        from serving.preprocessing.images import decode
    except ModuleNotFoundError as error:
        raise _lacking("photographs", error) from None
    return decode, calibration


def _ours(encode: Callable[..., Arrays]) -> Callable[..., Arrays]:
    from serving.errors import UserError

    def told(*given: object) -> Arrays:
        try:
            return encode(*given)
        except UserError as error:
            raise PayloadError(str(error).rstrip(".")) from None

    return told


def _lacking(kind: str, error: ModuleNotFoundError) -> PayloadError:
    return PayloadError(f"{kind} need '{error.name}', which is not installed: {how_to_add('onnx')}")
