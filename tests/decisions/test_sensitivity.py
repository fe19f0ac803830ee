"""One thing changes at a time, and the answer follows as arithmetic says."""

from __future__ import annotations

import pytest

from serving.decisions.sensitivity import Sensitivity, sensitivity, with_idle
from tests.decisions.plan.figures import objective, priced

CPU, GPU = priced("cpu", 100, 0.2), priced("gpu", 2000, 0.5)


def found(*servers: object, rate: float = 250.0) -> dict[tuple[str, float], Sensitivity]:
    return {(it.what, it.at): it for it in sensitivity(servers or (CPU, GPU), objective(rate))}  # type: ignore[arg-type]


def test_prices_move_the_break_even_and_turn_the_answer() -> None:
    by = found()
    assert by["gpu_price", 1.25].cheaper == "cpu"  # 0.625 for a card, 0.6 for three CPU servers
    assert by["gpu_price", 0.75].cheaper == "gpu"
    assert by["gpu_price", 1.5].break_even_rps == pytest.approx(300)
    assert by["gpu_price", 0.5].break_even_rps == pytest.approx(100)
    assert by["cpu_price", 0.5].cheaper == "cpu"
    assert by["cpu_price", 1.5].break_even_rps == pytest.approx(100)


def test_rates_are_those_at_both_ends_of_what_was_measured() -> None:
    by = found()
    rates = {it.at: it for it in by.values() if it.what == "cpu_rate"}
    assert sorted(rates) == pytest.approx([90.0, 110.0])
    assert [rates[at].break_even_rps for at in sorted(rates)] == pytest.approx([180.0, 220.0])
    assert [it.break_even_rps for it in by.values() if it.what == "gpu_rate"] == pytest.approx([200.0, 200.0])


def test_hours_without_load_are_paid_for_with_the_fewest_servers_of_each_kind() -> None:
    by = found()
    assert (by["idle_hours", 0.0].cpu_per_day, by["idle_hours", 0.0].gpu_per_day) == (
        pytest.approx(14.4),
        pytest.approx(12),
    )
    assert by["idle_hours", 16.0].cpu_per_day == pytest.approx(8 * 0.6 + 16 * 0.2)
    assert (by["idle_hours", 0.0].cheaper, by["idle_hours", 16.0].cheaper) == ("gpu", "cpu")


def test_idle_hours_take_the_place_of_those_that_were_idle_anyway() -> None:
    asked = with_idle(objective((6, 100.0), (6, 200.0), (12, 0.0)), 16.0)
    assert asked.rates == ((4.0, 100.0), (4.0, 200.0), (16.0, 0.0))
    assert with_idle(asked, 0.0).rates == ((12.0, 100.0), (12.0, 200.0))


def test_without_a_card_there_is_no_cheaper_one_and_no_rate_of_it() -> None:
    by = found(CPU)
    assert {it.cheaper for it in by.values()} == {None}
    assert "gpu_rate" not in {what for what, _ in by}
    assert by["idle_hours", 0.0].gpu_per_day is None
