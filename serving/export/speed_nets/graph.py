"""Builds ONNX graphs with random weights, with onnx and NumPy alone, so that it works where no torch is.

A weight is a function of the seed and its own name: a net drawn twice has the same weights, whatever order it is drawn in.
What a layer looks like is for the nets. Rules: nodes are what PyTorch's exporter writes, because ONNX Runtime fuses by pattern, and a
pattern that nobody exports would be timed for nothing; a net that does not pass `check_alive` is not timed anywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.errors import EnvironmentFault, UserError
from serving.export import onnx_session
from serving.export.exported_model import Arrays
from serving.repository import Tensor

IR_VERSION = 10  # ONNX Runtime 1.19 in Triton 24.10 reads no later one
OPSETS = range(18, 22)  # 18: axes as inputs; 21: the last that ONNX Runtime 1.19 reads
SEED = 50

Floats = NDArray[np.float32]
Statistics = Mapping[str, tuple[Floats, Floats]]  # layer -> mean and variance of each channel

_TYPES = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}


class NetBuilder:
    """Nodes and weights. `statistics` None: a probe, whose layers normalise by the batch at hand and note it in `measured`."""

    def __init__(
        self, name: str, inputs: Sequence[Tensor], *, seed: int, opset: int, statistics: Statistics | None = None
    ) -> None:
        if opset not in OPSETS:
            raise UserError(f"{name} can be written in opset {OPSETS[0]} to {OPSETS[-1]}, not {opset}")
        self.statistics = statistics
        self.measured: list[str] = []
        self._seed = seed
        self._constants: set[str] = set()
        operators = helper.make_opsetid("", opset)
        self._model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="tandem", opset_import=[operators])
        self._model.graph.name = name
        self._model.graph.input.extend(_declared(tensor) for tensor in inputs)

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        self._model.graph.node.append(
            helper.make_node(kind, inputs, [output], name=f"{kind.lower()}.{output}", **attributes)
        )
        return output

    def declare(self, tensor: Tensor) -> str:
        """States the shape of a value, as exporters do: some of ONNX Runtime's fusions want to know it."""
        self._model.graph.value_info.append(_declared(tensor))
        return tensor.name

    def constant(self, name: str, values: Any, kind: type[np.generic] | None = None) -> str:
        """Adds a constant. A name that is there already stands for the same values, as exporters share them."""
        if name not in self._constants:
            self._constants.add(name)
            self._model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def random(self, name: str, shape: Sequence[int], deviation: float) -> Floats:
        """float32 [*shape], normal about 0; the same for the same seed and name."""
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        values = generator.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(deviation)
        return values

    def weight(self, name: str, shape: Sequence[int], deviation: float) -> str:
        return self.constant(name, self.random(name, shape, deviation))

    def linear(self, name: str, source: str, width_in: int, width_out: int, *, output: str | None = None) -> str:
        """[n, width_in] -> [n, width_out], as a whole layer at a net's end; keeps the scale of what comes in."""
        weight = self.weight(f"{name}.weight", (width_out, width_in), float(1 / np.sqrt(width_in)))
        bias = self.weight(f"{name}.bias", (width_out,), BIAS_DEVIATION)
        return self.node("Gemm", [source, weight, bias], output or name, transB=1)

    def model(self, outputs: Sequence[Tensor]) -> bytes:
        """Returns the finished file. The graph is used up."""
        self._model.graph.output.extend(_declared(tensor) for tensor in outputs)
        return self._finished()

    def probe(self) -> bytes:
        """A file whose outputs are what its layers measured: float32 [1, channels, 1, 1] each."""
        shape = [1, None, 1, 1]
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in self.measured]
        self._model.graph.output.extend(given)
        return self._finished()

    def _finished(self) -> bytes:
        file = bytes(self._model.SerializeToString(deterministic=True))
        self._model.Clear()  # a BERT-base holds 440 MB
        onnx.checker.check_model(file)
        return file


# Not zero, which optimisers may take away, and small beside activations of about 1, as in trained nets.
BIAS_DEVIATION = 0.02


def _declared(tensor: Tensor) -> onnx.ValueInfoProto:
    sizes = ["sequence" if size == -1 else size for size in tensor.shape]
    return helper.make_tensor_value_info(tensor.name, _TYPES[tensor.datatype], ["batch", *sizes])


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


def random_values(tensor: Tensor, count: int, seed: int, _length: int | None = None) -> Arrays:
    """float32 [count, *shape] in 0..1, as the load test sends them. `_length` is of text, and there is none."""
    return {tensor.name: np.random.default_rng(seed).random((count, *tensor.shape), dtype=np.float32)}


# -- does it compute with living numbers? -----------------------------------------------------------------------------

# Random weights alone let activations fade into denormals, which processors multiply slowly, or to one answer for every input: an
# untended EfficientNet-B2 ran at 2.7 images a second with an output deviation of 0. Denormals are counted in every value inside, because
# few of them reach the answer; ONNX Runtime's switch that flushes them would tell less, and only the first session of a process sets it.

DEVIATIONS = (
    0.01,
    100.0,
)  # of the first output. Normalised vectors have 0.05, scores 0.3..10; a dead net 0, a burst one 1e9
# How far rows differ, in deviations of all values. Living nets show 0.1 and more, one that answers all inputs alike 0.
MIN_ROWS_RATIO = 0.02
# Of one layer's values. A denormal costs some 150 cycles instead of one: more than this would show in the time.
MAX_DENORMAL_RATIO = 1e-4
NUM_ROWS_INSIDE = 2  # whose inner values are looked at: 60 million each in an EfficientNet
NUM_LAYERS_AT_ONCE = 64  # whose values are held in memory together


def check_alive(name: str, model: bytes, inputs: Arrays) -> None:
    """Raises EnvironmentFault for a dead net. `inputs`: different rows, [n, …] with n of 2 or more."""
    answers = run(model, inputs)[0].astype(np.float64)
    if not np.isfinite(answers).all():
        raise EnvironmentFault(f"the random {name} has burst: it answers NaN or infinity; take another seed")
    deviation = float(answers.std())
    if not DEVIATIONS[0] < deviation < DEVIATIONS[1]:
        raise EnvironmentFault(f"the random {name} is dead: its answers deviate by {deviation:g}; take another seed")
    if not float(answers.std(axis=0).mean()) > MIN_ROWS_RATIO * deviation:
        raise EnvironmentFault(f"the random {name} is dead: it answers every input alike; take another seed")
    layer, ratio = most_denormals(model, {key: values[:NUM_ROWS_INSIDE] for key, values in inputs.items()})
    if ratio > MAX_DENORMAL_RATIO:
        raise EnvironmentFault(
            f"the random {name} computes with denormals, which would be timed: {ratio:.2%} of {layer}; take another seed"
        )


def most_denormals(model: bytes, inputs: Arrays) -> tuple[str, float]:
    """(value, share of denormals in it), of the value inside the net that has most; ("", 0.0) if none has any."""
    proto = onnx.load_from_string(model)
    names = [output for node in proto.graph.node for output in node.output]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)  # ONNX Runtime infers the types
    session = onnx_session.opened(proto.SerializeToString())
    del proto
    worst = ("", 0.0)
    for start in range(0, len(names), NUM_LAYERS_AT_ONCE):
        chosen = names[start : start + NUM_LAYERS_AT_ONCE]
        for name, values in zip(chosen, session.run(chosen, dict(inputs)), strict=True):
            worst = max(worst, (name, denormal_ratio(values)), key=lambda found: found[1])
    return worst


def denormal_ratio(values: Floats) -> float:
    """0 for anything but FP32."""
    if values.dtype != np.float32 or not values.size:
        return 0.0
    magnitudes = np.abs(values)
    return float(np.count_nonzero((magnitudes > 0) & (magnitudes < np.finfo(np.float32).tiny)) / values.size)


def run(model: bytes, inputs: Arrays, outputs: Sequence[str] | None = None) -> list[Floats]:
    """Runs the file; returns the named outputs, or all."""
    return list(onnx_session.opened(model).run(None if outputs is None else list(outputs), dict(inputs)))
