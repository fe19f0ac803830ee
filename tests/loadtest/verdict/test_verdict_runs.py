"""`tandem verdict` on a real Triton: the check of a plan that this machine can run, and Ctrl-C while it measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.processes import family, still_there
from serving.decisions.profile import MaxRate, Settings, write_profile
from serving.measure.machine import this_machine
from tests.loadtest.verdict.made import cpu_profile, gpu_profile, server
from tests.local.harness import black_hole

pytestmark = [
    pytest.mark.triton,
    pytest.mark.campaigns,
    pytest.mark.timeout(300),
]  # a first start makes Triton's environment
VERDICT = [sys.executable, "-m", "serving", "verdict", "digits", "--rate", "200", "--p99", "1s", "--quick"]


@pytest.mark.thorough
def test_a_profile_of_this_very_machine_is_not_measured_again_and_its_plan_is_really_run(tmp_path: Path) -> None:
    most = MaxRate(1.0, 1, 1000.0, 990.0, 1010.0, (990.0, 1000.0, 1010.0))
    mine = replace(server("int8", "cpu", "cpu", most, 0.002), settings=Settings(1, 1, 32), load=())
    for name, profile in {"cpu": cpu_profile(servers=(mine,), machine=this_machine()), "gpu": gpu_profile()}.items():
        write_profile(tmp_path / f"{name}.json", profile)
    given = [word for name in ("cpu", "gpu") for word in ("--profile", str(tmp_path / f"{name}.json"))]
    output = tmp_path / "out"
    command = [*VERDICT, *given, "--output", str(output)]
    with black_hole() as (proxies, num_callers):  # loopback is reached without a proxy
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **proxies})
        assert num_callers() == 0
    assert done.returncode in (0, 1), done.stderr  # the check is a run on a machine that may be busy
    report = json.loads((output / "report.json").read_text())
    assert [source["origin"] for source in report["sources"]] == ["here", "given"]
    check = report["check"]
    assert check["rate_rps"] == 200
    assert check["void"] is not None or check["num_due"] > 1000
    assert (done.returncode == 0) is report["is_met"]
    assert any("the same cores" in caveat for caveat in report["caveats"])
    assert "starting Triton" not in done.stderr  # of a profile


@pytest.mark.thorough
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_verdict_leaves_no_process_and_no_folder(tmp_path: Path, sign: signal.Signals) -> None:
    output, words = tmp_path / "out", tmp_path / "words"
    with words.open("wb") as file:
        process = subprocess.Popen([*VERDICT, "--output", str(output)], stderr=file, stdout=file)
    try:
        deadline = time.monotonic() + 200
        while len(family(process.pid)) < 3 and time.monotonic() < deadline:
            assert process.poll() is None, words.read_text()
            time.sleep(0.05)
        members = family(process.pid)
        os.kill(process.pid, sign)
        assert process.wait(60) == 130, words.read_text()
    finally:
        process.kill()
    assert still_there(members) == []
    assert "nothing was kept" in words.read_text()
    assert not output.exists()
