"""What does the gateway cost? Triton alone, two bare proxies and the gateway, in short alternating rounds of one run (`make bench`).

The floor is a raw `asyncio.Protocol`, the yardstick an ASGI app under uvicorn: neither decides, checks or counts anything.

    python -m loadtest.bench.gateway [--quick] [--json FILE]

The generator, Triton and what stands between share this machine's cores, so figures compare within a run only. Exit code 1 only for a
value beyond twice its aim, 3 where nothing could be measured. How it behaves when something dies is `prove`'s question.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from loadtest.bench import wrk
from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.compute import Compute, compare, resnet50
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict, ends_text, table
from loadtest.errors import CannotMeasure
from loadtest.nets import Net
from loadtest.processes import MODEL_REPOSITORY, cpu_s, running
from loadtest.sending.bodies import Body, encode_binary, encode_json, signature
from loadtest.stack import ANSWER_TIMEOUT_S, START_S, Server, answers, stack
from loadtest.target import Gateway
from serving.http_client import Connection, request_bytes
from serving.measure.rounds import Spread, ratio, rounds, spread
from serving.ports import free_ports

MODULE = "loadtest.bench.gateway"
MODEL = "digits"
BODIES = ("JSON", "binary")
NUM_CONNECTIONS = 32  # enough to keep two cores busy, few enough that waiting is not all there is
CPU_RATIO_AIM = 0.8  # of the yardstick's: what the gateway does beside forwarding costs less than ASGI does
FLOOR_RATIO_AIM = (
    1.7  # deciding by deadline and price, checks, receipts and metrics, beside what any Python proxy costs
)
DIRECT_AIMS = {"JSON": 0.7, "binary": 0.65}  # of Triton's own throughput, on cores that both share with the generator
YARDSTICK_AIM = 0.65  # a yardstick slower than this would flatter what is measured against it
ADDED_AIM = AtMost(0.15, "ms")  # where the yardstick adds 0.2
COMPUTE_AIM = 0.97


@dataclass(frozen=True, slots=True)
class Plan:
    """How long what is measured. About three minutes, or `--quick`, which shows that it works and no more."""

    num_rounds: int = 5
    busy_s: int = 2  # per target and body, at 32 connections; wrk takes whole seconds
    lone_s: int = 1  # the same at one connection
    warmup_s: int = 1
    compute_rounds: int = 8  # short, because what else runs on the machine comes and goes
    compute_s: float = 2.0
    compute_batch_size: int = 4  # a request of 2.4 MB


QUICK = Plan(num_rounds=1, busy_s=1, warmup_s=0, compute_rounds=1, compute_s=0.3, compute_batch_size=32)


SeriesByRun = dict[tuple[str, str], wrk.Series]  # (target, body)


@dataclass(frozen=True, slots=True)
class Result:
    served: str
    plan: Plan
    measured: SeriesByRun
    compute: Compute

    def cpu_ratio(self, body: str, proxy: str = "yardstick") -> Spread:
        return ratio(self.measured["gateway", body].cpu_us, self.measured[proxy, body].cpu_us)

    def rate_ratio(self, target: str, body: str) -> Spread:
        return ratio(self.measured[target, body].rate_rps, self.measured["Triton direct", body].rate_rps)

    def added_ms(self, body: str, proxy: str = "gateway") -> Spread:
        """To Triton's p50 at one connection."""
        both = (self.measured[target, body].latency_p50_s for target in (proxy, "Triton direct"))
        return spread([1000 * (above - below) for above, below in zip(*both, strict=True)])

    @property
    def verdicts(self) -> list[Verdict]:
        made = []
        for body in BODIES:
            for proxy, most in (("yardstick", CPU_RATIO_AIM), ("floor", FLOOR_RATIO_AIM)):
                cost = self.cpu_ratio(body, proxy)
                made.append(Verdict(f"gateway ÷ {proxy} CPU, {body}", cost.median, AtMost(most), ends_text(cost)))
            direct = self.rate_ratio("gateway", body)
            least = AtLeast(DIRECT_AIMS[body])
            made.append(Verdict(f"gateway ÷ direct throughput, {body}", direct.median, least, ends_text(direct)))
            added = self.added_ms(body)
            made.append(Verdict(f"p50 added at one connection, {body}", added.median, ADDED_AIM, ends_text(added)))
            rate = self.rate_ratio("yardstick", body)
            name = f"yardstick ÷ direct throughput, {body}"
            made.append(Verdict(name, rate.median, AtLeast(YARDSTICK_AIM), ends_text(rate)))
        compute = self.compute.ratio
        aim = AtLeast(COMPUTE_AIM)
        made.append(Verdict(f"served ÷ in process, {self.compute.net.model}", compute.median, aim, ends_text(compute)))
        return made

    def report(self) -> BenchReport:
        conditions = (
            f"{self.served}, one real digit per request, {self.plan.num_rounds} alternating rounds of {self.plan.busy_s} s; "
            "generator wrk on the same cores; median (min..max)"
        )
        parts = [_target_table(self.measured), self.compute.describe()]
        return BenchReport([conditions], parts, self.verdicts, self._facts())

    def _facts(self) -> dict[str, object]:
        return {
            "served": self.served,
            "plan": asdict(self.plan),
            "targets": {f"{target}, {body}": series.to_json() for (target, body), series in self.measured.items()},
            "ratios": {
                body: {
                    "gateway_to_yardstick_cpu": self.cpu_ratio(body).to_json(),
                    "gateway_to_floor_cpu": self.cpu_ratio(body, "floor").to_json(),
                    "yardstick_to_direct_rate": self.rate_ratio("yardstick", body).to_json(),
                    "gateway_to_direct_rate": self.rate_ratio("gateway", body).to_json(),
                    "gateway_added_p50_ms": self.added_ms(body).to_json(),
                    "yardstick_added_p50_ms": self.added_ms(body, "yardstick").to_json(),
                }
                for body in BODIES
            },
            "compute": self.compute.to_json(),
        }


def main(arguments: Sequence[str]) -> int:
    options = bench_parser(MODULE, __doc__, "one short round of each").parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    return run_bench(MODULE, arguments, options.json, lambda: run(plan).report(), is_quick=options.quick)


def run(plan: Plan) -> Result:
    """Raises CannotMeasure."""
    generator = wrk.find()
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        with (
            stack(MODEL_REPOSITORY, folder) as served_by,
            floor(served_by.triton, folder) as raw,
            yardstick(served_by.triton, folder) as bare,
        ):
            served = served_name(served_by.gateway)
            scripts = _scripts(served_by.gateway, folder)
            targets = {server.name: server for server in (served_by.triton, raw, bare, served_by.gateway)}
            measured = _measure(plan, generator, scripts, targets, served)
        if plan is QUICK:
            net = Net(MODEL, MODEL_REPOSITORY, "digits", plan.compute_batch_size)
        else:
            net = resnet50(folder / "repository", plan.compute_batch_size)
        compute = compare(net, folder, num_rounds=plan.compute_rounds, round_s=plan.compute_s)
    return Result(served, plan, measured, compute)


@contextmanager
def yardstick(triton: Server, folder: Path) -> Iterator[Server]:
    """The bare proxy in front of a Triton that is an ASGI app under uvicorn."""
    options = ["--loop", "uvloop", "--http", "httptools", "--ws", "none", "--lifespan", "off", "--interface", "asgi3"]
    options += ["--no-access-log", "--no-server-header", "--no-proxy-headers", "--log-level", "warning", "--port"]
    with _proxy("yardstick", ["uvicorn", "loadtest.bench.yardstick:forward", *options], triton, folder) as server:
        yield server


@contextmanager
def floor(triton: Server, folder: Path) -> Iterator[Server]:
    """The one that is a raw protocol."""
    with _proxy("floor", ["loadtest.bench.floor"], triton, folder) as server:
        yield server


@contextmanager
def _proxy(name: str, module: Sequence[str], triton: Server, folder: Path) -> Iterator[Server]:
    """`module`: and its options, behind which the port stands."""
    (port,) = free_ports(1)
    authority = f"127.0.0.1:{port}"

    def is_ready() -> bool:
        return answers(authority, "/v2/repository/index", method="POST")

    command = [sys.executable, "-m", *module, str(port)]
    with running(command, folder / f"{name}.log", is_ready, START_S, {"UPSTREAM": triton.authority}) as process:
        yield Server(name, authority, process.pid)


def served_name(gateway: Server) -> str:
    """The variant behind the public name; Triton and the yardstick know it by its own name."""
    body, _ = sample_bodies(gateway)
    connection = Connection(gateway.url, ANSWER_TIMEOUT_S, frozenset({b"tandem-variant"}))
    answer = connection.send(request_bytes("POST", gateway.url, f"/v2/models/{MODEL}/infer", body.headers, body.data))
    connection.close()
    variant = answer.headers.get(b"tandem-variant")
    if answer.status != 200 or variant is None:
        raise CannotMeasure(f"the gateway answered {answer.status} without a receipt")
    return f"{MODEL}-{variant}"


def _scripts(gateway: Server, folder: Path) -> dict[str, Path]:
    made = {}
    for kind, body in zip(BODIES, sample_bodies(gateway), strict=True):
        made[kind] = wrk.write_script(folder / f"{kind}.lua", body.data, body.headers)
    return made


def sample_bodies(gateway: Server) -> tuple[Body, Body]:
    """A real digit, as JSON and as a binary tensor."""
    metadata = Gateway(gateway.url).metadata(MODEL)
    if metadata is None:
        raise CannotMeasure(f"the gateway does not serve {MODEL}")
    given = signature(metadata)
    (tensor,) = json.loads((MODEL_REPOSITORY / f"{MODEL}-fp32" / "sample.json").read_text())["inputs"]
    digit = {given.inputs[0].name: np.array(tensor["data"], np.float32).reshape(tensor["shape"])}
    return encode_json(given, digit, ()), encode_binary(given, digit, ())


def _measure(
    plan: Plan, generator: str, scripts: dict[str, Path], targets: dict[str, Server], served: str
) -> SeriesByRun:
    urls = {
        name: f"{server.url}/v2/models/{MODEL if name == 'gateway' else served}/infer"
        for name, server in targets.items()
    }
    measured: SeriesByRun = defaultdict(wrk.Series)
    for name, url in urls.items():
        for script in scripts.values() if plan.warmup_s else ():
            wrk.fire(generator, script, url, num_connections=NUM_CONNECTIONS, duration_s=plan.warmup_s)
        print(f"{name}: {url}", file=sys.stderr)
    for index, order in enumerate(rounds(list(targets), plan.num_rounds)):
        print(f"round {index + 1} of {plan.num_rounds}: {', '.join(order)}", file=sys.stderr)
        for body, script in scripts.items():
            for name in order:
                fire = wrk.firing(generator, script, urls[name], busy_s=plan.busy_s, lone_s=plan.lone_s)
                measured[name, body].take_turn(fire, NUM_CONNECTIONS, partial(cpu_s, targets[name].pid))
    return measured


def _target_table(measured: SeriesByRun) -> str:
    rows = [("body", f"req/s at {NUM_CONNECTIONS}", "p50 ms at 1", "CPU µs/request", "target")]
    for kind in BODIES:
        for (target, body), series in measured.items():
            if body == kind:
                rate, latency, cpu = series.cells()
                rows.append((kind, rate, latency, "" if target == "Triton direct" else cpu, target))
    return table(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
