"""What a plan says in words: the load, who serves it, what it costs, and whether a card pays; never a number that is not in it."""

from __future__ import annotations

import pytest

from serving.decisions.plan.result import Objective
from serving.decisions.plan.search import make_plan
from serving.decisions.plan.wording import paragraph, table
from serving.decisions.profile import Profile
from tests.decisions.plan.figures import PRICES, both, objective, profile, server


def said(profiles: list[Profile], asked: Objective, **more: float) -> str:
    return paragraph(make_plan("digits", asked, profiles, PRICES, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cpu", "gpu", "says"),
    [
        (150, 1500, "From 300/s on, cards alone are cheaper than CPUs alone."),
        (150, 160, "A card never pays here by itself: for each request it costs more than a CPU."),
    ],
)
def test_whether_a_card_pays_is_told(cpu: float, gpu: float, says: str) -> None:
    assert said(both(cpu, gpu), objective(100)).endswith(says)


def test_what_was_not_weighed_is_told() -> None:
    assert "No card was weighed" in said([profile(server("cpu", 150))], objective(100))
    assert "No CPU server was weighed" in said([profile(server("gpu", 150))], objective(100))


def test_a_load_that_changes_is_told_from_lowest_to_highest_with_the_price_of_a_day() -> None:
    text = said(both(150, 1500), objective((20.0, 100.0), (4.0, 1000.0)), gateway_per_hour=0.05)
    assert text.startswith(
        "100 to 1,000 requests per second at p99 ≤ 20 ms: 1 server with INT8 on AMD EPYC 9R14 (cpu.large)"
    )
    assert "and 0 to 1 server with FP16 on published Tesla T4 (gpu.large), 1,500/s each at most." in text
    assert (
        "That costs $8.104 a day; $0.776 an hour and $0.216 per million at 1,000/s; $0.05 an hour for the gateway in it."
        in text
    )
    assert "cards come where they make it cheaper" in text


def test_rows_and_energy_are_told_where_they_were_asked_for() -> None:
    assert "requests per second at" in said([profile(server("cpu", 150))], objective(100))
    thrifty = [profile(server("cpu", 150, joules_per_request=0.36))]
    assert "It takes 0.864 kWh a day for its requests" in said(thrifty, objective(100, minimise="energy"))


def test_a_table_has_every_server_that_was_weighed_and_every_rate() -> None:
    made = make_plan("digits", objective((20.0, 100.0), (4.0, 1000.0)), both(150, 1500), PRICES)
    lines = table(made).splitlines()
    assert [line for line in lines if line.startswith("20 ")] == ["20           100/s   1            0            $0.2"]
    assert any("int8 on cpu, 1 × 4" in line for line in lines)
    assert any("fp16 on cuda, 1 × 1" in line for line in lines)


def test_nothing_to_weigh_is_one_sentence_and_no_table() -> None:
    made = make_plan("digits", objective(100), [], PRICES)
    assert (
        paragraph(made)
        == "There is no plan for digits: nothing was measured of digits: `tandem profile digits --p99 20ms`."
    )
    assert table(made) == ""
