"""The gate refused INT8. Which files that leave the worst layers in FP32 are worth another try?

A tenth, a quarter and half of the layers stay FP32, the worst first. What a layer loses is measured in `losses`. Rule: each
candidate says in words how many layers stay, and which are the worst.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx

from serving.export.exported import Arrays
from serving.export.variants import quantiser
from serving.export.variants.candidate import Candidate
from serving.export.variants.int8 import (
    check_range,
    dynamic_settings,
    graph_of,
    needs,
    static_settings,
    tensorrt_settings,
    ways,
)
from serving.export.variants.losses import dynamic_losses, static_losses
from serving.export.variants.refusals import CalibrationMissing

_SHARES = (0.10, 0.25, 0.50)  # beyond half, what is left of the speed is not worth a file
_NUM_NAMED = 3
_GATES = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "Mul")


def candidates(
    fp32: bytes, calibration: Arrays | None, *, weights: str = "7bit", is_for_tensorrt: bool = False
) -> Iterator[Candidate]:
    check_range(weights)
    is_full_range = weights == "full"
    graph = graph_of(fp32)
    if is_for_tensorrt or ways(graph, calibration is not None)[0] == "static":
        if calibration is None:
            raise CalibrationMissing("a net of convolutions")
        yield from _static(
            fp32, calibration, (tensorrt_settings() if is_for_tensorrt else static_settings(is_full_range))[0]
        )
        return
    settings = dynamic_settings(graph, is_full_range)[0]
    for names, words in _worst(dynamic_losses(graph, calibration, is_full_range)):
        model = quantiser.dynamic(fp32, settings, names)
        yield Candidate("int8", model, f"{settings}, {words}", needs(settings))


def _static(fp32: bytes, calibration: Arrays, settings: quantiser.Static) -> Iterator[Candidate]:
    net = quantiser.prepared(fp32)
    losses = static_losses(net, quantiser.static(net, calibration, settings), calibration)
    for names, words in _worst(losses):
        model = quantiser.static(net, calibration, settings, names | _gates_behind(net, names))
        yield Candidate("int8", model, f"{settings}, {words}", needs(settings))


def _gates_behind(net: bytes, names: frozenset[str]) -> frozenset[str]:
    """What computes on a layer's answer value by value: quantised, it would still round what the layer gives."""
    nodes = onnx.load_from_string(net).graph.node
    answers = {name for node in nodes if node.name in names for name in node.output}
    return frozenset(node.name for node in nodes if node.op_type in _GATES and not answers.isdisjoint(node.input))


def _worst(losses: Mapping[str, float]) -> Iterator[tuple[frozenset[str], str]]:
    order = sorted(losses, key=lambda name: (-losses[name], name))
    counts = sorted({math.ceil(share * len(order)) for share in _SHARES})
    for count in counts:
        if 0 < count < len(order):
            named = ", ".join(order[: min(count, _NUM_NAMED)]) + (", …" if count > _NUM_NAMED else "")
            yield frozenset(order[:count]), f"{count} of {len(order)} layers left in FP32: {named}"
