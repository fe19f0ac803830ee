"""Options of ONNX Runtime's CUDA provider, as tandem.yaml and `tandem triton` take them. Whether the provider that is installed has them is
for the backend to say, which looks into its library (`ort_session.py`).

Rule: no default but the provider's own until a card has shown that another wins and never loses; none has (`docs/engines.md`).
`use_tf32` is none of these, because the variant says it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.documents.reader import Document
from serving.errors import UserError


def _switch(what: str, measured: str = "Not measured yet.") -> bool | None:
    field: bool | None = Field(default=None, description=f"{what} {measured} Unset: the provider's own.")
    return field


class CudaOptions(BaseModel):
    """Options of ONNX Runtime's CUDA provider. What is not set stays the provider's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cudnn_conv_algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] | None = Field(
        default=None,
        description="How cuDNN's algorithm for a convolution is found. With EXHAUSTIVE the first run of a new batch size tries them all. "
        "HEURISTIC's runs are as fast, and DEFAULT's 2.3 to 2.7 times as slow (ResNet-50, an H200 and an H100). "
        "Unset: the provider's own, EXHAUSTIVE.",
    )
    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] | None = Field(
        default=None,
        description="By how much the card's memory arena grows. Not measured yet. Unset: the provider's own, kNextPowerOfTwo.",
    )
    gpu_mem_limit: int | None = Field(
        default=None,
        gt=0,
        description="Most bytes of the card that one model's arena may take; a convolutional net with it has one session for all sizes of "
        "batches. Unset: no limit.",
    )
    sdpa_kernel: int | None = Field(
        default=None,
        ge=0,
        le=31,
        description="Kernels that may compute attention, added up: flash 1, memory-efficient 2, TensorRT's 4, cuDNN's 8, plain 16. "
        "On an H100 1, 2, 8, 16 and the provider's own choice differed by up to 8 % (MiniLM, BERT-base, FP16). Unset: that choice.",
    )
    enable_cudnn: bool | None = Field(
        default=None,
        description="Whether cuDNN is used. With false, nodes that have a kernel of ONNX Runtime's own are computed by that, and others "
        "fail. Not measured yet. Unset: the provider's own, yes.",
    )
    prefer_nhwc: bool | None = _switch(
        "Whether images are computed with their channels last.",
        "On an H200 ResNet-50 in FP16 gains 13 to 28 % by it, and in FP32 loses 5 to 12 %.",
    )
    fuse_conv_bias: bool | None = _switch(
        "Whether a convolution and its bias are one kernel.",
        "On an H200 ResNet-50 in FP32 gains 2 to 6 % by it; in FP16 cuDNN has no such kernel, and every run fails.",
    )
    cudnn_conv_use_max_workspace: bool | None = _switch(
        "Whether a convolution may take all the memory that it asks for."
    )
    cudnn_conv1d_pad_to_nc1d: bool | None = _switch("Whether one-dimensional convolutions are padded as [n, c, 1, d].")
    do_copy_in_default_stream: bool | None = _switch("Whether copies wait for the default stream.")
    use_ep_level_unified_stream: bool | None = _switch(
        "Whether all of a session's work goes into one stream.", "On an H200 MiniLM gains 0 to 3 % by it."
    )
    tunable_op_enable: bool | None = _switch("Whether kernels that were tuned before are used.")
    tunable_op_tuning_enable: bool | None = _switch("Whether kernels are tuned while they run.")
    enable_cuda_graph: bool | None = Field(
        default=None,
        description="Whether the work of a batch is captured once for each size of `batch_buckets` and launched as one graph. Needs "
        "`batch_buckets`. On an H200 one text runs 2 to 2.8 times as fast so, and 32 images up to 10 % slower. Unset: no.",
    )

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(name, value) as the provider takes them, of those that are set."""
        values = self.model_dump(exclude_none=True)
        return tuple((name, str(int(value) if isinstance(value, bool) else value)) for name, value in values.items())


def cuda_options(given: Iterable[str], option: str = "--cuda-option") -> tuple[tuple[str, str], ...]:
    """Words of the form NAME=VALUE as (name, value). Raises UserError, for an unknown name with the nearest."""
    values = {}
    for one in given:
        name, has_value, value = one.partition("=")
        if not has_value:
            raise UserError(f"{option} {one}: '{one}' is not of the form NAME=VALUE")
        values[name] = value
    return Document(option, values).values(CudaOptions, strict=False).pairs()
