"""Which instruction set does this machine compute with? Speed measured on one says nothing about another.

Only what changes the winner among variants is in the key: INT8 gains from VNNI and AMX more than from plain AVX512.
Model names and clock rates are deliberately not here. The tables are ordered: the first flag present names the
machine.
"""

from __future__ import annotations

import platform
from pathlib import Path

# (flag in /proc/cpuinfo, its name in the key), the most capable first
_X86_64 = (
    ("amx_int8", "amx_int8"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx_vnni", "avx_vnni"),
    ("avx512f", "avx512"),
    ("avx2", "avx2"),
)
_WITH_VNNI = ("x86_64-amx_int8", "x86_64-avx512_vnni", "x86_64-avx_vnni")  # who has AMX has VNNI
_AARCH64 = (("i8mm", "i8mm"), ("asimddp", "asimddp"), ("asimd", "asimd"))


def processor_key(cpuinfo: str | None = None, machine: str | None = None) -> str:
    """For example `x86_64-avx512_vnni`. The arguments stand in for /proc/cpuinfo and `uname -m`."""
    machine = platform.machine() if machine is None else machine
    flags = _flags(_cpuinfo() if cpuinfo is None else cpuinfo)
    table = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine, ())
    return f"{machine}-{next((name for flag, name in table if flag in flags), 'base')}"


def has(instructions: str, key: str | None = None) -> bool:
    """Whether this machine (or the one of that key) computes with "vnni"."""
    return instructions == "vnni" and (key or processor_key()) in _WITH_VNNI


def has_bf16(cpuinfo: str | None = None) -> bool:
    """Whether OpenVINO can really compute in BF16 here. Not part of the key: some with AVX512-VNNI have it, some do not."""
    return bool(_flags(_cpuinfo() if cpuinfo is None else cpuinfo) & {"amx_bf16", "avx512_bf16"})


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace") if path.is_file() else ""


def _flags(cpuinfo: str) -> frozenset[str]:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
