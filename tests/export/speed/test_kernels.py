"""What a profile proves: real ones of the CPU provider, and the same with a card's names and types put in."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from serving.export.speed import EnginePython
from serving.export.speed.kernels import kernels, problems, summary
from serving.export.speed.process import profiled
from serving.export.variants.graph import num_products_in

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
Events = list[dict[str, Any]]


def net(kind: int) -> bytes:
    """Two products, a norm between them, and a shape that is computed. `kind`: of the products."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8)).astype(helper.tensor_dtype_to_np_dtype(kind)) for _ in range(2)]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], "in", to=kind),
        helper.make_node("MatMul", ["h", "w0"], ["p0"], "first"),
        helper.make_node("Cast", ["p0"], ["f"], "up", to=TensorProto.FLOAT),
        helper.make_node("Softmax", ["f"], ["s"], "soft"),
        helper.make_node("Cast", ["s"], ["g"], "down", to=kind),
        helper.make_node("MatMul", ["g", "w1"], ["p1"], "second"),
        helper.make_node("Cast", ["p1"], ["z"], "out", to=TensorProto.FLOAT),
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "zero"], ["rows"], "gather"),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], "concat", axis=0),
        helper.make_node("Reshape", ["z", "wanted"], ["y"], "reshape"),
    ]
    constants = {"w0": weights[0], "w1": weights[1], "zero": np.array([0]), "rest": np.array([4, 2])}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 2])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(model.SerializeToString())


def profile(model: bytes, folder: Path) -> Events:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "run")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # would compute the shape in advance
    session = ort.InferenceSession(model, options, providers=[CPU])
    session.run(None, {"x": np.ones((3, 8), np.float32)})
    events: Events = json.loads(Path(session.end_profiling()).read_text())
    return events


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Events:
    return profile(net(TensorProto.FLOAT), tmp_path_factory.mktemp("fp32"))


@pytest.fixture(scope="module")
def on_card(fp32: Events) -> Events:
    """As a card would write it of an FP16 file: its provider everywhere but at shapes, and its type at the products."""
    events = copy.deepcopy(fp32)
    for event in nodes_of(events):
        if not event["name"].startswith(("gather", "concat")):
            event["args"]["provider"] = CUDA
        if event["args"]["op_name"] == "MatMul":
            retyped(event, "float16")
    return events


def nodes_of(events: Events) -> Events:
    return [event for event in events if event["cat"] == "Node"]


def retyped(event: dict[str, Any], kind: str) -> None:
    for side in ("input_type_shape", "output_type_shape"):
        event["args"][side] = [dict.fromkeys([kind], next(iter(one.values()))) for one in event["args"][side]]


def test_a_run_of_fp32_on_the_processor_is_that_and_nothing_else(fp32: Events) -> None:
    ran = kernels(fp32)
    assert problems(ran, "fp32", CPU) == []
    assert summary(ran).startswith("2 products: 2 in FP32; ")
    [told] = problems(ran, "fp16", CPU)
    assert re.findall(r"\b\d\b|FP\d+|MatMul", told)[:5] == ["2", "2", "FP32", "FP16", "MatMul"]


def test_fp16_on_the_processor_is_computed_in_fp32_and_the_profile_gives_it_away(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider casts, answers and says nothing."""
    [told] = problems(kernels(profile(net(TensorProto.FLOAT16), tmp_path)), "fp16", CPU)
    assert re.findall(r"FP\d+", told)[:2] == ["FP32", "FP16"]


def test_a_run_on_a_card_is_proven_though_shapes_are_computed_beside_it(on_card: Events) -> None:
    ran = kernels(on_card)
    assert any(kernel.provider == CPU for kernel in ran)
    assert problems(ran, "fp16", CUDA) == []
    assert "2 in FP16" in summary(ran)
    assert CUDA in summary(ran)


Change = Callable[[Events], None]


def each(change: Callable[[dict[str, Any]], None], operator: str = "MatMul", limit: int = 9) -> Change:
    def of_all(events: Events) -> None:
        for event in [event for event in nodes_of(events) if event["args"]["op_name"] == operator][:limit]:
            change(event)

    return of_all


def removed(operator: str) -> Change:
    return lambda events: events.__setitem__(
        slice(None), [event for event in events if event["args"].get("op_name") != operator]
    )


MUTATIONS: dict[str, tuple[Change, str]] = {
    "a product on the processor": (
        each(lambda event: event["args"].update(provider=CPU), limit=1),
        f"nodes ran on {CPU}: MatMul",
    ),
    "all on the processor": (
        each(lambda event: event["args"].update(provider=CPU), operator="Softmax"),
        f"nodes ran on {CPU}: Softmax",
    ),
    "many whole numbers on the processor": (
        each(lambda event: event["args"].update(input_type_shape=[{"int64": [3, 128]}]), operator="Gather"),
        f"nodes ran on {CPU}: Gather",
    ),
    "one product in FP32": (each(lambda event: retyped(event, "float"), limit=1), "1 of 2 products computed in FP32"),
    "every product in FP32": (each(lambda event: retyped(event, "float")), "2 of 2 products computed in FP32"),
    "a product in BF16": (each(lambda event: retyped(event, "bfloat16"), limit=1), "products computed in BF16"),
    "no product": (removed("MatMul"), "no convolution or matrix product is seen"),
    "nothing": (lambda events: events.clear(), "holds no node"),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_it_is_not_proven_with(what: str, on_card: Events) -> None:
    events = copy.deepcopy(on_card)
    change, words = MUTATIONS[what]
    change(events)
    told = problems(kernels(events), "fp16", CUDA)
    assert len(told) == 1
    assert words in told[0]


def test_products_that_the_file_leaves_in_fp32_are_allowed_but_not_all_of_them(on_card: Events) -> None:
    events = copy.deepcopy(on_card)
    each(lambda event: retyped(event, "float"), limit=1)(events)
    assert problems(kernels(events), "fp16", CUDA, num_fp32_products=1) == []
    each(lambda event: retyped(event, "float"))(events)
    assert problems(kernels(events), "fp16", CUDA, num_fp32_products=2)


def test_how_many_products_a_file_has_in_a_type() -> None:
    assert num_products_in(net(TensorProto.FLOAT16), TensorProto.FLOAT) == 0
    assert num_products_in(net(TensorProto.FLOAT16), TensorProto.FLOAT16) == 2
    assert num_products_in(net(TensorProto.FLOAT), TensorProto.FLOAT) == 2


@pytest.mark.slow
def test_an_engines_own_process_profiles_a_file(here: EnginePython) -> None:
    ran = profiled(here, net(TensorProto.FLOAT), "fp32", {"x": np.ones((2, 8), np.float32)})
    assert problems(ran, "fp32", CPU) == []
