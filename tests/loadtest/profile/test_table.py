"""What stands on a terminal at the end: every server, what could not be met and why, and nothing that was not measured."""

from __future__ import annotations

import re
from dataclasses import replace

from loadtest.profile.wording import rate_words, table
from serving.decisions.profile import LoadPoint, MaxRate, Phase, Profile, ServerProfile, Settings, Timing
from serving.measure.machine import Machine
from tests.loadtest.profile.ladders import server

POINT = LoadPoint(100.0, 1, 400, 99.0, 0.01, None, 0, 0.02, True)
SERVER = ServerProfile(
    variant="int8",
    engine="cpu",
    device="cpu",
    device_name="A processor",
    digest=None,
    settings=Settings(1, 2),
    ladder=server("x").ladder,
    load=(POINT,),
    max_rates=(MaxRate(0.02, 1, 100.0, 95.0, 105.0, (95.0, 100.0, 105.0)),),
    cold_start=(Phase("process", 0.4), Phase("load", 1.6)),
)
EMPTY = ServerProfile("fp32", "cpu", "cpu", "A processor", None, Settings(1, 2))
MACHINE = Machine("A processor", ("avx2",), 2, "Linux")


def of(*servers: ServerProfile) -> str:
    return table(Profile("digits", "measured", "2026-01-01", "tandem profile digits", MACHINE, servers, note="Mind."))


def test_all_that_was_measured_stands_there() -> None:
    said = of(SERVER)
    for words in (
        "int8 on cpu, 1 × 2",
        "in process",
        "gateway JSON",
        "100/s",
        "95.0 to 105 over 3 estimates",
        "2.00",
        "Mind.",
    ):
        assert words in said


def test_what_was_not_measured_has_no_table() -> None:
    said = of(EMPTY)
    assert "median" not in said
    assert "p99 within" not in said
    assert "cold start" not in said


def test_a_card_is_told_which_sizes_of_batches_its_curve_asks_for() -> None:
    """One that takes 32 rows as fast as one needs one size. A processor is told nothing: there, buffers are no use."""
    ladder = tuple(Timing("in_process", size, 9, 0.005, None, None, None) for size in (1, 8, 32))
    card = replace(SERVER, engine="cuda", device="gpu", settings=Settings(1, 1, 32), ladder=ladder)
    assert re.search(r"25%.*batch_buckets: \[32\]", of(card))
    slopes = replace(card, ladder=tuple(replace(one, latency_p50_s=0.001 * one.batch_size) for one in ladder))
    assert "batch_buckets: [1, 2, 3, 4, 6, 8, 11, 15, 19, 25, 32]." in of(slopes)
    for other in (
        replace(card, device="cpu"),
        replace(card, ladder=ladder[:1]),
        replace(card, settings=Settings(1, 1, 1)),
    ):
        assert "batch_buckets" not in of(other)
    assert "batch_buckets: [32]." in of(
        replace(card, device="cpu", settings=Settings(1, 1, 32, tuning=("batch_buckets=8",)))
    )


def test_why_a_rate_is_zero_is_told() -> None:
    none = MaxRate(0.02, 1, 0.0, None, None)
    void = MaxRate(0.02, 1, 0.0, None, None, is_bounded_by_generator=True)
    assert "half" in rate_words(EMPTY, none)
    assert "lowest rate" in rate_words(SERVER, none)
    assert "generator" in rate_words(SERVER, void)


def test_a_generator_that_ended_first_is_told_beside_the_rate() -> None:
    bounded = MaxRate(0.02, 1, 100.0, None, None, (100.0,), is_bounded_by_generator=True)
    assert re.match("one estimate; .*generator", rate_words(SERVER, bounded))
