"""Two reports beside each other: what is called worse, what is not, and what a reader is warned of."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadtest.compare as compare_command
from loadtest import records
from loadtest.compare import CompareOptions, Quantity, compare, from_campaign, from_verdict, read, run
from loadtest.errors import ResultsError
from loadtest.records import Load
from loadtest.report import build as report
from loadtest.verdict.report import Number, VerdictReport, as_json
from tests.loadtest import rows as make
from tests.loadtest.verdict.made import made


def seconds(*runs: float, name: str = "p99") -> Quantity:
    return Quantity(name, "s", runs, is_lower_better=True)


def share(*runs: float) -> Quantity:
    return Quantity("in time", "ratio", runs, is_lower_better=False)


def rate(*runs: float) -> Quantity:
    return Quantity("rate", "requests/s", runs, is_lower_better=False)


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (seconds(0.010, 0.011, 0.012), seconds(0.020, 0.021, 0.022), "worse"),
        (seconds(0.020, 0.021, 0.022), seconds(0.010, 0.011, 0.012), "better"),
        (seconds(0.010, 0.011, 0.012), seconds(0.0105, 0.0115, 0.0125), "no_difference_seen"),
        (seconds(0.010, 0.011), seconds(0.020, 0.021), "inconclusive"),
        (seconds(), seconds(0.020, 0.021, 0.022), "inconclusive"),
        (seconds(0.0, 0.0, 0.0), seconds(0.020, 0.021, 0.022), "inconclusive"),
        (rate(100, 101, 102), rate(50, 51, 52), "worse"),
        (rate(100, 101, 102), rate(200, 201, 202), "better"),
        (share(0.99, 0.991, 0.992), share(0.80, 0.81, 0.82), "worse"),
        (share(0.0, 0.0, 0.0), share(0.99, 0.991, 0.992), "better"),
        (share(1.0, 1.0, 1.0), share(1.0, 1.0, 1.0), "no_difference_seen"),
        (share(1.0, 1.0, 1.0), share(0.999, 1.0, 1.0), "no_difference_seen"),
        (replace(seconds(1, 1.1, 1.2), is_lower_better=None), replace(seconds(2, 2.1, 2.2), is_lower_better=None), "not_judged"),
    ],
)  # fmt: skip
def test_a_value_is_worse_only_if_its_interval_says_so(before: Quantity, after: Quantity, outcome: str) -> None:
    (found,) = compare([before], [after]).values
    assert found.outcome == outcome
    assert (found.low is None) == (outcome == "inconclusive")


def test_a_ratio_is_after_by_before_and_a_share_a_difference() -> None:
    (found, in_time) = compare(
        [seconds(0.01, 0.01, 0.01), share(0.9, 0.9, 0.9)], [seconds(0.02, 0.02, 0.02), share(0.8, 0.8, 0.8)]
    ).values
    assert (found.before, found.after, found.change) == (0.01, 0.02, pytest.approx(2.0))
    assert in_time.change == pytest.approx(-0.1)


def test_of_many_values_one_that_differs_a_little_is_worse_but_not_clearly() -> None:
    before, after = seconds(0.0100, 0.0101, 0.0102), seconds(0.0103, 0.0104, 0.0105)
    many = [replace(before, name=str(number)) for number in range(40)]
    alone = compare([before], [after])
    among = compare([before, *many], [after, *many])
    assert (alone.values[0].outcome, among.values[0].outcome) == ("worse", "worse")
    assert alone.is_worse
    assert not among.is_worse


@pytest.mark.parametrize("num_values", [1, pytest.param(12, marks=pytest.mark.thorough)])
def test_two_equal_reports_are_seldom_called_clearly_worse(num_values: int) -> None:
    random = np.random.default_rng(4)

    def measured() -> list[Quantity]:
        return [seconds(*np.exp(random.normal(0, 0.1, 3)), name=str(number)) for number in range(num_values)]

    alarms = sum(compare(measured(), measured()).is_worse for _ in range(300))
    assert alarms / 300 <= 0.05


def test_what_only_one_report_has_is_named() -> None:
    found = compare([seconds(1, 1, 1, name="a"), rate(1, 1, 1)], [rate(1, 1, 1), seconds(1, 1, 1, name="b")])
    assert (found.only_before, found.only_after) == (("a",), ("b",))
    assert [value.name for value in found.values] == ["rate"]


def test_one_name_with_two_units_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rate.*requests/s"):
        compare([rate(1.0)], [seconds(1.0, name="rate")])


# -- from files to the exit code --------------------------------------------------------------------------------------


def results(folder: Path, int8_latency_s: float = 0.005, repeats: int = 3, **changes: Any) -> Path:
    """A results directory with its report."""
    given, by_run = make.two_arms(int8_latency_s, repeats)
    noisy = {
        name: [row._replace(latency_s=row.latency_s * (1 + number / 100)) for row in rows]
        for number, (name, rows) in enumerate(by_run.items())
    }
    directory = make.campaign(folder, replace(given, **changes), noisy)
    report.write(directory, report.build(directory))
    return directory


def test_equal_reports_are_not_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CompareOptions(results(tmp_path / "a"), results(tmp_path / "b"))) == 0
    said = capsys.readouterr().out
    assert "int8-cpu at 2 users: p50" in said
    assert "no difference seen" in said
    assert "have no partners" in said
    assert "differs" not in said
    assert "Nothing got worse" in said


def test_what_became_slower_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = results(tmp_path / "a"), results(tmp_path / "b", 0.02)
    assert run(CompareOptions(before, after / "report.json")) == 1
    assert "int8-cpu at 2 users: p50" in capsys.readouterr().out
    assert run(CompareOptions(after, before)) == 0
    assert " faster\n" in capsys.readouterr().out


def test_two_repeats_are_inconclusive_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CompareOptions(results(tmp_path / "a", repeats=2), results(tmp_path / "b", 0.02, repeats=2))) == 0
    said = capsys.readouterr().out
    assert "inconclusive" in said
    assert "3 runs" in said


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"machine": replace(make.manifest().machine, processor="B")}, 'machine differs: processor A Processor before, B after'),
        ({"versions": {"python": "3.12.0", "locust": "2.47.0"}}, "versions differs: python 3.11.7 before, 3.12.0 after"),
        ({"payload": records.Payload("random", "json", 1)}, "payload differs: data digits before, random after"),
        ({"load": replace(make.LOAD, seed=8)}, "load differs: seed 7 before, 8 after"),
        ({"model": "cats"}, "model differs: digits before, cats after"),
    ],
)  # fmt: skip
def test_other_circumstances_are_warned_of(
    changes: dict[str, Any], warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(CompareOptions(results(tmp_path / "a"), results(tmp_path / "b", **changes)))
    assert f"careful: {warning}" in capsys.readouterr().out


@pytest.mark.parametrize(("is_local", "is_told"), [(True, False), (False, True)])
def test_another_port_of_this_machine_is_no_other_circumstance(
    is_local: bool, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ("http://127.0.0.1:40001", "http://127.0.0.1:40002") if is_local else ("http://a:8080", "http://b:8080")
    run(
        CompareOptions(
            *(results(tmp_path / str(number), url=url, is_local=is_local) for number, url in enumerate(urls))
        )
    )
    assert ("url differs" in capsys.readouterr().out) is is_told


def test_json_is_one_object_with_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CompareOptions(results(tmp_path / "a"), results(tmp_path / "b", 0.02), as_json=True)) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["is_worse"]) == (1, True)
    assert {value["name"] for value in told["values"] if value["is_clearly_worse"]} == {"int8-cpu at 2 users: p50"}


def test_void_and_unstable_runs_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, by_run = make.two_arms(repeats=3)
    directory = make.campaign(tmp_path / "v", replace(given, is_interrupted=True), by_run | {"runs/int8-cpu-1.csv": []})
    report.write(directory, report.build(directory))
    run(CompareOptions(results(tmp_path / "a"), directory))
    said = capsys.readouterr().out
    assert re.search("after: .*partial", said)
    assert "1 void run" in said


def verdict(**numbers: Number) -> VerdictReport:
    return replace(made(), numbers=numbers)


def written(file: Path, report: VerdictReport) -> Path:
    file.write_text(json.dumps(as_json(report)))
    return file


def test_searched_rates_that_lie_less_than_a_step_apart_are_not_told_apart() -> None:
    """Repeats of a search agree on a quiet machine, on another rate for each report."""

    def found(rps: float, high: float) -> list[Quantity]:
        number = Number(rps, "1/s", "higher", rps, high, (rps,) * 3)
        return list(from_verdict(verdict(max_rate_rps=number)).values)

    (near,) = compare(found(1000.0, 1060.0), found(960.0, 1017.6)).values
    assert (near.outcome, near.is_clearly_worse) == ("no_difference_seen", False)
    (far,) = compare(found(1000.0, 1060.0), found(900.0, 954.0)).values
    assert (far.outcome, far.is_clearly_worse) == ("worse", True)
    (exact,) = compare(found(1000.0, 1000.0), found(960.0, 960.0)).values  # of what is not searched in steps
    assert exact.outcome == "worse"


@pytest.mark.parametrize("run", ["NaN", "Infinity", "-Infinity", "1e300"])
def test_a_report_whose_numbers_are_none_is_told_and_not_compared(tmp_path: Path, run: str) -> None:
    file = written(tmp_path / "report.json", verdict(p99_s=Number(0.01, "s", "lower", runs=(0.010, 4711.0, 0.012))))
    file.write_text(file.read_text().replace("4711.0", run))
    with pytest.raises(ResultsError, match=r"report\.json"):
        read(file)


def test_a_file_of_a_hundred_thousand_brackets_is_told_and_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ResultsError, match="not valid JSON"):
        read(file)


def test_two_verdicts_are_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report(name: str, *runs: float) -> Path:
        price = Number(1.0, "USD/h", "lower")
        return written(tmp_path / name, verdict(p99_s=Number(runs[1], "s", "lower", runs=runs), per_hour=price))

    assert run(CompareOptions(report("a.json", 0.010, 0.011, 0.012), report("b.json", 0.050, 0.051, 0.052))) == 1
    said = capsys.readouterr().out
    assert "clearly slower" in said
    assert "inconclusive" in said  # a price has no runs


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "is not there; name a results directory, or its report.json"),
        ("{", "not valid JSON"),
        ("[]", "no report of a campaign or a verdict"),
        ("{}", "no report of a campaign or a verdict"),
        ('{"manifest": {}, "version": 2}', "version 3 (its version is 2); build it again"),
        ('{"kind": "verdict", "version": 9}', "version 1 (its version is 9)"),
        ('{"kind": "verdict", "version": 1}', "'model' is missing"),
        ('{"manifest": [], "version": 3}', "report.json"),
    ],
)
def test_what_is_no_report_is_the_users_to_correct(content: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ResultsError) as error:
        read(file)
    assert why in str(error.value)
    assert error.value.exit_code == 2


def test_a_directory_without_a_report_says_how_to_make_it(tmp_path: Path) -> None:
    directory = make.campaign(tmp_path / "r", *make.two_arms())
    with pytest.raises(ResultsError, match=r"report\.json.*`tandem.*campaign"):
        read(directory)


def test_reports_of_two_kinds_or_of_nothing_in_common_are_refused(tmp_path: Path) -> None:
    campaign, file = results(tmp_path / "a"), written(tmp_path / "v.json", verdict())
    with pytest.raises(ResultsError, match=r"campaign.*verdict"):
        run(CompareOptions(campaign, file))
    other = results(tmp_path / "b", load=Load(1.0, 2.0, 3, 7, users=(2,)), arms=tuple(replace(arm, name=arm.name + "x") for arm in make.ARMS),
                    baseline="fp32-cpux", runs=())  # fmt: skip
    with pytest.raises(ResultsError, match=r"measured.*alike"):
        run(CompareOptions(campaign, other))


def test_again_arms_are_left_out(tmp_path: Path) -> None:
    given, by_run = make.two_arms(repeats=3)
    built = report.summarise(given, by_run)
    built = replace(built, arms=(built.arms[0], replace(built.arms[1], is_again=True), *built.arms[2:]))
    found = from_campaign(built)
    assert not any(value.name.startswith("int8") for value in found.values)
    assert compare_command.text(found, found, compare([], []))
