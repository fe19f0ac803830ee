"""Convolutions that keep their activations alive: each is followed by the normalisation that its own activations ask for.

A net is drawn twice. As a probe it normalises by the batch at hand and gives the mean and the variance of every convolution;
then these are folded into weights and biases, as exporters fold a trained net's batch normalisation. Rule: every
convolution of a net that is followed by a normalisation in the original goes through `convolution`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serving.export.exported_model import Arrays
from serving.export.speed_nets.graph import BIAS_DEVIATION, Floats, Graph, check_alive, run
from serving.repository import Tensor

EPSILON = 1e-5  # of every batch normalisation in the original nets


@dataclass(frozen=True, slots=True)
class Convolution:
    """`num_groups` = channels_in: depthwise. Padded by half the kernel, so that only strides shrink an image."""

    name: str
    channels_in: int
    channels_out: int
    kernel: int = 1
    stride: int = 1
    num_groups: int = 1

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.channels_out, self.channels_in // self.num_groups, self.kernel, self.kernel)

    @property
    def deviation(self) -> float:
        """He's: a layer of ReLUs gives back the scale it was given."""
        return float(np.sqrt(2 / np.prod(self.weight_shape[1:])))

    @property
    def attributes(self) -> dict[str, object]:
        return {
            "kernel_shape": [self.kernel] * 2,
            "strides": [self.stride] * 2,
            "pads": [self.kernel // 2] * 4,
            "group": self.num_groups,
        }


def convolution(graph: Graph, layer: Convolution, source: str) -> str:
    """Convolution and normalisation."""
    name = layer.name
    weight = graph.random(f"{name}.weight", layer.weight_shape, layer.deviation)
    if graph.statistics is None:
        raw = graph.node("Conv", [source, graph.constant(f"{name}.weight", weight)], f"{name}.raw", **layer.attributes)
        return _normalised(graph, name, raw)
    mean, variance = graph.statistics[name]
    scale = 1 / np.sqrt(variance + EPSILON)
    folded = graph.constant(f"{name}.weight", weight * scale.reshape(-1, 1, 1, 1))
    bias = graph.constant(f"{name}.bias", -mean * scale)
    return graph.node("Conv", [source, folded, bias], name, **layer.attributes)


def plain_convolution(graph: Graph, layer: Convolution, source: str) -> str:
    """Convolution and bias without normalisation, where the original has none."""
    weight = graph.weight(f"{layer.name}.weight", layer.weight_shape, layer.deviation)
    bias = graph.weight(f"{layer.name}.bias", (layer.channels_out,), BIAS_DEVIATION)
    return graph.node("Conv", [source, weight, bias], layer.name, **layer.attributes)


def mean_of_pixels(graph: Graph, source: str, output: str) -> str:
    """[n, channels, h, w] -> [n, channels, 1, 1]: what PyTorch's exporter writes for an adaptive average pool of 1."""
    axes = graph.constant("axes.pixels", [-1, -2], np.int64)
    return graph.node("ReduceMean", [source, axes], output, keepdims=1)


def swish(graph: Graph, source: str) -> str:
    gate = graph.node("Sigmoid", [source], f"{source}.sigmoid")
    return graph.node("Mul", [source, gate], f"{source}.swish")


def relu(graph: Graph, source: str) -> str:
    return graph.node("Relu", [source], f"{source}.relu")


def _normalised(graph: Graph, name: str, raw: str) -> str:
    axes = graph.constant("axes.channel", [0, 2, 3], np.int64)
    mean = graph.node("ReduceMean", [raw, axes], f"{name}.mean")
    centred = graph.node("Sub", [raw, mean], f"{name}.centred")
    square = graph.node("Mul", [centred, centred], f"{name}.square")
    variance = graph.node("ReduceMean", [square, axes], f"{name}.variance")
    graph.measured += [mean, variance]
    epsilon = graph.constant("epsilon", EPSILON, np.float32)
    deviation = graph.node("Sqrt", [graph.node("Add", [variance, epsilon], f"{name}.padded")], f"{name}.deviation")
    return graph.node("Div", [centred, deviation], name)


def calibrated(
    name: str,
    draw: Callable[[Graph], None],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    examples: Arrays,
    *,
    seed: int,
    opset: int,
) -> bytes:
    """The FP32 file of the net that `draw` draws, normalised by its activations on `examples`. Raises EnvironmentFault."""
    probe = Graph(name, inputs, seed=seed, opset=opset)
    draw(probe)
    measured: list[Floats] = [values.reshape(-1) for values in run(probe.probe(), examples, probe.measured)]
    layers = [mean.removesuffix(".mean") for mean in probe.measured[::2]]
    statistics = dict(zip(layers, zip(measured[::2], measured[1::2], strict=True), strict=True))
    final = Graph(name, inputs, seed=seed, opset=opset, statistics=statistics)
    draw(final)
    model = final.model(outputs)
    check_alive(name, model, examples)
    return model
