"""One ONNX model in memory, whole: the file, and the weights that it keeps in other files.

A model can name any file of the machine as its weights, so nothing that it names is opened before all of it was found to lie
in the model's own folder, links followed. Rule: where a file may lie and how large it may be is decided here, before reading.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from serving.errors import UserError
from serving.export.large_model import Weights
from serving.export.onnx_parts import MAX_BYTES, tensors
from serving.repository import file_digest

_HEADROOM_BYTES = 2**24  # for what an export adds to a graph (guess)
_SMALL_BYTES = 2**20  # shapes and other constants that are looked at: in memory whatever the model's size
_LFS = b"version https://git-lfs.github.com"
_SMALLER = "one ONNX file holds 2 GB at most: convert its weights to FP16 with the tool that made it, or split the model in two"


def read_whole(path: Path) -> onnx.ModelProto:
    """The model with every tensor inside it; of one over 2 GB, which no file holds, with the small ones.

    Raises UserError that names the file that is wrong.
    """
    content = _content(path)
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # protobuf's DecodeError, which only its own package knows
        raise UserError(f"{path} is not an ONNX file, or only a part of one{_what_it_is(content)}") from None
    if not model.HasField("graph") or not model.ir_version:
        raise UserError(f"{path} is not an ONNX file: it holds no graph{_what_it_is(content)}")
    external = [(tensor, _tensor_file(tensor, path)) for tensor in tensors(model) if _is_external(tensor)]
    total = len(content) + sum(place.num_bytes for _, place in external)
    is_large = total + _HEADROOM_BYTES > MAX_BYTES
    if is_large:
        _check_one_file(path, [place for _, place in external if place.num_bytes > _SMALL_BYTES])
    for tensor, place in external:
        if is_large and place.num_bytes > _SMALL_BYTES:
            continue
        tensor.raw_data = place.read()
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return model


def weights_beside(model: onnx.ModelProto, path: Path) -> Weights | None:
    """The file that holds what `read_whole` left outside."""
    for tensor in tensors(model):
        if _is_external(tensor):
            file = _tensor_file(tensor, path).file
            return Weights(file, file_digest(file))
    return None


def _check_one_file(path: Path, places: list[_TensorFile]) -> None:
    files = {place.file for place in places}
    if len(files) != 1 or files.pop().parent != path.parent.resolve():
        raise UserError(
            f"{path} has over 2 GB and keeps its weights in {len({place.file for place in places})} files or below its folder: "
            "save it with one file of weights beside it (onnx.save_model(…, save_as_external_data=True, location='weights.bin'))"
        )


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UserError(f"{path} is not a file; a model comes as one .onnx file")
        if size > MAX_BYTES:
            raise UserError(f"{path} has {size / 1e9:.1f} GB; {_SMALLER}")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _what_it_is(content: bytes) -> str:
    if content.startswith(_LFS):
        return "; it is a Git LFS pointer, so fetch the model itself: git lfs pull"
    if not content:
        return "; it is empty"
    return ""


# -- the files beside the model ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TensorFile:
    """Where a tensor's bytes lie. `file` has no links in it any more."""

    file: Path
    offset: int
    num_bytes: int

    def read(self) -> bytes:
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                content = file.read(self.num_bytes)
        except OSError as error:
            raise UserError(f"cannot read {self.file}: {error.strerror}") from None
        if len(content) < self.num_bytes:
            raise UserError(f"{self.file} became shorter while it was read")
        return content


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _tensor_file(tensor: onnx.TensorProto, model: Path) -> _TensorFile:
    """Raises UserError for a place outside the model's folder. Looks at sizes only."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    location = place.get("location", "")
    file = _inside(model, location)
    try:
        status = file.stat()
    except OSError:
        raise UserError(
            f"{model} keeps weights in {location}, which is not beside it; copy both into one folder"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{model} keeps weights in {location}, which is not a regular file")
    try:
        offset = int(place.get("offset") or 0)
        num_bytes = int(place.get("length") or status.st_size - offset)
    except ValueError:
        raise UserError(f"{model}: the place of tensor {tensor.name!r} in {location} is not a number") from None
    if offset < 0 or num_bytes < 0 or offset + num_bytes > status.st_size:
        raise UserError(
            f"{location} is cut off: tensor {tensor.name!r} of {model.name} ends at byte {offset + num_bytes:,}, "
            f"the file at {status.st_size:,}"
        )
    return _TensorFile(file, offset, num_bytes)


def _inside(model: Path, location: str) -> Path:
    """The real file behind a location, or UserError: `..`, absolute paths and links may lead to any file."""
    folder = model.parent.resolve()
    parts = PurePosixPath(location)
    windows = PureWindowsPath(location)
    if (
        not location
        or "\0" in location
        or parts.is_absolute()
        or windows.drive
        or windows.root
        or ".." in windows.parts
    ):
        raise UserError(f"{model} names {location!r} as a file of its weights; it must lie in the model's own folder")
    file = (folder / parts).resolve()
    if not file.is_relative_to(folder):
        raise UserError(
            f"{model} keeps weights in {location}, a link that leaves the model's folder; "
            f"copy the files themselves into one folder (cp -L) and export from there"
        )
    return file
