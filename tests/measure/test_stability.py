"""A run that drifts is noticed with its reason, and honest noise is not taken for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from loadtest.records import Load, Row
from loadtest.validity import unstable_reason
from serving.measure.stability import MIN_REQUESTS, drifting_reason, growing_reason
from tests.loadtest import rows as make

Times = npt.NDArray[np.float64]
OPEN = Load(1.0, 10.0, 1, 7, kind="open", rate_rps=(100.0,), objective_s=1.0)
CLOSED = Load(1.0, 10.0, 1, 7, users=(1,))


def noise(num: int, seed: int) -> Times:
    return 0.01 * np.exp(np.random.default_rng(seed).normal(0, 0.4, num))


def one_server(num: int, busy_ratio: float, seed: int) -> tuple[Times, Times]:
    """(due_s, latency_s) of Poisson arrivals at one server with lognormal service, 100 a second, after a tenth of warm-up."""
    random = np.random.default_rng(seed)
    total = num + num // 10
    gaps_s, service_s = random.exponential(0.01, total), 0.01 * busy_ratio * random.lognormal(-0.125, 0.5, total)
    free = np.cumsum(np.concatenate([[0.0], service_s[:-1] - gaps_s[1:]]))
    waited_s = free - np.minimum.accumulate(np.minimum(free, 0))  # Lindley
    return gaps_s.cumsum()[-num:], (waited_s + service_s)[-num:]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (lambda n: np.where(np.arange(n) < n / 5, 3.0, 1.0), "the rest: the warm-up was not over"),
        (lambda n: np.where(np.arange(n) < n / 3, 2.0, 1.0), "its first third was 2."),
        (lambda n: np.linspace(1, 2, n), "it got slower: its last third took 1."),
        (lambda n: np.linspace(2, 1, n), "it got faster: its first third took 1."),
        (lambda n: np.where(abs(np.arange(n) / n - 0.5) < 0.17, 2.0, 1.0), "it changed meanwhile: its middle third took"),
    ],
)  # fmt: skip
def test_a_run_that_changes_says_how(shape: object, reason: str) -> None:
    assert callable(shape)
    found = drifting_reason(noise(2000, seed=1) * shape(2000))
    assert found is not None
    assert reason in found


def test_what_is_steady_has_no_reason() -> None:
    assert drifting_reason(np.full(1000, 0.01)) is None
    assert drifting_reason(np.zeros(1000)) is None
    assert drifting_reason(noise(2000, seed=1) * np.linspace(1, 1.05, 2000)) is None  # 5 % are no matter
    assert drifting_reason(np.where(np.arange(1000) % 2, 1.0, 9.0)) is None  # of two kinds all the time


def test_of_too_few_requests_nothing_is_said() -> None:
    drift = np.linspace(1, 9, MIN_REQUESTS)
    assert drifting_reason(drift[:-1]) is None
    assert drifting_reason(drift) is not None
    assert drifting_reason(np.array([])) is None
    assert growing_reason(np.array([]), np.array([]), 0.0, 1.0) is None


@pytest.mark.parametrize("num", [pytest.param(300, marks=pytest.mark.thorough), 1000])
def test_honest_noise_is_seldom_taken_for_drift(num: int) -> None:
    assert sum(drifting_reason(noise(num, seed)) is not None for seed in range(400)) <= 8  # 2 %


@pytest.mark.parametrize(
    ("num", "busy_ratio", "most"),
    [
        (300, 0.7, 0.05),
        *(pytest.param(*row, marks=pytest.mark.thorough) for row in ((300, 0.5, 0.02), (1000, 0.8, 0.04))),
    ],
)
def test_the_queue_of_a_server_that_keeps_up_is_seldom_called_unstable(num: int, busy_ratio: float, most: float) -> None:  # fmt: skip
    reasons = [_reason(*one_server(num, busy_ratio, seed)) for seed in range(200)]
    assert sum(reason is not None for reason in reasons) / 200 <= most
    assert not any(reason.startswith("the queue grew") for reason in reasons if reason)


@pytest.mark.parametrize(
    ("num", "busy_ratio", "least"),
    [(300, 1.3, 0.9), (1000, 1.1, 0.75), pytest.param(5000, 1.05, 0.7, marks=pytest.mark.thorough)],
)
def test_a_queue_that_grows_to_the_end_is_seen(num: int, busy_ratio: float, least: float) -> None:
    reasons = [_reason(*one_server(num, busy_ratio, seed)) for seed in range(60)]
    assert sum(bool(reason) and reason.startswith("the queue grew") for reason in reasons) / 60 >= least


def _reason(due_s: Times, latency_s: Times) -> str | None:
    begin_s, end_s = float(due_s[0]), float(due_s[-1])
    rows = [make.row(at - begin_s, took) for at, took in zip(due_s.tolist(), latency_s.tolist(), strict=True)]
    return unstable_reason(rows, replace(OPEN, warmup_s=0.0, duration_s=end_s - begin_s + 1e-9))


def test_what_was_dropped_was_never_answered() -> None:
    due_s = np.linspace(1, 10.99, 1000)
    rows = [make.row(at, 0.01) if index % 2 else _dropped(at) for index, at in enumerate(due_s.tolist())]
    reason = unstable_reason(rows, OPEN)
    assert "500 of 1,000" in (reason or "")


def test_what_is_refused_at_once_leaves_no_queue() -> None:
    due_s = np.linspace(1, 10.99, 1000).tolist()
    rows = [make.row(at, 0.01, status=200 if index % 2 else 503) for index, at in enumerate(due_s)]
    assert unstable_reason(rows, OPEN) is None


def test_a_closed_loop_has_no_queue_that_grows_but_may_drift() -> None:
    rows = [make.row(1 + 0.02 * at, 0.01 * (1 + at / 250)) for at in range(500)]
    reason = unstable_reason(rows, CLOSED)
    assert reason is not None
    assert reason.startswith("it got slower")


def test_the_warm_up_itself_may_be_slow() -> None:
    rows = [make.row(at / 100, 0.5 if at < 100 else 0.01) for at in range(1100)]
    assert unstable_reason(rows, OPEN) is None


def _dropped(at: float) -> Row:
    return make.row(at, 0.0, status=0, error="dropped", variant="", pool="")
