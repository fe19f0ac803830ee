"""How many cores are ours? On made-up cgroup trees, of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving import cores
from serving.cores import cgroup_quota_cores, usable_cores, whole_cores
from serving.gateway.threads import Threads


def tree(root: Path, membership: str, files: dict[str, str]) -> Path:
    for name, content in {"proc/self/cgroup": membership, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


V2 = "0::/pod/container\n"
V1 = "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n"


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        pytest.param(V2, {"sys/fs/cgroup/pod/container/cpu.max": "150000 100000\n"}, 1.5, id="v2"),
        pytest.param(V2, {"sys/fs/cgroup/pod/container/cpu.max": "max 100000\n"}, None, id="v2 without a limit"),
        pytest.param(
            V2,
            {"sys/fs/cgroup/pod/container/cpu.max": "max 100000", "sys/fs/cgroup/pod/cpu.max": "300000 100000"},
            3.0,
            id="v2, the limit is the pod's",
        ),
        pytest.param(
            V2,
            {"sys/fs/cgroup/pod/container/cpu.max": "400000 100000", "sys/fs/cgroup/pod/cpu.max": "100000 50000"},
            2.0,
            id="v2, the smaller one counts",
        ),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5, id="v2 in a namespace of its own"),
        pytest.param(
            "0::/../other\n", {"sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0, id="v2, a path outside of the mount"
        ),
        pytest.param(
            V1,
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            2.5,
            id="v1",
        ),
        pytest.param(
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            1.0,
            id="v1, mounted at the container's own cgroup",
        ),
        pytest.param(
            V1,
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            None,
            id="v1 without a limit",
        ),
        pytest.param(
            "3:memory:/docker/abc\n", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000"}, None, id="no cpu controller"
        ),
        pytest.param(V2, {"sys/fs/cgroup/pod/container/cpu.max": "what 100000"}, None, id="not a number"),
        pytest.param(V2, {"sys/fs/cgroup/pod/container/cpu.max": "100000 0"}, None, id="no period"),
        pytest.param(V2, {}, None, id="no files"),
    ],
)
def test_the_quota(tmp_path: Path, membership: str, files: dict[str, str], cores: float | None) -> None:
    assert cgroup_quota_cores(tree(tmp_path, membership, files)) == cores


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota_cores(tmp_path) is None


@pytest.mark.parametrize(
    ("num_allowed", "quota_cores", "cores"),
    [(8, None, 8), (8, 2.0, 2), (8, 1.9, 1), (8, 0.1, 1), (2, 16.0, 2), (1, None, 1)],
)
def test_whole_cores_are_the_least_of_both_and_at_least_one(
    num_allowed: int, quota_cores: float | None, cores: int
) -> None:
    assert whole_cores(num_allowed, quota_cores) == cores


def test_affinity_counts() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_gateway_makes_no_more_threads_than_its_quota_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cgroup_quota_cores", lambda root: 1.5)
    threads = Threads()
    threads.stop()
    assert threads.num_threads == 1
