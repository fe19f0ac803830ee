"""The convolutional nets: ResNet-50 and EfficientNet-B2, with random weights that keep their activations alive.

A net is drawn twice. As a probe it normalises each convolution by the batch at hand and gives its mean and variance; then these are
folded into weights and biases, as exporters fold a trained net's batch normalisation. Rule: every convolution that is followed by a
normalisation in the original goes through `convolution`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from serving.export.speed_nets.graph import (
    BIAS_DEVIATION,
    NUM_CALIBRATION,
    Floats,
    Net,
    NetBuilder,
    check_alive,
    random_values,
    run,
)
from serving.repository import CLASSIFICATION, Tensor

EPSILON = 1e-5  # of every batch normalisation in the original nets
IMAGE, SCORES = "image", Tensor("scores", "FP32", (1000,))


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


def convolution(graph: NetBuilder, layer: Convolution, source: str) -> str:
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


def plain_convolution(graph: NetBuilder, layer: Convolution, source: str) -> str:
    """Convolution and bias without normalisation, where the original has none."""
    weight = graph.weight(f"{layer.name}.weight", layer.weight_shape, layer.deviation)
    bias = graph.weight(f"{layer.name}.bias", (layer.channels_out,), BIAS_DEVIATION)
    return graph.node("Conv", [source, weight, bias], layer.name, **layer.attributes)


def mean_of_pixels(graph: NetBuilder, source: str, output: str) -> str:
    """[n, channels, h, w] -> [n, channels, 1, 1]: what PyTorch's exporter writes for an adaptive average pool of 1."""
    axes = graph.constant("axes.pixels", [-1, -2], np.int64)
    return graph.node("ReduceMean", [source, axes], output, keepdims=1)


def swish(graph: NetBuilder, source: str) -> str:
    gate = graph.node("Sigmoid", [source], f"{source}.sigmoid")
    return graph.node("Mul", [source, gate], f"{source}.swish")


def relu(graph: NetBuilder, source: str) -> str:
    return graph.node("Relu", [source], f"{source}.relu")


def _normalised(graph: NetBuilder, name: str, raw: str) -> str:
    axes = graph.constant("axes.channel", [0, 2, 3], np.int64)
    mean = graph.node("ReduceMean", [raw, axes], f"{name}.mean")
    centred = graph.node("Sub", [raw, mean], f"{name}.centred")
    square = graph.node("Mul", [centred, centred], f"{name}.square")
    variance = graph.node("ReduceMean", [square, axes], f"{name}.variance")
    graph.measured += [mean, variance]
    epsilon = graph.constant("epsilon", EPSILON, np.float32)
    deviation = graph.node("Sqrt", [graph.node("Add", [variance, epsilon], f"{name}.padded")], f"{name}.deviation")
    return graph.node("Div", [centred, deviation], name)


# -- ResNet-50 (He et al. 2015): the weight of a real photograph classifier, all convolutions -------------------------

# The stride of a stage is on its 3x3 convolution, as everybody has it now.

# Per stage: blocks, channels inside, stride of the first block
RESNET_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))


def _draw_resnet(graph: NetBuilder) -> None:
    x = relu(graph, convolution(graph, Convolution("stem", 3, 64, 7, 2), IMAGE))
    x = graph.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, (num_blocks, inside, first_stride) in enumerate(RESNET_STAGES):
        for block in range(num_blocks):
            x = _bottleneck(graph, f"stage{stage}.block{block}", x, width, inside, first_stride if block == 0 else 1)
            width = inside * 4
    features = graph.node("Flatten", [mean_of_pixels(graph, x, "average")], "features")
    graph.linear("classifier", features, width, SCORES.shape[0], output=SCORES.name)


def _bottleneck(graph: NetBuilder, name: str, source: str, width: int, inside: int, stride: int) -> str:
    x = relu(graph, convolution(graph, Convolution(f"{name}.reduce", width, inside), source))
    x = relu(graph, convolution(graph, Convolution(f"{name}.spatial", inside, inside, 3, stride), x))
    x = convolution(graph, Convolution(f"{name}.expand", inside, inside * 4), x)
    shortcut = source
    if width != inside * 4:
        shortcut = convolution(graph, Convolution(f"{name}.shortcut", width, inside * 4, 1, stride), source)
    return relu(graph, graph.node("Add", [x, shortcut], f"{name}.sum"))


# -- EfficientNet-B2 (Tan and Le 2019): many small layers, depthwise convolutions and gates, on 260x260 pixels --------

# A processor computes far less per value that it moves than in a ResNet, so precision pays less here. Swish is Sigmoid and Mul, as
# exported. Without normalisation by its own activations this very net was timed dead.

WIDTH, DEPTH = 1.1, 1.2  # of B2, beside B0
# Of B0, per stage: expansion, kernel, stride of the first block, channels out, blocks
EFFICIENTNET_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STEM, HEAD = 32, 1280  # channels of B0
SQUEEZE_RATIO = 0.25  # of a block's channels in


@dataclass(frozen=True, slots=True)
class InvertedBottleneck:
    """Widens, looks around per channel, weighs the channels, narrows."""

    name: str
    channels_in: int
    channels_out: int
    expansion: int
    kernel: int
    stride: int

    @property
    def inside(self) -> int:
        return self.channels_in * self.expansion


def channels(of_b0: int) -> int:
    """Widened, and rounded to eights, down by a tenth at most."""
    wanted = of_b0 * WIDTH
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8


def blocks() -> Iterator[InvertedBottleneck]:
    width = channels(STEM)
    for stage, (expansion, kernel, first_stride, of_b0, num_blocks) in enumerate(EFFICIENTNET_STAGES):
        for index in range(math.ceil(num_blocks * DEPTH)):
            stride = first_stride if index == 0 else 1
            yield InvertedBottleneck(f"stage{stage}.block{index}", width, channels(of_b0), expansion, kernel, stride)
            width = channels(of_b0)


def _draw_efficientnet(graph: NetBuilder) -> None:
    x = swish(graph, convolution(graph, Convolution("stem", 3, channels(STEM), 3, 2), IMAGE))
    width = channels(STEM)
    for block in blocks():
        x, width = _inverted_bottleneck(graph, block, x), block.channels_out
    x = swish(graph, convolution(graph, Convolution("head", width, channels(HEAD)), x))
    features = graph.node("Flatten", [mean_of_pixels(graph, x, "average")], "features")
    graph.linear("classifier", features, channels(HEAD), SCORES.shape[0], output=SCORES.name)


def _inverted_bottleneck(graph: NetBuilder, block: InvertedBottleneck, source: str) -> str:
    name, inside = block.name, block.inside
    x = source
    if block.expansion > 1:
        x = swish(graph, convolution(graph, Convolution(f"{name}.expand", block.channels_in, inside), x))
    depthwise = Convolution(f"{name}.depthwise", inside, inside, block.kernel, block.stride, num_groups=inside)
    x = swish(graph, convolution(graph, depthwise, x))
    x = _squeezed_and_excited(graph, name, x, inside, int(block.channels_in * SQUEEZE_RATIO))
    x = convolution(graph, Convolution(f"{name}.project", inside, block.channels_out), x)
    if block.stride == 1 and block.channels_in == block.channels_out:
        return graph.node("Add", [x, source], f"{name}.sum")
    return x


def _squeezed_and_excited(graph: NetBuilder, name: str, source: str, width: int, narrow: int) -> str:
    """Every channel times a number in 0..1 that depends on all channels' means."""
    x = mean_of_pixels(graph, source, f"{name}.squeezed")
    x = swish(graph, plain_convolution(graph, Convolution(f"{name}.narrow", width, narrow), x))
    x = plain_convolution(graph, Convolution(f"{name}.widen", narrow, width), x)
    gate = graph.node("Sigmoid", [x], f"{name}.gate")
    return graph.node("Mul", [source, gate], f"{name}.excited")


# -- the nets ---------------------------------------------------------------------------------------------------------


def _net(name: str, draw: Callable[[NetBuilder], None], num_pixels: int) -> Net:
    image = Tensor(IMAGE, "FP32", (3, num_pixels, num_pixels))
    build = partial(_calibrated, name, draw, image)
    return Net(name, build, partial(random_values, image), (image,), (SCORES,), CLASSIFICATION, max_batch_size=32)


def _calibrated(name: str, draw: Callable[[NetBuilder], None], image: Tensor, seed: int, opset: int) -> bytes:
    """The FP32 file of the net that `draw` draws, normalised by its activations on some images. Raises EnvironmentFault."""
    images = random_values(image, NUM_CALIBRATION, seed)
    probe = NetBuilder(name, [image], seed=seed, opset=opset)
    draw(probe)
    measured: list[Floats] = [values.reshape(-1) for values in run(probe.probe(), images, probe.measured)]
    layers = [mean.removesuffix(".mean") for mean in probe.measured[::2]]
    statistics = dict(zip(layers, zip(measured[::2], measured[1::2], strict=True), strict=True))
    final = NetBuilder(name, [image], seed=seed, opset=opset, statistics=statistics)
    draw(final)
    model = final.model([SCORES])
    check_alive(name, model, images)
    return model


RESNET50 = _net("resnet50", _draw_resnet, 224)
EFFICIENTNET_B2 = _net("efficientnet-b2", _draw_efficientnet, 260)
