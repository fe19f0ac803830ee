"""What a profile of ONNX Runtime proves of a run: on which provider each node computed, and in which type its products did.

A session that was asked for FP16 on a card may compute parts of it in FP32 or on the processor, and answers all the same. Pure:
the events come from `worker.py`. Rule: what a profile does not show is not proven, and said so; TF32 is not in it, because its
values are FP32 outside the products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

_END = "_kernel_time"  # of a node's event: its name and this
# By their names in the graph that runs: ONNX Runtime fuses products with what stands around them.
PRODUCTS = frozenset(
    {
        *("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvTranspose"),
        *("MatMul", "FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "Gemm", "FusedGemm", "GemmFastGelu"),
        *("Attention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention", "Einsum"),
        *("LSTM", "GRU", "RNN"),
    }
)
INTEGER_PRODUCTS = frozenset(
    {
        *("QLinearConv", "ConvInteger", "QGemm", "QLinearMatMul", "QAttention"),
        *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"),
    }
)
FLOATS = {"float16": "FP16", "float": "FP32", "bfloat16": "BF16", "double": "FP64"}
TYPES = {"fp32": "float", "tf32": "float", "fp16": "float16", "bf16": "bfloat16"}  # precision -> type of its products
_SHAPE_SIZE = 64  # numbers: no shape has more dimensions; a batch of token ids does (guess, not measured)
_NUM_NAMED = 3  # in a sentence


@dataclass(frozen=True, slots=True)
class Kernel:
    """One node of the graph that ran. `types`: of its inputs and outputs, with how many numbers each has."""

    name: str
    operator: str
    provider: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def is_product(self) -> bool:
        return self.operator in PRODUCTS

    @property
    def type(self) -> str:
        """The type of its first floating-point input; "" where it has none."""
        return next((kind for kind, _ in self.inputs if kind in FLOATS), "")

    @property
    def is_about_shapes(self) -> bool:
        """A few whole numbers: ONNX Runtime computes shapes on the processor on purpose."""
        return all(kind not in FLOATS and size <= _SHAPE_SIZE for kind, size in (*self.inputs, *self.outputs))


def kernels(events: Iterable[Mapping[str, Any]]) -> tuple[Kernel, ...]:
    """Each node once, however often it ran. `events`: the list that the profile's file holds."""
    found = {}
    for event in events:
        name, told = str(event.get("name", "")), event.get("args", {})
        if event.get("cat") == "Node" and name.endswith(_END) and "provider" in told:
            sides = (_tensors(told.get(f"{side}_type_shape", [])) for side in ("input", "output"))
            kernel = Kernel(name.removesuffix(_END), told["op_name"], told["provider"], *sides)
            found[kernel.name, kernel.operator] = kernel
    return tuple(found.values())


def problems(ran: Sequence[Kernel], precision: str, provider: str, num_fp32_products: int = 0) -> list[str]:
    """Why this run does not prove that all of it computed on `provider` and its products in `precision`; nothing where it does.

    `num_fp32_products`: how many products the file itself leaves in FP32.
    """
    if not ran:
        return ["the profile holds no node: nothing is proven"]
    told = []
    elsewhere = [kernel for kernel in ran if kernel.provider != provider and not kernel.is_about_shapes]
    if elsewhere:
        others = " and ".join(sorted({kernel.provider for kernel in elsewhere}))
        told.append(f"{len(elsewhere)} of {len(ran)} nodes ran on {others}: {_named(elsewhere)}")
    wanted = TYPES[precision]
    products = [kernel for kernel in ran if kernel.is_product]
    wrong = [kernel for kernel in products if kernel.type != wanted]
    if not products:
        told.append("no convolution or matrix product is seen, so that its type is not proven")
    elif len(wrong) == len(products) or len(wrong) > (num_fp32_products if precision != "fp32" else 0):
        types = " and ".join(sorted({FLOATS.get(kernel.type, "whole numbers") for kernel in wrong}))
        told.append(
            f"{len(wrong)} of {len(products)} products computed in {types}, not {FLOATS[wanted]}: {_named(wrong)}"
        )
    return told


def summary(ran: Sequence[Kernel]) -> str:
    """`72 products: 70 in FP16, 2 in FP32; 210 nodes on CUDAExecutionProvider, 3 on CPUExecutionProvider`."""
    products = [FLOATS.get(kernel.type, "whole numbers") for kernel in ran if kernel.is_product]
    types = ", ".join(f"{products.count(kind)} in {kind}" for kind in sorted(set(products)))
    providers = [kernel.provider for kernel in ran]
    places = ", ".join(f"{providers.count(name)} nodes on {name}" for name in sorted(set(providers), reverse=True))
    return f"{len(products)} products{f': {types}' if types else ''}; {places}"


def dtypes(ran: Sequence[Kernel]) -> str:
    """Types that its products computed in, the most usual first: `INT8 14, FP32 1`, or `FP32`. Empty where no product is seen."""
    found = Counter(
        "INT8" if it.operator in INTEGER_PRODUCTS else FLOATS.get(it.type, "")
        for it in ran
        if it.is_product or it.operator in INTEGER_PRODUCTS
    )
    if not found or "" in found:
        return ""
    return next(iter(found)) if len(found) == 1 else ", ".join(f"{kind} {count}" for kind, count in found.most_common())


def _tensors(told: Sequence[Mapping[str, Sequence[int]]]) -> tuple[tuple[str, int], ...]:
    return tuple((kind, prod(shape)) for tensor in told for kind, shape in tensor.items())


def _named(found: Sequence[Kernel]) -> str:
    names = [f"{kernel.operator} {kernel.name!r}" for kernel in found[:_NUM_NAMED]]
    return ", ".join(names) + (" …" if len(found) > _NUM_NAMED else "")
