"""Amounts, what a plan says of load, servers, prices and cards, and the reasons of a verdict, in words."""

from __future__ import annotations

from typing import get_args

import pytest

from serving.decisions.plan.result import Objective
from serving.decisions.plan.search import make_plan
from serving.decisions.profile import Profile
from serving.decisions.verdict import Reason, ReasonKind
from serving.decisions.wording import asked_rate, card, missing, money, paragraph, rate, reason, table
from tests.decisions.plan.figures import PRICES, both, objective, profile, server


def said(profiles: list[Profile], asked: Objective, **more: float) -> str:
    return paragraph(make_plan("digits", asked, profiles, PRICES, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(("cpu", "gpu", "says"), [(150, 1500, "from 300/s on"), (150, 160, "at no rate")])
def test_whether_a_card_pays_is_told(cpu: float, gpu: float, says: str) -> None:
    assert said(both(cpu, gpu), objective(100)).endswith(f"{says}.")


def test_what_was_not_weighed_is_told() -> None:
    assert "No card" in said([profile(server("cpu", 150))], objective(100))
    assert "No CPU server" in said([profile(server("gpu", 150))], objective(100))


def test_a_load_that_changes_is_told_from_lowest_to_highest_with_the_price_of_a_day() -> None:
    text = said(both(150, 1500), objective((20.0, 100.0), (4.0, 1000.0)), gateway_per_hour=0.05)
    facts = ("100/s to 1,000/s", "20 ms", "1 server with INT8 on AMD EPYC 9R14 (cpu.large)")
    more = (
        "0 to 1 server with FP16 on published Tesla T4 (gpu.large)",
        "$8.10 a day",
        "$0.78 an hour",
        "$0.22 per million",
    )
    for fact in (*facts, *more, "$0.05 an hour for the gateway"):
        assert fact in text


def test_rows_and_energy_are_told_where_they_were_asked_for() -> None:
    thrifty = [profile(server("cpu", 150, joules_per_request=0.36))]
    assert "0.864 kWh a day" in said(thrifty, objective(100, minimise="energy"))
    assert "kWh" not in said(thrifty, objective(100))


def test_a_table_has_every_server_that_was_weighed_and_every_rate() -> None:
    made = make_plan("digits", objective((20.0, 100.0), (4.0, 1000.0)), both(150, 1500), PRICES)
    lines = table(made).splitlines()
    assert [line.split() for line in lines if line.startswith("20 ")] == [["20", "100/s", "1", "0", "$0.2"]]
    assert any("int8 on cpu, 1 × 4" in line for line in lines)
    assert any("fp16 on cuda, 1 × 1" in line for line in lines)


def test_nothing_to_weigh_is_one_sentence_and_no_table() -> None:
    made = make_plan("digits", objective(100), [], PRICES)
    assert "`tandem profile digits --p99 20ms`" in paragraph(made)
    assert table(made) == ""


def test_the_command_that_measures_what_is_missing_has_the_rows_of_a_request() -> None:
    said = missing(Reason("missing", "gpu"), "digits", 8)
    assert "`tandem profile digits --batch-size 8`" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NVIDIA T4", "a T4"),
        ("Tesla T4", "a T4"),
        ("NVIDIA H200", "an H200"),
        ("NVIDIA L4", "an L4"),
        ("NVIDIA A100-SXM4-80GB", "an A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 4090", "a GeForce RTX 4090"),
        ("NVIDIA RTX 4090", "an RTX 4090"),
    ],
)
def test_a_card_is_called_as_people_call_it(name: str, said: str) -> None:
    assert card(name) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0.1785, "$0.18"), (0.0042, "$0.0042"), (1234.5, "$1,234"), (0, "$0.00"), (2.5, "$2.50")]
)
def test_money_has_two_digits_that_say_something(value: float, said: str) -> None:
    assert money(value, "$") == said


@pytest.mark.parametrize(
    ("value", "said"), [(820.4, "820/s"), (0.25, "0.25/s"), (12345, "12,300/s"), (999.6, "1,000/s"), (1000, "1,000/s")]
)
def test_rates_have_three_digits(value: float, said: str) -> None:
    assert rate(value) == said


@pytest.mark.parametrize("kind", get_args(ReasonKind))
@pytest.mark.parametrize("pool", ["cpu", "gpu", None])
def test_every_reason_is_a_sentence_that_lacks_nothing(kind: ReasonKind, pool: str | None) -> None:
    said = reason(Reason(kind, pool, 3.0, 0.02, "a detail"), "digits")
    assert said[0].isupper()
    assert "None" not in said
    assert not said.endswith(".")


@pytest.mark.parametrize(
    ("value", "said"), [(10365, "10,365/s"), (1e7, "10,000,000/s"), (0.25, "0.25/s"), (200, "200/s")]
)
def test_a_rate_that_was_asked_for_keeps_its_digits(value: float, said: str) -> None:
    assert asked_rate(value) == said
