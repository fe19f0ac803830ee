"""Bursts that are over before a card is there are waited out once two were seen; what lasts is on a card, and a rhythm is foreseen."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from serving.decisions.bursts import (
    LONGER,
    MAX_NOTE_BYTES,
    SLACK_S,
    Needs,
    habit,
    is_due,
    note_of,
    noted,
    observe,
    price_of_early,
)
from serving.decisions.demand import Demands
from serving.decisions.fleet import Supply
from serving.decisions.simulate.arrivals import Bursts, PoissonArrivals, bursts
from serving.decisions.simulate.flow import (
    Floats,
    Flow,
    FlowOutcome,
    by_scaler,
    first_of,
    flow_of,
    of_arrivals,
    optimum,
    play,
    regret,
)
from serving.decisions.simulate.rivals import rivals
from serving.decisions.simulate.scenario import read_scenario
from serving.decisions.sizes import Sizes
from serving.settings import ScalingRules

HOUR = 3600
SCENARIO = Path(__file__).parents[2] / "docs" / "scenarios" / "bert-large.yaml"
RULES = ScalingRules()
CPU, GPU = Supply(0.2, 1, 4, 40.0), Supply(1.0, 0, 4, 300.0, has_gpu=True)  # a card does ten CPU servers' work
SIZES = Sizes({"cpu": CPU, "gpu": GPU}, frozenset({"gpu"}))


def load(hours: float, calm: float = 0.5, **burst: float) -> Floats:
    """CPU servers' work of each second; bursts of `high` for `lasting` seconds every `every`."""
    at = np.arange(int(hours * HOUR))
    is_burst = (at + burst["every"] / 2) % burst["every"] < burst["lasting"]
    return np.where(is_burst, burst["high"], calm)


def flow_for(work: Floats, sizes: Sizes) -> Flow:
    return flow_of(list(work), {name: 10.0 if it.has_gpu else 1.0 for name, it in sizes.supplies.items()})


def played(work: Floats, sizes: Sizes = SIZES, rules: ScalingRules = RULES) -> tuple[FlowOutcome, list[float]]:
    """What it cost, and when more cards were asked for."""
    flow = flow_for(work, sizes)
    first = first_of(flow, sizes, rules)
    asked, num_before, woken = by_scaler(sizes, rules, first), 0, []

    def wanted(now: float, demands: Demands) -> Mapping[str, int]:
        nonlocal num_before
        found = asked(now, demands)
        if found["gpu"] > num_before:
            woken.append(now)
        num_before = found["gpu"]
        return found

    return play("scaler", flow, sizes, rules, wanted, first), woken


def more_than_best(work: Floats, outcome: FlowOutcome, sizes: Sizes = SIZES) -> float:
    flow = flow_for(work, sizes)
    return regret(outcome, optimum(flow, sizes, RULES, float(len(work)), first_of(flow, sizes, RULES)))


@pytest.mark.thorough
def test_for_six_hours_of_bursts_of_15_s_little_more_is_paid_than_the_best_would_have_cost() -> None:
    work = load(6, every=600, lasting=15, high=8.0)
    outcome, woken = played(work)
    assert all(at < 1200 for at in woken), "none once two were seen"
    assert more_than_best(work, outcome) <= 1.3


def test_bursts_of_15_s_every_10_min_wake_for_the_first_two_at_most_and_a_load_that_lasts_is_on_a_card() -> None:
    began = 1.0 * HOUR
    work = np.concatenate([load(1.0, every=600, lasting=15, high=8.0), np.full(200, 8.0)])
    _, (*woken, asked_at) = played(work)
    assert len(woken) <= 2
    assert all(at < 1200 for at in woken), "none once two were seen"
    longest_s = 15 + 30  # as the meter has it
    assert began < asked_at <= began + LONGER * longest_s + SLACK_S


@pytest.mark.thorough
def test_short_bursts_that_need_two_cards_wake_them_for_the_first_two_alone() -> None:
    assert len(played(load(1.5, every=600, lasting=15, high=16.0))[1]) <= 4


@pytest.mark.thorough
def test_bursts_at_random_times_cost_less_than_a_card_that_stays_for_all_of_them() -> None:
    """BERT-large at 30/s for two hours: CPU servers that are held for the next burst count as what staying costs."""
    setting, calm = read_scenario(SCENARIO), Bursts(5.0, 600.0, 60.0)
    arrivals = PoissonArrivals(
        bursts(30.0, calm, random.Random("bursts 1")), 7200.0, lambda it: random.Random(f"{it} 1")
    )
    flow, sizes = of_arrivals(arrivals, setting)
    first = first_of(flow, sizes, RULES)
    best = optimum(flow, sizes, RULES, 7200.0, first)
    rules = {"tandem": by_scaler(sizes, RULES, first), "hpa": rivals(sizes, first, RULES.max_load_ratio)["hpa"]}
    found = {name: regret(play(name, flow, sizes, RULES, rule, first), best) for name, rule in rules.items()}
    assert found["tandem"] <= 1.35 < found["hpa"]


def test_without_a_memory_of_bursts_each_of_them_wakes_a_card() -> None:
    work = load(0.75, every=600, lasting=15, high=8.0)
    assert len(played(work, rules=ScalingRules(max_bursts=0))[1]) >= 4


def test_a_day_that_rises_and_falls_costs_little_more_than_the_best_that_was_possible() -> None:
    generator, at = np.random.default_rng(1), np.arange(1.0 * HOUR) + 7 * HOUR
    rate = 6.0 * (1 + 0.8 * np.sin(2 * np.pi * at / (24 * HOUR) - np.pi / 2))
    many = Sizes({"cpu": Supply(0.2, 1, 20, 40.0), "gpu": GPU}, frozenset({"gpu"}))
    work = generator.poisson(rate * 20) / 20
    assert more_than_best(work, played(work, many)[0], many) <= 1.3


@pytest.mark.thorough
def test_long_bursts_in_a_rhythm_find_their_card_there() -> None:
    """Without a memory each waits for a cold start."""
    work = load(2.5, every=1200, lasting=500, high=8.0)
    by_rhythm, by_prices = (played(work, rules=ScalingRules(max_bursts=most))[0] for most in (16, 0))
    assert by_rhythm.undone < by_prices.undone / 2
    assert by_rhythm.charged < by_prices.charged


def seen(*bursts: tuple[float, float]) -> Needs:
    """Each with when it began and ended; the last one goes on."""
    known: Mapping[str, tuple[Needs, ...]] = {}
    for began, ended in bursts:
        for now in np.arange(began, ended + 1, 5.0):
            known = observe(known, float(now), {"gpu": 1}, 16)
    return known["gpu"][0]


def test_lengths_and_lulls_are_those_between_first_and_last_need() -> None:
    need = seen((0, 20), (620, 640), (1240, 1250))
    assert (need.lengths, need.lulls, need.since) == ((20.0, 20.0), (600.0, 600.0), 1240.0)
    assert seen((0, 20), (40, 60)).lengths == (), "a short lull is no end"


@pytest.mark.parametrize(
    ("lengths", "wait"),
    [
        ((20.0, 20.0), LONGER * 20 + SLACK_S),  # over before the card is there
        ((900.0, 900.0), 5.0),  # long enough: at once
        ((20.0, 20.0, 20.0, 3600.0), LONGER * 20 + SLACK_S),  # the long one waits for the short ones
        ((200.0, 3600.0, 3600.0), 5.0),
    ],
)
def test_the_wait_is_the_one_that_would_have_cost_least(lengths: tuple[float, ...], wait: float) -> None:
    """A card's cold start is 300 s; a second without it costs three of its seconds, and the next burst is a day away."""
    need = Needs(lengths, (86_400.0,) * len(lengths), rate=3.0, idle=1.0)
    assert habit(need, 5.0, cold_start_s=300.0, price=360.0).wait_s == wait


@pytest.mark.parametrize(
    ("lulls", "price", "is_kept"),
    [((400.0, 400.0), 1000.0, True), ((2000.0, 2000.0), 1000.0, False), ((400.0, 400.0, 30_000.0), 1000.0, True)],
)
def test_a_card_is_kept_through_lulls_that_cost_less_than_the_next_cold_start(
    lulls: tuple[float, ...], price: float, is_kept: bool
) -> None:
    keep_s = habit(Needs((600.0,) * len(lulls), lulls, rate=3.0, idle=1.0), 5.0, 0.0, price).keep_s
    assert (keep_s > 400.0) == is_kept
    assert keep_s < 30_000.0


def test_bursts_too_short_for_a_cold_start_keep_a_card_where_that_costs_less_than_to_miss_it_each_time() -> None:
    """None of them is worth a wake of its own."""
    short = Needs((90.0,) * 6, (400.0,) * 6, rate=3.0, idle=0.5)
    assert (habit(short, 5.0, 300.0, 360.0).wait_s, habit(short, 5.0, 300.0, 360.0).keep_s > 400.0) == (5.0, True)
    dear = Needs((90.0,) * 6, (400.0,) * 6, rate=3.0, idle=1.0)
    assert habit(dear, 5.0, 300.0, 360.0).wait_s > 90.0


def test_what_comes_in_a_rhythm_is_due_a_cold_start_before() -> None:
    regular = seen((0, 20), (620, 640), (1240, 1260), (1860, 1880))
    assert [is_due(regular, 1880.0 + after, 300.0) for after in (100, 280, 310, 590, 650)] == [
        *(False, False, True, True, False)
    ]
    odd = seen((0, 20), (620, 640), (2000, 2020), (2300, 2320))
    assert not any(is_due(odd, 2320.0 + after, 300.0) for after in range(0, 2000, 50))
    assert price_of_early(odd, 1.0) == inf


def test_a_note_holds_what_was_seen_by_another_clock() -> None:
    seen = Needs((15.0, 16.5), (580.0,), 90.0, 100.0, 0.25, 7, 0.01)
    found = noted(note_of({"gpu": (seen, Needs())}, 100.0, 1e9), 2000.0, 1e9 + 60)
    assert found == {"gpu": (replace(seen, since=1930.0, last_at=1940.0), Needs())}
    behind = noted(note_of({"gpu": (seen,)}, 100.0, 1e9), 2000.0, 1e9 - 60)
    assert (behind["gpu"][0].since, behind["gpu"][0].last_at) == (2000.0, 2000.0), "by a clock that is a minute behind"


def test_a_note_is_never_larger_than_an_annotation_may_be_and_has_the_servers_that_are_needed_first() -> None:
    many = tuple(Needs(tuple(1000.0 + n for _ in range(20)), (5.0,) * 20, 1.0, 2.0) for n in range(1000))
    note = note_of({"gpu": many, "cpu": many[:3]}, 2.0, 1e9)
    assert len(note) <= MAX_NOTE_BYTES
    found = noted(note, 2.0, 1e9)
    assert found == {"gpu": many[: len(found["gpu"])], "cpu": many[:3]}
    assert len(found["gpu"]) > 50


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version":2,"pools":{}}',
        '{"version":1,"pools":[]}',
        '{"version":1,"pools":{"gpu":[[1]]}}',
        '{"version":1,"pools":{"gpu":[[["x"],[],null,null,null,0,null]]}}',
        '{"version":1,"pools":{"gpu":[[[NaN],[],null,null,null,0,null]]}}',
    ],
)
def test_what_is_no_note_says_nothing(text: str) -> None:
    assert noted(text, 1.0, 2.0) == {}
