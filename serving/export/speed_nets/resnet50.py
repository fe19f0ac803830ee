"""ResNet-50 (He et al. 2015): the weight of a real photograph classifier, all convolutions.

The stride of a stage is on its 3x3 convolution, as everybody has it now. Random weights; see `convolution` for what keeps
them alive.
"""

from __future__ import annotations

from serving.export.exported_model import Arrays
from serving.export.speed_nets.convolution import Convolution, calibrated, convolution, mean_of_pixels, relu
from serving.export.speed_nets.graph import NUM_CALIBRATION, Graph, Net, random_values
from serving.repository import CLASSIFICATION, Tensor

INPUT = Tensor("image", "FP32", (3, 224, 224))
OUTPUT = Tensor("scores", "FP32", (1000,))
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, channels inside, stride of the first block


def build(seed: int, opset: int) -> bytes:
    """The FP32 file. Raises EnvironmentFault where its activations turn out dead."""
    images = examples(NUM_CALIBRATION, seed)
    return calibrated("resnet50", _draw, [INPUT], [OUTPUT], images, seed=seed, opset=opset)


def examples(count: int, seed: int, _: int | None = None) -> Arrays:
    return random_values(INPUT, count, seed)


NET = Net("resnet50", build, examples, (INPUT,), (OUTPUT,), CLASSIFICATION, max_batch_size=32)


def _draw(graph: Graph) -> None:
    x = relu(graph, convolution(graph, Convolution("stem", 3, 64, 7, 2), INPUT.name))
    x = graph.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, (num_blocks, inside, first_stride) in enumerate(STAGES):
        for block in range(num_blocks):
            x = _block(graph, f"stage{stage}.block{block}", x, width, inside, first_stride if block == 0 else 1)
            width = inside * 4
    features = graph.node("Flatten", [mean_of_pixels(graph, x, "average")], "features")
    graph.linear("classifier", features, width, OUTPUT.shape[0], output=OUTPUT.name)


def _block(graph: Graph, name: str, source: str, width: int, inside: int, stride: int) -> str:
    x = relu(graph, convolution(graph, Convolution(f"{name}.reduce", width, inside), source))
    x = relu(graph, convolution(graph, Convolution(f"{name}.spatial", inside, inside, 3, stride), x))
    x = convolution(graph, Convolution(f"{name}.expand", inside, inside * 4), x)
    shortcut = source
    if width != inside * 4:
        shortcut = convolution(graph, Convolution(f"{name}.shortcut", width, inside * 4, 1, stride), source)
    return relu(graph, graph.node("Add", [x, shortcut], f"{name}.sum"))
