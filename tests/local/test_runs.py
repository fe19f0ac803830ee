"""What `tandem up` serves is known as long as it lives, in a terminal or in the background; `status`, `logs` and `stop` find it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.local.runs import Run, announce, found, serving
from serving.ports import free_ports
from tests.command import tandem
from tests.local.harness import Program, still_there, wait_until
from tests.local.repository import publish_digits

NOBODY = "http://127.0.0.1:1"  # where no gateway answers, as one does not that wants a key
OTHER = """
import sys
from pathlib import Path
from serving.local.runs import Run, announce

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
(folder / "up.log").write_text("one\\ntwo\\n")
with announce(folder, Run("/some/where", "http://127.0.0.1:1", "http://127.0.0.1:2")):
    print("announced", flush=True)
    sys.stdin.read()
"""
TANDEM = [sys.executable, "-m", "serving"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def other(state: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with the record of a `tandem up`, which ends at SIGTERM."""
    command = [sys.executable, "-c", OTHER, str(state / "runs" / "20261123-130000-2")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "announced\n"
        yield process
        process.kill()


def test_what_a_run_serves_is_known_until_it_ends_and_is_not_removed(tmp_path: Path, state: Path) -> None:
    repository = tmp_path / "repository"
    publish_digits(repository, precisions=["fp32"])
    where = ["--model-repository", str(repository)]
    folder = state / "runs" / "20261123-120000-1"
    folder.mkdir(parents=True)
    with announce(folder, Run(str(repository), NOBODY, NOBODY)):
        (tmp_path / "link").symlink_to(repository)
        assert [run.url for run in serving(tmp_path / "link")] == [NOBODY]
        assert serving(tmp_path) == []
        shown = tandem("models", *where)
        assert (shown.returncode, NOBODY in shown.stderr, "TANDEM_API_KEY" in shown.stderr) == (0, True, True)
        refused = tandem("models", "rm", "digits", *where)
        assert (refused.returncode, "--served" in refused.stderr) == (2, True)
        assert (repository / "digits-fp32").is_dir()
    assert serving(repository) == []
    assert found() == []
    assert tandem("models", "rm", "digits", *where).returncode == 0
    assert not (repository / "digits-fp32").exists()


def test_where_none_runs_each_verb_says_so(state: Path) -> None:
    status = tandem("status", "--json")
    assert (status.returncode, json.loads(status.stdout)["runs"]) == (1, [])
    assert tandem("stop").returncode == tandem("logs").returncode == 2
    assert (state / "runs").exists() is False


def test_one_that_was_killed_is_told_from_one_that_runs_and_is_forgotten_by_stop(
    state: Path, other: subprocess.Popen[str]
) -> None:
    [seen] = json.loads(tandem("status", "--json").stdout)["runs"]
    assert (seen["state"], seen["pid"], seen["pools"]) == ("not ready", other.pid, None)
    other.kill()
    other.wait()
    [seen] = json.loads(tandem("status", "--json").stdout)["runs"]
    assert (seen["state"], seen["repository"]) == ("killed", "/some/where")
    assert json.loads(tandem("logs", "--json", "--tail", "1").stdout)["logs"] == {"up": ["two"]}
    stopped = tandem("stop")
    assert (stopped.returncode, "was killed" in stopped.stderr) == (2, True)
    assert found() == []


def test_stop_never_ends_a_process_that_took_over_the_number(state: Path, other: subprocess.Popen[str]) -> None:
    [record] = state.glob("runs/*/serves.json")
    said = json.loads(record.read_text())
    said["process"]["started_ticks"] += 1
    with record.open("r+") as file:  # the same file, which its process has locked
        file.write(json.dumps(said))
        file.truncate()
    stopped = tandem("stop")
    assert (stopped.returncode, other.poll()) == (3, None)


@pytest.mark.slow
@pytest.mark.triton
def test_up_in_the_background_is_told_followed_and_ended_without_a_trace(
    tmp_path: Path, state: Path, other: subprocess.Popen[str]
) -> None:
    port = str(free_ports(1)[0])
    up = [*TANDEM, "up", "--port", port]
    begun = subprocess.run([*up, "--detach"], capture_output=True, text=True, timeout=100)
    assert begun.returncode == 0, begun.stderr
    assert f"http://127.0.0.1:{port}" in begun.stdout
    status = tandem("status", "--port", port, "--json")
    [run] = json.loads(status.stdout)["runs"]
    assert (status.returncode, run["state"], run["pools"]["cpu"]["num_alive"]) == (0, "ready", 1)
    [server] = run["pools"]["cpu"]["servers"]
    assert server["url"] in tandem("status", "--port", port, "-o", "wide").stdout
    assert server["url"] not in tandem("status", "--port", port, "-o", "table").stdout
    assert "digits-fp32" in run["models"]["digits"]
    with urllib.request.urlopen(f"{run['url']}/v2/models/digits/ready") as answer:
        assert answer.status == 200
    assert os.getsid(run["pid"]) == run["pid"]  # no terminal can end it
    second = subprocess.run(up, capture_output=True, text=True, timeout=100)
    assert (second.returncode, str(run["pid"]) in second.stderr) == (2, True)
    assert tandem("stop").returncode == 2  # there are two: which one?
    said = json.loads(tandem("logs", "--port", port, "--json").stdout)["logs"]
    assert said.keys() == {"up", "gateway", "triton-cpu"}
    assert any(run["url"] in line for line in said["up"])
    following = Program([*TANDEM, "logs", "triton-cpu", "-f", "--tail", "1", "--port", port], tmp_path / "followed")
    wait_until(following.lines, "the last line of the log")
    family = Program.family_of(run["pid"])
    assert len(family) > 3
    ended = tandem("stop", "--port", port, "--json")
    assert [it["pid"] for it in json.loads(ended.stdout)["ended"]] == [run["pid"]]
    assert still_there(family) == []
    assert (following.process.wait(30), len(following.lines()) > 1) == (0, True)
    assert other.poll() is None
    assert tandem("status", "--port", port).returncode == 2
    assert tandem("stop", "--all").returncode == 0
    assert other.wait(30) == -signal.SIGTERM


@pytest.mark.slow
def test_up_in_the_background_that_cannot_start_says_why_and_ends(state: Path) -> None:
    port = free_ports(1)[0]
    words = ["up", "--detach", "--port", str(port), "--pool", f"cpu={NOBODY}"]
    done = subprocess.run([*TANDEM, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, NOBODY in done.stderr) == (2, True)
    assert found() == []
