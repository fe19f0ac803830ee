"""Stages with clocks: what is cut off is kept and continued, and each stage fails when what it checks is broken on purpose."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from loadtest.bench.prove import cold_gpu, pool_death
from loadtest.bench.prove.cold_gpu import Moments
from loadtest.claims.claims_file import read_suite
from loadtest.claims.values import Energy, EngineTime, Findings, OptionTime, Result, ServedRound, ServingRates
from loadtest.claims.values import Report as ClaimsReport
from loadtest.errors import CannotMeasure, ResultsError
from loadtest.gpu import aims, bands, bridge, conclusions, options, page, sanity, served, stages, table
from loadtest.gpu import served_parts as parts
from loadtest.gpu.card import Card, this_card
from loadtest.gpu.conclusions import QUESTIONS
from loadtest.gpu.ledger import Check, Entry, Ledger, Report, Run, faults
from loadtest.gpu.stages import Stage, run_stages
from loadtest.gpu.unit import Setup, Unit, UnitResult
from loadtest.sending.sent_request import Shot
from scripts import published
from serving.decisions.engines import EnginePython
from serving.export.speed import Entrant, contest
from serving.export.speed_nets import bert, mlp
from serving.export.speed_nets.graph import NetBuilder
from serving.measure.machine import Machine
from serving.ports import free_ports
from serving.repository import Tensor
from tests.local.harness import wait_until

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


@pytest.mark.parametrize("limits", [{"clock_s": 0.3}, pytest.param({"limit_s": 0.3}, marks=pytest.mark.thorough)])
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


def test_a_unit_that_is_interrupted_is_told_and_measured_by_the_next_run(tmp_path: Path) -> None:
    def interrupted() -> UnitResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, unit("quick"), Unit("long", interrupted), unit("later"))
    told = {one["unit"]: one["outcome"] for one in json.loads((tmp_path / page.RESULTS).read_text())["entries"]}
    assert told == {"quick": "done", "long": "not_reached"}
    is_done, ledger = ran(tmp_path, unit("quick"), unit("long"), unit("later"))
    assert is_done
    assert outcomes(ledger) == {"quick": "done", "long": "done", "later": "done"}


def test_a_run_that_goes_on_says_all_that_a_reader_must_know_and_one_command(tmp_path: Path) -> None:
    first = Ledger(tmp_path, replace(RUN, command="loadtest/gpu/run.sh sanity", notes=("not compiled",)))
    first.add(entry("card", stage="sanity"))
    second = Ledger(
        tmp_path, replace(RUN, command="loadtest/gpu/run.sh table", notes=("not compiled", "a busy machine"))
    )
    second.add(entry("it", stage="table"))
    report = second.report()
    assert report.run.notes == ("not compiled", "a busy machine")
    assert report.command == "loadtest/gpu/run.sh sanity table"
    assert "- Know first: a busy machine" in page.markdown(report)


def test_one_unit_of_a_stage_can_be_asked_for_and_what_it_needs_is_made(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, RUN)
    card = Stage("card", 9.0, lambda _: iter([unit("it")]), is_required=True)
    nets = Stage(
        "nets", 9.0, lambda _: iter([unit("environments"), unit("minilm"), unit("fused minilm"), unit("trees")])
    )
    for only, known in ((["fused"], {"it", "environments", "fused minilm"}), (["mini", "tree"], {"minilm", "trees"})):
        before = set(outcomes(ledger))
        assert run_stages([card, nets], setup(tmp_path, ledger), ledger, lambda: None, 9.0, only)
        assert set(outcomes(ledger)) - before == known
    with pytest.raises(CannotMeasure, match=r"no unit .* 'fusd minilm' in its name; did you mean 'fused minilm'"):
        run_stages([card, nets], setup(tmp_path, ledger), ledger, lambda: None, 9.0, ["fusd minilm"])


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


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_that_is_killed_leaves_a_report_of_what_it_had_and_the_next_continues_it(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        shown = tmp_path / page.PAGE  # written last
        wait_until(lambda: shown.exists() and "Of 2 units: 2 done." in shown.read_text(), "two are shown")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert {one["unit"] for one in json.loads((tmp_path / page.RESULTS).read_text())["entries"]} == {"one", "two"}
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
    "replays_nothing": set(),  # which stage 2 sees
}


@pytest.mark.slow
@pytest.mark.timeout(200)  # eight workers, on as few as two cores
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("computes_fp32", {"kernels of fp32", "kernels of fp16"}),
        *(pytest.param(one, SEEN_BY["does_not_start"], marks=pytest.mark.thorough) for one in SEEN_BY),
    ],
)
def test_sanity_sees_what_is_wrong_with_a_card(
    fault: str, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    card = this_card(tmp_path, is_stand_in=True)
    ledger = Ledger(tmp_path, RUN)
    units = [one for one in sanity.units(setup(tmp_path, ledger, card)) if one.name in names]
    run_stages(
        [Stage("sanity", 100.0, lambda _: iter(units))], setup(tmp_path, ledger, card), ledger, lambda: None, 100.0
    )
    assert {name for name, outcome in outcomes(ledger).items() if outcome != "done"} == SEEN_BY[fault]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("fault", ["", "replays_nothing"])
def test_a_graph_that_answers_what_it_was_captured_with_is_seen(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    card = this_card(tmp_path, is_stand_in=True)
    here = replace(setup(tmp_path, Ledger(tmp_path, RUN), card), suite=read_suite(conclusions.CLAIMS))
    check = options.answers(here, "mlp", "fp32", small_mlp(tmp_path))
    assert check.is_good == (not fault), check.text


def small_mlp(folder: Path) -> Path:
    """With the inputs of the untrained perceptron, so that its rows fit, and a layer of a thousandth of its weights."""
    graph = NetBuilder("mlp", [mlp.INPUT], seed=1, opset=18)
    graph.linear("layer", mlp.INPUT.name, mlp.INPUT.shape[0], 8, output="scores")
    file = folder / "model.onnx"
    file.write_bytes(graph.model([Tensor("scores", "FP32", (8,))]))
    return file


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_options_of_a_card_are_timed_beside_plain_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = this_card(tmp_path, is_stand_in=True)
    arms = {"unknown": ((("no_such_option", "1"),), False), **options.QUICK_CASES[0][2]}
    entrants = {
        arm: Entrant(f"fp32 {arm}", "cuda", ROOT / "model_repo/digits-fp32/1/model.onnx", *how)
        for arm, how in arms.items()
    }
    results = contest(
        list(entrants.values()), engines=card.engines, batch_sizes=(1,), seconds=0.02, max_seconds=180.0, num_rounds=3
    )
    found = options.findings("digits", "fp32", entrants, results)
    assert [one.arm for one in found.options] == [arm for arm in arms if arm != "unknown"]
    assert {len(one.ratios) for one in found.options if one.arm != options.PLAIN} == {3}
    assert [(one.variant, "no_such_option" in one.reason) for one in found.left_out] == [("fp32 unknown", True)]


@pytest.mark.parametrize(
    ("other", "error"), [([1.0, -2.0], 0.0), ([1.0, -1.9], 0.05), ([1.0, float("nan")], float("inf"))]
)
def test_answers_are_apart_by_their_largest_difference(other: list[float], error: float) -> None:
    assert options.apart(np.array([1.0, -2.0]), np.array(other)) == pytest.approx(error)


def time_of(rate: float, size: int = 128, model: str = "resnet50", variant: str = "fp16") -> EngineTime:
    return EngineTime(model, variant, "cuda", size, 1, (size / rate,) * 3)


@pytest.mark.parametrize(
    ("card", "rate", "is_good"),
    [
        ("NVIDIA H200", 25_000, True),
        ("NVIDIA H200", 5_700, True),  # 8,891/s computing alone, and copies (2026-11-26)
        ("NVIDIA H200", 4_900, False),
        ("NVIDIA H200", 39_000, False),  # faster than its rows can come
        ("NVIDIA H100 80GB HBM3", 20_000, True),
        ("NVIDIA H100 80GB HBM3", 4_000, False),
    ],
)
def test_a_rate_outside_its_band_is_not_believed(card: str, rate: float, is_good: bool) -> None:
    found = Findings(speeds=(time_of(1_000, 1), time_of(rate)))
    assert [check.is_good for check in bands.checks(card, found)] == [is_good]


def test_a_band_has_the_time_of_the_copies_in_it() -> None:
    small = bands.Band("a card", "mlp", "fp16", 8_000, 60_000, 0, "as computed")
    assert small.with_copies() == pytest.approx((8_000, 60_000))
    low, high = replace(small, row_bytes=1_000_000).with_copies()
    assert low == pytest.approx(1 / (1 / 8_000 + 1e6 / bands.SLOWEST_COPY))
    assert high == pytest.approx(1 / (1 / 60_000 + 1e6 / bands.FASTEST_COPY))


@pytest.mark.parametrize(
    ("rate", "then", "others", "outcome"),
    [
        (5_700, False, (), "done"),  # failed for its band of then alone
        (5_700, False, (Check("counter", False, "stands"),), "failed"),
        (4_000, True, (), "failed"),  # today's band is stricter
        (4_000, False, (), "failed"),
    ],
)
def test_what_is_published_is_judged_by_the_bands_of_today(
    rate: float, then: bool, others: tuple[Check, ...], outcome: str
) -> None:
    band = Check(f"resnet50 fp16 {bands.NAME}", then, "by the band of then")
    found = Findings(speeds=(time_of(rate),))
    old = entry("it", outcome="done" if then else "failed", checks=(*others, band), findings=found, note="of then")
    beside = entry("cut off", outcome="not_reached", note="the stage's time was over")
    report = bands.judged_anew(Report(RUN, (old, beside)))
    assert [one.outcome for one in report.entries] == [outcome, "not_reached"]
    assert "by the band of then" in report.entries[0].note
    assert report.findings.speeds == (found.speeds if outcome == "done" else ())
    assert bands.judged_anew(report).entries == report.entries  # nothing is left to be judged


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


def served_rounds(
    rates: Mapping[str, tuple[float, ...]], size: int = 32, at_work: float | None = 0.5
) -> list[ServedRound]:
    return [
        ServedRound(
            "resnet50", "fp16", "gpu", size, arm, rate, {}, at_work if arm in (parts.GATEWAY, parts.DIRECT) else None
        )
        for arm, several in rates.items()
        for rate in several
    ]


@pytest.mark.parametrize(("gateway", "is_good"), [(90.0, True), (2.0, True), (131.0, False)])
def test_a_rate_that_cannot_be_is_not_believed_and_a_low_one_is_no_fault_of_the_measurement(
    gateway: float, is_good: bool
) -> None:
    rounds = served_rounds({parts.GATEWAY: (gateway,) * 3, parts.IN_PROCESS: (100.0,) * 3})
    assert [check.is_good for check in served.rates_checks("it", rounds)] == [is_good]


@pytest.mark.parametrize(("counted", "is_good"), [({"a": 1.0, "b": 0.95}, True), ({"a": 1.0, "b": 0.0}, False)])
def test_a_way_whose_triton_counted_nothing_asked_something_else(counted: dict[str, float], is_good: bool) -> None:
    assert served.counted_check("it", counted).is_good == is_good


def test_time_goes_to_the_net_its_instance_triton_and_the_gateway_and_the_generator_may_be_the_limit() -> None:
    """Rates of 32 rows: 40 ms through the gateway, 20 of them while the instance is at work; 25 ms and 12.5 without it; the net takes 10."""
    rates = {parts.GATEWAY: (800.0,), parts.DIRECT: (1280.0,), parts.IN_PROCESS: (3200.0,), parts.GENERATOR: (850.0,)}
    split = parts.parts(served_rounds(rates))
    assert split is not None
    seconds = (split.batch_s, split.net_s, split.stub_s, split.triton_s, split.gateway_s, split.generator_s)
    assert seconds == pytest.approx((0.04, 0.01, 0.01, 0.0125, 0.0075, 32 / 850))
    assert "limit" in split.sentence
    quick = parts.parts(served_rounds({**rates, parts.GENERATOR: (32_000.0,)}))
    assert quick is not None
    assert "limit" not in quick.sentence
    assert parts.parts(served_rounds({**rates, parts.DIRECT: ()})) is None


@pytest.mark.parametrize(
    ("shares", "outcome"),
    [
        ((0.95, 0.95, 0.95), "met"),
        ((0.18, 0.17, 0.18), "missed"),
        ((0.5, 0.9, 1.2), "undecided"),
        ((0.95,), "no interval"),
    ],
)
def test_serving_is_judged_by_its_aim_and_says_where_the_rest_goes(shares: tuple[float, ...], outcome: str) -> None:
    rates = {parts.GATEWAY: tuple(100 * one for one in shares), parts.IN_PROCESS: (100.0,) * len(shares)}
    small = served_rounds({parts.GATEWAY: (1.0,), parts.IN_PROCESS: (50.0,)}, size=1)  # no best batch size
    rounds = [*small, *served_rounds({**rates, parts.DIRECT: (80.0,), parts.SOCKET: (40.0,)})]
    one, *others = aims.results(Findings(rounds=tuple(rounds), served=parts.served_rates(rounds)))
    assert one.outcome == outcome
    assert "ms for a batch: the net" in one.note
    assert f"{parts.SOCKET}: " in one.note
    assert {other.outcome for other in others} == {"not measured"}


def test_the_published_card_missed_what_serving_aims_at() -> None:
    report = published.load(ROOT / "published-results" / "NVIDIA-H200.json.gz")
    assert isinstance(report, Report)
    found = {one.name: one for one in aims.results(report.findings)}
    assert found["resnet50 fp16: served ÷ in process"].outcome == "missed"
    assert aims.NOT_TAKEN_APART in found["resnet50 fp16: served ÷ in process"].note
    assert found["minilm, one row: best options ÷ plain CUDA provider"].outcome == "met"
    assert " is served" not in page.markdown(report)


def test_rounds_of_two_runs_are_one_measurement(tmp_path: Path) -> None:
    for number in range(2):
        both = served_rounds({parts.GATEWAY: (90.0 + number,), parts.IN_PROCESS: (100.0,)})
        Ledger(tmp_path, RUN).add(entry(f"round {number}", stage="served", findings=Findings(rounds=tuple(both))))
    assert Ledger(tmp_path, RUN).report().findings.served == (
        ServingRates("resnet50", "fp16", "gpu", 32, (90.0, 91.0), (100.0, 100.0)),
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_every_way_to_a_net_is_measured_and_one_that_is_lost_is_told(tmp_path: Path) -> None:
    card = this_card(tmp_path, is_stand_in=True)
    here = replace(setup(tmp_path, Ledger(tmp_path, RUN), card), suite=read_suite(conclusions.CLAIMS))
    (case, (size, *_)) = served.cases(here)[0]
    with ExitStack() as servers:
        ways = served.open_ways(here, case, servers)
        with pytest.raises(CannotMeasure, match="receipt"):
            served.measure_round(here, replace(case, engine="cuda"), size, 0, lambda: ways)
        arms = [arm for arm in parts.ARMS if arm not in ways.left_out]
        found = served.measure_round(here, case, size, 0, lambda: ways)
        assert {one.arm for one in found.findings.rounds} == set(arms)
        assert all(one.rate > 0 for one in found.findings.rounds)
        assert not faults(found.checks)
        shared = [one for one in found.findings.rounds if one.arm == parts.GATEWAY]
        assert shared[0].cores.keys() == {"generator", "gateway", "Triton", "stub"}
        nobody = replace(ways.by_arm[parts.GENERATOR].server, authority=f"127.0.0.1:{free_ports(1)[0]}")
        ways.by_arm[parts.SOCKET] = replace(ways.by_arm[parts.SOCKET], server=nobody)
        again = served.measure_round(here, case, size, 0, lambda: ways)
        assert {one.arm for one in again.findings.rounds} == set(arms) - {parts.SOCKET}
        assert any(parts.SOCKET in one.variant for one in again.findings.left_out)
        ways.by_arm[parts.GRAPHS] = replace(ways.by_arm[parts.GRAPHS], triton=ways.by_arm[parts.GATEWAY].triton)
        assert [check.is_good for check in served.measure_round(here, case, size, 0, lambda: ways).checks] == [False]


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


def test_claims_without_an_experiment_that_they_need_are_no_conclusion() -> None:
    assert len(faults(conclusions.claims_checks(claims("holds", {}), ["scaling"]))) == 1


def test_what_answers_most_for_least_time_comes_first_and_what_was_measured_is_not_measured_again(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path, RUN)
    suite = read_suite(conclusions.CLAIMS)
    here = replace(
        setup(
            tmp_path,
            ledger,
            replace(CARD, engines={name: EnginePython(name, tmp_path, "1") for name in ("cpu", "cuda")}),
        ),
        suite=suite,
        is_quick=False,
    )
    names = [one.name for one in conclusions.units(here)]
    assert names[-1] == "claims"
    assert names[1:3] == ["bandwidth", "serving digits fp32 on the cpu pool"]
    assert names.index("verdict digits") < names.index("scaling") < names.index("speeds of mlp")
    for one in table.units(here):
        ledger.add(entry(one.name))
    for one in served.units(here):
        ledger.add(entry(one.name, stage="served"))
    left = [one.name for one in conclusions.units(here)]
    assert set(names) - set(left) >= {"serving resnet50 fp16 on the gpu pool", "trees", "speeds of efficientnet-b2"}
    assert left[1:4] == ["bandwidth", "serving digits fp32 on the cpu pool", "verdict resnet50"]
    assert not any(name.startswith("speeds") for name in left)


def test_a_net_that_is_slow_to_begin_costs_no_other_its_time(tmp_path: Path) -> None:
    here = replace(setup(tmp_path, Ledger(tmp_path, RUN)), is_quick=False)
    names = [one.name for one in table.units(here)]
    first = names.index("efficientnet-b2 made")
    assert all("efficientnet-b2" in name for name in names[first:])
    assert not any("efficientnet-b2" in name for name in names[:first])
    assert names[first + 1] == "efficientnet-b2 on cuda at batch 1"
    assert {f"fused operators of {name} on cuda" for name in options.TRANSFORMERS} <= set(names[:first])


@pytest.mark.slow
def test_fused_files_are_made_once_of_a_transformer_and_of_nothing_else(tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    shape = bert.BertShape("small", num_layers=1, width=32, num_heads=4, is_pooled=True, vocabulary=60)
    plain.write_bytes(bert.build(shape, seed=3, opset=18))
    files = options.fused_files(plain, tmp_path / "fused", "it")
    kinds = {name: Counter(node.op_type for node in onnx.load(file).graph.node) for name, file in files.items()}
    assert [kind["Attention"] for kind in kinds.values()] == [1, 1]
    halves = {
        name: any(one.data_type == onnx.TensorProto.FLOAT16 for one in onnx.load(file).graph.initializer)
        for name, file in files.items()
    }
    assert halves == {"fp32": False, "fp16": True}
    plain.write_bytes(b"no model")
    assert options.fused_files(plain, tmp_path / "fused", "it") == files
    with pytest.raises(CannotMeasure, match="nothing to fuse"):
        options.fused_files(small_mlp(tmp_path), tmp_path / "others", "mlp")


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
    arms = (
        OptionTime("minilm", "fp16", "cuda", 1, "plain", 0.0014),
        OptionTime("minilm", "fp16", "cuda", 1, "captured graphs", 0.0005, (2.8, 2.8, 2.8)),
        OptionTime("minilm", "fp16", "cuda", 8, "captured graphs", 0.0005, (2.5, 2.5, 2.5)),
        OptionTime("minilm", "fp32", "cuda", 1, "buffers", 0.0015, (0.93, 0.93, 0.93)),  # which loses
    )
    ledger.add(entry("options", findings=Findings(options=arms)))
    ways = served_rounds({parts.GATEWAY: (20.0, 20.0), parts.IN_PROCESS: (80.0, 80.0)}, size=8)
    ledger.add(entry("round", stage="served", findings=Findings(rounds=tuple(ways))))
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
        "`loadtest/gpu/run.sh table served`",
        "- bridge: not begun",
        "| minilm fp16 | captured graphs | 0.5 ms; 2.80× (2.80..2.80) | 0.5 ms; 2.50× (2.50..2.50) |",
        "| minilm fp32 | buffers | 1.5 ms; 0.93× (0.93..0.93) | – |",
        "- served-cpu-path: ",
        "| resnet50 fp16 on the gpu pool | 8 | gateway | 20 | 400 | 50% | – | – |",
        "| resnet50 fp16 on the gpu pool | 8 | 20 | 80 | 25% (no interval) |",
    ):
        assert words in text, text
    assert "NVIDIA TensorRT, demo/BERT" not in text  # nothing of ours beside it
    rows = list(page.readme_rows(report))
    assert [figure for _, figure, _ in rows] == [
        "resnet50 fp16, batch 128: 20,000 (20,000..20,000)",
        "minilm fp16, batch 1, captured graphs: 2.80× (2.80..2.80)",
        "resnet50 fp16, batch 32: 90% (90..90)",
    ]
    assert {what.rpartition(", NVIDIA")[2] for what, _, _ in rows} == {" H200, 2026-11-23"}
    assert rows[0][2] == "`loadtest/gpu/run.sh`"
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
