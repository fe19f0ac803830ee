"""tensorflow:PATH: what is turned away before TensorFlow is imported or fetched. What becomes of models: recipes/test_tensorflow.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.export import sources
from serving.export.exported_model import SourceOptions
from serving.export.sources import tensorflow_file


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("net.tflite", b"hello world", "is no TFLite file, or only a part of one"),
        ("net.h5", b"hello world", "is no HDF5 file, or only a part of one"),
        ("net.pb", b"hello world", "is no SavedModel, which is a folder with saved_model.pb"),
        ("folder/other.txt", b"", "is no SavedModel, which is a folder with saved_model.pb"),
    ],
)
def test_what_is_no_model_of_tensorflow_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    path = file.parent if name.startswith("folder") else file
    with pytest.raises(UserError, match=says):
        sources.check(f"tensorflow:{path}", SourceOptions(is_trusted=True))


@pytest.mark.parametrize("name", ["saved", "net.h5"])
def test_a_model_that_is_a_program_needs_trust(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"program.*--trust"):
        sources.check(f"tensorflow:{tmp_path / name}", SourceOptions())


def test_a_tflite_file_is_data_and_needs_none(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3")
    sources.check(f"tensorflow:{tmp_path / 'net.tflite'}", SourceOptions())


def test_without_tensorflow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "net.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3")
    assert sources.missing(f"tensorflow:{tmp_path / 'net.tflite'}") == "tensorflow"
    with pytest.raises(UserError, match=r"tensorflow.*\[tensorflow\]"):
        tensorflow_file.load(tmp_path / "net.tflite", SourceOptions(), lambda *_: None)


@pytest.mark.parametrize(
    ("name", "plain"),
    [("serving_default_image:0", "image"), ("StatefulPartitionedCall:1", "StatefulPartitionedCall"), ("a/b", "a/b")],
)
def test_a_tensor_of_tflite_is_called_what_a_client_can_write(name: str, plain: str) -> None:
    assert tensorflow_file._plain(name) == plain


def test_tensors_of_one_operation_keep_their_numbers() -> None:
    tensors = ["serving_default_image:0", "StatefulPartitionedCall:0", "StatefulPartitionedCall:1"]
    assert list(tensorflow_file._names(tensors).values()) == [
        *("image", "StatefulPartitionedCall_0", "StatefulPartitionedCall_1")
    ]
