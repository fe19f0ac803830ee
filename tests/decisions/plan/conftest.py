"""Profiles as files, of a CPU and of a published card, for `tandem plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.decisions.profile import Phase, Settings, write_profile
from serving.measure.machine import Machine
from tests.decisions.plan.figures import profile, server

HALF = Machine("AMD EPYC", ("avx512_vnni", "avx512_bf16"), 2.0, "Linux")  # of a c7a.xlarge


@dataclass(frozen=True, slots=True)
class Files:
    cpu: Path
    gpu: Path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """INT8 on two cores at 900/s, and a T4 at 9,000/s that nobody here measured."""
    int8 = server("cpu", 900, settings=Settings(2, 1, 16, 200), cold_start=(Phase("process", 1.5), Phase("load", 0.5)))
    made = Files(tmp_path / "cpu.json", tmp_path / "gpu.json")
    write_profile(made.cpu, profile(int8, server("cpu", 700, variant="fp32"), machine=HALF))
    write_profile(made.gpu, profile(server("gpu", 9000), provenance="published", note="a paper"))
    return made
