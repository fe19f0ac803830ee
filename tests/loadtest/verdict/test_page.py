"""The page of a verdict: one file that opens offline and holds back nothing that was void, missing or not measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from loadtest.compare import compare, from_verdict
from loadtest.verdict import page
from loadtest.verdict.report import Source, VerdictReport, as_json
from serving.decisions.profile import MaxRate
from tests.loadtest.verdict.made import OBJECTIVE_S, a_check, cpu_profile, gpu_profile, made, rate, server

NOTHING_CARRIED = cpu_profile(
    servers=(server("int8", "cpu", "cpu", MaxRate(OBJECTIVE_S, 1, 0.0, None, None), 0.05, load=(), ladder=()),)
)


@cache
def sad_reports() -> dict[str, VerdictReport]:
    bare = cpu_profile(
        servers=(
            server(
                "int8", "cpu", "cpu", rate(600, num_runs=1), 0.003, load=(), ladder=(), cold_start=(), accuracy=None
            ),
        )
    )
    return {
        "no card": made(Source(cpu_profile(), "here")),
        "no CPU": made(Source(gpu_profile(), "given", "t4.json")),
        "nothing in time": made(Source(NOTHING_CARRIED, "here")),
        "rates alone": made(Source(bare, "here")),
        "published": made(
            Source(cpu_profile(), "here"), Source(gpu_profile(provenance="published"), "given", "x.json")
        ),
        "check without a p99": made(check=replace(a_check(5), latency_p99_s=None, latency_curve=())),
        "a day": made(rates=((16, 100), (8, 3000))),
        "no rate": made(rates=((24, 0.0),)),
        "a cheap card": made(
            Source(cpu_profile(), "here"), Source(gpu_profile(), "given", "t4.json"), rates=((24, 1e6),)
        ),
    }


@pytest.mark.parametrize("name", list(sad_reports()))
def test_whatever_is_missing_there_is_a_page_and_json(name: str) -> None:
    report = sad_reports()[name]
    html = page.render(report)
    assert html.count("<h1>") == 1
    assert "None" not in html
    assert "nan" not in re.sub(r"[a-z]+nan|nan[a-z]+", "", html.lower())
    assert json.loads(json.dumps(as_json(report), allow_nan=False))["kind"] == "verdict"


def test_it_is_one_file_without_script_or_anything_from_elsewhere() -> None:
    html = page.render(made(check=a_check(200)))
    assert "<script" not in html
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://""", html)


def test_the_first_screen_has_the_verdict_the_price_the_break_even_and_what_would_change_it() -> None:
    html = page.render(made(check=a_check(200)))
    first = html[: html.index("Latency against rate")]
    for said in ("The GPU does not pay", "$0.18", "840/s", "7.1 ms", "Above 840/s instead of 200/s the GPU would pay"):
        assert said in first


def test_void_runs_are_listed_with_their_reasons() -> None:
    html = page.render(made(check=a_check(200, voids=("the target was restarted",))))
    assert html.count("one in a hundred") == 3
    assert re.search("200/s: void: .*restarted", html)


def test_what_was_not_measured_is_said_to_be_so() -> None:
    html = page.render(made())
    assert "not measured</span>" in html  # joules of the CPU
    assert "0.021" in html  # of the card


def test_texts_from_files_cannot_become_markup() -> None:
    evil = replace(cpu_profile(), note="<script>alert(1)</script>", command="<img src=x>")
    html = page.render(made(Source(evil, "here")))
    assert "<script" not in html
    assert "<img" not in html


def test_both_palettes_and_print_are_there() -> None:
    html = page.render(made())
    assert "prefers-color-scheme:dark" in html
    assert "@media print" in html


def test_it_is_written_beside_its_numbers(tmp_path: Path) -> None:
    path = page.write(tmp_path, made())
    assert path == tmp_path / "report.html"
    assert path.stat().st_size < 200_000


def test_the_numbers_have_stable_names_with_runs_and_intervals() -> None:
    numbers = as_json(made(check=a_check(200)))["numbers"]
    assert set(numbers) == {
        "max_rate_rps/fp16-cuda-gpu-2x2",
        "max_rate_rps/int8-cpu-cpu-2x2",
        "max_rate_rps/fp32-cpu-cpu-2x2",
        "joules_per_request/fp16-cuda-gpu-2x2",
        "p50_s",
        "p99_s",
        "throughput_rps",
        "late_or_lost_ratio",
        "per_hour",
        "per_million",
        "break_even_rps",
    }
    assert numbers["max_rate_rps/int8-cpu-cpu-2x2"] == {
        "value": 600,
        "unit": "1/s",
        "better": "higher",
        "low": 582.0,
        "high": 618.0,
        "runs": [582.0, 600.0, 618.0],
    }
    assert len(numbers["p99_s"]["runs"]) == 3
    assert numbers["break_even_rps"]["low"] < numbers["break_even_rps"]["value"] < numbers["break_even_rps"]["high"]


def test_two_reports_of_verdicts_can_be_compared_by_their_numbers() -> None:
    slower = cpu_profile(
        servers=(server("fp32", "cpu", "cpu", rate(420), 0.004), server("int8", "cpu", "cpu", rate(300), 0.004))
    )
    before, after = (
        from_verdict(made(Source(one, "here"), check=a_check(200))) for one in (cpu_profile(), slower)
    )  # fmt: skip
    changes = {value.name: value.outcome for value in compare(before.values, after.values).values}
    assert changes["max_rate_rps/int8-cpu-cpu-2x2"] == "worse"
    assert changes["max_rate_rps/fp32-cpu-cpu-2x2"] == "no_difference_seen"
    assert changes["p99_s"] == "no_difference_seen"
    assert changes["per_hour"] == "inconclusive"  # one price has no interval
