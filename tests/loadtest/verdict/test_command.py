"""`tandem verdict` from its words to its exit code, by profiles that are given; what it measures itself is tested in test_verdict_runs.py."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import ResultsError
from loadtest.report.fail_if import ConditionError
from loadtest.verdict import sources as gathering
from loadtest.verdict.command import arm_numbers, run
from loadtest.verdict.options import VerdictOptions, read_question
from loadtest.verdict.report import Source
from serving.decisions.plan.result import Objective
from serving.decisions.profile import Profile, write_profile
from serving.errors import UserError
from serving.measure.machine import this_machine
from serving.repository.layout import default_repository
from tests.loadtest.verdict.made import OBJECTIVE_S, a_check, cpu_profile, gpu_profile, made

ASKED = Objective(OBJECTIVE_S, ((24, 200.0),))
PRICED = ("cpu=c7i.xlarge",)  # nobody's processor has a price of its own


def written(folder: Path, **profiles: Profile) -> tuple[Path, ...]:
    for name, profile in profiles.items():
        write_profile(folder / f"{name}.json", profile)
    return tuple(folder / f"{name}.json" for name in profiles)


def options(folder: Path, **given: object) -> VerdictOptions:
    told = {
        "model": "digits",
        "p99": "20ms",
        "rate_rps": 200.0,
        "profiles": written(folder, cpu=cpu_profile(), gpu=gpu_profile()),
        "instances": PRICED,
        "may_measure": False,
        "output": folder / "out",
        "command": "tandem verdict digits",
    }
    return VerdictOptions(**(told | given))  # type: ignore[arg-type]


def test_given_profiles_make_a_report_and_the_last_line_is_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(tmp_path)) == 0
    *_, paragraph, path = capsys.readouterr().out.splitlines()
    assert "does not pay" in paragraph
    assert re.search(r"Processor X 9 \(.*21 November 2026\).*not this machine", paragraph)
    assert path == f"report: {tmp_path / 'out' / 'report.html'}"
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"report.html", "report.json", "plan.json", "tandem.yaml", "values.yaml"}


def test_json_is_one_object_on_stdout_and_words_go_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(tmp_path, as_json=True)) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["kind"], told["version"], told["word"]) == ("verdict", 1, "does_not_pay")
    assert "does not pay" in err
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == told


@pytest.mark.parametrize(
    ("condition", "code", "says"),
    [
        ("per_hour > 0.1", 1, "per_hour of the verdict is 0.1785"),
        ("per_hour > 0.2", 0, ""),
        ("break_even_rps < 1000", 1, "break_even_rps of the verdict is 840"),
        ("p99_s > 0.05", 1, "p99_s of the verdict is not known"),
    ],
)
def test_a_condition_that_holds_or_that_nobody_knows_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, code: int, says: str
) -> None:
    assert run(options(tmp_path, fail_if=(condition,))) == code
    assert says in capsys.readouterr().out


def test_a_break_even_that_is_never_reached_is_above_every_number() -> None:
    never = made(Source(cpu_profile(), "here"), Source(replace(gpu_profile(), servers=()), "given"))
    assert arm_numbers(never).values.get("break_even_rps") is None
    assert arm_numbers(made(check=a_check(200))).values["p99_s"] == 0.0071


def test_an_objective_that_nothing_meets_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options(tmp_path, p99="1ms")) == 1
    assert "200/s with p99 within 1 ms" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate_rps": None}, "say one of --rate"),
        ({"rates": Path("day.csv")}, "say one of --rate"),
        ({"p99": "20min"}, "--p99 20min: not a time"),
        ({"p99": "0"}, "--p99 0: not a time"),
        ({"instances": ("cpu=c7i.xlage",)}, "c7i.xlarge"),
        ({"instances": ("tpu=v5",)}, "not of the form"),
        ({"prices": ("nowhere.yaml",)}, "nowhere.yaml"),
        ({"profiles": (Path("nowhere.json"),)}, "nowhere.json"),
        ({"profiles": (), "model": "nobodys"}, "nothing to judge by"),
        ({"model": "minilm"}, "it is of digits, not of minilm"),
    ],
)
def test_what_is_typed_wrong_is_told_with_the_way_out(tmp_path: Path, given: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says.replace("(", r"\(")):
        run(options(tmp_path, **given))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("condition", ["p99 > 0.05", "p99_s >", "p99_s > fast", "cpu.p99_s > 1"])
def test_a_condition_that_cannot_be_asked_is_refused_before_anything_is_measured(condition: str) -> None:
    with pytest.raises(ConditionError):
        read_question(VerdictOptions(model="digits", p99="20ms", rate_rps=200.0, fail_if=(condition,)))


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ResultsError, match="not empty") as refusal:
        run(options(tmp_path))
    assert refusal.value.exit_code == 2
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]


# -- whose profiles are used -------------------------------------------------------------------------------------------


def test_a_profile_of_this_machine_is_not_measured_again_and_one_of_another_does_not_replace_it() -> None:
    machine = this_machine()
    mine, other = replace(cpu_profile(), machine=machine), cpu_profile()
    assert gathering.is_of(mine, machine)
    assert not gathering.is_of(other, machine)
    assert not gathering.is_of(replace(mine, provenance="emulated"), machine)
    without_card = replace(machine, cards=())
    assert gathering.missing_here([Source(mine, "here")], without_card, ASKED) == []
    assert gathering.missing_here([Source(other, "given")], without_card, ASKED) == ["cpu"]


def test_a_profile_of_this_machine_for_another_objective_is_measured_again() -> None:
    machine = replace(this_machine(), cards=())
    mine = replace(cpu_profile(), machine=machine)
    assert gathering.missing_here([Source(mine, "here")], machine, replace(ASKED, latency_p99_s=0.001)) == ["cpu"]
    assert gathering.missing_here([Source(mine, "here")], machine, replace(ASKED, batch_size=8)) == ["cpu"]


def test_a_card_of_this_machine_is_measured_too() -> None:
    machine = replace(this_machine(), cards=("NVIDIA T4, driver 570, 15360 MiB",))
    assert gathering.missing_here([], machine, ASKED) == ["cpu", "gpu"]


@pytest.mark.parametrize(
    ("model", "like", "has"), [("resnet50", None, True), ("digits", None, False), ("digits", "bert-base", True)]
)
def test_published_figures_stand_in_for_a_card_that_nobody_gave_and_for_this_model_alone(
    tmp_path: Path, model: str, like: str | None, has: bool
) -> None:
    files = written(tmp_path, processor=replace(cpu_profile(), model=model), card=replace(gpu_profile(), model=model))
    for given, expected in ((files[:1], has), (files, False)):
        options = VerdictOptions(model=model, rate_rps=5, p99="20ms", profiles=given, like=like, may_measure=False)
        found, _ = gathering.gather(options, options.objective(), tmp_path, str, None)  # type: ignore[arg-type]
        shipped = [one.profile for one in found if one.origin == "shipped"]
        assert bool(shipped) is expected
        assert {profile.provenance for profile in shipped} <= {"published"}


def test_a_card_that_cannot_be_measured_is_told_and_the_rest_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = replace(this_machine(), cards=("NVIDIA T4, driver 570, 15360 MiB",))
    monkeypatch.setattr(gathering, "this_machine", lambda: machine)
    variant = tmp_path / "repository" / "digits-int8"  # runs on CPUs alone
    variant.parent.mkdir()
    variant.symlink_to(default_repository() / "digits-int8")
    asked = options(
        tmp_path,
        profiles=written(tmp_path, mine=replace(cpu_profile(), machine=machine)),
        model_repository=variant.parent,
        may_measure=True,
        has_check=False,
    )
    assert run(asked) == 0
    out, err = capsys.readouterr()
    assert "was not measured" in err
    assert "gpu pool" in err
    assert "Inconclusive" in out
    assert "not measured" in (tmp_path / "out" / "report.html").read_text()


def test_a_disk_that_is_full_is_one_line_and_what_was_judged_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text

    def full(path: Path, *given: Any, **named: Any) -> int:
        if path.name == "report.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_text(path, *given, **named)

    monkeypatch.setattr(Path, "write_text", full)
    assert run(options(tmp_path)) == 3
    out, err = capsys.readouterr()
    assert "does not pay" in out
    assert "No space left" in err
    assert len(err.strip().splitlines()) == 1
