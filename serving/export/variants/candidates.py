"""Which files of a precision may be made of an FP32 file? One after another, the most promising first.

Whether a candidate is any good is for `gates`, whether it pays for `speed`; the pipeline asks for the next one when it is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.variants import fp16, int8
from serving.export.variants.int8 import second_tries
from serving.export.variants.outcome import Candidate

PRECISIONS = ("fp32", "bf16", "fp16", "int8")


def candidates(
    precision: str,
    fp32: bytes,
    calibration: Arrays | None,
    *,
    second_try: bool = False,
    int8_range: str = "7bit",
    is_for_tensorrt: bool = False,
) -> Iterator[Candidate]:
    """Each is made when it is asked for. `calibration`: arrays [n, …] that the gate's data is not in.

    `second_try`: instead of the usual ones, those that leave the worst layers in FP32, for when the gate has refused them all.
    Only INT8 has any. `int8_range`: "7bit" is right on every processor, "full" needs VNNI.
    """
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
    if precision == "int8":
        make = second_tries if second_try else int8.candidates
        return make(fp32, calibration, weights=int8_range, is_for_tensorrt=is_for_tensorrt)
    if second_try:
        return iter(())
    if precision == "fp16":
        return fp16.candidates(fp32, calibration)
    how = "FP32 as exported" if precision == "fp32" else "FP32's file; the engine computes in BF16"
    return iter([Candidate(precision, fp32, how)])


def calibrates(fp32: bytes, precisions: Collection[str]) -> bool:
    """Whether making any of these looks at calibration data: static INT8 for its ranges, FP16 for values that would overflow."""
    return "fp16" in precisions or ("int8" in precisions and int8.is_static(fp32))
