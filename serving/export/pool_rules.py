"""Which pool may run a precision at all? What is fast enough there is measured, not decided here.

Rule: a pool that may not run a variant is told an engine that no such server has, so that it cannot load there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from serving.repository import NOT_ALLOWED, PoolGate

TENSORRT = "tensorrt"
# (variant, pool) -> the engine that such a server lacks, and why the pool may not run it
NOT_ALLOWED_ON: Mapping[tuple[str, str], tuple[str, str]] = {
    ("fp16", "cpu"): ("cuda", "ONNX Runtime has few FP16 kernels for CPUs: it would run slower than FP32"),
    ("int8", "gpu"): (TENSORRT, "ONNX Runtime's CUDA provider has no INT8 kernels, only TensorRT has"),
    ("bf16", "gpu"): (TENSORRT, "OpenVINO computes it, on processors only; FP16 is what a GPU gets"),
}
_TENSORRT_ONLY = "made for TensorRT, whose integers processors compute otherwise"
_CPU_ONLY = "GPU providers have no kernels for it: a CPU model"
# precision -> the engines that compute it as what it is
_ENGINES = {
    "fp32": ("cpu", "openvino", "cuda"),
    "bf16": ("openvino",),
    "fp16": ("cuda",),
    "int8": ("cpu", "openvino"),
}


def refusal(variant: str, pool: str, needs: Set[str] = frozenset(), *, is_cpu_only: bool = False) -> PoolGate | None:
    """None where it may run. `needs`: of a file, as its candidate has them."""
    if TENSORRT in needs and pool == "cpu":
        return PoolGate(NOT_ALLOWED, "cuda", _TENSORRT_ONLY)
    if (variant, pool) in NOT_ALLOWED_ON and TENSORRT not in needs:
        return PoolGate(NOT_ALLOWED, *NOT_ALLOWED_ON[variant, pool])
    if pool == "gpu" and is_cpu_only:
        return PoolGate(NOT_ALLOWED, TENSORRT, _CPU_ONLY)
    return None


def engines(variant: str, needs: Set[str], *, is_cpu_only: bool) -> list[str]:
    """That it may be timed on; TensorRT's files are timed on none."""
    if TENSORRT in needs:
        return []
    return [engine for engine in _ENGINES[variant] if not (is_cpu_only and engine == "cuda")]
