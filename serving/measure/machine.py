"""Which machine is this, or was something measured on? Processor, instruction sets, cores, cards, versions; nothing that names its owner.

`processor_key` names the instruction set that speeds in a record are measured with: one measured on another says nothing here.
Reads /proc, /sys and nvidia-smi; a fact that cannot be read is left out or named "unknown", never guessed. Rule: standard library only.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.cores import cgroup_quota_cores

MAX_CORES = 1_000_000  # more than any machine has: a mistake in a file


@dataclass(frozen=True, slots=True)
class Machine:
    """Of a load test: where the generator ran, and the server too if the gateway is on loopback."""

    processor: str
    instruction_sets: tuple[str, ...]
    num_cores: float  # that this process may use: affinity and cgroup limit
    system: str
    cards: tuple[str, ...] = ()  # names and driver, as nvidia-smi gives them

    def __post_init__(self) -> None:
        if not 0 <= self.num_cores <= MAX_CORES:
            raise ValueError(f"num_cores is 0 (nobody tells) or more, and at most {MAX_CORES}, not {self.num_cores}")


# Those that decide how fast FP32, BF16 and INT8 nets run; a long list of all flags would hide them.
TELLING = (
    *(
        "avx2",
        "fma",
        "avx512f",
        "avx_vnni",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
    ),
    *("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
)
PACKAGES = ("locust", "tandem-serving", "numpy")
CPUINFO = Path("/proc/cpuinfo")
# Of the key: (flag in /proc/cpuinfo, its name in the key), the most capable first. Only what changes the winner among variants is in
# it: INT8 gains from VNNI and AMX more than from plain AVX512. Model names and clock rates are not.
_KEYS = {
    "x86_64": (
        ("amx_int8", "amx_int8"),
        ("avx512_vnni", "avx512_vnni"),
        ("avx_vnni", "avx_vnni"),
        ("avx512f", "avx512"),
        ("avx2", "avx2"),
    ),
    "aarch64": (("i8mm", "i8mm"), ("asimddp", "asimddp"), ("asimd", "asimd")),
}
_WITH_VNNI = ("x86_64-amx_int8", "x86_64-avx512_vnni", "x86_64-avx_vnni")  # AMX comes with VNNI


def this_machine() -> Machine:
    text = _read(CPUINFO)
    return Machine(
        processor=processor_name(text),
        instruction_sets=instruction_sets(text),
        num_cores=num_cores(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cards=cards(),
    )


def head(machine: Machine, date: str, command: str, *what: str, others_ratio: float) -> str:
    """The first lines of what a bench prints: the machine, the command and what was measured, and how much other work there was."""
    sets = " ".join(machine.instruction_sets) or "unknown"
    lines = [
        f"{machine.processor} ({sets}), {machine.num_cores:g} cores, {machine.system}",
        f"{date}, {command}",
        *what,
        f"other work took {others_ratio:.0%} of the cores meanwhile",
    ]
    return "\n".join(lines)


def processor_name(cpuinfo: str) -> str:
    """The model's name on x86; on Arm, which gives none, implementer and part number."""
    facts = _facts(cpuinfo)
    if name := facts.get("model name"):
        return name
    if "CPU part" in facts:
        return f"{platform.machine()} implementer {facts.get('CPU implementer', '?')} part {facts['CPU part']}"
    return "unknown"


def instruction_sets(cpuinfo: str) -> tuple[str, ...]:
    flags = _flags(cpuinfo)
    return tuple(name for name in TELLING if name in flags)


def processor_key(cpuinfo: str | None = None, machine: str | None = None) -> str:
    """For example `x86_64-avx512_vnni`. The arguments stand in for /proc/cpuinfo and `uname -m`."""
    machine = platform.machine() if machine is None else machine
    flags = _flags(_read(CPUINFO) if cpuinfo is None else cpuinfo)
    table = _KEYS.get(machine, ())
    return f"{machine}-{next((name for flag, name in table if flag in flags), 'base')}"


def has_instructions(instructions: str, key: str | None = None) -> bool:
    """Whether this machine (or the one of that key) computes with "vnni"."""
    return instructions == "vnni" and (key or processor_key()) in _WITH_VNNI


def has_bf16(cpuinfo: str | None = None) -> bool:
    """Whether OpenVINO can really compute in BF16 here. Not part of the key: some with AVX512-VNNI have it, some do not."""
    return bool(_flags(_read(CPUINFO) if cpuinfo is None else cpuinfo) & {"amx_bf16", "avx512_bf16"})


def num_cores() -> float:
    """What this process may use: its affinity, or a cgroup's limit if that is lower."""
    available, quota = float(len(os.sched_getaffinity(0))), cgroup_quota_cores()
    return available if quota is None else min(available, quota)


def card_name() -> str:
    """The first card's, as its driver calls it; measurements on a card are known by it."""
    return next((card.partition(", driver ")[0] for card in cards()), "NVIDIA GPU")


def cards() -> tuple[str, ...]:
    """`NAME, driver VERSION, MEMORY` per card; empty where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    parts = [[cell.strip() for cell in line.split(",")] for line in found.stdout.splitlines() if line.strip()]
    return tuple(f"{name}, driver {driver}, {memory}" for name, driver, memory in parts)


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Of Python, and of those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package.removesuffix("-serving")] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _facts(cpuinfo: str) -> dict[str, str]:
    """The first processor's lines."""
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _flags(cpuinfo: str) -> frozenset[str]:
    facts = _facts(cpuinfo)
    return frozenset((facts.get("flags") or facts.get("Features") or "").split())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
