"""tensorflow:PATH: a SavedModel, a TFLite file or an .h5 of old Keras, by tf2onnx; TensorFlow's own answers judge the graph.

What tf2onnx writes is read like any other ONNX file (`onnx_file.py`). TensorFlow weighs gigabytes and lives in the environment of
the extra `tensorflow`, in which the whole command goes on. Rule: a SavedModel is a program that TensorFlow runs, and it can write
files; nothing of one is loaded before its user said --trust.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays, ExportedModel, Run, SourceOptions
from serving.export.onnx_session import first_line
from serving.export.progress import Progress, quiet
from serving.export.scratch import scratch
from serving.export.sources import onnx_file
from serving.export.sources.checks import check_tensorflow, not_installed

MAX_OPSET = 18  # of what tf2onnx writes; the file is raised to a newer one where that was asked for
_SIGNATURE = "serving_default"
_LEFT = "TFL_"  # how the type of an operator begins that tf2onnx leaves as TFLite has it


@dataclass(frozen=True, slots=True)
class Signature:
    """A function of a model: arrays by input's name to arrays by output's name, [batch, …]; `is_single`: a batch of 1 alone."""

    call: Callable[[Arrays], Mapping[str, NDArray[Any]]]
    arguments: tuple[str, ...]  # for tf2onnx, beside the file
    is_single: bool


def load(path: Path, options: SourceOptions, progress: Progress) -> ExportedModel:
    """Raises UserError for what TensorFlow cannot read and for operators that have no counterpart in ONNX."""
    check_tensorflow(path, options)
    tensorflow = _tensorflow()
    step = f"converting {path.name}"
    progress(step, 0, 2)
    with scratch("tensorflow") as folder:
        saved = _as_saved_model(path, folder) if path.suffix in (".h5", ".hdf5") else path
        signature = _lite(tensorflow, saved) if saved.suffix == ".tflite" else _saved(tensorflow, saved)
        progress(step, 1, 2)
        file = folder / f"{path.stem}.onnx"
        _convert(file, min(options.opset, MAX_OPSET), signature, path.name)
        progress(step, 2, 2)
        exported = onnx_file.load(file, options, progress)
    return replace(
        exported,
        source=exported.source.replace(f"onnx: {file.name}", f"tensorflow: {path.name}", 1),
        framework="tensorflow",
        run=_run(signature, exported),
        toolchain={**exported.toolchain, "tensorflow": str(tensorflow.__version__), "tf2onnx": _version("tf2onnx")},
    )


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        with quiet():
            import tensorflow  # type: ignore[import-not-found, import-untyped, unused-ignore]
            import tf2onnx  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401 - or it is said now
    except ImportError as error:
        raise not_installed("tensorflow", error, "tensorflow") from None
    return tensorflow


def _version(package: str) -> str:
    from importlib import metadata

    return metadata.version(package)


# -- TensorFlow's own answers -----------------------------------------------------------------------------------------


def _saved(tensorflow: Any, folder: Path) -> Signature:
    try:
        with quiet():
            model = tensorflow.saved_model.load(str(folder))
    except Exception as error:  # of many classes, and some of them wrap another's words
        raise UserError(f"TensorFlow cannot read {folder.name}: {first_line(error)}") from None
    if not model.signatures:
        raise UserError(
            f"{folder.name} has no signature: save it with tf.saved_model.save(model, folder, signatures=…)"
        )
    name = _SIGNATURE if _SIGNATURE in model.signatures else next(iter(model.signatures))
    function = model.signatures[name]
    takes = function.structured_input_signature[1]

    def call(inputs: Arrays) -> Mapping[str, NDArray[Any]]:
        tensors = {key: tensorflow.constant(values, takes[key].dtype) for key, values in inputs.items()}
        return {key: values.numpy() for key, values in function(**tensors).items()}

    call.model = model  # type: ignore[attr-defined]  # its variables live as long as it does
    first = [shape[0] for one in takes.values() if (shape := one.shape.as_list() if one.shape.rank else [])]
    return Signature(call, ("--saved-model", str(folder), "--signature_def", name), bool(first) and set(first) == {1})


def _lite(tensorflow: Any, path: Path) -> Signature:
    try:
        with quiet():
            interpreter = tensorflow.lite.Interpreter(str(path), num_threads=1)
    except ValueError as error:
        raise UserError(f"TensorFlow cannot read {path.name}: {first_line(error)}") from None
    takes, gives = interpreter.get_input_details(), interpreter.get_output_details()
    names = _names([one["name"] for one in (*takes, *gives)]) | _of_signature(interpreter)

    def call(inputs: Arrays) -> Mapping[str, NDArray[Any]]:
        for one in takes:
            interpreter.resize_tensor_input(one["index"], inputs[names[one["name"]]].shape)
        interpreter.allocate_tensors()
        for one in takes:
            interpreter.set_tensor(one["index"], inputs[names[one["name"]]].astype(one["dtype"]))
        interpreter.invoke()
        return {names[one["name"]]: interpreter.get_tensor(one["index"]).copy() for one in gives}

    def of(which: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        return ",".join(one["name"] for one in which), ",".join(names[one["name"]] for one in which)

    (inputs, new_inputs), (outputs, new_outputs) = of(takes), of(gives)
    renamed = ("--inputs", inputs, "--rename-inputs", new_inputs, "--outputs", outputs, "--rename-outputs", new_outputs)
    first = {int(one["shape_signature"][0]) for one in takes if len(one["shape_signature"])}
    return Signature(call, ("--tflite", str(path), *renamed), first == {1})


def _of_signature(interpreter: Any) -> dict[str, str]:
    """Tensor -> what the file's own signature calls it; nothing where it has none."""
    known = interpreter.get_signature_list()
    if not known:
        return {}
    runner = interpreter.get_signature_runner(_SIGNATURE if _SIGNATURE in known else next(iter(known)))
    details = {**runner.get_input_details(), **runner.get_output_details()}
    return {one["name"]: name for name, one in details.items()}


def _names(tensors: Sequence[str]) -> dict[str, str]:
    """Tensor -> what a client can be asked to write; with its number where several would be called the same."""
    plain = Counter(map(_plain, tensors))
    return {one: made if plain[made := _plain(one)] == 1 else _plain(one.replace(":", "_") + ":") for one in tensors}


def _plain(name: str) -> str:
    """`serving_default_image:0` -> `image`: what a client can be asked to write."""
    return name.removeprefix(f"{_SIGNATURE}_").rpartition(":")[0].replace("/", "_").replace(":", "_") or name


def _run(signature: Signature, exported: ExportedModel) -> Run:
    names = [(tensor.name, len(tensor.shape)) for tensor in exported.outputs]
    has_batch = exported.max_batch_size > 0

    def answers(inputs: Arrays) -> list[NDArray[Any]]:
        with quiet():
            found = signature.call(inputs)
        return [_like(found[name], rank + has_batch) for name, rank in names]

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        count = len(next(iter(inputs.values())))
        if not has_batch or not signature.is_single or count == 1:
            return answers(inputs)
        rows = [answers({key: values[i : i + 1] for key, values in inputs.items()}) for i in range(count)]
        return [np.concatenate(values) for values in zip(*rows, strict=True)]

    return run


def _like(values: NDArray[Any], rank: int) -> NDArray[Any]:
    """One number a row becomes a column, as in the graph."""
    return values[..., np.newaxis] if values.ndim + 1 == rank else values


# -- the graph --------------------------------------------------------------------------------------------------------


def _as_saved_model(path: Path, folder: Path) -> Path:
    """Old Keras' own format, through Keras 3."""
    import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        with quiet():
            model = keras.saving.load_model(path, compile=False)
            model.export(str(folder / "saved"), verbose=False)
    except Exception as error:  # Keras wraps whatever a layer's own code raises
        raise UserError(
            f"Keras cannot read {path.name}: {first_line(error)}; write a SavedModel where it was made, "
            "tf.saved_model.save(model, 'folder'), and bring that: tensorflow:folder"
        ) from None
    return folder / "saved"


def _convert(file: Path, opset: int, signature: Signature, name: str) -> None:
    """By tf2onnx's command, which is what it documents."""
    command = [sys.executable, "-m", "tf2onnx.convert", *signature.arguments, "--opset", str(opset)]
    done = subprocess.run(
        [*command, "--output", str(file)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode or not file.is_file():
        said = [line.strip() for line in done.stderr.splitlines() if "rror" in line] or ["it says nothing"]
        raise UserError(f"tf2onnx cannot convert {name}: {said[-1][:300]}; export the model as .onnx yourself")
    unknown = sorted(
        {
            node.op_type
            for node in onnx.load(file, load_external_data=False).graph.node
            if node.op_type.startswith(_LEFT)
        }
    )
    if unknown:
        operators = ", ".join(one.removeprefix(_LEFT) for one in unknown)
        raise UserError(
            f"tf2onnx has no counterpart in ONNX for {operators} of {name}: export the model without, or as .onnx yourself"
        )
