"""What a pipeline may ask to fail on, and what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign import CampaignOptions, report_again, run
from loadtest.report import build as report
from loadtest.report.fail_if import NAMES as CAMPAIGN_NAMES
from loadtest.report.fail_if import (
    ArmNumbers,
    Condition,
    ConditionError,
    arm_numbers,
    broken_conditions,
    failures,
    parse,
)
from tests.loadtest import rows as make

NAMES = ("p50_s", "p99_s", "throughput_rps", "within_objective_ratio", "errors")
ARMS = ("fp32-cpu", "v1.5-int8")


@pytest.mark.parametrize(
    ("text", "arm", "name", "operator", "number"),
    [
        ("p99_s > 0.05", None, "p99_s", ">", 0.05),
        ("p99_s>0.05", None, "p99_s", ">", 0.05),
        ("  errors >= 1 ", None, "errors", ">=", 1.0),
        ("fp32-cpu.p99_s > 5e-2", "fp32-cpu", "p99_s", ">", 0.05),
        ("v1.5-int8.throughput_rps<1000", "v1.5-int8", "throughput_rps", "<", 1000.0),
        ("within_objective_ratio <= .99", None, "within_objective_ratio", "<=", 0.99),
        ("errors != 0", None, "errors", "!=", 0.0),
        ("errors == -1", None, "errors", "==", -1.0),
    ],
)
def test_a_condition_is_a_name_an_operator_and_a_number(
    text: str, arm: str | None, name: str, operator: str, number: float
) -> None:
    assert parse(text, NAMES, ARMS) == Condition(text.strip(), arm, name, operator, number)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not of the form NAME OP NUMBER"),
        ("p99_s", "is not of the form"),
        ("p99_s 0.05", "is not of the form"),
        ("p99_s > ", "is not of the form"),
        ("> 0.05", "is not of the form"),
        ("p99_s > 0.05 or errors > 0", "is not of the form"),
        ("p99_s = 0.05", "is not of the form"),
        ("p99_s => 0.05", "is not of the form"),
        ("0.05 < p99_s", "nothing is named '05'"),
        ("p99_s > 50ms", "'50ms' is not a number"),
        ("p99_s > nan", "'nan' is not a number"),
        ("p99_s > inf", "'inf' is not a number"),
        ("p9_s > 0.05", "nothing is named 'p9_s'; did you mean 'p99_s'?"),
        ("P99_S > 0.05", "did you mean 'p99_s'?"),
        ("zzz > 1", "nothing is named 'zzz'; known are p50_s, p99_s, "),
        ("fp23-cpu.p99_s > 1", "no arm is named 'fp23-cpu'; did you mean 'fp32-cpu'?"),
        ("__import__('os') > 1", "is not of the form"),
    ],
)
def test_what_is_no_condition_is_an_error_with_the_way_out(text: str, why: str) -> None:
    with pytest.raises(ConditionError) as error:
        parse(text, NAMES, ARMS)
    assert why in str(error.value)
    assert str(error.value).count("\n") == 0
    assert error.value.exit_code == 2


def test_an_arm_that_is_not_known_yet_is_taken() -> None:
    assert parse("anything.p99_s > 1", NAMES).arm == "anything"


def place(arm: str = "fp32-cpu", p99_s: float | None = 0.04, where: str = "", not_run: str | None = None) -> ArmNumbers:
    return ArmNumbers(arm, where, {"p99_s": p99_s, "errors": 0.0}, not_run)


FAST, SLOW = place(), place("int8-cpu", 0.06, "at 100 users")


@pytest.mark.parametrize(
    ("text", "places", "said"),
    [
        ("p99_s > 0.05", [FAST], []),
        ("p99_s > 0.05", [FAST, SLOW], ["Failed: p99_s > 0.05: p99_s of int8-cpu at 100 users is 0.06."]),
        ("p99_s > 0.04", [FAST], []),
        ("p99_s >= 0.04", [FAST], ["Failed: p99_s >= 0.04: p99_s of fp32-cpu is 0.04."]),
        ("fp32-cpu.p99_s > 0.05", [FAST, SLOW], []),
        ("errors == 0", [FAST], ["Failed: errors == 0: errors of fp32-cpu is 0."]),
        ("p99_s > 0.05", [place(p99_s=None)], ["Failed: p99_s > 0.05: p99_s of fp32-cpu is not known (too few valid runs or requests)."]),
        ("p99_s > 0.05", [place(p99_s=float("nan"))], ["Failed: p99_s > 0.05: p99_s of fp32-cpu is not known (too few valid runs or requests)."]),
        ("p99_s < 0.05", [place(p99_s=None)], ["Failed: p99_s < 0.05: p99_s of fp32-cpu is not known (too few valid runs or requests)."]),
        ("p99_s > 0.05", [FAST, place("fp16-gpu", None, not_run="no GPU here")], []),  # asked of what ran
        ("fp16-gpu.p99_s > 0.05", [place("fp16-gpu", None, not_run="no GPU here")],
         ["Failed: fp16-gpu.p99_s > 0.05: p99_s of fp16-gpu is not known (it was not run: no GPU here)."]),
        ("p99_s > 0.05", [place("fp16-gpu", None, not_run="no GPU here")], ["Failed: p99_s > 0.05: nothing was measured."]),
        ("p99_s > 0.05", [], ["Failed: p99_s > 0.05: nothing was measured."]),
        ("gone.p99_s > 0.05", [FAST], ["Failed: gone.p99_s > 0.05: nothing was measured."]),
    ],
)  # fmt: skip
def test_what_is_so_or_not_known_fails_with_a_sentence(text: str, places: list[ArmNumbers], said: list[str]) -> None:
    assert failures(parse(text, NAMES), places) == said


# -- of a campaign, from rows to the exit code


def test_every_name_has_a_value_at_every_arm() -> None:
    built = report.summarise(*make.two_arms())
    numbers = arm_numbers(built)
    assert [one.arm for one in numbers] == ["fp32-cpu", "int8-cpu", "fp16-gpu"]
    assert all(set(one.values) == set(CAMPAIGN_NAMES) for one in numbers)
    assert numbers[0].values["p50_s"] == numbers[0].values["latency_p50_s"] == pytest.approx(0.01)
    assert (numbers[0].values["errors"], numbers[0].values["error_ratio"], numbers[0].values["accuracy"]) == (
        0.0,
        0.0,
        1.0,
    )
    assert set(numbers[2].values.values()) == {None}
    assert "no GPU" in (numbers[2].not_run or "")


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([], ""),
        (["p50_s > 0.05", "errors > 0"], ""),
        (["p50_s > 0.007"], "Failed: p50_s > 0.007: p50_s of fp32-cpu is 0.01."),
        (["int8-cpu.p50_s > 0.007"], ""),
        (["p99_s > 1"], "Failed: p99_s > 1: p99_s of fp32-cpu is not known (too few valid runs or requests)."),
        (["fp16-gpu.p50_s > 1"], "p50_s of fp16-gpu is not known (it was not run: no GPU on this machine)."),
        (["within_objective_ratio < 0.5"], "within_objective_ratio of fp32-cpu is not known"),  # there is no objective
    ],
)
def test_a_report_fails_if_it_is_so_or_not_known(
    conditions: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = make.campaign(tmp_path / "r", *make.two_arms())
    assert report_again(directory, tuple(conditions)) == (1 if said else 0)
    told = capsys.readouterr()
    assert told.out == f"{directory / 'report.html'}\n"
    assert said in told.err
    assert bool(told.err) == bool(said)


@pytest.mark.parametrize("wrong", ["p98_s > 1", "gone.p99_s > 1", "p99_s"])
def test_a_condition_that_cannot_be_numbers_is_the_users_to_correct(wrong: str) -> None:
    built = report.summarise(*make.two_arms())
    with pytest.raises(ConditionError):
        broken_conditions([wrong], built)


@pytest.mark.parametrize("wrong", ["p98_s > 1", "gone.p99_s > 1"])
def test_it_is_told_before_anything_is_measured(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("{version: 1, name: c, model: digits, arms: [{variant: fp32, pool: cpu}]}")
    options = CampaignOptions(file, "http://127.0.0.1:9", tmp_path / "out", fail_if=(wrong,))
    assert run(options) == 2
    assert "--fail-if" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_places_of_several_points_name_them() -> None:
    given, by_run = make.two_arms()
    (run_1, *_) = given.runs
    load = make.Load(1.0, 2.0, 1, 7, users=(2, 4))
    built = report.summarise(make.manifest([run_1], load=load), by_run)
    assert [one.where for one in arm_numbers(built)] == ["at 2 users"] * 3 + ["at 4 users"] * 3
