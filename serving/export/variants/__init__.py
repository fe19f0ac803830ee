"""How an FP32 ONNX file becomes FP16, BF16, TF32 or INT8: candidates one after another, the most promising first.

Inputs and outputs stay FP32, so that clients never see the precision. Whether a candidate is any good, and whether it pays, is
for `gates` and `speed`; the pipeline asks for the next one where it is not. Rule: what leaves here loads in old servers:
opset as it came, IR version at most 10, one file, and no traces of the machine that made it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.variants import fp16, int8
from serving.export.variants.attempts import Attempts
from serving.export.variants.candidate import Candidate
from serving.repository import PRECISIONS


def candidates(
    precision: str,
    fp32: bytes,
    calibration: Arrays | None,
    *,
    second_try: bool = False,
    int8_range: str = "7bit",
    is_for_tensorrt: bool = False,
    attempts: Attempts | None = None,
    fuses: bool = False,
) -> Iterator[Candidate]:
    """Each is made when it is asked for. `calibration`: arrays [n, …] that the gate's data is not in.

    `second_try`: instead of the usual ones, those that leave the worst layers in FP32, for when the gate has refused them all.
    Only INT8 has any. `int8_range`: "7bit" is right on every processor, "full" needs VNNI. `attempts`: which of INT8's were tried.
    `fuses`: FP16 is also made of the net with ONNX Runtime's own operators, and that one comes first.
    """
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
    if precision == "int8":
        make = int8.second_tries if second_try else int8.candidates
        return make(fp32, calibration, weights=int8_range, is_for_tensorrt=is_for_tensorrt, attempts=attempts)
    if second_try:
        return iter(())
    if precision == "fp16":
        return fp16.candidates(fp32, calibration, fuses=fuses)
    how = "FP32 as exported" if precision == "fp32" else f"FP32's file; the engine computes in {precision.upper()}"
    return iter([Candidate(precision, fp32, how)])


def calibrates(fp32: bytes, precisions: Collection[str]) -> bool:
    """Whether making any of these looks at calibration data: static INT8 for its ranges, FP16 for values that would overflow."""
    return "fp16" in precisions or ("int8" in precisions and int8.is_static(fp32))
