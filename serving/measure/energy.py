"""How many joules have this machine's processor and its first card taken, by their own counters (RAPL, NVML)?

Counters run on and begin anew at some time, so that only what they grow by means something. Rule: what may not be read is no meter.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

RAPL = Path("/sys/class/powercap")
Counter = Callable[[], float]  # joules; raises OSError or ValueError where it cannot be read any more


def rapl_files(folder: Path) -> tuple[Path, ...]:
    """Energy counters of whole processor packages, where they may be read."""
    found = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        with suppress(OSError):
            if (zone / "name").read_text().startswith("package"):
                int((zone / "energy_uj").read_text())
                found.append(zone / "energy_uj")
    return tuple(found)


def joules(files: Sequence[Path]) -> float:
    return sum(int(file.read_text()) for file in files) / 1e6


def of_processor() -> Counter | None:
    """All of it, whoever works there."""
    files = rapl_files(RAPL)
    return (lambda: joules(files)) if files else None


def of_card() -> Counter | None:
    """The first card's own counter, which begins with its driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # NVML's errors have no root of their own where it is not installed
        return None

    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except Exception as error:  # likewise
            raise OSError(str(error)) from None

    return read
