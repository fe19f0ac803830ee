"""What a run of the search means: late counts from when a request was due, and a generator's lag may spoil a miss but never a hit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.errors import CannotMeasure
from loadtest.profile.load import LoadTarget, judge_run, open_run, run_s, tritons
from loadtest.progress import Progress
from loadtest.records import Load, Row, RunRecord

OBJECTIVE_S = 0.02
AIM = LoadTarget("http://127.0.0.1:1", "digits", "int8", "cpu", "binary", 1, OBJECTIVE_S, 4.0, 1.0, Path())
LOAD = Load(1.0, 4.0, 1, 1, "open", rate_rps=(100.0,), objective_s=OBJECTIVE_S)
RUN = RunRecord("searched", 100.0, 1, "runs/0.csv", 1, "2026-01-01T00:00:00", "done", num_scheduled=400)


def rows(
    latency_s: float = 0.005, lag_s: float = 0.0, *, num_slow: int = 0, slow_s: float = 0.5, error: str = ""
) -> list[Row]:
    """Five seconds at 100 a second; the slow ones are spread over the measured time."""
    made = []
    for number in range(500):
        is_slow = number >= 100 and (number - 100) % max(1, 400 // max(1, num_slow)) == 0 and num_slow > 0
        status = 503 if error else 200
        took_s = slow_s if is_slow else latency_s
        made.append(Row(number / 100, lag_s, took_s, status, 100, None, "int8", "cpu", "cpu", error))
    return made


def test_a_server_that_ended_missed_nothing() -> None:
    """A search of a Triton that was killed said `missed`, as if the rate had been too high."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(CannotMeasure, match=r"Triton.*100/s"):
        open_run(replace(AIM, triton_pid=ended.pid), 100.0, 0, Progress(), "")


def test_a_triton_that_was_started_again_is_another_one() -> None:
    """The run in which it crashed is void, and no `missed`."""
    aim = replace(AIM, triton_pid=os.getpid())
    others = tritons(aim, "in", 100.0)  # of other tests in this process
    found = []
    for _ in range(2):
        with subprocess.Popen(["tritonserver", "60"], executable=shutil.which("sleep")) as process:
            while not (ours := tritons(aim, "in", 100.0) - others):  # between fork and exec it has our name
                time.sleep(0.001)
            found.append(ours)
            process.kill()
    assert len(found[0]) == len(found[1]) == 1
    assert found[0] != found[1]
    assert tritons(AIM, "in", 100.0) == set()  # nobody said which one


def test_a_point_says_whether_the_generator_went_before_all_other_work() -> None:
    assert [judge_run(RUN, LOAD, AIM, rows(), said).point.is_real_time for said in (True, False, None)] == [
        True,
        False,
        None,
    ]


def test_a_run_in_time_is_met_and_counts_its_answers() -> None:
    found = judge_run(RUN, LOAD, AIM, rows())
    assert found.point.is_met
    assert found.point.void is None
    assert (found.point.num_due, found.point.num_late_or_lost) == (400, 0)
    assert found.point.throughput_rps == pytest.approx(100.0, rel=0.01)
    assert found.point.latency_p50_s == pytest.approx(0.005)
    assert found.point.latency_p99_s is None  # 400 answers do not tell


@pytest.mark.parametrize(("num_slow", "is_met"), [(4, True), (5, False)])
def test_one_in_a_hundred_may_be_late(num_slow: int, is_met: bool) -> None:
    found = judge_run(RUN, LOAD, AIM, rows(num_slow=num_slow))
    assert found.point.num_late_or_lost == num_slow
    assert found.point.is_met is is_met
    assert found.point.void is None


def test_what_was_due_and_never_came_is_lost() -> None:
    found = judge_run(replace(RUN, num_scheduled=404), LOAD, AIM, rows(num_slow=1))
    assert found.point.num_late_or_lost == 5
    assert not found.point.is_met


def test_a_lagging_generator_does_not_spoil_a_run_that_met_all_the_same() -> None:
    found = judge_run(RUN, LOAD, AIM, rows(latency_s=0.008, lag_s=0.003))
    assert found.point.is_met
    assert found.point.void is None


def test_a_run_that_missed_only_by_the_generators_lag_is_void() -> None:
    found = judge_run(RUN, LOAD, AIM, rows(latency_s=0.021, lag_s=0.003))
    assert not found.point.is_met
    assert "generator" in str(found.point.void)


def test_a_run_that_would_have_missed_anyway_is_missed_although_the_generator_lagged() -> None:
    found = judge_run(RUN, LOAD, AIM, rows(latency_s=0.100, lag_s=0.003))
    assert not found.point.is_met
    assert found.point.void is None


def test_a_generator_that_lags_by_a_quarter_of_the_objective_may_have_caused_the_miss() -> None:
    assert judge_run(RUN, LOAD, AIM, rows(latency_s=0.100, lag_s=0.006)).point.void is not None


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (replace(RUN, num_scheduled=500), "came to 400 of 500"),
        (replace(RUN, generator_cpu_ratio=0.97), "97% of a core"),
        (replace(RUN, is_reachable_after=False), "not ready after"),
        (replace(RUN, state="failed", reason="it broke"), "it broke"),
    ],
)
def test_what_measured_something_else_than_the_server_is_void(run: RunRecord, words: str) -> None:
    found = judge_run(run, LOAD, AIM, rows())
    assert words in str(found.point.void)
    assert not found.point.is_met


def test_receipts_of_another_variant_make_a_run_void() -> None:
    others = [row._replace(variant="fp32") for row in rows()]
    assert "receipts show fp32" in str(judge_run(RUN, LOAD, AIM, others).point.void)


def test_a_server_that_answers_nothing_missed_and_is_not_void() -> None:
    found = judge_run(RUN, LOAD, AIM, rows(error="overloaded"))
    assert found.point.void is None
    assert not found.point.is_met
    assert found.point.num_late_or_lost == 400
    assert found.point.latency_p50_s is None


def test_a_queue_that_grows_to_the_end_is_not_carried_although_nothing_was_late_yet() -> None:
    growing = [row._replace(latency_s=row.start_s * 0.19) for row in rows()]
    patient = replace(AIM, objective_s=1.0)
    found = judge_run(RUN, replace(LOAD, objective_s=1.0), patient, growing)
    assert found.point.num_late_or_lost == 0
    assert "queue grew" in str(found.growing)
    assert not found.point.is_met


@pytest.mark.parametrize(("rate_rps", "seconds"), [(1000.0, 4.0), (50.0, 4.0), (25.0, 8.0), (1.0, 16.0)])
def test_a_run_of_few_requests_is_made_longer_within_reason(rate_rps: float, seconds: float) -> None:
    assert run_s(rate_rps, 4.0) == seconds
