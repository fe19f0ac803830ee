"""The bench of peers: what a run says, who is missing, and that whoever was started ends. The servers themselves take minutes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.bench.peers import __main__ as peers
from loadtest.bench.peers import contenders, page
from loadtest.bench.peers.contenders import CONTENDERS, Contender
from loadtest.errors import CannotMeasure
from loadtest.processes import Process, family, still_there
from loadtest.sending.sent_request import Shot

RESULTS = Path(__file__).parents[3] / "published-results" / "peers.json"


def shots(took_s: float, number: int, *, lag_s: float = 0.0, status: int = 200) -> list[Shot]:
    return [Shot(0.0, lag_s, took_s, status) for _ in range(number)]


@pytest.mark.parametrize(
    ("sent", "num_dropped", "outcome"),
    [
        (shots(0.001, 1000), 0, "met"),
        (shots(0.001, 990) + shots(0.5, 10), 0, "met"),
        (shots(0.001, 989) + shots(0.5, 11), 0, "missed"),
        (shots(0.001, 989) + shots(0.001, 11, status=503), 0, "missed"),
        (shots(0.001, 900), 100, "missed"),
        (shots(0.5, 1000, lag_s=0.4), 0, "void"),
        ([], 0, "missed"),
    ],
)
def test_a_rate_is_met_where_one_in_a_hundred_at_most_is_late_or_lost(
    sent: list[Shot], num_dropped: int, outcome: str
) -> None:
    assert peers.judged(sent, num_dropped) == outcome


@pytest.mark.skipif(shutil.which("wrk") is None, reason="it needs wrk: apt-get install wrk")
def test_who_cannot_be_had_says_why_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(_: Path) -> None:
        raise CannotMeasure("gone could not be installed: no network")

    missing = Contender("gone", "", gone, lambda: "1")  # type: ignore[arg-type]
    monkeypatch.setattr(peers, "CONTENDERS", (missing,))
    file = tmp_path / "peers.json"
    assert peers.main(["--quick", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["peers"]["gone"]["missing"].startswith("gone could not")
    assert "no network" in capsys.readouterr().out


def test_what_cannot_be_installed_is_one_line() -> None:
    with pytest.raises(CannotMeasure, match=r"LitServe.*installed.*no such wheel"):
        contenders._make([sys.executable, "-c", "raise SystemExit('a line\\nno such wheel')"], "LitServe", {})


def test_a_peer_that_ignores_its_end_is_ended_with_its_children() -> None:
    stubborn = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = f"{stubborn}print('up', flush=True); time.sleep(60)"
    parent = f"{stubborn}subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    members = family(process.pid)
    assert len(members) == 2
    contenders.end(members)
    process.wait(10)
    process.stdout.close()
    wait_until_gone(members)


def wait_until_gone(members: list[Process]) -> None:
    deadline = time.monotonic() + 10
    while still_there(members):
        assert time.monotonic() < deadline, still_there(members)
        time.sleep(0.01)


def test_every_peers_wheels_are_pinned() -> None:
    folder = Path(contenders.__file__).parent / "pins"
    for file in folder.iterdir():
        lines = file.read_text().splitlines()
        assert all("==" in line and "://" not in line for line in lines), file
        assert [line for line in lines if line.startswith("onnxruntime==")]
        assert contenders.pinned(file.stem)()


def test_the_page_is_that_of_the_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert page.PAGE.read_text() == page.text(results)
    assert page.FIGURE.read_text() == page.svg(results)
    assert {row for row in results["peers"] if row in page.text(results)} == set(results["peers"])
    assert set(results["peers"]) <= {one.name for one in CONTENDERS}
