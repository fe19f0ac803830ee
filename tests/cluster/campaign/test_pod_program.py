"""The program that a campaign's pod runs, as a process: it waits for a way to the gateway, passes signals on, and always sends its end."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from serving.cluster.campaign import pod_program
from serving.cluster.campaign.framing import Frames

PROGRAM = Path(pod_program.__file__).read_text()
# Blocked and waited for: a handler would not run where the signal comes between print and sleep, until the sleep is over.
NOTES_SIGTERM = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(7)
"""


@contextlib.contextmanager
def listening(after_s: float = 0.0) -> Iterator[str]:
    """A port that lets nobody in before `after_s`, as a network policy on its way to a node."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        timer = threading.Timer(after_s, held.listen)
        timer.start()
        yield f"http://127.0.0.1:{held.getsockname()[1]}"
        timer.join()


@contextlib.contextmanager
def started(folder: Path, url: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", PROGRAM, str(folder), url, *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def catches_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def code_sent(output: str) -> int:
    frames = Frames()
    for line in output.splitlines():
        frames.take(line)
    assert frames.is_complete
    assert frames.head is not None
    return frames.head.code


def test_the_campaign_begins_once_there_is_a_way_to_the_gateway(tmp_path: Path) -> None:
    begun = time.monotonic()
    with listening(after_s=0.7) as url, started(tmp_path, url, sys.executable, "-c", "print('began')") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == code_sent(output) == 0
    assert output.startswith("began\n")
    assert time.monotonic() - begun > 0.7


def test_without_a_way_it_says_what_may_keep_it_and_begins_nothing(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        program = PROGRAM.replace("WAIT_S = 30.0", "WAIT_S = 0.2")
        assert program != PROGRAM
        words = [sys.executable, "-c", program, str(tmp_path), url, "touch", str(tmp_path / "begun")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code_sent(done.stdout) == 3
    assert f"nothing answers at {url}" in done.stdout
    assert "NetworkPolicy" in done.stdout
    assert not (tmp_path / "begun").exists()


def test_told_to_stop_while_it_waits_it_ends_at_once(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with started(tmp_path, url, "true") as process:
            while not catches_sigterm(process.pid):
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
    assert process.returncode == code_sent(output) == 130


def test_told_to_stop_it_tells_the_campaign_and_sends_what_there_is(tmp_path: Path) -> None:
    with listening() as url, started(tmp_path, url, sys.executable, "-c", NOTES_SIGTERM) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == code_sent(output) == 7
