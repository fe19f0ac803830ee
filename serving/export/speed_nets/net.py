"""What is told of an untrained net: its name, what goes in and comes out, and how it is built.

The nets themselves are in the modules named after them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from serving.export.exported_model import Arrays
from serving.repository import Tensor

NUM_CALIBRATION = 4  # images: at least 4 x 7 x 7 values per channel, enough for a mean and a deviation


@dataclass(frozen=True, slots=True)
class Net:
    """`build(seed, opset)` gives the FP32 file, proven alive. `examples(count, seed, length)` gives valid inputs, [count, …]."""

    model: str  # its public name
    build: Callable[[int, int], bytes]
    examples: Callable[[int, int, int | None], Arrays]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    task: str
    max_batch_size: int
    num_tokens: int | None = None  # of the examples; None: it takes no text


def random_values(tensor: Tensor, count: int, seed: int) -> Arrays:
    """float32 [count, *shape] in 0..1, as the load test sends them."""
    return {tensor.name: np.random.default_rng(seed).random((count, *tensor.shape), dtype=np.float32)}
