"""What a graph's weights and operators say about it: which precision it is in already, and whether a GPU has kernels for it.

Decided by what the graph holds, never by a file's name. Rule: what is quantised or in FP16 already is served as it came.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from serving.export.sources.graphs.external_data import tensors
from serving.export.sources.graphs.onnx_model import nodes_of

ALL_PRECISIONS = ("fp32", "bf16", "fp16", "int8")
AS_IT_IS = ("fp32",)
ML_DOMAIN = "ai.onnx.ml"
_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# Operators whose names say nothing of it; all others of this kind have Quant, QLinear, Integer or NBits in them.
_QUANTISED = ("QGemm", "QAttention", "QMoE", "QOrderedMatMul", "MatMulFpQ4")


@dataclass(frozen=True, slots=True)
class Contents:
    """`already`: "quantised", "FP16" or "" for an FP32 graph."""

    already: str
    has_fp32_weights: bool
    is_cpu_only: bool

    @property
    def precisions(self) -> tuple[str, ...]:
        return AS_IT_IS if self.already or self.is_cpu_only or not self.has_fp32_weights else ALL_PRECISIONS


def contents(model: onnx.ModelProto) -> Contents:
    nodes = list(nodes_of(model.graph))
    weights = {tensor.data_type for tensor in tensors(model) if len(tensor.dims) > 0}
    values = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    casts = {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    is_half = any(kind in weights | values | casts for kind in _HALF)
    return Contents(
        already="quantised" if any(_is_quantised(node.op_type) for node in nodes) else "FP16" if is_half else "",
        has_fp32_weights=onnx.TensorProto.FLOAT in weights,
        is_cpu_only=any(node.domain == ML_DOMAIN for node in nodes) or onnx.TensorProto.STRING in values,
    )


def _is_quantised(op: str) -> bool:
    return op in _QUANTISED or any(sign in op for sign in ("Quant", "QLinear", "Integer", "NBits"))
