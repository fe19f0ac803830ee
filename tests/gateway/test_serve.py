"""What a gateway's process does before it listens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from serving.gateway import serve
from serving.gateway.app import Gateway
from serving.ports import free_ports
from tests.gateway.conftest import write_settings
from tests.local.harness import ROOT

pytestmark = pytest.mark.slow

SERVE = """
import gc, os, signal, sys, threading, time, urllib.request
from pathlib import Path
from serving.gateway import serve

def look():
    for _ in range(3000):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/health/live", timeout=5).close()
            break
        except OSError:
            time.sleep(0.01)
    print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look).start()
serve.run(serve.Options(Path(sys.argv[1]), port=int(sys.argv[2])))
"""


def test_what_was_made_at_the_start_is_not_looked_through_again_while_requests_wait(tmp_path: Path) -> None:
    pool, port = free_ports(2)
    config = write_settings(tmp_path / "tandem.yaml", {"cpu": [f"http://127.0.0.1:{pool}"]})
    command = [sys.executable, "-c", SERVE, str(config), str(port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    num_frozen, num_looked_through = map(int, done.stdout.split())
    assert num_frozen > 10 * num_looked_through, done.stdout


@pytest.mark.parametrize(("asked_s", "num_looks"), [(60.0, 4), (0.0, 0)], ids=["until it was asked", "no longer"])
def test_beside_others_one_waits_until_every_triton_was_asked_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch, asked_s: float, num_looks: int
) -> None:
    monkeypatch.setattr(serve, "SEEN_S", 0.2)
    monkeypatch.setattr(serve, "ASKED_S", asked_s)
    looks = [False, False, False, True]
    last_s = time.monotonic()

    def is_known(_: str) -> bool:
        nonlocal last_s
        last_s = time.monotonic()
        return looks.pop(0)

    gateway = SimpleNamespace(catalogue=SimpleNamespace(pools={"cpu": []}, is_known=is_known))
    asyncio.run(serve._until_given_up(cast(Gateway, gateway)))
    assert len(looks) == 4 - num_looks
    assert time.monotonic() - last_s >= serve.SEEN_S, "and then until its models would have been seen"
