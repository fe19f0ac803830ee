"""The judge: an answer holds at both ends of what was measured, or it is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from serving.decisions.plan.result import Objective
from serving.decisions.plan.search import make_plan
from serving.decisions.prices import Offer, PriceList
from serving.decisions.profile import LoadPoint, MaxRate, Provenance, Timing
from serving.decisions.verdict import Verdict, judge
from tests.decisions.judged import (
    CPU_PER_HOUR,
    GPU_PER_HOUR,
    OBJECTIVE_S,
    both,
    max_rate,
    plan,
    priced,
    profile,
    server,
)

# Two CPU servers are cheaper than one card, three are not: the closed form of the break-even is two CPU servers' worth.
CPU_RPS, GPU_RPS = 300.0, 5000.0
HEADROOM = 0.7
BREAK_EVEN_RPS = 2 * CPU_RPS * HEADROOM


def at(rate_rps: float, spread: float = 0.005) -> Verdict:
    return judge(*both(max_rate(CPU_RPS, spread), max_rate(GPU_RPS, spread), rates=((24, rate_rps),)))


def kinds(verdict: Verdict) -> list[str]:
    return [reason.kind for reason in verdict.reasons]


def test_the_prices_of_these_tests_have_the_closed_form_that_they_claim() -> None:
    assert 2 * CPU_PER_HOUR < GPU_PER_HOUR < 3 * CPU_PER_HOUR


@pytest.mark.parametrize("headroom", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("cpu_rps", [30.0, 300.0, 1234.5])
def test_it_flips_at_the_closed_form_of_the_break_even_within_two_percent(cpu_rps: float, headroom: float) -> None:
    break_even = 2 * cpu_rps * headroom
    for ratio, word in ((0.98, "does_not_pay"), (1.02, "pays")):
        made = both(
            max_rate(cpu_rps, 0.005),
            max_rate(50 * cpu_rps, 0.005),
            rates=((24, break_even * ratio),),
            headroom_ratio=headroom,
        )
        verdict = judge(*made)
        assert verdict.word == word
        assert verdict.break_even_rps == pytest.approx(break_even)


def test_a_wide_interval_makes_it_depend_on_the_measurement_near_the_break_even_only() -> None:
    near, far = at(BREAK_EVEN_RPS * 1.02, spread=0.1), at(BREAK_EVEN_RPS * 1.5, spread=0.1)
    assert (near.word, kinds(near)) == ("depends", ["measurement"])
    assert (far.word, kinds(far)) == ("pays", ["cheaper"])


def test_the_break_even_has_an_interval_from_those_of_the_rates() -> None:
    verdict = at(200, spread=0.1)
    assert verdict.break_even_low_rps == pytest.approx(0.9 * BREAK_EVEN_RPS)
    assert verdict.break_even_high_rps == pytest.approx(1.1 * BREAK_EVEN_RPS)


def test_a_day_on_both_sides_of_the_break_even_depends_on_the_rate() -> None:
    rates = ((16.0, 100.0), (8.0, 1000.0))
    verdict = judge(*both(max_rate(CPU_RPS), max_rate(GPU_RPS), rates=rates))
    assert (verdict.word, kinds(verdict)) == ("depends", ["rate"])
    assert [one.word for one in verdict.at_rates] == ["does_not_pay", "pays"]
    assert verdict.reasons[0].value == 1000.0


def test_one_card_beside_cpus_may_pay_where_a_second_card_would_not() -> None:
    ours, theirs = profile(server("cpu", max_rate(100, 0.001))), profile(server("gpu", max_rate(500, 0.001)))
    sides = priced(ours, ours.servers[0], 0.18), priced(theirs, theirs.servers[0], 0.80)
    verdict = judge(plan(*sides, rates=((24, 550.0),), headroom_ratio=1.0), [ours, theirs])
    (at_rate,) = verdict.at_rates
    assert verdict.word == "pays"
    assert at_rate.gpu is not None
    assert at_rate.gpu.servers == (("fp16 on cuda, 1 × 1", 1), ("int8 on cpu, 1 × 1", 1))
    assert at_rate.gpu.per_hour == pytest.approx(0.98)


def test_a_dear_card_never_pays_and_has_no_break_even() -> None:
    verdict = judge(*both(max_rate(300), max_rate(310)))
    assert verdict.word == "does_not_pay"
    assert verdict.break_even_rps is None


def test_prices_too_near_to_tell_apart_depend_on_the_price() -> None:
    ours, theirs = profile(server("cpu", max_rate(300))), profile(server("gpu", max_rate(300)))
    sides = priced(ours, ours.servers[0], 0.50), priced(theirs, theirs.servers[0], 0.505)
    verdict = judge(plan(*sides), [ours, theirs])
    assert (verdict.word, kinds(verdict)) == ("depends", ["price"])


def test_two_servers_at_least_of_either_kind_move_the_break_even_to_where_two_cards_are_cheaper() -> None:
    few, two = (
        judge(*both(max_rate(CPU_RPS), max_rate(GPU_RPS), min_replicas=least)).break_even_rps for least in (1, 2)
    )
    # 5 CPU servers cost less than 2 cards, 6 do not
    assert (few, two) == (pytest.approx(2 * CPU_RPS * HEADROOM), pytest.approx(5 * CPU_RPS * HEADROOM))


def test_where_no_more_cpu_servers_can_be_had_the_card_alone_meets_the_objective() -> None:
    verdict = judge(*both(max_rate(CPU_RPS), max_rate(GPU_RPS), rates=((24, 400.0),), max_replicas=1))
    assert (verdict.word, kinds(verdict)) == ("pays", ["only_one"])


def test_no_speed_within_what_was_measured_contradicts_an_answer_although_cpus_stand_beside_the_card_too() -> None:
    """At a speed between, CPU servers alone are one more, and beside the card one fewer."""

    def told(cpu_rps: float, gpu_rps: float, spread: float) -> Verdict:
        ours, theirs = (
            profile(server("cpu", max_rate(cpu_rps, spread))),
            profile(server("gpu", max_rate(gpu_rps, spread))),
        )
        sides = priced(ours, ours.servers[0], 0.111), priced(theirs, theirs.servers[0], 0.525)
        return judge(plan(*sides, rates=((24, 551.0),)), [ours, theirs])

    words = {told(cpu, gpu, 0.0).word for cpu in (150.0, 152.4, 154.5, 155.4) for gpu in (613.0, 625.0, 637.0)}
    assert words == {"pays", "does_not_pay"}
    assert told(152.4, 625.0, 0.02).word == "depends"


# -- what it must not answer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_runs", [0, 1, 2])
@pytest.mark.parametrize("rate", [50.0, 5000.0])
def test_too_few_runs_are_inconclusive_whatever_the_numbers(num_runs: int, rate: float) -> None:
    few = max_rate(CPU_RPS, num_runs=num_runs)
    verdict = judge(*both(few, max_rate(GPU_RPS), rates=((24, rate),)))
    assert (verdict.word, verdict.what_if) == ("inconclusive", None)
    assert [(r.kind, r.pool, r.value) for r in verdict.reasons] == [("too_few", "cpu", num_runs)]


def test_runs_without_an_interval_are_inconclusive() -> None:
    bare = max_rate(GPU_RPS, low_rps=None, high_rps=None)
    assert kinds(judge(*both(max_rate(CPU_RPS), bare))) == ["too_few"]


def test_only_void_runs_are_inconclusive() -> None:
    void = LoadPoint(200, 1, 4000, 0, None, None, 0, OBJECTIVE_S, False, void="the generator lagged")
    ours = profile(server("cpu", max_rate(CPU_RPS), load=(void, void)))
    theirs = profile(server("gpu", max_rate(GPU_RPS)))
    sides = priced(ours, ours.servers[0], CPU_PER_HOUR), priced(theirs, theirs.servers[0], GPU_PER_HOUR)
    verdict = judge(plan(*sides), [ours, theirs])
    assert verdict.word == "inconclusive"
    assert [(r.kind, r.detail) for r in verdict.reasons] == [("void", "the generator lagged")]


def test_one_void_run_among_good_ones_changes_nothing() -> None:
    good = LoadPoint(200, 1, 4000, 200, 0.004, 0.009, 0, OBJECTIVE_S, True)
    ours = profile(server("cpu", max_rate(CPU_RPS), load=(good, replace(good, void="the generator lagged"))))
    theirs = profile(server("gpu", max_rate(GPU_RPS)))
    sides = priced(ours, ours.servers[0], CPU_PER_HOUR), priced(theirs, theirs.servers[0], GPU_PER_HOUR)
    assert judge(plan(*sides), [ours, theirs]).word == "does_not_pay"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_missing_side_is_inconclusive_and_named(device: str) -> None:
    made = profile(server(device, max_rate(1000)))
    verdict = judge(plan(priced(made, made.servers[0], 0.3)), [made])
    assert verdict.word == "inconclusive"
    assert [(r.kind, r.pool) for r in verdict.reasons] == [("missing", "gpu" if device == "cpu" else "cpu")]
    assert verdict.flips == ()
    assert {one.word for one in verdict.at_rates} == {"inconclusive"}


def test_no_profile_at_all_is_inconclusive_on_both_sides() -> None:
    verdict = judge(plan(), [])
    assert verdict.word == "inconclusive"
    assert [r.pool for r in verdict.reasons] == ["cpu", "gpu"]


def test_a_card_that_no_price_was_found_for_is_inconclusive() -> None:
    ours, theirs = profile(server("cpu", max_rate(CPU_RPS))), profile(server("gpu", max_rate(GPU_RPS)))
    verdict = judge(plan(priced(ours, ours.servers[0], 0.3)), [ours, theirs])
    assert (verdict.word, kinds(verdict)) == ("inconclusive", ["unpriced"])


@pytest.mark.parametrize("provenance", ["emulated", "published"])
@pytest.mark.parametrize(("rate", "answer"), [(50.0, "does_not_pay"), (5000.0, "pays")])
def test_what_a_file_tells_is_a_what_if(provenance: str, rate: float, answer: str) -> None:
    made, (ours, theirs) = both(max_rate(CPU_RPS), max_rate(GPU_RPS), rates=((24, rate),))
    told = replace(theirs, provenance=provenance)
    cpu, gpu = made.considered
    verdict = judge(replace(made, considered=(cpu, replace(gpu, profile=told))), [ours, told])
    assert (verdict.word, verdict.what_if) == ("inconclusive", answer)
    assert verdict.reasons[0].kind == "what_if"
    assert verdict.reasons[0].detail == provenance
    assert {one.word for one in verdict.at_rates} == {"inconclusive"}


def test_an_emulated_device_in_a_profile_that_says_measured_is_a_what_if_all_the_same() -> None:
    ours, theirs = profile(server("cpu", max_rate(CPU_RPS))), profile(server("emulated-fast", max_rate(GPU_RPS)))
    sides = priced(ours, ours.servers[0], CPU_PER_HOUR), priced(theirs, theirs.servers[0], GPU_PER_HOUR)
    verdict = judge(plan(*sides), [ours, theirs])
    assert (verdict.word, verdict.what_if) == ("inconclusive", "does_not_pay")


def test_published_figures_with_too_few_runs_of_our_own_beside_them_have_no_what_if_answer() -> None:
    made, (ours, theirs) = both(max_rate(CPU_RPS, num_runs=1), max_rate(GPU_RPS))
    told = replace(theirs, provenance="published")
    cpu, gpu = made.considered
    verdict = judge(replace(made, considered=(cpu, replace(gpu, profile=told))), [ours, told])
    assert (verdict.word, verdict.what_if) == ("inconclusive", None)


def test_a_cpu_whose_limit_the_generator_hid_is_not_called_the_dearer_one() -> None:
    bounded = max_rate(CPU_RPS, is_bounded_by_generator=True)
    verdict = judge(*both(bounded, max_rate(GPU_RPS), rates=((24, 5000.0),)))
    assert (verdict.word, kinds(verdict)) == ("inconclusive", ["generator"])


@pytest.mark.parametrize(("rate", "word"), [(100.0, "does_not_pay"), (1000.0, "inconclusive")])
def test_rates_for_a_stricter_objective_are_lower_bounds(rate: float, word: str) -> None:
    stricter = max_rate(CPU_RPS, objective_s=OBJECTIVE_S / 2)
    verdict = judge(*both(stricter, max_rate(GPU_RPS), rates=((24, rate),)))
    assert verdict.word == word
    assert kinds(verdict) == (["stricter"] if word == "inconclusive" else ["cheaper"])


def test_a_card_whose_limit_the_generator_hid_pays_all_the_more() -> None:
    bounded = max_rate(GPU_RPS, is_bounded_by_generator=True)
    assert judge(*both(max_rate(CPU_RPS), bounded, rates=((24, 3000.0),))).word == "pays"


# -- where only one kind, or none, meets the objective -----------------------------------------------------------------


@pytest.mark.parametrize(("cpu", "gpu", "word"), [(0.0, 900.0, "pays"), (900.0, 0.0, "does_not_pay")])
def test_what_alone_meets_the_objective_is_the_answer(cpu: float, gpu: float, word: str) -> None:
    verdict = judge(*both(max_rate(cpu, 0), max_rate(gpu)))
    assert verdict.word == word
    assert kinds(verdict) == ["only_one"]
    assert verdict.break_even_rps is None


def test_a_search_that_the_generator_ended_before_its_first_rate_is_no_proof_that_a_cpu_is_too_slow() -> None:
    void = LoadPoint(20, 1, 100, 0, None, None, 0, OBJECTIVE_S, False, void="the generator lagged")
    unseen = max_rate(0, num_runs=0, is_bounded_by_generator=True)
    ours, theirs = profile(server("cpu", unseen, load=(void,))), profile(server("gpu", max_rate(GPU_RPS)))
    verdict = judge(plan(priced(theirs, theirs.servers[0], GPU_PER_HOUR)), [ours, theirs])
    assert (verdict.word, kinds(verdict)) == ("inconclusive", ["void"])


MISSED = LoadPoint(20, 1, 100, 19, 0.01, 0.05, 30, OBJECTIVE_S, False)
ALONE = Timing("gateway_binary", 1, 400, 0.030, 0.035, 0.029, 0.031)


def slow_cpu(*, provenance: Provenance = "measured", **given: object) -> Verdict:
    """Of a CPU that carries nothing in time, as a plan leaves it out, and a card that was measured well."""
    never = MaxRate(OBJECTIVE_S, 1, 0.0, None, None)
    ours = profile(server("cpu", never, **given), provenance=provenance)
    theirs = profile(server("gpu", max_rate(GPU_RPS)))
    return judge(plan(priced(theirs, theirs.servers[0], GPU_PER_HOUR)), [ours, theirs])


@pytest.mark.parametrize("given", [{"load": (MISSED,) * 3}, {"ladder": (ALONE,)}])
def test_a_cpu_that_missed_three_times_or_is_too_slow_alone_leaves_the_card(given: dict[str, object]) -> None:
    verdict = slow_cpu(**given)
    assert (verdict.word, kinds(verdict)) == ("pays", ["only_one"])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"load": (MISSED, MISSED, replace(MISSED, void="the generator lagged"))},
        {"load": (MISSED, MISSED, replace(MISSED, objective_s=OBJECTIVE_S / 2))},
        {"ladder": (replace(ALONE, latency_p50_s=0.021, low_s=0.019),)},
        {"ladder": (replace(ALONE, rung="in_process"), replace(ALONE, batch_size=8))},
    ],
)
def test_a_cpu_is_not_called_too_slow_after_fewer_than_three_misses(given: dict[str, object]) -> None:
    verdict = slow_cpu(**given)
    assert (verdict.word, kinds(verdict)) == ("inconclusive", ["too_few"])


@pytest.mark.parametrize("provenance", ["published", "emulated"])
def test_a_cpu_that_is_too_slow_by_a_file_makes_a_what_if(provenance: Provenance) -> None:
    verdict = slow_cpu(provenance=provenance)
    assert (verdict.word, verdict.what_if, kinds(verdict)) == ("inconclusive", "pays", ["what_if", "only_one"])


def test_an_emulated_device_is_called_emulated_whatever_its_profile_says_of_itself() -> None:
    never = MaxRate(OBJECTIVE_S, 1, 0.0, None, None)
    ours, theirs = profile(server("emulated-cpu", never)), profile(server("gpu", max_rate(GPU_RPS)))
    verdict = judge(plan(priced(theirs, theirs.servers[0], GPU_PER_HOUR)), [ours, theirs])
    assert (verdict.word, verdict.reasons[0].kind, verdict.reasons[0].detail) == ("inconclusive", "what_if", "emulated")


def test_a_cpu_that_was_too_slow_for_a_stricter_objective_was_never_measured_for_this_one() -> None:
    verdict = slow_cpu(max_rates=(MaxRate(OBJECTIVE_S / 2, 1, 0.0, None, None),), ladder=(ALONE,))
    assert (verdict.word, kinds(verdict)) == ("inconclusive", ["missing"])


def test_where_nothing_meets_the_objective_a_card_does_not_pay() -> None:
    verdict = judge(*both(max_rate(0, 0), max_rate(0, 0)))
    assert (verdict.word, kinds(verdict)) == ("does_not_pay", ["unmet"])


@pytest.mark.parametrize(("max_price_per_hour", "word"), [(100.0, "pays"), (GPU_PER_HOUR / 2, "does_not_pay")])
def test_what_costs_more_than_it_may_does_not_pay_although_the_card_is_the_cheaper_one(
    max_price_per_hour: float, word: str
) -> None:
    both_sides = [profile(server("cpu", max_rate(CPU_RPS, 0.005))), profile(server("gpu", max_rate(GPU_RPS, 0.005)))]
    offers = (Offer("cpu.large", CPU_PER_HOUR, 2), Offer("gpu.large", GPU_PER_HOUR, 4, "gpu", 1, "T4"))
    objective = Objective(OBJECTIVE_S, ((24, 3000.0),), max_price_per_hour)
    prices = PriceList("made", "here", "2026-11-01", "$", offers)
    verdict = judge(make_plan("digits", objective, both_sides, prices), both_sides)
    assert verdict.word == word
    assert kinds(verdict) == (["cheaper"] if word == "pays" else ["over_cap"])


def test_a_cpu_that_met_the_objective_in_some_runs_only_makes_it_depend() -> None:
    torn = max_rate(0, low_rps=0.0, high_rps=400.0)
    verdict = judge(*both(torn, max_rate(GPU_RPS)))
    assert verdict.word == "depends"


def test_no_rate_at_all_is_no_question() -> None:
    assert judge(*both(max_rate(300), max_rate(5000), rates=((24, 0.0),))).word == "inconclusive"


# -- what would change it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [100.0, 300.0, 1000.0, 3000.0])
def test_each_flip_turns_the_answer_just_beyond_its_number_and_not_before(rate: float) -> None:
    cpu, gpu = max_rate(CPU_RPS, 0), max_rate(GPU_RPS, 0)
    made, profiles = both(cpu, gpu, rates=((24, rate),))
    before = judge(made, profiles)
    ours, theirs = made.considered
    assert {flip.what for flip in before.flips} >= {"rate", "gpu_price", "cpu_price"}
    for flip in before.flips:
        for ratio in (0.95, 1.05):
            value = flip.at * ratio
            sides = {
                "rate": (ours, theirs),
                "gpu_price": (ours, replace(theirs, per_hour=value)),
                "cpu_price": (replace(ours, per_hour=value), theirs),
                "gpu_speed": (ours, replace(theirs, max_rate=max_rate(value, 0))),
                "idle": (ours, replace(theirs, per_hour=GPU_PER_HOUR / (1 - value))),
            }[flip.what]
            asked = ((24.0, value if flip.what == "rate" else rate),)
            after = judge(plan(*sides, rates=asked), profiles)
            is_beyond = (ratio > 1) == (flip.at > flip.now)
            assert after.word != (before.word if is_beyond else flip.to), (flip, ratio)
            if flip.what != "gpu_speed":  # whole servers: prices stay near each other over a span of speeds
                assert after.word == (flip.to if is_beyond else before.word), (flip, ratio)


def test_the_same_twice_is_the_same() -> None:
    assert at(200) == at(200)


@pytest.mark.thorough
def test_a_verdict_never_contradicts_the_plan() -> None:
    """Seeded servers, prices and loads: what pays is planned with a GPU, and what does not pay without one."""
    dice = random.Random(3)
    words = set()
    for _ in range(300):
        ours = profile(*(server("cpu", max_rate(dice.uniform(20, 800), dice.uniform(0, 0.1))) for _ in range(2)))
        theirs = profile(server("gpu", max_rate(dice.uniform(50, 4000), dice.uniform(0, 0.1))))
        offers = (
            Offer("cpu.large", CPU_PER_HOUR, 2),
            Offer("gpu.large", dice.uniform(0.1, 2), 4, "gpu", 1, "T4"),
        )
        days = dice.choice((1, 1, 2))
        objective = Objective(
            OBJECTIVE_S,
            tuple((24 / days, dice.uniform(1, 5000)) for _ in range(days)),
            min_replicas=dice.choice((1, 2)),
            headroom_ratio=dice.choice((0.5, 0.7, 1.0)),
        )
        made = make_plan("digits", objective, [ours, theirs], PriceList("made", "here", "2026-11-01", "$", offers))
        verdict = judge(made, [ours, theirs])
        words.add(verdict.word)
        has_gpu = any(pool.name == "gpu" for pool in made.pools)
        assert verdict.word not in (("does_not_pay",) if has_gpu else ("pays",)), (made.pools, verdict.at_rates)
    assert words == {"pays", "does_not_pay", "depends"}
