"""How many processor cores may this process really use?

The least of what the scheduler allows (affinity) and what every cgroup above us allows (quota), version 1 and 2. Reading
is kept apart from counting, so that both are tested on a made-up tree. Rule: whoever makes a thread for each core counts here;
os.cpu_count() is wrong in a container: it counts the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Whole cores of this process, at least 1. Half a core more is not another thread: it would only be throttled."""
    return whole_cores(len(os.sched_getaffinity(0)), cgroup_quota_cores(root))


def whole_cores(num_allowed: int, quota_cores: float | None) -> int:
    cores = float(num_allowed) if quota_cores is None else min(float(num_allowed), quota_cores)
    return max(1, int(cores))


def cgroup_quota_cores(root: Path = Path("/")) -> float | None:
    """The smallest quota, in cores, of the cgroups that this process is in; None where there is no limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            quotas += _walk(root / "sys/fs/cgroup", path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in ("sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"):
                quotas += _walk(root / mount, path, _quota_v1)
    return min(quotas, default=None)


def _walk(mount: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """The quotas of a cgroup and of all above it. In a container the path may lie outside of what is mounted."""
    folders = [PurePosixPath(path), *PurePosixPath(path).parents] if path.startswith("/") else []
    places = [mount / str(folder).lstrip("/") for folder in folders if ".." not in folder.parts]
    return [quota for place in [*places, mount] if (quota := read(place)) is not None]


def _quota_v2(folder: Path) -> float | None:
    """`cpu.max` is `QUOTA PERIOD` in microseconds, QUOTA may be `max`."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    """`cpu.cfs_quota_us` is -1 without a limit."""
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
