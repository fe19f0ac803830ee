"""A small suite for real: a net is made, timed and judged; what is not here is said to be not here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest.claims import bandwidth, speeds, values
from loadtest.claims.claims_file import read_suite
from loadtest.claims.command import ClaimsOptions, quick, run
from loadtest.claims.experiments import compared, names_of_nets
from loadtest.errors import CannotMeasure
from serving.cli import cli
from serving.decisions.engines import EnginePython
from serving.errors import UserError

THIS = EnginePython("cpu", Path(sys.executable), "1")
CLAIMS = Path(__file__).parents[3] / "loadtest" / "campaigns" / "claims.yaml"
TINY = """version: 1
kind: claims
name: tiny
experiments:
  speeds: {batch_sizes: [1, 4], seconds: 0.1, max_seconds: 20, rounds: 3}
  bandwidth: {rounds: 3}
claims:
  - {name: int8, says: "INT8 suits CPUs.", source: here, number: speed_up, models: mlp, variant: int8, at_least: 0.0001}
  - {name: gpu, says: "GPUs are fast.", source: here, number: speed_up, models: mlp, engine: cuda, at_least: 10}
  - {name: weights, says: "Memory bounds.", source: here, number: weights_share, models: mlp, at_most: 1000}
  - {name: batches, says: "Batches pay.", source: here, number: batch_gain, models: mlp, at_least: 0.0001}
"""


@pytest.mark.thorough
@pytest.mark.campaigns  # makes a net of 100 MB
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_tiny_suite_runs_from_the_file_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    out = tmp_path / "out"
    assert run(ClaimsOptions(file, out, engines={"cpu": THIS})) == 0
    found = values.from_json((out / "claims.json").read_text(), "claims.json")
    answers = {result.name: result.answer for result in found.results}
    assert answers == {"int8": "holds", "gpu": "not measured here", "weights": "holds", "batches": "holds"}
    assert {one.batch_size for one in found.findings.speeds if one.variant == "int8"} == {1, 4}
    assert {(one.engine, one.batch_size) for one in found.findings.speeds if one.variant == "fp16"} == {("cpu", 1)}
    assert found.findings.bandwidths[0].array_bytes >= 2**20
    assert [one.when for one in found.findings.bandwidths] == ["before", "after"]
    assert not found.is_partial
    assert "tandem campaign run tiny.yaml" in (out / "claims.html").read_text()
    assert str(tmp_path) not in (out / "claims.json").read_text()
    assert "holds  int8: " in capsys.readouterr().out
    assert run(ClaimsOptions(file, out, engines={"cpu": THIS})) == 2  # its folder is not empty
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "code", "reason"),
    [
        (KeyboardInterrupt(), 130, "interrupted before it"),
        (CannotMeasure("there is no memory"), 1, "there is no memory"),
    ],
)
def test_what_comes_between_leaves_a_report_that_says_so(
    what: BaseException, code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise what

    monkeypatch.setattr(speeds, "make", stopped)
    monkeypatch.setattr(bandwidth, "CACHES", tmp_path)  # arrays of the smallest size
    monkeypatch.setattr(bandwidth, "LEAST_BYTES", 2**20)
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    assert run(ClaimsOptions(file, tmp_path / "out", engines={"cpu": THIS})) == code
    found = values.from_json((tmp_path / "out" / "claims.json").read_text(), "claims.json")
    assert found.is_partial == (code == 130)
    assert found.findings.bandwidths[0].copy  # what ran before is kept
    by_name = {result.name: result for result in found.results}
    assert (by_name["int8"].answer, by_name["gpu"].answer) == ("not run", "not measured here")
    assert reason in by_name["int8"].numbers


def test_a_wrong_name_stops_it_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ClaimsOptions(CLAIMS, tmp_path / "out", ("int8",), engines={"cpu": THIS})) == 2
    assert re.search("--only: .*'int8'", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_one_claim_needs_its_own_nets_alone() -> None:
    suite = read_suite(CLAIMS)
    assert names_of_nets(suite.only(("int8-slows-efficientnet",))) == ["efficientnet-b2"]
    assert names_of_nets(suite.only(("trees-suit-cpus", "gpus-win-on-energy", "served-gpu-path"))) == []


def test_quick_is_shorter_and_asks_the_same() -> None:
    suite = read_suite(CLAIMS)
    shorter = quick(suite)
    assert shorter.claims == suite.claims
    assert shorter.experiments["speeds"]["batch_sizes"] == (1, 2)
    assert shorter.experiments["speeds"]["seconds"] < suite.experiments["speeds"]["seconds"]
    assert shorter.experiments["scaling"]["seeds"] == (1, 2)


def test_the_cards_copy_is_tried_on_the_processor() -> None:
    found = bandwidth.card(THIS, 2, "cpu", num_rows=4)
    assert (len(found.copy), found.array_bytes, found.reason) == (2, 2**24, None)


def test_a_copy_that_fails_says_why() -> None:
    found = bandwidth.card(THIS, 2, "cuda", num_rows=4)
    assert found.copy == ()
    assert (found.reason or "").startswith("the copy failed")


def test_every_policy_is_told_beside_the_one_that_is_always_on() -> None:
    outcome = {"policy": "tandem", "gpu_hours": 1.0, "attainment_ratio": 0.9, "cost": 2.0}
    always = {"policy": "gpu-always", "gpu_hours": 4.0, "attainment_ratio": 1.0, "cost": 3.0}
    (one,) = compared({"policies": [outcome, always]}, 7)
    assert (one.policy, one.seed, one.gpu_hours, one.always_gpu_hours, one.always_cost) == ("tandem", 7, 1.0, 4.0, 3.0)


@pytest.mark.parametrize("option", [["--duration", "3"], ["--repeats", "2"], ["--warmup", "0"], ["--url", "http://h"]])
def test_what_is_for_load_tests_does_nothing_for_claims_and_says_so(option: list[str]) -> None:
    done = CliRunner().invoke(cli, ["campaign", "run", str(CLAIMS), *option])
    assert done.exit_code == 2
    assert f"{option[0]} does nothing for" in done.output


@pytest.mark.parametrize("option", [["--quick"], ["--only", "int8-suits-cpus"]])
def test_what_is_for_claims_does_nothing_for_a_load_test_and_says_so(option: list[str]) -> None:
    done = CliRunner().invoke(cli, ["campaign", "run", str(CLAIMS.with_name("digits.yaml")), *option])
    assert isinstance(done.exception, UserError)
    assert option[0] in str(done.exception)


def test_the_command_of_a_report_holds_no_place_of_this_machine(tmp_path: Path) -> None:
    assert ClaimsOptions(tmp_path / "c.yaml", only=("a",), is_quick=True).command == (
        "tandem campaign run c.yaml --only a --quick"
    )
    assert ClaimsOptions(Path("a/c.yaml"), nets=tmp_path).command == "python -m loadtest.claims --nets NETS a/c.yaml"
