"""How soon is a pool usable again that works on for clients who have all left?

Requests that keep Triton busy for minutes go to it directly, past every limit of the gateway. What a new start takes in the same run,
after a kill, is taken off: it is the models' load time. Clients keep asking through the gateway meanwhile.
Rule: nothing is killed but children of the `tandem triton` that was started here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, Process, family
from loadtest.sending.link import Request
from loadtest.sending.sender import infer, probe
from loadtest.sending.sent_request import Shot
from loadtest.stack import Stack, stack
from serving.http_client import address

MODEL, VARIANT = "digits", "digits-fp32"
DEADLINE = {"Tandem-Deadline-Ms": "1000"}
PAUSE_S = 0.1
BACK = AtMost(10.0, "s")


def contained(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    with stack(MODEL_REPOSITORY, folder) as here:
        body = (MODEL_REPOSITORY / VARIANT / "sample.json").read_bytes()
        request = infer(here.gateway.url, MODEL, body, DEADLINE)
        start_s = _back_s(here, request, lambda: os.kill(_one(here, "tritonserver").pid, signal.SIGKILL))
        if start_s is None:
            raise CannotMeasure("Triton did not come back after a kill; see its log")
        for name, poison in WAYS.items():
            took_s = _back_s(here, request, partial(poison, here, body))
            beyond_s = None if took_s is None else max(0.0, took_s - start_s)
            note = f"{start_s:.1f} s more is what a start takes"
            yield Verdict(f"{name}: answers again", beyond_s, BACK, note)


def _back_s(here: Stack, request: Request, poison: Callable[[], None]) -> float | None:
    """From when everybody had left until another tritonserver answered, through the gateway; None: that has not been."""
    before = _one(here, "tritonserver").pid
    poison()
    left_s = time.monotonic()

    def is_over(shot: Shot) -> bool:
        servers = [p.pid for p in family(here.triton.pid) if p.program == "tritonserver"]
        return shot.is_answered and bool(servers) and before not in servers

    last = probe(request, is_over, PAUSE_S)[-1]
    return last.ended_s - left_s if last.is_answered else None


def _one(here: Stack, program: str) -> Process:
    found = [p for p in family(here.triton.pid) if p.program == program]
    if not found:
        raise CannotMeasure(f"no {program} runs")
    return found[0]


def _with_parameters(number: int, body: bytes) -> bytes:
    return json.dumps(json.loads(body) | {"parameters": {f"p{i}": i for i in range(number)}}).encode()


def _with_inputs(number: int, body: bytes) -> bytes:
    (given,) = json.loads(body)["inputs"]
    return json.dumps(
        {"inputs": [given | {"name": f"x{i}", "shape": [1], "data": [0]} for i in range(number)]}
    ).encode()


def _leave(change: Callable[[bytes], bytes], num_clients: int, here: Stack, body: bytes) -> None:
    """So many clients send at once, to Triton itself, and none waits for its answer."""
    changed = change(body)
    head = f"POST /v2/models/{VARIANT}/infer HTTP/1.1\r\nHost: {here.triton.authority}\r\nContent-Length: {len(changed)}\r\n\r\n"
    clients = [socket.create_connection(address(here.triton.url)) for _ in range(num_clients)]
    for client in clients:
        with closing(client):
            client.sendall(head.encode() + changed)


WAYS: Mapping[str, Callable[[Stack, bytes], None]] = {
    "100,000 parameters": partial(_leave, partial(_with_parameters, 100_000), 1),
    "400,000 inputs": partial(_leave, partial(_with_inputs, 400_000), 1),
    "16 times 60,000 parameters at once": partial(_leave, partial(_with_parameters, 60_000), 16),
}
