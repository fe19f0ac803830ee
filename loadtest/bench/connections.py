"""What does a connection cost the gateway on which nothing is asked, and those who ask beside a thousand of them?

    python -m loadtest.bench.connections [--quick] [--json FILE]

Idle ones have been answered once, as a client's pool keeps them. Beside them an open loop asks at half the rate that
32 connections of wrk get here, in turns with the same without them. The generator shares this machine's cores.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench import wrk
from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.gateway import MODEL, NUM_CONNECTIONS, sample_bodies
from loadtest.bench.verdicts import AtMost, Verdict, ends_text
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, TANDEM, running
from loadtest.sending.sender import infer, open_loop
from loadtest.sending.sent_request import percentile
from loadtest.stack import START_S, Server, answers, stack
from serving.measure.rounds import ratio, spread
from serving.ports import free_ports

MODULE = "loadtest.bench.connections"
IDLE_AIM = AtMost(15.0, "KB")
BESIDE_AIM = AtMost(3.0)
ALIVE = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SPARE = 1000  # descriptors for everything else


@dataclass(frozen=True, slots=True)
class Plan:
    """About a minute, or `--quick`."""

    num_idle: int = 10_000
    num_beside: int = 1_000
    num_rounds: int = 5
    turn_s: float = 3.0


QUICK = Plan(num_idle=500, num_beside=100, num_rounds=1, turn_s=0.5)


def main(arguments: Sequence[str]) -> int:
    options = bench_parser(MODULE, __doc__, "few connections and one short round").parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    return run_bench(MODULE, arguments, options.json, lambda: run(plan), is_quick=options.quick)


def run(plan: Plan) -> BenchReport:
    """Raises CannotMeasure."""
    generator = wrk.find()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < plan.num_idle + SPARE:
        raise CannotMeasure(f"a process may open too few files here for {plan.num_idle} connections (ulimit -n)")
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as here:
        folder = Path(name)
        triton = here.enter_context(stack(MODEL_REPOSITORY, folder)).triton
        gateway = here.enter_context(_gateway(triton, folder, 2 * plan.num_idle))
        body, _ = sample_bodies(gateway)
        script = wrk.write_script(folder / "json.lua", body.data, body.headers)
        burst = wrk.fire(
            generator, script, f"{gateway.url}/v2/models/{MODEL}/infer", num_connections=NUM_CONNECTIONS, duration_s=2
        )
        with _idle(gateway, 100):  # what the first ones cost all
            before = _bytes(gateway)
            with _idle(gateway, plan.num_idle):
                idle_kb = (_bytes(gateway) - before) / plan.num_idle / 1000
        request, rate_rps = infer(gateway.url, MODEL, body.data), burst.rate_rps / 2
        alone, beside = [], []
        for seed in range(plan.num_rounds):
            arrivals = list(schedule(Arrivals("constant", rate_rps), plan.turn_s, seed))
            alone.append(_p99_s([shot.took_s for shot in open_loop([request], arrivals).shots if shot.is_answered]))
            with _idle(gateway, plan.num_beside):
                beside.append(
                    _p99_s([shot.took_s for shot in open_loop([request], arrivals).shots if shot.is_answered])
                )
    times = ratio(beside, alone)
    both = " and ".join(f"{spread(one).median * 1000:.1f} ms" for one in (beside, alone))
    verdicts = [
        Verdict(f"an idle connection of {plan.num_idle}", idle_kb, IDLE_AIM, "PSS of the gateway"),
        Verdict(
            f"p99 beside {plan.num_beside} open ones ÷ without them",
            times.median,
            BESIDE_AIM,
            f"{ends_text(times)}; {both}",
        ),
    ]
    conditions = (
        f"digits in JSON; {rate_rps:.0f} requests/s in an open loop, half of what {NUM_CONNECTIONS} connections get; "
        f"{plan.num_rounds} rounds in turns"
    )
    return BenchReport([conditions], (), verdicts, {"idle_kb": idle_kb, "p99_beside_s": beside, "p99_alone_s": alone})


@contextmanager
def _gateway(triton: Server, folder: Path, most: int) -> Iterator[Server]:
    """One that lets so many connect."""
    (port,) = free_ports(1)
    authority, config = f"127.0.0.1:{port}", folder / "many.yaml"
    limits = {"max_connections": most, "max_connections_per_client": most}
    pools = {"cpu": {"urls": [triton.url], "device": "cpu"}}
    config.write_text(json.dumps({"version": 1, "pools": pools, "limits": limits}))
    command = [*TANDEM, "gateway", "--config", str(config), "--port", str(port)]
    with running(command, folder / "many.log", lambda: answers(authority, "/health/ready"), START_S) as process:
        yield Server("gateway", authority, process.pid)


@contextmanager
def _idle(gateway: Server, number: int) -> Iterator[None]:
    """Connections that have been answered."""
    host, _, port = gateway.authority.partition(":")
    with ExitStack() as opened:
        for _ in range(number):
            client = opened.enter_context(socket.create_connection((host, int(port)), timeout=START_S))
            client.sendall(ALIVE)
            if not client.recv(4096).startswith(b"HTTP/1.1 200"):
                raise CannotMeasure("the gateway does not answer on every connection")
        yield


def _bytes(gateway: Server) -> int:
    return int(psutil.Process(gateway.pid).memory_full_info().pss)


def _p99_s(took_s: Sequence[float]) -> float:
    found = percentile(took_s, 0.99)
    if found is None:
        raise CannotMeasure("nothing was answered")
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
