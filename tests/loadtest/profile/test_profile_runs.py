"""`tandem profile` on a real Triton: the whole chain to a file, and Ctrl-C in the middle of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.processes import family, still_there
from loadtest.profile import command
from loadtest.profile.options import ProfileOptions
from serving.cli import main
from serving.cli.lazy import lacking
from serving.decisions.profile import RUNGS, Profile, read_profile
from serving.measure.machine import this_machine

pytestmark = [
    pytest.mark.triton,
    pytest.mark.campaigns,
    pytest.mark.timeout(300),
]  # a first start makes Triton's environment
PROFILE = [sys.executable, "-m", "serving", "profile", "digits", "--quick", "--variant", "int8", "--batch-size", "1"]


def test_a_quick_profile_holds_every_rung_a_rate_and_a_cold_start(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    command = [*PROFILE, "--seconds", "0.5", "--p99", "1s", "--output", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    profile = read_profile(file)
    assert json.loads(done.stdout)["model"] == profile.model == "digits"
    assert profile.provenance == "measured"
    (server,) = profile.servers
    assert (server.variant, server.device, server.settings.num_instances) == ("int8", "cpu", 1)
    assert tuple(timing.rung for timing in server.ladder) == RUNGS
    for timing in server.ladder:
        assert 0 < timing.latency_p50_s < 1
        assert timing.num_requests > 3
        assert (timing.compute_infer_s is None) == (timing.rung == "in_process")
    (most,) = server.max_rates
    assert most.objective_s == 1.0
    assert server.load
    assert {point.rate_rps for point in server.load if point.is_met} >= set(most.runs)
    assert [phase.name for phase in server.cold_start] == ["process", "load", "first_answer"]
    assert all(phase.seconds > 0 for phase in server.cold_start)
    assert server.accuracy is not None
    assert "onnxruntime (cpu)" in profile.versions
    assert profile.note is not None
    assert "Partial" not in profile.note


@pytest.mark.thorough
def test_an_emulated_device_is_called_so_and_its_engine_is_its_file(tmp_path: Path) -> None:
    curves, file = tmp_path / "card.yaml", tmp_path / "profile.json"
    curves.write_text('version: 1\nname: card\nvariants: {"*": [[1, 0.02], [32, 0.05]]}\n')
    command = [*PROFILE, "--emulate", f"emulated-gpu={curves}", "--no-search", "--no-cold-start", "--output", str(file)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    profile = read_profile(file)
    assert profile.provenance == "emulated"
    assert "what-if" in str(profile.note)
    (server,) = profile.servers
    assert server.device == "emulated-card"
    alone, *others = server.ladder
    assert (alone.rung, alone.latency_p50_s, alone.num_requests) == ("in_process", 0.02, 0)
    assert all(timing.latency_p50_s >= 0.02 for timing in others)
    assert (server.load, server.max_rates, server.cold_start) == ((), (), ())


@pytest.mark.thorough
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    command = [*PROFILE, "--seconds", "60", "--p99", "1s", "--output", str(file)]
    with (tmp_path / "words").open("wb") as words:
        process = subprocess.Popen(command, stderr=words, stdout=words)
    try:
        deadline = time.monotonic() + 200
        while "through the gateway" not in (tmp_path / "words").read_text() and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "words").read_text()
            time.sleep(0.1)
        while not any(b"locust" in one for one in _commands(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        members = family(process.pid)
        assert len(members) > 3
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert still_there(members) == []
    profile = read_profile(file)
    (server,) = profile.servers
    assert len(server.ladder) == len(RUNGS)
    assert server.max_rates == ()
    assert str(profile.note).startswith("Partial")


def _commands(pid: int) -> list[bytes]:
    return [" ".join(member.command).encode() for member in family(pid)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digts"], "did you mean 'digits'"),
        (["digits", "--p99", "soon"], "not a time"),
        (["digits", "--settings", "2"], "INSTANCESxTHREADS"),
        (["digits", "--emulate", "x"], "NAME=FILE"),
        (["digits", "--output", "/nowhere/at/all.json"], "there is no folder"),
        (["digits", "--output", "/dev/null"], "is no plain file"),
        (["digits", "--qiuck"], "--quick"),
        (["digits", "--pool", "gpu"], "no NVIDIA card"),
        (["digits", "--data", "/nowhere.npz"], "not there"),
    ],
)
def test_wrong_use_is_one_line_with_the_way_out(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tandem", "profile", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2, said
    assert words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("package", "extra"), [("tritonclient", "local"), ("numpy", "loadtest"), ("locust", "loadtest")]
)
def test_a_package_that_is_missing_is_told_with_the_extra_that_brings_it(package: str, extra: str) -> None:
    fault = lacking(ModuleNotFoundError(name=f"{package}.grpc"), "loadtest.profile.command")
    assert f"pip install -e '.[{extra}]'" in str(fault)


def test_a_results_folder_that_cannot_be_made_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("a file")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tandem", "profile", "digits"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "--output" in capsys.readouterr().err


def test_a_profile_that_cannot_be_written_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes of measuring are not lost to a disk that is full."""
    file = tmp_path / "profile.json"
    known = Profile("digits", "measured", "2026-11-01T00:00:00+00:00", "tandem profile digits", this_machine(), ())

    def measured(*_: object) -> Profile:
        (tmp_path / "profile.json.part").mkdir()  # in the way of what is written
        return known

    monkeypatch.setattr(command, "measure", measured)
    assert command.run(ProfileOptions("digits", output=file)) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["model"] == "digits"
    assert "is printed" in said.err
