"""Models beside digits that make small requests dear: one that embeds texts, and four whose input may have any length, or the answer, too."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from loadtest.bench.made_models import BASE, BESIDE, WORDS, write
from serving.repository import OTHER, Record, Tensor
from tests.fuzz.served import ROOT

NUMBERS, TEXTS = "numbers", "texts"  # models, whose input "x" is [n, any], of FP32 and of BYTES
SAME_NUMBERS, SAME_TEXTS = "same-numbers", "same-texts"  # the same, which answer what they were sent
KINDS = {NUMBERS: ("FP32", TensorProto.FLOAT), TEXTS: ("BYTES", TensorProto.STRING)}
KINDS |= {SAME_NUMBERS: KINDS[NUMBERS], SAME_TEXTS: KINDS[TEXTS]}
ANSWERS_IT = {SAME_NUMBERS, SAME_TEXTS}


def repository(folder: Path) -> Path:
    """digits as committed, `words` and these, in place of what the folder had."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "model_repo", folder)
    return write(folder, (BASE, WORDS.onnx(), BESIDE), *((_record(model), _graph(model), {}) for model in KINDS))


def _record(model: str) -> Record:
    datatype, _ = KINDS[model]
    return replace(
        BASE,
        model=model,
        task=OTHER,
        inputs=(Tensor("x", datatype, (-1,)),),
        outputs=(Tensor("y", datatype, (-1,)) if model in ANSWERS_IT else Tensor("y", "BOOL", (1,)),),
        preprocessing=None,
        space=None,
    )


def _graph(model: str) -> bytes:
    """Answers its input, or whether the first element is itself, which costs nothing, however long the input is."""
    _, kind = KINDS[model]
    x = helper.make_tensor_value_info("x", kind, ["n", "length"])
    if model in ANSWERS_IT:
        y = helper.make_tensor_value_info("y", kind, ["n", "length"])
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], model, [x], [y])
    else:
        ends = {"from": 0, "to": 1, "axis": 1}
        graph = helper.make_graph(
            [helper.make_node("Slice", ["x", *ends], ["first"]), helper.make_node("Equal", ["first", "first"], ["y"])],
            model,
            [x],
            [helper.make_tensor_value_info("y", TensorProto.BOOL, ["n", 1])],
            [numpy_helper.from_array(np.array([value]), name) for name, value in ends.items()],
        )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)  # 19: texts, too
    checker.check_model(made)
    return bytes(made.SerializeToString())
