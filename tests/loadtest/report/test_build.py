"""From rows to numbers and a sentence: known answers, every reason to void, and a page that shows it all."""

from __future__ import annotations

import json
import random
import re
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import campaign, records, validity
from loadtest.records import ArmRecord, Load, Row, RunRecord
from loadtest.report import build as report
from loadtest.report import page, wording
from loadtest.report.summaries import Report
from serving.measure.intervals import estimate, of_medians, paired
from tests.documents.tags import Tags
from tests.loadtest import rows as make


def test_throughput_counts_answers_that_arrived_in_the_window() -> None:
    rows = [
        make.row(0.5, 0.4),  # sent and answered in the warm-up
        make.row(0.9, 0.2),  # sent in it, answered after it
        make.row(2.9, 0.05),
        make.row(2.9, 0.2),  # answered after the end
        make.row(2.0, 0.1, status=503, error="overloaded"),
    ]
    assert validity.throughput_rps(rows, make.LOAD) == 1.0  # two in two seconds
    assert [r.start_s for r in validity.sent_in_window(rows, make.LOAD)] == [2.9, 2.9, 2.0]


def test_two_arms_give_the_known_numbers() -> None:
    given, by_run = make.two_arms(repeats=3)
    built = report.summarise(given, by_run)
    fp32, int8, gpu = built.arms
    assert fp32.throughput_rps is not None
    assert fp32.throughput_rps.runs == (50.5, 51.0, 51.5)
    assert int8.throughput_ratio is not None
    assert int8.throughput_ratio.runs == pytest.approx((201 / 101, 202 / 102, 203 / 103))
    assert int8.speed_ratio is not None
    assert int8.speed_ratio.ratio == pytest.approx(2.0)
    assert (fp32.accuracy, fp32.num_ok, fp32.num_errors, fp32.latency_p99_s) == (1.0, 306, 0, None)
    assert ("no GPU" in (gpu.not_run or ""), gpu.num_runs, gpu.throughput_rps) == (True, 0, None)
    for value in (
        "51.0 requests per second",
        "10.0 ms",
        "1.98 times as many",
        "5.00 ms",
        "ratio 1.96–2.00",
        "no GPU on this machine",
    ):
        assert value in built.sentence


def test_arms_that_overlap_are_not_called_different() -> None:
    given, by_run = make.two_arms(repeats=3)
    swapped = {
        name: make.rows(0.01, 100 if "-1" in name else 110, variant=rows[0].variant) for name, rows in by_run.items()
    }
    assert re.search(r"no significant difference .*0\.99–1\.01", report.summarise(given, swapped).sentence)


@pytest.mark.parametrize("repeats", [1, 2])
def test_too_few_repeats_are_inconclusive(repeats: int) -> None:
    built = report.summarise(*make.two_arms(repeats=repeats))
    assert "inconclusive" in built.sentence
    ratio = built.arms[1].throughput_ratio
    assert ratio is not None
    assert (ratio.outcome, ratio.low, ratio.high) == ("inconclusive", None, None)


def test_wrong_answers_and_errors_are_counted_by_kind() -> None:
    run = make.run()
    by_run = {run.rows: [*make.rows(0.01, 90), *make.rows(0.01, 10, correct=0), make.row(1.5, status=503, error="overloaded"), make.row(status=0, error="timeout")]}  # fmt: skip
    arm = report.summarise(make.manifest([run]), by_run).arms[0]
    assert arm.accuracy == 0.9
    assert arm.errors == {"overloaded": 1, "timeout": 1}
    assert (arm.num_ok, arm.num_errors) == (100, 2)


OTHER = make.rows(0.01, 3, variant="int8")


@pytest.mark.parametrize(
    ("changes", "arm", "rows", "reason"),
    [
        ({}, 0, make.rows(0.01), None),
        ({"gateway_counted": 120, "triton_counted": 100}, 0, make.rows(0.01), None),
        ({}, 0, [*make.rows(0.01), *OTHER], "asked for variant fp32, but receipts show int8 (3)"),
        ({}, 0, [*make.rows(0.01), make.row(pool="gpu")], "asked for pool cpu, but receipts show gpu (1)"),
        ({}, 0, [make.row(variant="", pool="", device="")], "asked for variant fp32, but receipts show nothing (1)"),
        ({}, 2, [make.row(variant="fp16", pool="gpu")], "the receipts of the gpu pool say that a CPU did the work"),
        ({}, 0, [], "no successful request (none was sent)"),
        ({}, 0, [make.row(0.5)], "no successful request (none was sent)"),
        ({}, 0, make.rows(0.01, 2, status=503, error="not_ready"), "no successful request (not_ready (2))"),
        ({}, 0, [make.row(2.5, 9.0)], "no answer arrived within the 2 measured seconds; make the run longer"),
        ({}, 0, [make.row(error="body")], "no successful request (body (1))"),
        ({"is_reachable_after": False}, 0, make.rows(0.01), "the gateway was not ready after the run"),
        ({"gateway_counted": 99}, 0, make.rows(0.01), "the gateway was restarted during the run: it counted 99 of 100 requests"),
        ({"gateway_counted": -5}, 0, make.rows(0.01), "the gateway was restarted during the run: it counted -5 of 100 requests"),
        ({"triton_counted": 7}, 0, make.rows(0.01), "Triton or its model was restarted during the run: it counted 7 of 100 requests"),
        ({"state": "failed", "reason": "the generator broke"}, 0, make.rows(0.01), "the generator broke"),
        ({"state": "interrupted", "reason": "stopped by Ctrl-C"}, 0, make.rows(0.01), "stopped by Ctrl-C"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_trusted_is_void_with_its_reason(
    changes: dict[str, Any], arm: int, rows: list[Row], reason: str | None
) -> None:
    asked = make.ARMS[arm]
    assert validity.void_reason(make.run(asked.name, **changes), asked, make.LOAD, rows) == reason


def test_a_void_run_is_in_no_number_but_is_listed() -> None:
    given, by_run = make.two_arms()
    by_run["runs/int8-cpu-1.csv"] = make.rows(0.001, 900, variant="fp32")
    built = report.summarise(given, by_run)
    int8 = built.arms[1]
    assert (int8.num_runs, int8.num_void, int8.num_ok) == (1, 1, 202)
    assert int8.throughput_ratio is not None
    assert int8.throughput_ratio.runs == pytest.approx((202 / 102,))
    assert "receipts show fp32 (900)" in page.render(built)


def test_without_a_valid_baseline_nothing_is_compared() -> None:
    given, by_run = make.two_arms()
    voided = {name: [] if "fp32" in name else rows for name, rows in by_run.items()}
    built = report.summarise(given, voided)
    assert "fp32 on cpu" in built.sentence
    assert built.arms[1].throughput_ratio is None
    assert page.render(built)


def test_a_baseline_that_was_not_run_is_said_once() -> None:
    given = replace(make.manifest(), baseline="fp16-gpu")
    built = report.summarise(given, {})
    assert re.search("fp16 on gpu.*no GPU", built.sentence)
    assert built.sentence.count("fp16 on gpu") == 1


def test_an_interrupted_campaign_is_reported_as_partial() -> None:
    given, by_run = make.two_arms()
    runs = (*given.runs[:2], replace(given.runs[2], state="interrupted", reason="stopped by Ctrl-C"))
    built = report.summarise(replace(given, runs=runs, num_planned=4, is_interrupted=True), by_run)
    assert built.is_partial
    assert any("2 of 4 runs" in text for text in built.caveats)
    assert built.arms[0].num_runs == 1
    html = page.render(built)
    assert ">partial<" in html
    assert "repeat 2: interrupted" in html


@pytest.mark.parametrize(
    ("change", "caveat"),
    [
        ({"note": "It is untrained."}, "It is untrained."),
        ({"is_local": True}, "The load generator ran on the same 2 cores as the server"),
        (
            {"is_local": True, "runs": (make.run(is_generator_real_time=True),)},
            "The load generator ran on the same 2 cores as the server and took its share of them, before all other work (real-time",
        ),
        (
            {
                "is_local": True,
                "runs": (make.run(is_generator_real_time=True), make.run(repeat=2, is_generator_real_time=False)),
            },
            "The load generator ran on the same 2 cores as the server and took its share of them, before all other work in 1 of 2 runs",
        ),
        (
            {"runs": (make.run(gateway_counted=103), make.run(repeat=2, gateway_counted=100))},
            "Others used the gateway too: in 1 run it counted up to 3 requests that the load test did not send.",
        ),
        ({"runs": (make.run(generator_cpu_ratio=0.97),)}, "The generator used up to 97% of a core"),
    ],
)
def test_what_weakens_a_result_is_said(change: dict[str, Any], caveat: str) -> None:
    given = replace(make.manifest([make.run()]), **change)
    built = report.summarise(given, {run.rows: make.rows(0.01) for run in given.runs})
    assert any(text.startswith(caveat) for text in built.caveats)


def test_what_was_dropped_or_had_no_answer_is_not_taken_for_that_of_others() -> None:
    rows = [*make.rows(0.01, 98), make.row(status=0, error="timeout"), make.row(status=0, error="dropped")]
    counted = [
        report.summarise_run(make.run(gateway_counted=n), make.ARMS[0], make.LOAD, rows).num_others
        for n in (98, 99, 100)
    ]
    assert counted == [0, 0, 1]


def test_an_emulated_device_is_never_passed_off_as_a_gpu() -> None:
    run = make.run("fp16-gpu")
    by_run = {run.rows: make.rows(0.01, variant="fp16", pool="gpu", device='emulated-t4; name="x"')}
    built = report.summarise(make.manifest([run]), by_run)
    assert any(text.endswith(": emulated-t4.") for text in built.caveats)
    assert "emulated-t4: x" in page.render(built)


@pytest.mark.parametrize(
    ("arm", "rows", "names"),
    [
        (
            ArmRecord("fp32-emulated", "fp32", "emulated"),
            make.rows(0.001, 900, pool="emulated", device="emulated-t4"),
            "emulated, emulated-t4",
        ),
        (ArmRecord("fp32-fast", "fp32", "emulated-gpu"), [], "emulated-gpu"),
        (ArmRecord("fp32-fast", "fp32", "gpu"), make.rows(0.001, 900, pool="gpu", device="emulated-t4"), "emulated-t4"),
    ],
)
def test_a_report_with_an_emulated_pool_is_a_what_if_however_fast_it_is(
    arm: ArmRecord, rows: list[Row], names: str
) -> None:
    runs = [make.run(), make.run(arm.name)]
    given = make.manifest(runs, arms=(make.ARMS[0], arm))
    built = report.summarise(given, {runs[0].rows: make.rows(0.01), runs[1].rows: rows})
    assert built.verdict == "inconclusive (what-if)"
    assert re.match(rf"Inconclusive \(what-if\): .*{names} .*from a file", built.sentence)
    html = page.render(built)
    assert '<span class="flag">inconclusive (what-if)</span>' in html
    assert "pays" not in html + json.dumps(asdict(built))


def test_a_report_of_real_pools_gives_no_verdict_yet() -> None:
    built = report.summarise(*make.two_arms())
    assert built.verdict is None
    assert "what-if" not in page.render(built)


def test_the_same_rows_give_the_same_files(tmp_path: Path) -> None:
    directory = make.campaign(tmp_path / "r", *make.two_arms())
    first = campaign.report(directory)
    files = {name: (directory / name).read_bytes() for name in ("report.json", "report.html")}
    for name in files:
        (directory / name).unlink()
    assert campaign.report(directory) == first
    assert {name: (directory / name).read_bytes() for name in files} == files
    told = json.loads(files["report.json"])
    assert told["version"] == 3
    assert told == json.loads(json.dumps(asdict(report.build(directory))))


def test_a_run_without_a_row_file_is_void_and_not_fatal(tmp_path: Path) -> None:
    given, by_run = make.two_arms()
    del by_run["runs/int8-cpu-2.csv"]
    built = report.build(make.campaign(tmp_path / "r", given, by_run))
    assert [run.void is None for run in built.runs] == [True, True, True, False]


def test_the_page_opens_offline_and_is_well_formed() -> None:
    html = page.render(report.summarise(*make.two_arms()))
    assert {"table", "svg", "figure", "details"} <= set(Tags(html).names)
    assert "prefers-color-scheme:dark" in html
    assert "@media print" in html


def test_the_page_shows_every_arm_and_the_first_screen() -> None:
    built = report.summarise(*make.two_arms())
    html = page.render(built)
    for arm in built.arms:
        assert wording.label(arm) in html
    head = html[: html.index("</header>")]
    for fact in (
        "A Processor",
        "avx2",
        "tandem campaign run digits.yaml",
        "21 November 2026",
        "locust 2.47.0",
        "1.99 times as many",
    ):
        assert fact in head


def test_nothing_from_outside_becomes_html() -> None:
    evil = '"><script>alert(1)</script>&'
    run = make.run(rows=f"runs/{evil}.csv", state="failed", reason=evil)
    arms = (make.ARMS[0], records.ArmRecord(evil, evil, evil, evil))
    machine = replace(make.manifest().machine, processor=evil, instruction_sets=(evil,), cards=(evil,), system=evil)
    ran = make.run()
    given = make.manifest(
        [run, ran], name=evil, model=evil, command=evil, url=evil, versions={evil: evil}, note=evil, machine=machine, arms=arms
    )  # fmt: skip
    by_run = {
        run.rows: [],
        ran.rows: [*make.rows(0.01, device=f'{evil}; name="{evil}"'), make.row(status=500, error=evil)],
    }
    html = page.render(report.summarise(given, by_run))
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&amp;") > 10


@pytest.mark.parametrize("num_arms", [1, 7])
@pytest.mark.parametrize("latency_s", [0.00001, 0.01, 1.9])
def test_any_speed_and_number_of_arms_can_be_drawn(num_arms: int, latency_s: float) -> None:
    arms = tuple(records.ArmRecord(f"a{i}", "fp32", "cpu") for i in range(num_arms))
    runs = [make.run(arm.name) for arm in arms]
    by_run = {run.rows: make.rows(latency_s, 40) for run in runs}
    html = page.render(report.summarise(make.manifest(runs, arms=arms, baseline="a0"), by_run))
    assert "nan" not in html
    assert Tags(html).names.count("circle") == 2 * num_arms  # each figure is drawn twice


# -- open loops -------------------------------------------------------------------------------------------------------

OPEN = Load(1.0, 2.0, 2, 7, kind="open", rate_rps=(50.0,), objective_s=0.02)


def open_run(**changes: Any) -> RunRecord:
    return make.run(**({"point": 50.0, "num_scheduled": 100, "generator_cpu_ratio": 0.5} | changes))


def late_by(lag_s: float, count: int = 100) -> list[Row]:
    return [make.row(1.0 + 2 * index / count, 0.01 + lag_s, lag_s=lag_s) for index in range(count)]


def dropped(count: int, lag_s: float = 0.0) -> list[Row]:
    return [make.row(2.0, lag_s, lag_s=lag_s, status=0, error="dropped", variant="", pool="")] * count


@pytest.mark.parametrize(
    ("changes", "rows", "reason"),
    [
        ({}, late_by(0.0009), None),
        ({}, late_by(0.002), "the generator sent one in a hundred requests more than 2.00 ms late, which is over 5% of the objective of 20.0 ms"),
        ({}, late_by(0.0, 98), "the generator came to 98 of 100 requests that were due"),
        ({}, late_by(0.0, 99), None),
        ({"generator_cpu_ratio": 0.95}, late_by(0.0), "the generator used 95% of a core; give it more processes, or send less"),
        ({}, late_by(0.0, 60) + dropped(40), None),  # by a server that stood still
        ({}, late_by(0.0, 60) + dropped(38), "the generator came to 98 of 100 requests that were due"),
        ({}, late_by(0.0, 60) + dropped(40, lag_s=0.2),  # by a generator that stood still
         "the generator sent one in a hundred requests more than 200 ms late, which is over 5% of the objective of 20.0 ms"),
    ],
)  # fmt: skip
def test_a_run_that_measured_its_generator_is_void(
    changes: dict[str, Any], rows: list[Row], reason: str | None
) -> None:
    assert validity.void_reason(open_run(**changes), make.ARMS[0], OPEN, rows) == reason


def test_what_a_server_that_stands_still_made_the_generator_drop_is_due_and_not_in_time() -> None:
    run = open_run()
    given = replace(make.manifest([run]), load=OPEN)
    built = report.summarise(given, {run.rows: [*late_by(0.0, 60), *dropped(40)]})
    (summary,) = built.runs
    assert (summary.void, summary.num_dropped, summary.num_errors) == (None, 40, 40)
    assert summary.within_objective_ratio == pytest.approx(0.6)
    assert any("Dropped" in text and " 40 " in text for text in built.caveats)
    none = report.summarise(given, {run.rows: late_by(0.0)})
    assert not any("Dropped" in text for text in none.caveats)


def test_a_few_slow_sends_void_nothing_but_count_as_latency() -> None:
    rows = [*late_by(0.0, 99), make.row(2.99, 0.51, lag_s=0.5)]
    summary = report.summarise_run(open_run(), make.ARMS[0], OPEN, rows)
    assert summary.void is not None  # one in a hundred of a hundred is one
    rows = late_by(0.0, 1990) + [make.row(2.99, 0.51, lag_s=0.5)] * 10
    summary = report.summarise_run(open_run(num_scheduled=2000), make.ARMS[0], OPEN, rows)
    assert summary.void is None
    assert summary.within_objective_ratio == pytest.approx(1990 / 2000)


def test_what_was_never_sent_or_refused_is_not_in_time() -> None:
    rows = late_by(0.0, 99)[:-9] + [make.row(2.9, 0.01, status=503, error="overloaded")] * 9
    summary = report.summarise_run(open_run(), make.ARMS[0], OPEN, rows)
    assert summary.void is None
    assert (summary.num_ok, summary.num_errors) == (90, 9)
    assert summary.within_objective_ratio == pytest.approx(0.9)


def test_what_failed_is_not_among_those_that_a_sentence_calls_answered_within_a_time() -> None:
    run = open_run()
    rows = late_by(0.0, 100)
    failed = [row._replace(status=503, error="overloaded") for row in rows[:20]]
    given = replace(make.manifest([run]), load=OPEN)
    assert "100.00% within 20.0 ms" in report.summarise(given, {run.rows: rows}).sentence
    said = report.summarise(given, {run.rows: [*failed, *rows[20:]]}).sentence
    assert "80.00% within 20.0 ms" in said


def a_stall(begin_s: float, stall_s: float, rate_rps: float, service_s: float) -> list[Row]:
    """A server that stands still once, asked at a constant rate: who came meanwhile waited for its end."""
    times = [1.0 + n / rate_rps for n in range(round(2 * rate_rps))]
    return [make.row(at, service_s + (max(0.0, begin_s + stall_s - at) if at >= begin_s else 0.0)) for at in times]


def test_a_stall_of_a_second_is_seen_as_long_as_it_was() -> None:
    """Of 2 s at 1,000 a second 1,000 requests come into the stall, and wait for 1,000, 999, … 1 ms."""
    load = replace(OPEN, rate_rps=(1000.0,), objective_s=0.5)
    rows = a_stall(1.5, 1.0, 1000, 0.001)
    summary = report.summarise_run(open_run(num_scheduled=2000), make.ARMS[0], load, rows)
    assert summary.latency_p99_s == pytest.approx(
        1.0 - 0.020 + 0.001, abs=0.002
    )  # one in a hundred of 2,000 waited longer
    assert summary.latency_p90_s == pytest.approx(1.0 - 0.200 + 0.001, abs=0.002)
    assert summary.within_objective_ratio == pytest.approx(0.75, abs=0.002)


def two_rates() -> Report:
    load = replace(OPEN, rate_rps=(50.0, 100.0))
    runs = [
        open_run(
            arm=arm, repeat=repeat, point=rate, num_scheduled=round(2 * rate), rows=f"runs/{arm}-{rate:g}-{repeat}.csv"
        )
        for rate in load.rate_rps
        for repeat in (1, 2, 3)
        for arm in ("fp32-cpu", "int8-cpu")
    ]
    times_s = {
        ("fp32-cpu", 50.0): 0.010,
        ("fp32-cpu", 100.0): 0.030,
        ("int8-cpu", 50.0): 0.008,
        ("int8-cpu", 100.0): 0.012,
    }
    by_run = {
        run.rows: make.rows(times_s[run.arm, run.point], round(2 * run.point), variant=run.arm.split("-")[0])
        for run in runs
    }
    return report.summarise(replace(make.manifest(runs), load=load), by_run)


def test_each_rate_is_told_by_itself() -> None:
    built = two_rates()
    assert [(arm.name, arm.point) for arm in built.arms if arm.num_runs] == [
        ("fp32-cpu", 50.0),
        ("int8-cpu", 50.0),
        ("fp32-cpu", 100.0),
        ("int8-cpu", 100.0),
    ]
    assert re.findall(r"fp32 on cpu .*?(\d+\.\d\d%) .*?20\.0 ms", built.sentence) == ["100.00%", "0.00%"]
    assert re.search(r"a significant difference \(.*2\.50–2\.50\)", built.sentence)
    assert built.sentence.count("no GPU") == 1
    assert page.render(built).count('<p class="arms">') == 3  # each rate, and what is missing


@pytest.mark.parametrize("is_open", [True, False])
def test_the_ratio_is_the_quotient_of_the_numbers_beside_it_and_never_says_otherwise(is_open: bool) -> None:
    """Medians 1,181 and 1,331 beside "1.02 times": the geometric mean of the repeats' ratios said so."""
    rng = random.Random(7)
    seen: set[str] = set()
    for _ in range(300):
        repeats = rng.choice((1, 2, 3, 3, 5))
        by_arm = [
            [rng.lognormvariate(0, rng.choice((0.02, 0.3))) * shift for _ in range(repeats)] for shift in (1, 1.2)
        ]
        base, own = by_arm
        ours, theirs = (own, base) if not is_open else (base, own)  # latencies: less is faster
        if rng.random() < 0.3 and repeats > 1:
            own = own[1:]  # a void run: not every repeat has both
            ours, theirs = (own, base) if not is_open else (base, own)
        pairs = [a / b for a, b in zip(ours[-len(own) :], theirs[-len(own) :], strict=True)]
        found = of_medians(paired(pairs), estimate(ours), estimate(theirs))
        assert found is not None
        assert found.ratio == pytest.approx(statistics.median(ours) / statistics.median(theirs))
        seen.add(found.outcome)
        if found.outcome == "higher":
            assert statistics.median(ours) > statistics.median(theirs)
        if found.outcome == "lower":
            assert statistics.median(ours) < statistics.median(theirs)
        if found.low is not None and found.high is not None:
            assert found.low <= found.ratio <= found.high
    assert seen >= {"lower" if is_open else "higher", "no_difference_seen", "inconclusive"}


def test_the_shown_rates_give_the_shown_ratio() -> None:
    _, arms = (built := report.summarise(*make.two_arms(repeats=3))), built.arms
    fp32, int8 = arms[:2]
    assert fp32.throughput_rps is not None
    assert int8.throughput_rps is not None
    assert int8.throughput_ratio is not None
    assert int8.throughput_ratio.ratio == pytest.approx(int8.throughput_rps.median / fp32.throughput_rps.median)


def test_the_first_sentence_names_the_arm_to_use_its_interval_and_how_right_it_is() -> None:
    built = report.summarise(*make.two_arms(repeats=3))
    said = wording.answer(built.arms, built.manifest.load)
    assert said.startswith("Use int8 on cpu: ")
    for fact in (
        "101 requests per second",
        "1.98 times as many as fp32 on cpu",
        "with 95% certainty between",
        "100.00% of its answers are right",
    ):
        assert fact in said
    alone = report.summarise(*make.two_arms(repeats=1))
    assert wording.answer(alone.arms, alone.manifest.load).startswith("Stay with fp32 on cpu: ")


def test_the_page_states_how_many_comparisons_its_sentence_makes() -> None:
    for built, num in ((two_rates(), 2), (report.summarise(*make.two_arms()), 1)):
        html = " ".join(page.render(built).split())
        assert f"this report makes {num}." in html


def test_the_page_of_several_rates_has_each_and_the_latency_against_them() -> None:
    html = page.render(two_rates())
    assert "Latency against load" in html
    assert "50 requests per second" in html
    assert "In time" in html
    assert "Open loop:" in html
    assert "Closed loop:" not in html


# -- runs that were not stable ----------------------------------------------------------------------------------------


def test_a_run_that_was_not_stable_is_flagged_and_counts() -> None:
    run = make.run(point=200.0, num_scheduled=400)
    load = replace(OPEN, rate_rps=(200.0,))
    late = [make.row(1 + 2 * index / 400, 0.001 + index / 400) for index in range(400)]
    built = report.summarise(replace(make.manifest([run]), load=load), {run.rows: late})
    (summary,) = built.runs
    assert summary.void is None
    assert summary.unstable is not None
    assert "the queue grew" in summary.unstable
    assert any(text.startswith("Unstable: 1 of 1 ") for text in built.caveats)
    html = page.render(built)
    assert "<h2>Unstable</h2>" in html
    assert summary.unstable in html
    assert '<span class="tag">unstable</span>' in html


def test_stable_runs_are_not_spoken_of() -> None:
    built = report.summarise(*make.two_arms())
    assert [run.unstable for run in built.runs] == [None] * 4
    assert "<h2>Unstable</h2>" not in page.render(built)


# -- the baseline beside itself ----------------------------------------------------------------------------------------


def beside_itself(again_s: list[float], *, is_open: bool) -> Report:
    """Three repeats of a baseline of 10 ms, and of the same again that took so long."""
    load = replace(OPEN, repeats=3) if is_open else make.LOAD
    arms = (make.ARMS[0], ArmRecord("fp32-cpu-again", "fp32", "cpu", is_again=True))
    runs, by_run = [], {}
    for repeat, took_s in enumerate(again_s, start=1):
        for arm, latency_s in zip(arms, (0.01, took_s), strict=True):
            count = 100 if is_open else round(1 / latency_s)
            run = open_run(arm=arm.name, repeat=repeat) if is_open else make.run(arm.name, repeat)
            runs.append(run)
            by_run[run.rows] = make.rows(latency_s, count)
    return report.summarise(make.manifest(runs, load=load, arms=arms), by_run)


@pytest.mark.parametrize("is_open", [True, False])
def test_two_equal_arms_that_are_not_told_apart_say_how_little_could_be_seen(is_open: bool) -> None:
    built = beside_itself([0.0099, 0.0101, 0.01], is_open=is_open)
    assert "no significant difference" in built.sentence
    assert re.search(r"ratio 0\.98–1\.0|speed-up 0\.98–1\.0", built.sentence)
    assert re.search(r"under 2\.\d%", built.sentence)
    html = page.render(built)
    assert "<strong>fp32 on cpu again</strong>" in html
    assert "makes 0." in html  # comparisons of arms that may differ


@pytest.mark.parametrize("is_open", [True, False])
def test_two_equal_arms_that_are_told_apart_are_a_false_alarm(is_open: bool) -> None:
    built = beside_itself([0.0080, 0.0081, 0.0082], is_open=is_open)
    assert re.search(r"\((speed-up|throughput ratio) 1\.2", built.sentence)
    assert "a false alarm" in built.sentence


def test_two_equal_arms_of_two_repeats_are_inconclusive() -> None:
    assert "itself: inconclusive" in beside_itself([0.01, 0.01], is_open=False).sentence
