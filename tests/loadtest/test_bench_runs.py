"""`make bench` and `make prove` with everything real, once and briefly: that they run and what they write, never the values."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.prove.embedded import kill_stub, up

pytestmark = pytest.mark.triton
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("wrk") is None, reason="make bench needs wrk: apt-get install wrk")
def test_a_quick_bench_measures_everything_once(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    command = [sys.executable, "-m", "loadtest.bench.gateway", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["version"] == 1
    assert result["machine"]["processor"] in done.stdout
    assert result["date"] in done.stdout
    assert set(result["targets"]) == {
        f"{t}, {b}" for t in ("Triton direct", "yardstick", "gateway") for b in ("JSON", "binary")
    }
    for series in result["targets"].values():
        assert len(series["rate_rps"]) == len(series["latency_p50_s"]) == len(series["cpu_us_per_request"]) == 1
        assert min(series["rate_rps"] + series["latency_p50_s"]) > 0
    assert all(spread["median"] > 0 for ratios in result["ratios"].values() for spread in ratios.values())
    assert_compute(result["compute"])
    assert len(result["verdicts"]) == 5
    assert all(verdict["name"] in done.stdout for verdict in result["verdicts"])


def assert_compute(compute: dict[str, Any]) -> None:
    assert compute["engine"].startswith("ONNX Runtime ")
    assert compute["num_threads"] >= 1
    assert min(compute["served_images_per_s"] + compute["in_process_images_per_s"]) > 0


def test_a_stub_that_is_killed_under_load_gets_its_verdicts(tmp_path: Path) -> None:
    with up(tmp_path, 0) as here:
        verdicts = kill_stub(here, "stub")
    assert [verdict.name.partition(": ")[0] for verdict in verdicts] == ["stub"] * 3
    recovered, longest, wrong = verdicts
    assert recovered.value is not None  # it came back; how soon is for `make prove`
    assert longest.value is not None
    assert longest.value > 0
    assert (wrong.value, wrong.note.split()[1]) == (0, "answered,"), wrong.note
