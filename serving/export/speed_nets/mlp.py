"""A perceptron of three layers, 1024-4096-4096-1000: as many weights as a ResNet-50 (25 million), each used once per row.

So one row is bound by how fast 100 MB of weights come out of memory, beyond any processor's cache, and a large batch by
arithmetic: the two ends between which every other net lies, and the case in which smaller weights alone already pay.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from serving.export.speed_nets.graph import BIAS_DEVIATION, Net, NetBuilder, check_alive, random_values
from serving.repository import CLASSIFICATION, Tensor

INPUT = Tensor("features", "FP32", (1024,))
OUTPUT = Tensor("scores", "FP32", (1000,))
HIDDEN = (4096, 4096)


def build(seed: int, opset: int) -> bytes:
    """The FP32 file. Raises EnvironmentFault where its activations turn out dead."""
    graph = NetBuilder("mlp", [INPUT], seed=seed, opset=opset)
    x, width = INPUT.name, INPUT.shape[0]
    for index, hidden in enumerate(HIDDEN):
        x, width = _layer(graph, f"layer{index}", x, width, hidden), hidden
    graph.linear(f"layer{len(HIDDEN)}", x, width, OUTPUT.shape[0], output=OUTPUT.name)
    model = graph.model([OUTPUT])
    check_alive("mlp", model, random_values(INPUT, 4, seed))
    return model


NET = Net("mlp", build, partial(random_values, INPUT), (INPUT,), (OUTPUT,), CLASSIFICATION, max_batch_size=64)


def _layer(graph: NetBuilder, name: str, source: str, width_in: int, width_out: int) -> str:
    weight = graph.weight(f"{name}.weight", (width_out, width_in), float(np.sqrt(2 / width_in)))  # He's, for ReLU
    bias = graph.weight(f"{name}.bias", (width_out,), BIAS_DEVIATION)
    return graph.node("Relu", [graph.node("Gemm", [source, weight, bias], name, transB=1)], f"{name}.relu")
