"""A dead net is never timed: faded, burst, deaf to its input, or computing with denormals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from serving.errors import EnvironmentFault
from serving.export.speed_nets.graph import NetBuilder, check_alive
from serving.repository import Tensor
from tests.export.speed_nets.conftest import Made

INPUT, OUTPUT = Tensor("features", "FP32", (4,)), Tensor("scores", "FP32", (3,))
ROWS = {"features": np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)}


def linear(weight: float, bias: list[float], *, first: float = 1.0) -> bytes:
    """scores = features x `first` x weights of about `weight`, plus bias."""
    graph = NetBuilder("net", [INPUT], seed=1, opset=18)
    scaled = graph.node("Mul", ["features", graph.constant("first", first, np.float32)], "scaled")
    weights = graph.weight("weights", (4, 3), weight)
    product = graph.node("MatMul", [scaled, weights], "product")
    graph.node("Add", [product, graph.constant("bias", bias, np.float32)], "scores")
    return graph.model([OUTPUT])


def test_a_living_net_passes() -> None:
    check_alive("net", linear(0.5, [0, 0, 0]), ROWS)


@pytest.mark.parametrize(
    ("weight", "bias", "first", "words"),
    [
        (0.0, [0, 0, 0], 1.0, "is dead: its answers deviate by 0"),
        (1e-6, [0, 0, 0], 1.0, "is dead: its answers deviate by"),
        (1e4, [0, 0, 0], 1.0, "is dead: its answers deviate by"),
        (1e38, [0, 0, 0], 1e10, "has burst: it answers NaN or infinity"),
        (1.0, [float("nan"), 0, 0], 1.0, "has burst"),
        (1e-4, [-1, 0, 1], 1.0, "is dead: it answers every input alike"),
        (1e38, [0, 0, 0], 1e-39, "computes with denormals, which would be timed"),
    ],
)
def test_a_dead_net_is_refused_with_the_reason(weight: float, bias: list[float], first: float, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        check_alive("net", linear(weight, bias, first=first), ROWS)


def test_an_undrawn_efficientnet_shows_why_this_is_checked() -> None:
    """Layers in a row without normalisation, each a little too small: the output is exactly 0, and nothing complains."""
    graph = NetBuilder("deep", [INPUT], seed=1, opset=18)
    x = "features"
    for index in range(40):
        x = graph.node("MatMul", [x, graph.weight(f"weights{index}", (4, 4), 0.02)], f"layer{index}")
    graph.node("MatMul", [x, graph.weight("weights", (4, 3), 0.02)], "scores")
    with pytest.raises(EnvironmentFault, match=r"answers.*0"):
        check_alive("deep", graph.model([OUTPUT]), ROWS)


def test_denormals_that_never_reach_the_answer_are_found() -> None:
    graph = NetBuilder("net", [INPUT], seed=1, opset=18)
    faded = graph.node("Mul", ["features", graph.constant("faint", 1e-40, np.float32)], "faded")
    graph.node("Add", [graph.node("MatMul", ["features", graph.weight("w", (4, 4), 1.0)], "product"), faded], "scores")
    with pytest.raises(EnvironmentFault, match=r"denormals.*100.00%"):
        check_alive("net", graph.model([Tensor("scores", "FP32", (4,))]), ROWS)


FLUSHED = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.set_denormal_as_zero", sys.argv[1])
session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
numpy.save(sys.argv[1], session.run(None, dict(numpy.load("inputs.npz")))[0])
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet-b2", "minilm"])
def test_flushing_denormals_changes_nothing(name: str, tmp_path: Path, made: Made) -> None:
    """In processes of their own, because the switch is thrown by a process's first session."""
    exported = made(name)
    (tmp_path / "model.onnx").write_bytes(exported.model)
    np.savez(tmp_path / "inputs.npz", **exported.example)
    for switch in ("0", "1"):
        subprocess.run([sys.executable, "-c", FLUSHED, switch], cwd=tmp_path, check=True, timeout=100)
    np.testing.assert_array_equal(np.load(tmp_path / "0.npy"), np.load(tmp_path / "1.npy"))
