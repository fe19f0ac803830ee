"""Others' published figures: each can be checked, becomes a range at the p99 that is asked for, and is never planned."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from serving.decisions.fleet import cheapest_alone
from serving.decisions.plan.command import LoadOptions
from serving.decisions.plan.result import WhatIf
from serving.decisions.plan.search import make_plan
from serving.decisions.prices import match, read_prices
from serving.decisions.published import PUBLISHED as SHIPPED
from serving.decisions.published import TRITON_RATIO, _read, published_models, published_profiles
from serving.decisions.wording import paragraph, what_if
from serving.errors import UserError
from tests.decisions.plan.figures import PRICES, both, objective, profile, server

FILE = """
version: 1
sources:
  paper: {name: A paper, date: "2024-05-01", address: "https://example.com/paper", engine: tensorrt}
figures:
  - {source: paper, model: net, card: Tesla T4, objective_ms: 15, rate_rps: {int8: 3000}}
  - {source: paper, model: texts, card: Tesla T4, batch_ms: {int8: {1: 1, 8: 4, 64: 30}, fp16: {1: 2, 8: 8, 64: 60}}}
  - {source: paper, model: served, card: Tesla T4, objective_ms: 15, rate_rps: {int8: 3000, triton int8: 2500}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "published.yaml"
    file.write_text(FILE)
    return file


@pytest.mark.parametrize(
    ("model", "p99_s", "ends"),
    [
        ("net", 0.0149, None),  # nobody published a rate for so short a time
        ("net", 0.015, (3000 * TRITON_RATIO, 3000, 3000)),
        ("served", 0.1, (2500, 2500, 3000)),  # Triton is in the lower end already
        ("texts", 0.0019, None),
        ("texts", 0.002, (1000 * TRITON_RATIO, 1000, 1000)),  # fp16 is too slow even alone
        ("texts", 0.02, (1000 * TRITON_RATIO, 1000, 2000)),
        ("texts", 0.2, (64 / 0.06 * TRITON_RATIO, 64 / 0.06, 64 / 0.03)),
        ("nothing", 1.0, None),
    ],
)
def test_a_figure_is_a_range_of_the_ways_that_are_in_time(
    path: Path, model: str, p99_s: float, ends: tuple[float, float, float] | None
) -> None:
    found = published_profiles(model, p99_s, path=path)
    if ends is None:
        assert found == ()
        return
    (measured,) = found[0].servers[0].max_rates
    assert (measured.low_rps, measured.rate_rps, measured.high_rps) == pytest.approx(ends)
    assert measured.objective_s == p99_s
    assert found[0].provenance == "published"


def test_every_shipped_figure_names_its_source_and_its_day_and_all_but_a_gamers_card_have_a_price() -> None:
    file = _read(SHIPPED)
    assert {figure.source for figure in file.figures} == set(file.sources)
    for source in file.sources.values():
        assert source.address.startswith("https://github.com/")
        assert date(2020, 1, 1) < date.fromisoformat(source.date) < date.today()
    prices = read_prices(None)
    for model in published_models():
        for one in published_profiles(model, 10.0):
            assert (match(one, one.servers[0], prices) is None) is ("RTX" in one.servers[0].device_name)


def test_the_break_even_of_a_card_that_nobody_measured_is_a_range_and_it_is_never_planned(path: Path) -> None:
    asked = objective(5000.0)
    cpu = profile(server("cpu", 200), model="texts")
    cards = published_profiles("texts", asked.latency_p99_s, path=path)
    plan = make_plan("texts", asked, [cpu], PRICES, published=cards)
    (one,) = plan.what_ifs
    assert [pool.name for pool in plan.pools] == ["cpu"]
    assert plan.break_even_rps is None
    assert one.break_even_low_rps is not None
    assert one.break_even_high_rps is not None
    assert one.break_even_low_rps < one.break_even_high_rps
    for at, cpu_rps, gpu_rps in (
        (one.break_even_low_rps, 180, one.high_rps),
        (one.break_even_high_rps, 220, one.low_rps),
    ):
        ours, theirs = (make_plan("digits", asked, [made], PRICES).considered for made in both(cpu_rps, gpu_rps))
        above, below = at * 1.0001, at * 0.9999
        assert cheapest_alone(theirs, above, asked).price < cheapest_alone(ours, above, asked).price  # type: ignore[union-attr]
        assert cheapest_alone(theirs, below, asked).price >= cheapest_alone(ours, below, asked).price  # type: ignore[union-attr]
    assert what_if(one, "$") in paragraph(plan)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((700.0, 1900.0), "between 700 and 1,900 requests/s"),
        ((700.0, None), "above 700 requests/s, if anywhere"),
        ((700.0, 700.2), "at 700 requests/s"),
        ((None, None), "at no rate"),
    ],
)
def test_a_range_says_both_ends(ends: tuple[float | None, float | None], said: str) -> None:
    one = WhatIf("NVIDIA A10G, by an A10", "g5.xlarge", 1.0, 1.006, 500.0, 900.0, *ends, "A paper", "2024-05-01")
    assert what_if(one, "$").startswith(
        "on an A10G (g5.xlarge, $1.01 an hour), by published figures (A paper, 1 May 2024), "
    )
    assert what_if(one, "$").endswith(said)


def test_a_figure_that_is_neither_a_rate_nor_times_is_refused(path: Path) -> None:
    path.write_text(FILE.replace("objective_ms: 15, rate_rps: {int8: 3000}", "rate_rps: {int8: 3000}", 1))
    with pytest.raises(UserError, match=r"figures\[0\]"):
        published_profiles("net", 1.0, path=path)


def test_the_model_that_stands_for_another_is_named(path: Path) -> None:
    (found,) = published_profiles("mine", 0.1, like="net", path=path)
    assert found.model == "mine"
    assert "net" in (found.note or "")
    assert replace(found, model="net", note=None) == replace(published_profiles("net", 0.1, path=path)[0], note=None)


def test_a_net_that_nobody_published_is_refused_before_anything_is_measured() -> None:
    options = LoadOptions(p99="20ms", rate_rps=5, like="bert-bose")
    with pytest.raises(UserError, match="did you mean 'bert-base'"):
        options.objective()
