"""The plan is the cheapest there is, found by trying everything; what is impossible is said in numbers."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from serving.decisions.plan.result import Objective, Plan, PricedServer
from serving.decisions.plan.search import make_plan
from serving.decisions.prices import Offer, PriceList, may_be_served
from serving.decisions.profile import LoadPoint, MaxRate, Profile, ServerProfile, Settings
from tests.decisions.plan.figures import EPYC, OBJECTIVE_S, PRICES, both, objective, profile, server


def plan(profiles: list[Profile], asked: Objective, prices: PriceList = PRICES, **more: object) -> Plan:
    return make_plan("digits", asked, profiles, prices, **more)  # type: ignore[arg-type]


def by_hand(made: Plan, asked: Objective) -> float:
    """The cheapest day of all numbers of servers of any pair that carry each rate."""

    def hour(cpu: PricedServer | None, gpu: PricedServer | None, rate: float) -> float:
        least, found = max(1, asked.min_replicas), []
        for n_cpu, n_gpu in itertools.product(range(14) if cpu else [0], range(14) if gpu else [0]):
            if (n_cpu if cpu else n_gpu) < least:
                continue
            carried = sum(
                n * one.max_rate.rate_rps * asked.headroom_ratio for n, one in ((n_cpu, cpu), (n_gpu, gpu)) if one
            )
            if carried >= rate - 1e-6:
                found.append(sum(n * one.per_hour for n, one in ((n_cpu, cpu), (n_gpu, gpu)) if one))
        return min(found, default=float("inf"))

    sides = [[None, *(p for p in made.considered if p.pool == pool)] for pool in ("cpu", "gpu")]
    pairs = [pair for pair in itertools.product(*sides) if any(pair)]
    return min(sum(hours * hour(cpu, gpu, rate) for hours, rate in asked.rates) for cpu, gpu in pairs)


@pytest.mark.parametrize("seed", range(25))
def test_no_numbers_of_servers_that_carry_the_rates_cost_less_than_the_plan(seed: int) -> None:
    draw = random.Random(seed)
    asked = objective(
        *(draw.uniform(10, 600) for _ in range(draw.randint(1, 3))),
        min_replicas=draw.choice([1, 1, 2]),
        headroom_ratio=draw.choice([0.6, 1.0]),
    )
    offers = (
        Offer("cpu.large", draw.uniform(0.1, 0.3), 4, processor="AMD EPYC 9R14"),
        Offer("gpu.large", draw.uniform(0.3, 1.5), 4, "gpu", 1, "T4"),
    )
    servers = [server("cpu", draw.uniform(60, 200), variant=v) for v in ("int8", "fp32")]
    cards = [server("gpu", draw.uniform(150, 900), variant=v) for v in ("fp16", "fp32")]
    made = plan([profile(*servers), profile(*cards)], asked, replace(PRICES, offers=offers))
    assert made.per_day == pytest.approx(by_hand(made, asked))
    for step in made.steps:
        carried = {p.name: p.chosen.max_rate.rate_rps * asked.headroom_ratio for p in made.pools}
        assert step.num_cpu * carried.get("cpu", 0) + step.num_gpu * carried.get("gpu", 0) >= step.rate_rps - 1e-6


def test_a_planted_optimum_is_found_with_its_settings() -> None:
    right = server("cpu", 400, variant="int8", engine="openvino", settings=Settings(2, 2, 16, 250))
    others = [server("cpu", rate, settings=Settings(1, threads, 32, 0)) for rate, threads in ((390, 1), (210, 2))]
    made = plan([profile(*others, right), profile(server("gpu", 500))], objective(350))
    (pool,) = made.pools
    assert (pool.name, pool.chosen.server, pool.min_replicas, pool.max_replicas) == ("cpu", right, 1, 1)


@pytest.mark.parametrize(
    ("rates", "pools"),
    [
        ((100,), {"cpu": (1, 1)}),
        ((1000,), {"gpu": (1, 1)}),
        (((20, 100), (4, 1000)), {"cpu": (1, 1), "gpu": (0, 1)}),  # a base, and a card for the peak
    ],
)
def test_one_kind_or_a_base_with_cards_for_the_peak(
    rates: tuple[float, ...], pools: dict[str, tuple[int, int]]
) -> None:
    made = plan(both(150, 1500), objective(*rates))
    assert {pool.name: (pool.min_replicas, pool.max_replicas) for pool in made.pools} == pools


def test_each_part_of_the_objective_changes_the_plan() -> None:
    def day(**change: object) -> tuple[float | None, float | None]:
        made = plan(both(150, 1500), objective(200, **change))
        return made.per_hour_at_peak, made.per_day

    assert day() == (pytest.approx(0.4), pytest.approx(9.6))
    assert day(min_replicas=3) == (pytest.approx(0.6), pytest.approx(14.4))
    assert day(headroom_ratio=0.5) == (pytest.approx(0.526), pytest.approx(24 * 0.526))
    assert day(max_replicas=1) == (pytest.approx(0.526), pytest.approx(24 * 0.526))
    assert day(max_price_per_hour=0.39) == (None, None)
    gateway = plan(both(150, 1500), objective(200), gateway_per_hour=0.1)
    assert (gateway.per_hour_at_peak, gateway.per_day) == (pytest.approx(0.5), pytest.approx(12.0))
    assert dict(gateway.per_million)["the plan at 200/s"] == pytest.approx(0.5 / 3600 / 200 * 1e6)


def test_the_least_energy_is_not_the_least_money() -> None:
    profiles = [
        profile(server("cpu", 150, joules_per_request=0.4)),
        profile(server("gpu", 1500, joules_per_request=0.02)),
    ]
    by_price, by_energy = (plan(profiles, objective(100, minimise=what)) for what in ("price", "energy"))
    assert [pool.name for pool in by_price.pools] == ["cpu"]
    assert [pool.name for pool in by_energy.pools] == ["gpu"]
    assert by_energy.joules_per_day == pytest.approx(100 * 86400 * 0.02)


def test_joules_of_a_card_and_of_a_processor_are_not_compared_without_a_word() -> None:
    profiles = [
        profile(server("cpu", 150, joules_per_request=0.4)),
        profile(server("gpu", 1500, joules_per_request=0.02)),
    ]
    (caveat,) = plan(profiles, objective(100, minimise="energy")).caveats
    assert "processor" in caveat
    assert plan(profiles, objective(100)).caveats == ()


def test_a_server_whose_joules_nobody_measured_is_not_left_out_of_the_least_energy_in_silence() -> None:
    profiles = [profile(server("cpu", 150, joules_per_request=0.4)), profile(server("gpu", 1500))]
    (caveat,) = plan(profiles, objective(100, minimise="energy")).caveats
    assert "fp16 on cuda" in caveat
    assert "joules" in caveat


def test_the_command_that_is_told_measures_what_is_missing() -> None:
    (binding,) = plan(both(150, 1500), objective(100, batch_size=8)).bindings
    assert "`tandem profile digits --p99 20ms --batch-size 8`" in binding.says


def test_a_thriftier_server_that_is_slower_for_the_same_money_takes_the_least_energy() -> None:
    thrifty = server("cpu", 120, variant="fp32", joules_per_request=0.1)
    servers = profile(server("cpu", 150, joules_per_request=0.4), thrifty)
    (pool,) = plan([servers], objective(100, minimise="energy")).pools
    assert pool.chosen.server == thrifty


def test_costs_are_told_at_the_highest_rate_at_70_and_50_per_cent_and_at_what_was_asked() -> None:
    told = dict(plan(both(150, 1500), objective(100)).per_million)
    at_max = 0.2 / 3600 / 150 * 1e6
    assert told["cpu at its highest rate"] == pytest.approx(at_max)
    assert told["cpu at 70 % of it"] == pytest.approx(at_max / 0.7)
    assert told["cpu at 50 % of it"] == pytest.approx(at_max * 2)
    assert told["gpu at 50 % of it"] == pytest.approx(2 * 0.526 / 3600 / 1500 * 1e6)
    assert told["the plan at 100/s"] == pytest.approx(0.2 / 3600 / 100 * 1e6)


def test_curves_start_with_the_fewest_servers_and_with_two() -> None:
    made = plan(both(150, 1500), objective(100))
    assert (made.curve[0].cpu_replicas, made.curve_of_two[0].cpu_replicas) == (1, 2)
    assert made.break_even_rps == pytest.approx(300)
    assert made.curve[-1].rate_rps == pytest.approx(600)


# -- what may take part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "variant", "engine", "is_served"),
    [
        ("cpu", "fp16", "cpu", False),
        ("cpu", "int8", "openvino", True),
        ("cpu", "bf16", "cpu", False),
        ("cpu", "bf16", "openvino", True),
        ("cpu", "fp32", "cuda", False),
        ("gpu", "int8", "cuda", False),
        ("gpu", "int8", "tensorrt", True),
        ("gpu", "fp32", "cpu", False),
        ("emulated-gpu", "int8", "emulated-t4", False),
        ("emulated-gpu", "fp16", "emulated-t4", True),
    ],
)
def test_what_no_pool_would_load_takes_no_part(device: str, variant: str, engine: str, is_served: bool) -> None:
    one = server(device, 5000, variant=variant, engine=engine)
    assert may_be_served(one) == is_served
    made = plan([profile(server("cpu", 10)), profile(replace(one, device_name="Tesla T4"), machine=EPYC)], objective(9))
    assert (len(made.considered) == 2) == is_served


def test_profiles_of_another_model_take_no_part() -> None:
    other = replace(both(1, 1)[0], model="minilm")
    assert plan([other], objective(1)).bindings[0].constraint == "profile"


# -- what is impossible ------------------------------------------------------------------------------------------------

SLOW = server("cpu", 0, load=(LoadPoint(1, 1, 100, 1, 0.03, 0.045, 100, OBJECTIVE_S, False),))
ELSEWHERE = profile(server("gpu", 900, device_name="NVIDIA H800"), machine=EPYC)
IMPOSSIBLE = {
    "nothing measured": ([], {}, "profile", None, "nothing was measured of digits: `tandem profile digits --p99 20ms`"),
    "another objective": (
        [profile(server("cpu", None, max_rates=(MaxRate(0.1, 1, 50, None, None),)))],
        {},
        "profile",
        0.1,
        "but for 100 ms",
    ),
    "other rows": ([profile(server("cpu", 50))], {"batch_size": 8}, "profile", None, "8 rows a request"),
    "too slow": ([profile(SLOW)], {}, "latency", 0.045, "45 ms"),
    "no such card": ([ELSEWHERE], {}, "offer", None, "'NVIDIA H800'"),
    "too dear": (
        both(150, 1500),
        {"max_price_per_hour": 0.3},
        "price",
        0.4,
        "$0.4 an hour at the least",
    ),
    "too few": (both(15, 30), {"max_replicas": 2}, "rate", 90.0, "90/s are carried"),
    "no joules": (both(150, 1500), {"minimise": "energy"}, "energy", None, "no joules were measured"),
    "joules too dear": (
        [profile(server("cpu", 150)), profile(server("gpu", 1500, joules_per_request=0.1))],
        {"minimise": "energy", "max_price_per_hour": 0.45},
        "energy",
        None,
        "no server whose joules were measured carries it for $0.45 an hour",
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_keeps_a_plan_from_being_possible_is_told_in_numbers_with_the_way_out(what: str) -> None:
    profiles, change, constraint, possible, says = IMPOSSIBLE[what]
    made = plan(profiles, objective(200, **change))
    assert made.pools == ()
    (binding,) = made.bindings
    assert (binding.constraint, says in binding.says) == (constraint, True), binding.says
    assert binding.possible == (None if possible is None else pytest.approx(possible))


# -- what has to be known ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"provenance": "published", "note": "a paper of 2021"}, "published figures, not measured by Tandem (a paper of 2021)"),
        ({"provenance": "emulated"}, "its times follow a file"),
        ({"others_ratio": 0.4}, "other work took 40% of the cores"),
        ({"servers": (server("cpu", 150, is_untrained=True),)}, "random weights"),
        ({"date": "2027-03-01T00:00:00+00:00"}, "prices are 224 days old (list, 2026-07-20)"),
        ({"machine": replace(EPYC, num_cores=2.0)}, "a server has 2 cores, 0.5 of a cpu.large, at that share of its price"),
        ({"machine": replace(EPYC, num_cores=8.0)}, "measured with 8 cores, more than cpu.large has"),
        ({"machine": replace(EPYC, processor="Core i7")}, "priced as cpu.large, a guess"),
    ],
)  # fmt: skip
def test_what_a_number_stands_on_is_told(change: dict[str, object], says: str) -> None:
    good = profile(server("cpu", 150))
    assert plan([good], objective(100)).caveats == ()
    made = plan([replace(good, **change)], objective(100))  # type: ignore[arg-type]
    assert any(says in caveat for caveat in made.caveats), made.caveats


@pytest.mark.parametrize(
    ("made_by", "instances", "says"),
    [
        (server("gpu", 900), {"gpu": "h100.large"}, "was measured on 'Tesla T4' and is priced as h100.large, which has 'H100'"),
        (server("cpu", 900), {"cpu": "spr.large"}, "was measured on 'AMD EPYC 9R14' and is priced as spr.large, which has 'Intel 8488C'"),
        (server("gpu", 900), {"gpu": "gpu.large"}, None),
        (server("cpu", 900), {"cpu": "cpu.large"}, None),
        (server("cpu", 900), {"cpu": "any.large"}, None),
    ],
)  # fmt: skip
def test_a_machine_that_is_named_by_hand_and_is_another_one_is_told(
    made_by: ServerProfile, instances: dict[str, str], says: str | None
) -> None:
    others = (
        Offer("h100.large", 9.0, 4, "gpu", 1, "H100"),
        Offer("spr.large", 0.3, 4, processor="Intel 8488C"),
        Offer("any.large", 0.3, 4),
    )
    prices = replace(PRICES, offers=(*PRICES.offers, *others))
    caveats = plan([profile(made_by)], objective(100), prices, instances=instances).caveats
    assert [says in caveat for caveat in caveats] == [True] if says else caveats == ()


def test_a_variant_that_answers_less_well_is_not_chosen_in_silence() -> None:
    int8, fp32 = server("cpu", 150, accuracy=0.964), server("cpu", 140, variant="fp32", accuracy=0.972)
    (caveat,) = plan([profile(int8, fp32)], objective(100)).caveats
    assert "0.964 and 0.972" in caveat
    assert plan([profile(replace(int8, accuracy=0.972), fp32)], objective(100)).caveats == ()


def test_a_rate_of_a_stricter_objective_or_of_a_tired_generator_is_told_as_a_lower_bound() -> None:
    stricter = profile(server("cpu", 150, max_rates=(MaxRate(0.01, 1, 150, None, None, (), True),)))
    caveats = " ".join(plan([stricter], objective(100)).caveats)
    assert "p99 within 10 ms" in caveats
    assert "ended at 150/s" in caveats


def test_what_no_number_stands_on_is_not_told() -> None:
    slower = profile(server("cpu", 100), others_ratio=0.9)
    assert plan([profile(server("cpu", 150)), slower], objective(100)).caveats == ()


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        (server("cpu", 500, variant="fp16"), "not weighed: fp16 on cpu, 1 × 4: no cpu pool loads that"),
        (server("cpu", None, variant="fp32"), "was never measured"),
        (server("cpu", 0, variant="fp32"), "no rate that was tried has p99 within 20 ms"),
        (server("gpu", 900, device_name="NVIDIA H800"), "'NVIDIA H800': name one with --instance gpu"),
    ],
)  # fmt: skip
def test_what_was_not_weighed_is_told_with_the_reason(left_out: ServerProfile, says: str) -> None:
    made = plan([profile(server("cpu", 150)), profile(left_out, machine=EPYC)], objective(100))
    (caveat,) = made.caveats
    assert says in caveat


def test_a_huge_load_is_planned_at_once() -> None:
    made = plan(both(0.5, 2), objective(1e7))
    assert made.pools
    assert made.per_hour_at_peak == pytest.approx(1e7 / 2 * 0.526)


def test_prices_are_old_by_todays_date_too() -> None:
    good = [profile(server("cpu", 150))]
    assert plan(good, objective(100), today="2026-11-30").caveats == ()
    assert "prices are" in plan(good, objective(100), today="2027-11-30").caveats[0]
