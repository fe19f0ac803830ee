"""What the benches know of processes, and what they say where they cannot measure."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.bench import gateway, wrk
from loadtest.errors import CannotMeasure
from loadtest.processes import Moment, cpu_s, family, look, running, still_there

CHILD = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); sys.stdin.read(); p.kill(); p.wait()"


def test_a_family_is_a_process_and_everything_below_it() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        members = family(parent.pid)
        assert [member.pid for member in members] == [parent.pid, child]
        assert members[1].program == "sleep"
        assert {member.pid for member in still_there(members)} == {parent.pid, child}
    assert still_there(members) == []


def test_a_number_that_was_used_again_is_not_the_process_that_had_it() -> None:
    me = look(os.getpid())
    assert me is not None
    other = type(me)(me.pid, me.parent, me.started_ticks + 1, True, me.command)
    assert still_there([other]) == []


def test_processor_time_grows_with_work() -> None:
    before_s = cpu_s(os.getpid())
    while cpu_s(os.getpid()) - before_s < 0.02:
        sum(range(10_000))


@pytest.mark.parametrize(
    ("busy_s", "ours_s", "ratio"), [(20.0, 20.0, 0.0), (15.0, 10.0, 0.25), (20.0, 0.0, 1.0), (9.99, 10.0, 0.0)]
)
def test_others_took_what_the_cores_did_and_we_did_not(busy_s: float, ours_s: float, ratio: float) -> None:
    begin, end = Moment(100.0, 500.0, 7.0), Moment(110.0, 500.0 + busy_s, 7.0 + ours_s)
    assert begin.others_ratio(end, num_cores=2) == pytest.approx(ratio)


def test_the_machine_worked_at_least_as_long_as_we_did() -> None:
    now = Moment.now()
    assert now.busy_s > 0
    assert now.ours_s > 0


def test_a_process_that_ends_before_it_is_ready_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no room here')"]
    with pytest.raises(CannotMeasure, match=r"ended.*1"):
        with running(command, tmp_path / "log", lambda: False, 60):
            pytest.fail("it is not ready")


def test_a_process_that_never_is_ready_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(CannotMeasure, match=r"ready.*0"):
        with running(command, tmp_path / "log", lambda: False, 0.05):
            pytest.fail("it is not ready")
    assert not [member for member in family(os.getpid()) if member.command[:2] == tuple(command[:2])]


def test_without_wrk_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gateway.main([]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("apt-get install wrk")


def test_a_burst_is_read_from_what_the_script_prints() -> None:
    burst = wrk.read("Running 1s test\nburst 4000 2000000 950 0 0\n", "http://here")
    assert (burst.rate_rps, burst.latency_p50_s) == (2000, 0.00095)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("burst 4000 2000000 950 0 1\n", "1 were refused and 0 got no answer"),
        ("burst 4000 2000000 950 2 0\n", "0 were refused and 2 got no answer"),
        ("burst 0 2000000 0 0 0\n", "of 0 requests"),
        ("unable to connect to here:80 Connection refused\n", "did not say what it measured"),
        ("", "did not say what it measured"),
    ],
)
def test_a_burst_with_a_failure_measures_nothing(output: str, reason: str) -> None:
    with pytest.raises(CannotMeasure, match=reason):
        wrk.read(output, "http://here")


def test_any_byte_may_stand_in_a_body_and_a_quote_in_a_header(tmp_path: Path) -> None:
    body = bytes(range(256))
    script = wrk.write_script(tmp_path / "one.lua", body, {"Tandem-Note": 'a "b" \\ c'})
    assert script.with_suffix(".body").read_bytes() == body
    assert r'wrk.headers["Tandem-Note"] = "a \"b\" \\ c"' in script.read_text()


def test_a_process_ends_with_whoever_started_it_also_where_that_one_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from loadtest.processes import running\n"
        "with running(['sleep', '60'], Path(sys.argv[1]), lambda: True, 5.0) as process:\n"
        "    print(process.pid, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        members = family(int(parent.stdout.readline()))
        assert members
        parent.kill()
    end = time.monotonic() + 10
    while still_there(members) and time.monotonic() < end:
        time.sleep(0.01)
    assert still_there(members) == []
