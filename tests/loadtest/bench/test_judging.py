"""What `make prove` says of the shots of a proof: pure tables, with bad attempts that must not pass."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from loadtest.bench.prove import cold_gpu, crossover, overload, pool_death, promise, simulated
from loadtest.bench.prove.cold_gpu import Moments
from loadtest.bench.prove.crossover import RoutedRequest
from loadtest.bench.prove.promise import Promise
from loadtest.bench.verdicts import Outcome, Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sent_request import Shot, lag, listed, percentile

DEADLINE_S = 0.25


def good(due_s: float, took_s: float = 0.1, pool: str = "cpu", reason: str = "cheapest_in_time") -> Shot:
    return Shot(due_s, due_s, due_s + took_s, 200, pool=pool, reason=reason)


def shed(due_s: float, took_s: float = 0.002, retry_after_ms: float | None = 40.0) -> Shot:
    retry = None if retry_after_ms is None else "1"
    return Shot(due_s, due_s, due_s + took_s, 503, "", "", "overloaded", retry, retry_after_ms)


def expired(due_s: float) -> Shot:
    return Shot(due_s, due_s, due_s + DEADLINE_S, 504, tandem_error="deadline_expired")


def lost(due_s: float, took_s: float = 0.1) -> Shot:
    return Shot(due_s, due_s, due_s + took_s, error="closed before the answer was whole")


def gone(due_s: float) -> Shot:
    return Shot(due_s, due_s, due_s + 0.1, 503, tandem_error="upstream_lost", retry_after="1")


def outcomes(verdicts: list[Verdict]) -> list[Outcome]:
    return [verdict.outcome for verdict in verdicts]


# -- one shot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shot", "is_honest", "words"),
    [
        (shed(0), True, "503 overloaded"),
        (shed(0, retry_after_ms=None), False, "503 overloaded without Retry-After"),  # a deadline that can be met
        (expired(0), True, "504 deadline_expired"),
        (Shot(0, 0, 1, 503, tandem_error="upstream_lost", retry_after="1"), True, "503 upstream_lost"),
        (Shot(0, 0, 1, 503, tandem_error="not_ready"), False, "503 not_ready without Retry-After"),
        (
            Shot(0, 0, 1, 503, tandem_error="upstream_lost", retry_after="0"),
            False,
            "503 upstream_lost without Retry-After",
        ),
        (Shot(0, 0, 1, 503), False, "503 without Tandem-Error"),
        (Shot(0, 0, 1, 504), False, "504 without Tandem-Error"),
        (Shot(0, 0, 1, 500, tandem_error="internal"), False, "500 internal"),
        (Shot(0, 0, 1, 429, tandem_error="rate_limited"), False, "429 rate_limited"),
        (lost(0), False, "no answer (closed before the answer was whole)"),
    ],
)
def test_an_answer_is_honest_if_it_says_what_it_is_and_when_to_come_back(
    shot: Shot, is_honest: bool, words: str
) -> None:
    assert (shot.is_honest, str(shot)) == (is_honest, words)


def test_latency_counts_from_when_a_request_was_due_and_not_from_when_it_was_sent() -> None:
    assert Shot(10.0, 10.4, 10.5, 200).took_s == pytest.approx(0.5)


def test_a_generator_that_lagged_by_more_than_a_twentieth_of_the_objective_is_void() -> None:
    on_time = [Shot(t, t + 0.001, t + 0.1, 200) for t in range(100)]
    late = [Shot(t, t + 0.02, t + 0.1, 200) for t in range(2)]
    assert lag(on_time, DEADLINE_S) == (pytest.approx(0.001), False)
    assert lag([*on_time, late[0]], DEADLINE_S)[1] is False  # one of a hundred may be
    assert lag([*on_time[:98], *late], DEADLINE_S) == (pytest.approx(0.02), True)
    assert lag([], DEADLINE_S)[1] is True


def test_percentiles_are_values_that_were_seen() -> None:
    assert [percentile([3, 1, 2, 4], ratio) for ratio in (0, 0.5, 0.51, 0.99, 1)] == [1, 2, 3, 4, 4]
    assert percentile([], 0.5) is None


def test_what_went_wrong_is_listed_by_kind() -> None:
    assert re.match(r"2 × 503 overloaded, 1 × no answer \(", listed([lost(0), shed(0), shed(1)]))


# -- overload ---------------------------------------------------------------------------------------------------------


def full(seconds: float = 10.0, rate: int = 100) -> list[Shot]:
    """So many good answers a second, and twice as many refused."""
    at = [n / rate for n in range(int(seconds * rate))]
    return [good(t) for t in at] + [shed(t) for t in at for _ in range(2)]


def seen(shots: list[Shot]) -> overload.Overload:
    return overload.overload(shots, 1.0, 9.0, DEADLINE_S, capacity_rps=100.0)


def test_a_load_that_is_answered_at_capacity_and_refused_beyond_it_meets_all_aims() -> None:
    trial = seen(full())
    assert trial.goodput_ratio == pytest.approx(1.0)
    assert trial.offered_ratio == pytest.approx(3.0)
    assert outcomes(overload.overload_verdicts("x", [trial], "100")) == [Outcome.MET] * 5


@pytest.mark.parametrize(
    ("spoil", "index", "outcome"),
    [
        (lambda shots: [s for n, s in enumerate(shots) if s.is_refused or n % 6], 0, Outcome.MISSED),
        (lambda shots: [s for n, s in enumerate(shots) if s.is_refused or n % 2], 0, Outcome.FAILED),
        (lambda shots: [good(s.due_s, 0.3) if s.is_answered and n % 66 == 0 else s for n, s in enumerate(shots)], 1, Outcome.MISSED),
        (lambda shots: [good(s.due_s, 0.3) if s.is_answered and n % 20 == 0 else s for n, s in enumerate(shots)], 1, Outcome.FAILED),
        (lambda shots: [shed(s.due_s, 0.03) if s.is_refused and n % 50 == 0 else s for n, s in enumerate(shots)], 3, Outcome.MISSED),
        (lambda shots: [shed(s.due_s, 0.05) if s.is_refused and n % 50 == 0 else s for n, s in enumerate(shots)], 3, Outcome.FAILED),
        (lambda shots: [s for s in shots if not s.is_refused], 3, Outcome.FAILED),
        (lambda shots: [*shots, *(expired(n / 8) for n in range(80))], 2, Outcome.MISSED),
        (lambda shots: [*shots, *(expired(n / 200) for n in range(2000))], 2, Outcome.FAILED),
        (lambda shots: [*shots, lost(5)], 4, Outcome.FAILED),
        (lambda shots: [*shots, Shot(5, 5, 5.1, 500, tandem_error="internal")], 4, Outcome.FAILED),
        (lambda shots: [*shots, shed(5, retry_after_ms=None)], 4, Outcome.FAILED),
    ],
    ids=["a sixth less", "half of it", "1.5 % late", "5 % late", "slow refusals", "slower ones", "no overload", "7 % are let in and then 504",
         "two thirds are", "lost", "500", "overloaded, and no word of when to come back"],
)  # fmt: skip
def test_an_overload_that_is_not_carried_does_not_pass(spoil: object, index: int, outcome: Outcome) -> None:
    assert callable(spoil)
    assert outcomes(overload.overload_verdicts("x", [seen(spoil(full()))], "100"))[index] is outcome


def test_late_answers_are_no_goodput() -> None:
    assert seen([good(s.due_s, 0.26) for s in full() if s.is_answered]).goodput_ratio == 0


def test_what_was_let_in_and_then_expired_is_a_part_of_what_was_let_in() -> None:
    trial = seen([*full(), *(expired(n / 50) for n in range(500))])
    assert trial.expired_ratio == pytest.approx(1 / 3)
    assert overload.overload_verdicts("x", [trial], "100")[2].value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("measured_rps", "outcome"), [(247.0, Outcome.MET), (230.0, Outcome.MISSED), (130.0, Outcome.FAILED)]
)
def test_a_capacity_that_is_far_from_the_curves_does_not_pass(measured_rps: float, outcome: Outcome) -> None:
    """Half of it would halve the overload too, and every part of it would look well."""
    assert overload.capacity_verdict("x", measured_rps, 260.0).outcome is outcome


def test_the_median_trial_is_judged_and_one_lost_request_in_any_counts() -> None:
    fine, bad = seen(full()), seen([*full(rate=20), lost(5)])
    verdicts = overload.overload_verdicts("x", [fine, bad, fine], "100")
    assert verdicts[0].outcome is Outcome.MET
    assert "worst trial 0.2" in verdicts[0].note
    assert verdicts[4].outcome is Outcome.FAILED


def test_no_answer_at_all_is_late_and_not_early() -> None:
    assert seen([shed(n / 100) for n in range(1000)]).late_ratio == 1.0


# -- promises ---------------------------------------------------------------------------------------------------------


def probes(promised_ms: float, opens_s: float, step_s: float = 0.01) -> list[Shot]:
    """Refused every step until the door opens."""
    times = [n * step_s for n in range(1000)]
    refusals = [shed(t, took_s=0.0, retry_after_ms=promised_ms) for t in times if t < opens_s]
    return [*refusals, good(len(refusals) * step_s)]


def test_a_promise_is_compared_with_when_the_door_opened() -> None:
    kept = promise.promise(probes(500, 0.5))
    assert kept is not None
    assert (kept.promised_s, kept.opened_s, kept.step_s) == pytest.approx((0.5, 0.5, 0.01))
    assert kept.off_ratio == 0


@pytest.mark.parametrize(
    ("promised_ms", "opens_s", "off"),
    [(100, 0.2, 0.45), (400, 0.2, 1.0), (200, 0.2, 0.0), (195, 0.2, 0.0), (1, 1.0, 0.989)],
    ids=["half", "twice", "right", "within a step", "come back at once"],
)
def test_a_promise_that_is_too_short_is_as_wrong_as_one_that_is_too_long(
    promised_ms: float, opens_s: float, off: float
) -> None:
    kept = promise.promise(probes(promised_ms, opens_s))
    assert kept is not None
    assert kept.off_ratio == pytest.approx(off, abs=0.01)


@pytest.mark.parametrize(
    "shots",
    [[], [good(0)], [shed(0)], [shed(0, retry_after_ms=None), good(1)]],
    ids=["nothing", "never refused", "never let in", "no promise"],
)
def test_without_a_promise_and_an_opening_there_is_nothing_to_compare(shots: list[Shot]) -> None:
    assert promise.promise(shots) is None


def test_one_that_is_let_in_and_then_expires_was_let_in() -> None:
    kept = promise.promise([*probes(100, 0.1)[:-1], expired(0.1)])
    assert kept is not None
    assert kept.opened_s == pytest.approx(0.1)


def test_trials_that_say_nothing_do_not_pass() -> None:
    right, wrong = Promise(0.5, 0.5, 0.01), Promise(1.0, 0.5, 0.01)
    assert promise.verdict("x", [right, right, wrong]).outcome is Outcome.MET
    assert promise.verdict("x", [right, wrong, wrong]).outcome is Outcome.FAILED
    assert promise.verdict("x", [right, None, None]).outcome is Outcome.FAILED
    assert promise.verdict("x", [None]).outcome is Outcome.FAILED
    assert promise.verdict("x", [Promise(0.7, 0.5, 0.01)]).outcome is Outcome.MISSED


def test_a_median_needs_as_many_promises_as_were_to_be_made() -> None:
    trials = [[good(0)]] * 14 + [probes(500, 0.5)]
    with pytest.raises(CannotMeasure, match=r"15.*1.*refusal"):
        promise.enough(trials, 5)
    kept = promise.enough([[good(0)]] * 2 + [probes(500, 0.5)] * 9, 5)
    assert [seen.promised_s for seen in kept if seen] == [0.5] * 5


def test_a_prober_that_stood_still_keeps_no_promise() -> None:
    """Promised 500 ms, and nobody asked between 90 and 500: the door may have opened at 100."""
    stalled = [*probes(500, 0.09)[:-1], good(0.5)]
    seen = promise.promise(stalled)
    assert seen is not None
    assert (seen.off_ratio, seen.is_blurred) == (0.0, True)
    with pytest.raises(CannotMeasure):
        promise.enough([stalled] * 15, 5)


def test_a_promise_that_is_much_too_long_is_judged_however_soon_the_door_opened() -> None:
    assert promise.verdict("x", promise.enough([probes(66, 0.008, step_s=0.004)] * 5, 5)).outcome is Outcome.FAILED


def test_a_refusal_without_a_promise_counts_as_one_that_was_broken() -> None:
    silent = [shed(0, retry_after_ms=None), good(1)]
    assert promise.enough([silent] * 5, 5) == [None] * 5


# -- a pool that dies -------------------------------------------------------------------------------------------------


def death(after: list[Shot]) -> list[Verdict]:
    before = [good(n / 100, 0.05, pool) for n in range(100) for pool in ("cheap", "dear")]
    return pool_death.verdicts("x", [*before, *after], 2.0, DEADLINE_S, left_rps=100.0, until_s=3.0, end_s=8.0)


CARRIED = [good(2 + n / 100, 0.05, "dear") for n in range(95)]
BACK = [good(3 + n / 100, 0.05, "cheap") for n in range(500)]


def test_a_death_that_the_other_pool_makes_up_for_meets_all_aims() -> None:
    verdicts = death([*CARRIED, *BACK, shed(2.1), expired(2.2)])
    assert outcomes(verdicts) == [Outcome.MET] * 5
    assert re.findall(r"(\d+) (?:answered|× (\d+))", verdicts[0].note) == [("595", ""), ("1", "503"), ("1", "504")]
    assert "cheap and dear" in verdicts[3].note


@pytest.mark.parametrize(
    ("after", "index", "outcome"),
    [
        ([*CARRIED, lost(2.1)], 0, Outcome.FAILED),
        ([*CARRIED, Shot(2.1, 2.1, 2.2, 500, tandem_error="internal")], 0, Outcome.FAILED),
        ([*CARRIED, Shot(2.1, 2.1, 2.2, 502)], 0, Outcome.FAILED),
        ([*CARRIED, shed(2.1, retry_after_ms=None)], 0, Outcome.FAILED),
        ([*CARRIED, *[gone(2.1)] * 8], 1, Outcome.MISSED),
        ([*CARRIED, *[gone(2.1)] * 40], 1, Outcome.FAILED),
        ([*CARRIED, lost(2.1, took_s=10.0)], 2, Outcome.FAILED),
        ([*CARRIED, good(2.1, 0.5)], 2, Outcome.MISSED),
        (CARRIED[:85], 3, Outcome.MISSED),
        (CARRIED[:50], 3, Outcome.FAILED),
        ([], 3, Outcome.FAILED),
        ([*CARRIED, *(shed(s.due_s) for s in BACK)], 4, Outcome.FAILED),
        ([*CARRIED, *BACK[:-14], *(shed(s.due_s) for s in BACK[-14:])], 4, Outcome.MISSED),
        (CARRIED, 4, Outcome.FAILED),
    ],
    ids=["lost", "500", "502", "no word of when to come back", "more are given up", "all are", "hangs", "late", "the other is not used",
         "half of it", "all is quiet", "all are refused from a second after the kill on", "some still are", "no end"],
)  # fmt: skip
def test_a_death_that_is_felt_does_not_pass(after: list[Shot], index: int, outcome: Outcome) -> None:
    assert outcomes(death(after))[index] is outcome


def test_what_went_wrong_before_the_kill_is_not_blamed_on_it() -> None:
    assert death([*CARRIED, lost(1.0)])[0].outcome is Outcome.MET


# -- a pool that comes ------------------------------------------------------------------------------------------------

TIMES = Moments(seen_s=5.0, ready_s=7.0, end_s=20.0)


def came(spoil: object = None) -> list[Verdict]:
    shots = []
    for n in range(200):
        at = n / 10
        if at < 7:
            shots.append(good(at, 0.01, "cpu", "bridged"))
        else:
            shots.append(good(at, 0.01, "gpu" if at > 12 else "cpu"))
    assert spoil is None or callable(spoil)
    return cold_gpu.verdicts("x", spoil(shots) if spoil else shots, "gpu", TIMES, DEADLINE_S)


def test_a_pool_that_comes_and_is_not_felt_meets_all_aims() -> None:
    verdicts = came()
    assert outcomes(verdicts) == [Outcome.MET] * 4
    assert "70 × bridged" in verdicts[1].note


@pytest.mark.parametrize(
    ("spoil", "index", "outcome"),
    [
        (lambda shots: [*shots, shed(3.0)], 0, Outcome.FAILED),
        (lambda shots: [*shots, expired(8.0)], 0, Outcome.FAILED),
        (lambda shots: [replace(s, reason="only_pool") if 5 <= s.due_s < 7 else s for s in shots], 1, Outcome.FAILED),
        (lambda shots: [replace(s, pool="gpu") if 5 <= s.due_s < 7 else s for s in shots], 1, Outcome.FAILED),
        (lambda shots: [replace(s, reason="only_pool") if s.due_s < 1 else s for s in shots], 1, Outcome.FAILED),
        (lambda shots: [s for s in shots if not s.due_s < 7], 1, Outcome.FAILED),
        (lambda shots: [good(s.due_s, 0.3) if s.due_s == 8 else s for s in shots], 2, Outcome.MISSED),
        (lambda shots: [*shots, *(good(7 + n / 100) for n in range(1300)), *[good(7.5, 3.0)] * 7], 2, Outcome.FAILED),
        (lambda shots: [good(s.due_s, 3.0) if s.due_s == 5.5 else s for s in shots], 2, Outcome.FAILED),
        (lambda shots: [good(s.due_s, 0.6) if 8 <= s.due_s < 8.5 else s for s in shots], 2, Outcome.FAILED),
        (lambda shots: [replace(s, pool="cpu") for s in shots], 3, Outcome.FAILED),
    ],
    ids=[
        "503",
        "504",
        "not said",
        "too early",
        "not said at first",
        "no answer meanwhile",
        "one answer",
        "seven of hundreds",
        "before it was ready",
        "a larger one",
        "never used",
    ],
)
def test_a_pool_whose_coming_is_felt_does_not_pass(spoil: object, index: int, outcome: Outcome) -> None:
    assert outcomes(came(spoil))[index] is outcome


# -- crossover --------------------------------------------------------------------------------------------------------


def switch(at: float, *stray: RoutedRequest) -> list[RoutedRequest]:
    return [RoutedRequest(rows, "fast" if rows > at else "slow") for rows in range(1, 33) for _ in range(3)] + list(
        stray
    )


@pytest.mark.parametrize(
    ("at", "planted", "outcome"),
    [(12.5, 12.5, Outcome.MET), (11.5, 12.5, Outcome.MET), (10.5, 12.5, Outcome.MISSED), (8.5, 12.5, Outcome.FAILED)],
)
def test_a_switch_is_held_to_where_it_was_planted(at: float, planted: float, outcome: Outcome) -> None:
    distance, stray = crossover.verdicts("x", switch(at), "fast", planted)
    assert crossover.crossover_point(switch(at), "fast") == at
    assert (distance.outcome, stray.outcome) == (outcome, Outcome.MET)


def test_one_that_strays_does_not_move_the_switch_and_is_counted() -> None:
    distance, stray = crossover.verdicts(
        "x", switch(12.5, RoutedRequest(30, "slow"), RoutedRequest(31, "slow")), "fast", 12.5
    )
    assert distance.value == 0
    assert stray.outcome is Outcome.FAILED


@pytest.mark.parametrize("pool", ["slow", "fast"])
def test_without_a_switch_nothing_was_followed(pool: str) -> None:
    [verdict] = crossover.verdicts("x", [RoutedRequest(rows, pool) for rows in range(1, 33)], "fast", 12.5)
    assert verdict.outcome is Outcome.FAILED


def test_chance_is_no_switch() -> None:
    sent = [RoutedRequest(rows, "fast" if rows % 2 else "slow") for rows in range(1, 33)]
    assert crossover.verdicts("x", sent, "fast", 12.5)[1].outcome is Outcome.FAILED


# -- the simulator ----------------------------------------------------------------------------------------------------


def run_beside(attainment_ratio: float, throughput_rps: float) -> simulated.Agreement:
    """Beside a real second of 100 requests, of which ten were refused and ten late."""
    shots = [good(n / 100, 0.01) for n in range(80)]
    shots += [good(0.8 + n / 100, 2 * DEADLINE_S) for n in range(10)] + [shed(0.9 + n / 100) for n in range(10)]
    return simulated.agreement(shots, DEADLINE_S, attainment_ratio, throughput_rps)


def test_a_simulated_run_is_held_to_what_the_real_one_answered_in_time() -> None:
    run = run_beside(0.8, 90 / (0.89 + 2 * DEADLINE_S))
    assert (run.real_attainment_ratio, run.attainment_off_ratio) == (0.8, 0.0)
    assert run.throughput_off_ratio == pytest.approx(0.0)
    assert outcomes(simulated.verdicts("x", [run])) == [Outcome.MET] * 2


@pytest.mark.parametrize(("attained", "outcome"), [(0.9, Outcome.MET), (0.95, Outcome.MISSED), (1.1, Outcome.FAILED)])
def test_a_simulation_that_is_off_does_not_pass(attained: float, outcome: Outcome) -> None:
    runs = [run_beside(attained, 70.0)] * 3 + [run_beside(0.8, 70.0)] * 2
    assert outcomes(simulated.verdicts("x", runs))[0] is outcome


def test_nothing_real_agrees_with_nothing_alone() -> None:
    assert simulated.relative_error(0.0, 0.0) == 0.0
    assert simulated.relative_error(0.1, 0.0) is None


def test_runs_in_which_nothing_real_was_in_time_have_no_value_and_do_not_pass() -> None:
    """Not a number either, which the table could not print and JSON could not hold."""
    nothing = simulated.Agreement(0.0, 0.8, 0.0, 70.0)
    verdicts = simulated.verdicts("x", [nothing] * 3 + [run_beside(0.8, 90 / (0.89 + 2 * DEADLINE_S))] * 2)
    assert outcomes(verdicts) == [Outcome.FAILED] * 2
    assert [verdict.cells()[1] for verdict in verdicts] == ["never"] * 2
    json.dumps([verdict.to_json() for verdict in verdicts], allow_nan=False)
    assert "worst: nothing real" in verdicts[0].note
    few = simulated.verdicts("x", [nothing, *[run_beside(0.8, 90 / (0.89 + 2 * DEADLINE_S))] * 2])
    assert outcomes(few) == [Outcome.MET] * 2
