"""What does a request pay for all that may be on beside answering: traces, access log, parity and a canary at 1 %, quotas, bills?

Three gateways before the same quick emulated pools, with the same keys: one with nothing else, one with traces, one with everything. The
same request at the same rate to each, in turns; the processor time of each gateway's process until its traces are sent, less what it takes
meanwhile anyway. What takes the traces is a server of this process, so that it counts for none. Parity draws its samples and compares none:
the variants of emulated pools have no task. Judging is pure.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.bench.prove.emulated import MODEL, LocalGateway, Pool, digits, gateway, triton
from loadtest.bench.prove.refusals import answers_cost_s
from loadtest.bench.verdicts import AtMost, Verdict, ends_text
from loadtest.errors import CannotMeasure
from loadtest.processes import cpu_s
from loadtest.sending.sender import infer
from serving.gateway.request.traces import SEND_S
from serving.keys.changes import add
from serving.measure.rounds import in_turn, ratio

COST, TRACES_COST = AtMost(1.05), AtMost(1.03)
POOLS = Pool("emulated-quick", ((1, 0.005), (32, 0.008))), Pool("emulated-other", ((1, 0.005), (32, 0.008)))
SAMPLE_RATIO = 0.01
NUM_TURNS, TURN_S, IDLE_S = 6, 3.0, 2.0
REST_S = SEND_S + 0.5  # after a turn: by then its traces are sent, as often as they are anyway
LIMIT = 1e12  # of each quota: it is looked at, and never reached
CONTROL = {
    "version": 1,
    "models": {
        MODEL: {
            "pin": {"variant": "fp32"},
            "rollout": {
                "candidate": {"variant": "fp32", "version": 1},
                "step": "canary",
                "canary_ratio": SAMPLE_RATIO,
                "rolls_back": False,
            },
        }
    },
    "tenants": {
        "bench": {
            "weight": 2,
            "quotas": {
                **{
                    what: {"per": per, "limit": LIMIT}
                    for what, per in (
                        ("requests", "second"),
                        ("device_s", "hour"),
                        ("dollars", "month"),
                        ("tokens", "month"),
                        ("bytes", "hour"),
                    )
                },
                "concurrent": 1_000_000,
            },
        }
    },
}


class Collector(ThreadingHTTPServer):
    """Takes all traces and keeps none."""

    daemon_threads = True
    num_messages = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.num_messages += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector(("127.0.0.1", 0), _Handler) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        try:
            yield collector
        finally:
            collector.shutdown()


def settings(folder: Path, collector: str) -> Mapping[str, Any]:
    """Of the gateway that has everything."""
    return {
        "otel": {"endpoint": collector, "sample_ratio": SAMPLE_RATIO},
        "parity_ratio": SAMPLE_RATIO,
        "access_log": {"path": str(folder / "access.jsonl"), "sample_ratio": SAMPLE_RATIO},
        "usage": {"place": str(folder / "usage.db")},
    }


def verdict(
    with_s: Sequence[float], nothing_s: Sequence[float], what: str = "everything", cost: AtMost = COST
) -> Verdict:
    """Of seconds of processor time a request."""
    spread = ratio(with_s, nothing_s)
    costs = " and ".join(f"{median(one) * 1e6:.0f} µs" for one in (with_s, nothing_s))
    return Verdict(
        f"a request's CPU with {what} ÷ with nothing on", spread.median, cost, f"{ends_text(spread)}; {costs}"
    )


def features(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    keys, control = folder / "keys.json", folder / "control.json"
    key = add(keys, "bench", frozenset({"infer"}), datetime.now(UTC), tenant="bench").text
    control.write_text(json.dumps(CONTROL))
    with ExitStack() as running:
        collector = running.enter_context(collecting())
        urls = {pool: running.enter_context(triton(pool, folder / pool.name)).url for pool in POOLS}
        on = settings(folder, collector.endpoint)
        plain, traced, full = (
            running.enter_context(gateway(urls, folder, name, options=("--keys", str(keys), *options), more=more))
            for name, options, more in (
                ("plain", (), {}),
                ("traced", (), {"otel": on["otel"]}),
                ("full", ("--control", str(control)), on),
            )
        )
        costs = in_turn({here: partial(_cost_s, here, key) for here in (full, traced, plain)}, NUM_TURNS)
        if collector.num_messages < NUM_TURNS:
            raise CannotMeasure(f"{collector.num_messages} messages with traces came in {NUM_TURNS} turns")
        yield verdict(costs[traced], costs[plain], "traces", TRACES_COST)
        yield verdict(costs[full], costs[plain])


def _cost_s(here: LocalGateway, key: str) -> float:
    before_s = cpu_s(here.pid)
    time.sleep(IDLE_S)
    idle_ratio = (cpu_s(here.pid) - before_s) / IDLE_S
    request = infer(here.url, MODEL, digits(), {"Authorization": f"Bearer {key}"})
    return answers_cost_s(here, request, idle_ratio, TURN_S, REST_S)
