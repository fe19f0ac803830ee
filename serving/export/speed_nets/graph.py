"""An ONNX graph in the making, with random weights: written with onnx and NumPy alone, so that it can be made where no torch is.

A weight is a function of the seed and its own name: a net drawn twice has the same weights, whatever order it is drawn in.
What a layer looks like is for the nets; whether they live is for `alive`. Rule: nodes are what PyTorch's exporter writes,
because ONNX Runtime fuses by pattern, and a pattern that nobody exports would be timed for nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.errors import UserError
from serving.repository import Tensor

IR_VERSION = 10  # ONNX Runtime 1.19 in Triton 24.10 reads no later one
OPSETS = range(18, 22)  # 18: axes as inputs; 21: the last that ONNX Runtime 1.19 reads
SEED = 50

Floats = NDArray[np.float32]
Statistics = Mapping[str, tuple[Floats, Floats]]  # layer -> mean and variance of each channel

_TYPES = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}


class Graph:
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
        """The name of its output."""
        self._model.graph.node.append(
            helper.make_node(kind, inputs, [output], name=f"{kind.lower()}.{output}", **attributes)
        )
        return output

    def declare(self, tensor: Tensor) -> str:
        """States the shape of a value, as exporters do: some of ONNX Runtime's fusions want to know it."""
        self._model.graph.value_info.append(_declared(tensor))
        return tensor.name

    def constant(self, name: str, values: Any, kind: type[np.generic] | None = None) -> str:
        """A name that is there already stands for the same values, as exporters share them."""
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
        """The finished file. The graph is used up."""
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


def num_parameters(model: bytes) -> int:
    """Weights and biases: what a table of models calls its parameters. Integers are shapes and indices."""
    initializers = onnx.load_from_string(model).graph.initializer
    return sum(int(np.prod(values.dims)) for values in initializers if values.data_type == TensorProto.FLOAT)


def _declared(tensor: Tensor) -> onnx.ValueInfoProto:
    sizes = ["sequence" if size == -1 else size for size in tensor.shape]
    return helper.make_tensor_value_info(tensor.name, _TYPES[tensor.datatype], ["batch", *sizes])
