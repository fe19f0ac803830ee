"""keras:FILE: models that Keras 3 saved, beside Keras' own answers, and files that are turned away."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.sources import keras_file
from serving.export.sources.graphs.runnable import Trial
from serving.repository import Tensor


def load(path: Path, **options: Any) -> ExportedModel:
    return keras_file.load(path, SourceOptions(**options), lambda *_: None)


def difference(exported: ExportedModel) -> float:
    """Largest difference from Keras, relative to the largest value, over all outputs in order."""
    ours, theirs = Trial(exported.model, "it").run(exported.example), exported.run(exported.example)  # type: ignore[misc]
    assert [values.shape for values in ours] == [values.shape for values in theirs]
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.abs(a - b).max() / max(1e-6, np.abs(b).max())) for a, b in pairs)


@pytest.fixture(scope="module")
def keras() -> Any:
    return keras_file._keras()


def save(model: Any, path: Path) -> None:
    with keras_file.quiet():  # saving on torch warns of NumPy's next version
        model.save(path)


# -- what models become -----------------------------------------------------------------------------------------------


@pytest.mark.models
def test_an_image_classifier_is_exported_with_any_batch(keras: Any, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1), name="image")
    inner = keras.layers.Conv2D(4, 3, activation="relu")(image)
    inner = keras.layers.Flatten()(keras.layers.BatchNormalization()(inner))
    save(keras.Model(image, keras.layers.Dense(3, activation="softmax", name="kinds")(inner)), tmp_path / "net.keras")
    exported = load(tmp_path / "net.keras", max_batch_size=16, opset=19)
    assert exported.inputs == (Tensor("image", "FP32", (8, 8, 1)),)
    assert exported.outputs == (Tensor("kinds", "FP32", (3,)),)
    assert (exported.max_batch_size, exported.task, exported.framework) == (16, "classification", "keras")
    assert exported.source == "keras: net.keras (Functional)"
    assert {"keras", "torch", "onnx"} <= set(exported.toolchain)
    assert exported.precisions == ("fp32", "bf16", "fp16", "int8")
    assert onnx.load_from_string(exported.model).opset_import[0].version == 19
    assert len(exported.example["image"]) >= 4
    assert difference(exported) < 1e-5


@pytest.mark.models
@pytest.mark.thorough
def test_several_inputs_and_outputs_keep_their_names_and_free_lengths_stay_free(keras: Any, tmp_path: Path) -> None:
    ids, extra = keras.Input((None,), dtype="int32", name="ids"), keras.Input((3,), name="extra")
    inner = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(10, 4)(ids))
    inner = keras.layers.Concatenate()([inner, extra])
    outputs = {"extra": keras.layers.Dense(2)(inner), "score": keras.layers.Dense(1, activation="sigmoid")(inner)}
    save(keras.Model({"extra": extra, "ids": ids}, outputs), tmp_path / "net.keras")
    exported = load(tmp_path / "net.keras")
    assert {tensor.name: (tensor.datatype, tensor.shape) for tensor in exported.inputs} == {
        "ids": ("INT32", (-1,)),
        "extra": ("FP32", (3,)),
    }
    assert [tensor.name for tensor in exported.outputs] == ["extra_output", "score"]
    assert difference(exported) < 1e-5
    other = {"ids": np.ones((2, 5), np.int32), "extra": np.ones((2, 3), np.float32)}
    assert np.allclose(Trial(exported.model, "it").run(other)[0], exported.run(other)[0], atol=1e-5)  # type: ignore[misc]


@pytest.mark.models
@pytest.mark.thorough
def test_a_sequential_recurrent_net_of_unnamed_layers_is_exported(keras: Any, tmp_path: Path) -> None:
    layers = [keras.Input((6, 3)), keras.layers.LSTM(4), keras.layers.Dense(1)]
    save(keras.Sequential(layers), tmp_path / "net.keras")
    exported = load(tmp_path / "net.keras", task="other")
    assert [tensor.shape for tensor in (*exported.inputs, *exported.outputs)] == [(6, 3), (1,)]
    assert difference(exported) < 1e-5


@pytest.mark.models
@pytest.mark.thorough
def test_an_example_of_the_users_is_taken_and_checked(keras: Any, tmp_path: Path) -> None:
    save(keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)]), tmp_path / "net.keras")
    rows = np.random.default_rng(0).random((5, 4))
    assert np.allclose(load(tmp_path / "net.keras", example={"x": rows}).example["x"], rows)
    with pytest.raises(UserError, match=r"'x'.*example.*\[n, 3\].*FP32 \[n, 4\]"):
        load(tmp_path / "net.keras", example={"x": rows[:, :3]})


# -- what is turned away ----------------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.thorough
def test_a_lambda_layer_needs_trust(keras: Any, tmp_path: Path) -> None:
    save(keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)]), tmp_path / "net.keras")
    with pytest.raises(UserError, match=r"net\.keras.*Lambda.*--trust"):
        load(tmp_path / "net.keras")
    exported = load(tmp_path / "net.keras", is_trusted=True)
    (rows,) = exported.example.values()
    assert np.allclose(exported.run(exported.example)[0], rows * 2)  # type: ignore[misc]


@pytest.mark.models
@pytest.mark.thorough
def test_a_layer_of_the_users_own_is_named_with_the_way_to_bring_it(keras: Any, tmp_path: Path) -> None:
    class Doubling(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return inputs * 2

    save(keras.Sequential([keras.Input((4,)), Doubling()]), tmp_path / "net.keras")
    with pytest.raises(UserError, match=r"net\.keras.*Doubling.*module:FILE\.py:CALLABLE") as error:
        load(tmp_path / "net.keras")
    assert "\n" not in str(error.value)


@pytest.mark.models
@pytest.mark.thorough
def test_a_fixed_batch_is_refused(keras: Any, tmp_path: Path) -> None:
    save(keras.Sequential([keras.Input((4,), batch_size=2, name="x"), keras.layers.Dense(2)]), tmp_path / "net.keras")
    with pytest.raises(UserError, match=r"input.*'x'.*2"):
        load(tmp_path / "net.keras")


@pytest.mark.models
@pytest.mark.thorough
def test_a_zip_of_something_else_is_refused(keras: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "net.keras", "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(UserError, match=r"Keras.*net\.keras") as error:
        load(tmp_path / "net.keras")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("net.keras", b"", "is not a .keras file, or only a part of one: save it with Keras 3"),
        ("net.keras", b"PK\x03\x04 cut off", "or only a part of one"),
        ("net.h5", b"\x89HDF\r\n", r"is a model of old Keras.*: tensorflow:\S+net\.h5 with --trust"),
    ],
)
def test_other_files_are_refused_before_keras_is_imported(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        load(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"file.*net\.keras"):
        load(tmp_path / "net.keras")


def test_without_keras_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    for name in ("KERAS_BACKEND", "KERAS_TORCH_DEVICE", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that it is put back
    with zipfile.ZipFile(tmp_path / "net.keras", "w"):
        pass
    with pytest.raises(UserError, match=r"installed.*'.\[keras\]'"):
        load(tmp_path / "net.keras")
