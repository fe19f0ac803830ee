"""Stages with clocks: what is cut off is kept and continued, and each stage fails when what it checks is broken on purpose."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.prove import cold_gpu, pool_death
from loadtest.bench.prove.cold_gpu import Moments
from loadtest.claims.values import Energy, EngineTime, Findings, Result, ServingRates
from loadtest.claims.values import Report as ClaimsReport
from loadtest.errors import CannotMeasure, ResultsError
from loadtest.gpu import bands, bridge, conclusions, page, sanity, served, stages, table
from loadtest.gpu.card import Card, this_card
from loadtest.gpu.conclusions import QUESTIONS
from loadtest.gpu.ledger import Check, Entry, Ledger, Run, faults
from loadtest.gpu.stages import Stage, run_stages
from loadtest.gpu.stand_in import FAULTS
from loadtest.gpu.unit import Setup, Unit, UnitResult
from loadtest.sending.sent_request import Shot
from serving.measure.machine import Machine

ROOT = Path(__file__).parents[3]
MACHINE = Machine("A Processor", ("avx2",), 16.0, "Linux")
RUN = Run(
    "NVIDIA H200, driver 580.1, 141 GiB",
    MACHINE,
    {"onnxruntime": "1.31.1"},
    "loadtest/gpu/run.sh",
    "2026-11-23T10:00:00+00:00",
)
CARD = Card(RUN.card, {})


def setup(folder: Path, ledger: Ledger, card: Card = CARD) -> Setup:
    said: list[str] = []
    files: Any = dict.fromkeys(("suite",))
    return Setup(
        card, MACHINE, files["suite"], folder, folder, folder, ROOT / "model_repo", ledger.report, said.append, True
    )


def unit(name: str, seconds: float = 0.0, **found: Any) -> Unit:
    def run() -> UnitResult:
        time.sleep(seconds)
        return UnitResult(**found)

    return Unit(name, run)


def ran(folder: Path, *units: Unit, clock_s: float = 30.0, limit_s: float = 30.0) -> tuple[bool, Ledger]:
    """As one command, on the ledger that the folder has."""
    ledger = Ledger(folder, RUN)
    stage = Stage("one", clock_s, lambda _: iter(units))
    return run_stages(
        [stage], setup(folder, ledger), ledger, lambda: page.write(folder, ledger.report()), limit_s
    ), ledger


def outcomes(ledger: Ledger) -> dict[str, str]:
    return {entry.unit: entry.outcome for entry in ledger.report().entries}


# -- clocks and what is continued -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"clock_s": 0.3}, {"limit_s": 0.3}])
def test_what_the_clock_leaves_out_is_marked_and_the_next_run_does_that_alone(
    tmp_path: Path, limits: dict[str, float]
) -> None:
    is_done, ledger = ran(tmp_path, unit("quick", note="first"), unit("long", 60.0), unit("later"), **limits)
    assert not is_done
    assert outcomes(ledger) == {"quick": "done", "long": "not_reached", "later": "not_reached"}
    is_done, ledger = ran(tmp_path, unit("quick", note="again"), unit("long"), unit("later"))
    assert is_done
    assert outcomes(ledger) == {"quick": "done", "long": "done", "later": "done"}
    assert ledger.report().entries[0].note == "first"


def test_what_failed_is_tried_again_and_what_failed_a_check_is_believed_by_nobody(tmp_path: Path) -> None:
    speed = EngineTime("resnet50", "fp16", "cuda", 1, 1, (0.1, 0.1, 0.1))
    bad = unit("rate", checks=(Check("band", False, "too fast"),), findings=Findings(speeds=(speed,)))

    def cannot() -> UnitResult:
        raise CannotMeasure("no card answers")

    is_done, ledger = ran(tmp_path, bad, Unit("asks", cannot))
    assert not is_done
    assert {entry.unit: entry.note for entry in ledger.report().entries} == {
        "rate": "band: too fast",
        "asks": "no card answers",
    }
    assert ledger.report().findings.speeds == ()
    is_done, ledger = ran(tmp_path, unit("rate", findings=Findings(speeds=(speed,))), unit("asks"))
    assert is_done
    assert ledger.report().findings.speeds == (speed,)


def test_after_a_failed_required_stage_nothing_is_measured(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, RUN)
    first = Stage("first", 9.0, lambda _: iter([unit("it", checks=(Check("card", False, "none"),))]), is_required=True)
    second = Stage("second", 9.0, lambda _: iter([unit("never")]))
    assert not run_stages([first, second], setup(tmp_path, ledger), ledger, lambda: None, 9.0)
    assert outcomes(ledger) == {"it": "failed"}


KILLED = """
import sys, time
from pathlib import Path
from tests.loadtest.gpu.test_stages import ran, unit
print("begun", flush=True)
ran(Path(sys.argv[1]), unit("one", note="kept"), unit("two"), unit("three", 600.0))
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_a_report_of_what_it_had_and_the_next_continues_it(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        results = tmp_path / page.RESULTS
        until_s = time.monotonic() + 100
        while time.monotonic() < until_s and not (results.exists() and "two" in results.read_text()):
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert "Of 2 units: 2 done." in (tmp_path / page.PAGE).read_text()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"stage": "one", "unit": "thr')  # it was being written
    is_done, ledger = ran(tmp_path, unit("one", note="again"), unit("two"), unit("three"))
    assert is_done
    assert ledger.report().entries[0].note == "kept"
    assert "Of 3 units: 3 done." in (tmp_path / page.PAGE).read_text()


@pytest.mark.parametrize(
    "other",
    [
        replace(RUN, card="NVIDIA L4, driver 580.1, 24 GiB"),
        replace(RUN, card="NVIDIA H200, driver 590.0, 141 GiB"),
        replace(RUN, versions={"onnxruntime": "1.32.0"}),
        replace(RUN, machine=replace(MACHINE, processor="Another")),
        replace(RUN, is_stand_in=True),
    ],
)
def test_no_run_goes_on_with_what_was_measured_on_something_else(tmp_path: Path, other: Run) -> None:
    Ledger(tmp_path, RUN)
    with pytest.raises(ResultsError, match="--output"):
        Ledger(tmp_path, other)


# -- each stage, broken on purpose ------------------------------------------------------------------------------------------

# What the stand-in does wrong -> the units of stage 1 that must see it.
SEEN_BY = {
    "": set(),
    "does_not_start": {"inference", "kernels of fp32", "kernels of fp16", "bits of fp32", "bits of tf32"},
    "answers_wrong": {"inference", "bits of fp32", "bits of tf32"},
    "falls_back": {"kernels of fp32", "kernels of fp16"},
    "computes_fp32": {"kernels of fp16"},
    "keeps_tf32": {"inference", "bits of fp32"},
}


@pytest.mark.slow
@pytest.mark.timeout(200)  # eight workers, on as few as two cores
@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=() if one == "computes_fp32" else pytest.mark.thorough) for one in ("", *FAULTS)]
)
def test_sanity_sees_what_is_wrong_with_a_card(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    card = this_card(tmp_path, is_stand_in=True)
    ledger = Ledger(tmp_path, RUN)
    units = [one for one in sanity.units(setup(tmp_path, ledger, card)) if one.name in SEEN_BY["does_not_start"]]
    run_stages(
        [Stage("sanity", 100.0, lambda _: iter(units))], setup(tmp_path, ledger, card), ledger, lambda: None, 100.0
    )
    assert {name for name, outcome in outcomes(ledger).items() if outcome != "done"} == SEEN_BY[fault]


def time_of(rate: float, size: int = 128, model: str = "resnet50", variant: str = "fp16") -> EngineTime:
    return EngineTime(model, variant, "cuda", size, 1, (size / rate,) * 3)


@pytest.mark.parametrize(
    ("card", "rate", "is_good"),
    [
        ("NVIDIA H200", 25_000, True),
        ("NVIDIA H200", 7_900, False),
        ("NVIDIA H200", 61_000, False),
        ("NVIDIA H100 80GB HBM3", 20_000, True),
        ("NVIDIA H100 80GB HBM3", 5_000, False),
    ],
)
def test_a_rate_outside_its_band_is_not_believed(card: str, rate: float, is_good: bool) -> None:
    found = Findings(speeds=(time_of(1_000, 1), time_of(rate)))
    assert [check.is_good for check in bands.checks(card, found)] == [is_good]


@pytest.mark.parametrize(
    ("energy", "num_wrong"),
    [
        (Energy("resnet50", "fp16", "cuda", 128, (0.02, 0.02, 0.02), (9_000, 9_000, 9_000)), 0),
        (Energy("resnet50", "fp16", "cuda", 128, (0.02, 0.0, 0.02), (9_000, 9_000, 9_000)), 1),  # a counter that stands
        (
            Energy("resnet50", "fp16", "cuda", 128, (0.02, 0.02, 0.02), (90_000, 90_000, 90_000)),
            1,
        ),  # nothing was waited for
    ],
)
def test_an_energy_that_cannot_be_is_not_believed(energy: Energy, num_wrong: int) -> None:
    assert len(faults(table.energy_checks(energy, Findings(speeds=(time_of(10_000),))))) == num_wrong


@pytest.mark.parametrize(
    ("rates", "is_good"),
    [
        ([((90.0,) * 3, (100.0,) * 3)], True),
        ([((2.0,) * 3, (100.0,) * 3)], False),  # something else answered
        ([((200.0,) * 3, (100.0,) * 3)], False),
        ([((90.0,) * 3, (100.0,) * 3), ((1.0,) * 3, (300.0,) * 3)], False),  # by the best batch size
        ([((), ())], False),
    ],
)
def test_a_served_rate_that_cannot_be_is_not_believed(rates: list[Any], is_good: bool) -> None:
    found = tuple(ServingRates("resnet50", "fp16", "gpu", size, *both) for size, both in enumerate(rates, 1))
    assert [check.is_good for check in served.checks("it", found)] == [is_good]


def shots(
    first: float, until: float, pool: str, reason: str = "bridged", took_s: float = 0.01, **how: Any
) -> Iterator[Shot]:
    for number in range(int(first * 50), int(until * 50)):
        due_s = number / 50
        yield Shot(due_s, due_s, due_s + took_s, how.get("status", 200), pool, reason, how.get("error", ""))


@pytest.mark.parametrize(
    ("name", "change", "num_wrong"),
    [
        ("as it should be", {}, 0),
        ("nothing bridged", {"bridge": "cheapest"}, 1),
        ("traffic stays", {"moved": "cpu"}, 1),
        ("requests lost meanwhile", {"warm": 500}, 2),
        ("a handover that is felt", {"took_s": 2.5}, 1),
    ],
)
def test_the_bridge_sees_what_goes_wrong_while_the_card_wakes(
    name: str, change: dict[str, Any], num_wrong: int
) -> None:
    cold = shots(0, 5, "cpu", change.get("bridge", "bridged"), status=change.get("warm", 200))
    moved = shots(5, 15, change.get("moved", "gpu"), "cheapest", change.get("took_s", 0.01))
    found = cold_gpu.verdicts(name, [*cold, *moved], "gpu", Moments(4.0, 5.0, 15.0), bridge.DEADLINE_S)
    assert len(faults(bridge.checks(found))) == num_wrong


@pytest.mark.parametrize(
    ("name", "after", "is_good"),
    [
        ("the CPU takes over", {}, True),
        ("errors", {"status": 500}, False),
        ("as if nobody were there", {"status": 503, "error": "not_ready"}, False),
    ],
)
def test_the_bridge_sees_what_is_lost_when_the_card_is_killed(name: str, after: dict[str, Any], is_good: bool) -> None:
    both = [*shots(0, 3, "gpu"), *shots(3, 7, "cpu", **after)]
    found = pool_death.verdicts(name, both, 3.0, bridge.DEADLINE_S, bridge.RATE_RPS, 5.0, 7.0)
    assert (not faults(bridge.checks(found))) == is_good


def claims(answer: str, not_run: dict[str, str]) -> ClaimsReport:
    result = Result("one", "speed_up", "", "", None, None, "", "", answer, "", ())
    return ClaimsReport("claims", MACHINE, "", "", {}, 1, False, False, 1.0, 0.0, (result,), Findings(not_run=not_run))


@pytest.mark.parametrize(
    ("report", "num_wrong"),
    [
        (claims("holds", {}), 0),
        (claims("not run", {}), 1),
        (claims("not measured here", {}), 1),
        (claims("holds", {"trees": "no scikit-learn"}), 1),
    ],
)
def test_claims_that_nothing_answers_are_no_conclusion(report: ClaimsReport, num_wrong: int) -> None:
    assert len(faults(conclusions.claims_checks(report))) == num_wrong


@pytest.mark.parametrize(
    ("found", "num_wrong"),
    [
        ({"paragraph": "The GPU pays.", "servers": [{"device_name": "NVIDIA H200"}]}, 0),
        ({"paragraph": "The CPU is enough.", "servers": [{"device_name": "A Processor"}]}, 1),
        ({"paragraph": "", "servers": [{"device_name": "NVIDIA H200"}]}, 1),
    ],
)
def test_a_verdict_without_the_card_is_none(found: dict[str, object], num_wrong: int, tmp_path: Path) -> None:
    here = setup(tmp_path, Ledger(tmp_path, RUN))
    assert len(faults(conclusions.verdict_checks(here, QUESTIONS[0], found))) == num_wrong


# -- what is shown ------------------------------------------------------------------------------------------------------


def entry(name: str, **how: Any) -> Entry:
    return Entry(how.pop("stage", "table"), name, how.pop("outcome", "done"), "2026-11-23T10:00:00+00:00", 1.0, **how)


def test_a_report_shows_what_was_measured_beside_what_others_publish_and_what_is_missing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, RUN)
    fp32 = time_of(8_000, variant="fp32")
    fp16 = replace(time_of(20_000), ratios=(2.4, 2.5, 2.6))
    ledger.add(entry("speeds", findings=Findings(speeds=(fp32, fp16))))
    ledger.add(
        entry("joules", findings=Findings(energies=(Energy("resnet50", "fp16", "cuda", 128, (0.02,) * 3, (2e4,) * 3),)))
    )
    ledger.add(
        entry(
            "pool",
            stage="served",
            findings=Findings(served=(ServingRates("resnet50", "fp16", "gpu", 32, (90.0,) * 3, (100.0,) * 3),)),
        )
    )
    ledger.add(entry("mlp", outcome="not_reached", note="the stage's time was over"))
    ledger.add(entry("minilm", outcome="failed", note="it crashed"))
    report = ledger.report()
    text = page.markdown(report)
    for words in (
        "| resnet50 fp16 | cuda | 20,000; 2.50× (2.26..2.76) |",
        "MLPerf Inference v4.1, closed division, 2024-08-28",
        "- table: mlp: the stage's time was over",
        "- table: minilm: it crashed",
        "0.02 (0.02..0.02)",
        "A Processor (avx2), 16 cores",
        "`loadtest/gpu/run.sh`",
    ):
        assert words in text, text
    assert "bert-base" not in text  # nothing of ours beside it
    rows = list(page.readme_rows(report))
    what, figure, command = rows[0]
    assert re.match("resnet50 .*NVIDIA H200, 2026-11-23$", what)
    assert re.match(r"fp16, .*128: 20,000 \(20,000\.\.20,000\) rows/s$", figure)
    assert command == "`loadtest/gpu/run.sh`"
    assert rows[1][1].startswith("90")
    page.write(tmp_path, report)
    assert json.loads((tmp_path / page.RESULTS).read_text())["run"]["card"] == RUN.card


def test_a_rehearsal_is_shown_as_one_and_never_published(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, replace(RUN, is_stand_in=True))
    assert page.STAND_IN in page.markdown(ledger.report())
    assert page.STAND_IN in page.render(ledger.report())
    with pytest.raises(ValueError, match="rehearsal"):
        list(page.readme_rows(ledger.report()))


def test_every_published_figure_has_its_source_and_date() -> None:
    for figure in bands.published().figures:
        assert figure.source
        assert len(figure.date) == len("2024-08-28")
        assert figure.rate > 0
    assert stages.NAMES == ("sanity", "table", "served", "bridge", "conclusions")
    assert sum(stage.clock_s for stage in stages.STAGES) <= 25 * 60
    assert max(stage.clock_s for stage in stages.STAGES) <= 9 * 60
