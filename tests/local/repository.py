"""Repositories with the committed digits under any name, as an export would have published them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from serving.export.publish import publish, writing
from serving.repository import GATE_DATA_FILE, RECORD_FILE, Repository
from tests.local.harness import ROOT

BROKEN = b"not a model"  # its digest is right, and no Triton loads it


def publish_digits(
    repository: Path,
    model: str = "digits",
    *,
    precisions: Iterable[str] = ("fp32", "int8"),
    version: int = 1,
    model_file: bytes | None = None,
    num_kept: int | None = None,
    keeps_rows: bool = True,
    is_bare: bool = False,
) -> None:
    """`model_file`: instead of its own. `num_kept`: versions whose files stay. `keeps_rows`: with those that judge it where it is served.

    `is_bare`: of the files that an export writes, the model alone, with the record and the configurations that `publish` makes.
    """
    for precision in precisions:
        variant = Repository(ROOT / "model_repo").variant(f"digits-{precision}")
        record = replace(variant.record, model=model, model_version=version)
        generated = {RECORD_FILE, *variant.config_files()}
        files = {
            path: (variant.directory / path).read_bytes() for path in variant.record.files if path not in generated
        }
        files[record.model_file] = files.pop(variant.record.model_file)
        if model_file is not None:
            files[record.model_file] = model_file
        if not keeps_rows:
            files.pop(GATE_DATA_FILE, None)
        if is_bare:
            files = {record.model_file: files[record.model_file]}
        with writing(repository):
            publish(repository, record, files, num_kept)


def digits_of_other_labels(swapped: tuple[int, int] = (1, 7)) -> bytes:
    """The FP32 file of the digits with two classes that have each other's score."""
    model = onnx.load(Repository(ROOT / "model_repo").variant("digits-fp32").model_path)
    last = next(it for it in reversed(model.graph.node) if it.op_type in ("Gemm", "MatMul", "Add"))
    classes = np.arange(10)
    classes[list(swapped)] = swapped[::-1]
    for name in last.input[1:]:
        tensor = next(it for it in model.graph.initializer if it.name == name)
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.take(values, classes, list(values.shape).index(10)), name))
    return bytes(model.SerializeToString())
