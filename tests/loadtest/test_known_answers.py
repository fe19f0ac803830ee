"""Real Locust against a real server that does what it is told: what comes out is known beforehand.

Bounds are wide because machines are busy; what they tell apart is wider: a stall of a second that shows, or does not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest import records
from loadtest.arrivals import schedule
from loadtest.one_run import LOCUSTFILE
from loadtest.processes import ROOT, running
from loadtest.records import ArmRecord, Load, RunRecord
from loadtest.report.build import summarise_run
from loadtest.report.summaries import RunSummary
from loadtest.stack import START_S, answers
from serving.ports import free_ports

pytestmark = pytest.mark.slow
STALL_S = 1.0
ARM = ArmRecord("quick", "fp32", "cpu")


@contextmanager
def quick_server(folder: Path, stall_s: float = 0.0) -> Iterator[str]:
    """Stands still for so long, 0.7 s after its first inference."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.quick_server", "--port", str(port), "--stall", "0.7", str(stall_s)]
    with running(command, folder / "server.log", lambda: answers(f"127.0.0.1:{port}", "/v2"), START_S):
        yield f"http://127.0.0.1:{port}"


def generator(url: str, rows: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--host", url]
    return subprocess.Popen(
        [*command, "--loglevel", "ERROR", "--rows", str(rows), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )


def summary(rows: Path, load: Load) -> RunSummary:
    num_due = None
    if load.kind == "open":
        num_due = sum(1 for at in schedule(load.at(load.rate_rps[0]), load.end_s, 1) if at >= load.warmup_s)
    run = RunRecord(ARM.name, load.points[0], 1, rows.name, 1, "", "done", num_scheduled=num_due)
    return summarise_run(run, ARM, load, records.read_rows(rows))


@pytest.mark.thorough
def test_a_stall_of_a_second_is_in_the_tail_of_an_open_loop_and_not_in_that_of_a_closed_one(tmp_path: Path) -> None:
    """At a constant rate for 3 s those that are due in the stall wait for what is left of it: evenly from 1 s to 0. So p99 is 1 s less 1 % of
    3 s, and p90 1 s less 10 % of 3 s. A closed loop of one user asks once meanwhile, among hundreds: one slow request."""
    rows = tmp_path / "open.csv"
    with quick_server(tmp_path, STALL_S) as url:
        options = ("--rate", "400", "--arrivals", "constant", "--measure", "3")
        assert generator(url, rows, *options).wait(60) == 0
    load = Load(0.0, 3.0, 1, 1, kind="open", rate_rps=(400.0,), arrivals="constant", objective_s=60.0)
    corrected = summary(rows, load)
    assert corrected.void is None
    assert corrected.latency_p99_s == pytest.approx(STALL_S - 0.01 * 3, abs=0.15)
    assert corrected.latency_p90_s == pytest.approx(STALL_S - 0.10 * 3, abs=0.15)
    rows = tmp_path / "closed.csv"
    with quick_server(tmp_path, STALL_S) as url:
        assert generator(url, rows, "--users", "1", "--measure", "2").wait(60) == 0
    hidden = summary(rows, Load(0.0, 2.0, 1, 1, users=(1,)))
    assert max(row.latency_s for row in records.read_rows(rows)) > 0.9 * STALL_S
    assert hidden.latency_p90_s is not None
    assert hidden.latency_p90_s < STALL_S / 4


@pytest.mark.thorough
def test_a_generator_that_is_stopped_again_and_again_voids_its_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with quick_server(tmp_path) as url:
        throttled = generator(url, rows, "--rate", "60", "--measure", "2")
        time.sleep(1.0)  # Python starts
        with contextlib.suppress(ProcessLookupError):
            while throttled.poll() is None:
                throttled.send_signal(signal.SIGSTOP)
                time.sleep(0.2)
                throttled.send_signal(signal.SIGCONT)
                time.sleep(0.3)
        assert throttled.wait(60) == 0
    load = Load(0.0, 2.0, 1, 1, kind="open", rate_rps=(60.0,), objective_s=0.5)
    void = summary(rows, load).void
    assert void is not None
    assert re.match("the generator .*5% .*500 ms", void)
    assert summary(rows, Load(0.0, 2.0, 1, 1, kind="open", rate_rps=(60.0,), objective_s=60.0)).void is None
