"""`make bench` and `make prove` with everything real, once and briefly: that they run and what they write, never the values."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import Pool, digits, gateway, serves, triton, wait_until
from loadtest.bench.prove.overload import hurried
from loadtest.bench.prove.restarts import kill_stub, up
from loadtest.sending.sender import open_loop
from tests.local.harness import final_count

pytestmark = [pytest.mark.triton, pytest.mark.campaigns]
ROOT = Path(__file__).parents[3]


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
        f"{t}, {b}" for t in ("Triton direct", "floor", "yardstick", "gateway") for b in ("JSON", "binary")
    }
    for series in result["targets"].values():
        assert len(series["rate_rps"]) == len(series["latency_p50_s"]) == len(series["cpu_us_per_request"]) == 1
        assert min(series["rate_rps"] + series["latency_p50_s"]) > 0
    for ratios in result["ratios"].values():  # what is added is a difference: of one short round perhaps below 0
        assert all(spread["median"] > 0 for name, spread in ratios.items() if not name.endswith("_added_p50_ms"))
        assert {"gateway_added_p50_ms", "yardstick_added_p50_ms"} < ratios.keys()
    assert_compute(result["compute"])
    assert len(result["verdicts"]) == 11
    assert all(verdict["name"] in done.stdout for verdict in result["verdicts"])


@pytest.mark.skipif(shutil.which("wrk") is None, reason="it needs wrk: apt-get install wrk")
def test_a_quick_look_at_connections_measures_both(tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    command = [sys.executable, "-m", "loadtest.bench.connections", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert 1 < result["idle_kb"] < 100
    assert min(result["p99_beside_s"] + result["p99_alone_s"]) > 0
    assert len(result["verdicts"]) == 2


def assert_compute(compute: dict[str, Any]) -> None:
    assert compute["engine"].startswith("ONNX Runtime ")
    assert compute["num_threads"] >= 1
    assert min(compute["served_images_per_s"] + compute["in_process_images_per_s"]) > 0


@pytest.mark.thorough
def test_a_stub_that_is_killed_under_load_gets_its_verdicts(tmp_path: Path) -> None:
    with up(tmp_path, 0) as here:
        verdicts = kill_stub(here, "stub")
    assert [verdict.name.partition(": ")[0] for verdict in verdicts] == ["stub"] * 3
    recovered, longest, wrong = verdicts
    assert recovered.value is not None  # it came back; how soon is for `make prove`
    assert longest.value is not None
    assert longest.value > 0
    assert (wrong.value, wrong.note.split()[1]) == (0, "answered,"), wrong.note


@pytest.mark.thorough
def test_a_part_of_make_prove_runs_alone_and_writes_its_verdicts(tmp_path: Path) -> None:
    """The one part whose values no busy machine changes, because requests come one by one and prices decide."""
    file = tmp_path / "prove.json"
    command = [sys.executable, "-m", "loadtest.bench.prove", "--only", "crossover", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["machine"]["processor"] in done.stdout
    assert result["not_measured"] == []
    assert [verdict["outcome"] for verdict in result["verdicts"]] == ["met"] * 4
    assert all(verdict["name"] in done.stdout for verdict in result["verdicts"])


def test_a_load_beyond_what_an_emulated_pool_can_do_is_measured_and_refused(tmp_path: Path) -> None:
    pool = Pool("emulated-cpu", ((1, 0.02), (8, 0.08), (32, 0.32)))
    with triton(pool, tmp_path / "cpu") as server, gateway({pool: server.url}, tmp_path) as here:
        wait_until(lambda: serves(here, pool), "the pool is seen")
        before = server.spent()
        load = open_loop([hurried(here, digits(), 0.25)], schedule(Arrivals("poisson", 300.0), 1.0, seed=0))
        final_count(lambda: server.spent().num_requests)
        spent = server.spent().since(before)
    assert load.shots
    assert all(shot.is_answered or shot.is_honest for shot in load.shots)
    answers = [shot for shot in load.shots if shot.is_answered]
    assert {(shot.pool, shot.reason) for shot in answers} == {(pool.name, "only_pool")}
    assert any(shot.is_refused and shot.retry_after_ms for shot in load.shots)
    assert len(answers) <= spent.num_requests <= len(load.shots)
    assert spent.waited_ratio(pool) > 0
