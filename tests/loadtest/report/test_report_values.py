"""What `--fail-if` may ask of a campaign's report, from rows to the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign import CampaignOptions, report_again, run
from loadtest.report import build as report
from loadtest.report import fail_if as report_values
from loadtest.report.fail_if import NAMES, ConditionError, places
from tests.loadtest import rows as make


def test_every_name_has_a_value_at_every_arm() -> None:
    built = report.summarise(*make.two_arms())
    asked = places(built)
    assert [place.arm for place in asked] == ["fp32-cpu", "int8-cpu", "fp16-gpu"]
    assert all(set(place.values) == set(NAMES) for place in asked)
    assert asked[0].values["p50_s"] == asked[0].values["latency_p50_s"] == pytest.approx(0.01)
    assert (asked[0].values["errors"], asked[0].values["error_ratio"], asked[0].values["accuracy"]) == (0.0, 0.0, 1.0)
    assert set(asked[2].values.values()) == {None}
    assert asked[2].not_run == "no GPU on this machine"


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
def test_a_condition_that_cannot_be_asked_is_the_users_to_correct(wrong: str) -> None:
    built = report.summarise(*make.two_arms())
    with pytest.raises(ConditionError):
        report_values.broken_conditions([wrong], built)


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
    assert [place.where for place in places(built)] == ["at 2 users"] * 3 + ["at 4 users"] * 3
