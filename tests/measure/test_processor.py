"""What a processor is said to have, from made-up copies of /proc/cpuinfo."""

from __future__ import annotations

import pytest

from serving.measure.machine import has_bf16


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ("fpu avx512f avx512_vnni amx_bf16 amx_tile", True),
        ("fpu avx512f avx512_bf16", True),
        ("fpu avx512f avx512_vnni avx512_fp16", False),
        ("fpu avx2 bf16", False),
        ("", False),
    ],
)
def test_bf16_is_there_with_amx_or_with_avx512_bf16(flags: str, has: bool) -> None:
    assert has_bf16(f"processor\t: 0\nmodel name\t: Made Up amx_bf16\nflags\t\t: {flags}\n") == has


def test_a_machine_that_tells_nothing_has_no_bf16() -> None:
    assert not has_bf16("")
