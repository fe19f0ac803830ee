"""EfficientNet-B2 (Tan and Le 2019): many small layers, depthwise convolutions and gates, on 260x260 pixels.

A processor computes far less per value that it moves than in a ResNet, so precision pays less here. Swish is Sigmoid and Mul,
as exported. Random weights; see `convolution` for what keeps them alive: without that care this very net was timed dead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from serving.export.exported_model import Arrays
from serving.export.speed_nets.convolution import (
    Convolution,
    calibrated,
    convolution,
    mean_of_pixels,
    plain_convolution,
    swish,
)
from serving.export.speed_nets.graph import NUM_CALIBRATION, Graph, Net, random_values
from serving.repository import CLASSIFICATION, Tensor

INPUT = Tensor("image", "FP32", (3, 260, 260))
OUTPUT = Tensor("scores", "FP32", (1000,))
WIDTH, DEPTH = 1.1, 1.2  # of B2, beside B0
# Of B0, per stage: expansion, kernel, stride of the first block, channels out, blocks
STAGES = (
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
class Block:
    """Inverted bottleneck: widen, look around per channel, weigh the channels, narrow."""

    name: str
    channels_in: int
    channels_out: int
    expansion: int
    kernel: int
    stride: int

    @property
    def inside(self) -> int:
        return self.channels_in * self.expansion


def build(seed: int, opset: int) -> bytes:
    """The FP32 file. Raises EnvironmentFault where its activations turn out dead."""
    images = examples(NUM_CALIBRATION, seed)
    return calibrated("efficientnet-b2", _draw, [INPUT], [OUTPUT], images, seed=seed, opset=opset)


def examples(count: int, seed: int, _: int | None = None) -> Arrays:
    return random_values(INPUT, count, seed)


NET = Net("efficientnet-b2", build, examples, (INPUT,), (OUTPUT,), CLASSIFICATION, max_batch_size=32)


def channels(of_b0: int) -> int:
    """Widened, and rounded to eights, down by a tenth at most."""
    wanted = of_b0 * WIDTH
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8


def blocks() -> Iterator[Block]:
    width = channels(STEM)
    for stage, (expansion, kernel, first_stride, of_b0, num_blocks) in enumerate(STAGES):
        for index in range(math.ceil(num_blocks * DEPTH)):
            stride = first_stride if index == 0 else 1
            yield Block(f"stage{stage}.block{index}", width, channels(of_b0), expansion, kernel, stride)
            width = channels(of_b0)


def _draw(graph: Graph) -> None:
    x = swish(graph, convolution(graph, Convolution("stem", 3, channels(STEM), 3, 2), INPUT.name))
    width = channels(STEM)
    for block in blocks():
        x, width = _block(graph, block, x), block.channels_out
    x = swish(graph, convolution(graph, Convolution("head", width, channels(HEAD)), x))
    features = graph.node("Flatten", [mean_of_pixels(graph, x, "average")], "features")
    graph.linear("classifier", features, channels(HEAD), OUTPUT.shape[0], output=OUTPUT.name)


def _block(graph: Graph, block: Block, source: str) -> str:
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


def _squeezed_and_excited(graph: Graph, name: str, source: str, width: int, narrow: int) -> str:
    """Every channel times a number in 0..1 that depends on all channels' means."""
    x = mean_of_pixels(graph, source, f"{name}.squeezed")
    x = swish(graph, plain_convolution(graph, Convolution(f"{name}.narrow", width, narrow), x))
    x = plain_convolution(graph, Convolution(f"{name}.widen", narrow, width), x)
    gate = graph.node("Sigmoid", [x], f"{name}.gate")
    return graph.node("Mul", [source, gate], f"{name}.excited")
