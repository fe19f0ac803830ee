"""Trials on emulated pools: each `tandem triton` and each `tandem gateway` is a real process that can be killed by its number.

A pool has the times of its curve and no other property (docs/emulated.md). A load that was not sent when it was due has measured the
generator, so such a trial is void and made again, a few times. Rule: a trial is never void because its values were merely bad.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, POLL_S, TANDEM, Process, family, running
from loadtest.sending.sender import Load
from loadtest.sending.sent_request import Shot, lag
from loadtest.stack import ANSWER_TIMEOUT_S, START_S, START_TIMEOUT_S
from loadtest.target import Gateway
from loadtest.validity import MAX_LAG_RATIO
from serving.http_client import Connection, request_bytes
from serving.ports import free_ports

NUM_ATTEMPTS = 3  # at each trial
T = TypeVar("T")


class GeneratorLag(CannotMeasure):
    """The load generator was late, so that the trial is void."""


def on_time(load: Load, deadline_s: float) -> list[Shot]:
    """The shots of a load, if all were sent when they were due. Raises GeneratorLag."""
    lag_s, is_void = lag(load.shots, deadline_s)
    if is_void:
        raise GeneratorLag(
            f"the load generator lagged by {lag_s * 1000:.0f} ms at p99, more than {MAX_LAG_RATIO:.0%} of the deadline: "
            "leave the machine more time"
        )
    return load.shots


def attempts(once: Callable[[int], T]) -> T:
    """What `once` gives, with the number of the attempt from 0 on. Raises GeneratorLag where the generator always lags."""
    for number in range(NUM_ATTEMPTS - 1):
        try:
            return once(number)
        except GeneratorLag as error:
            print(f"a trial is void: {error}", file=sys.stderr)
    return once(NUM_ATTEMPTS - 1)


MODEL, VARIANT = "digits", "digits-fp32"
SEEN_S = 30.0  # a pool that is up is seen within a second; more on a busy machine (guess, not measured)
LOG = "triton.log"
TOO_BUSY = "the machine is too busy"  # in it: answers came later than their curve says; one line in ten seconds at most
EXIT_TIMEOUT_S = 2  # of Triton, for idle connections


@dataclass(frozen=True, slots=True)
class Pool:
    """Times as [rows, seconds] of one execution, and the price of an hour."""

    name: str
    points: tuple[tuple[int, float], ...]
    price: float = 1.0

    @property
    def rate_rps(self) -> float:
        """Of single rows in full executions, by the curve; its largest point is the largest execution."""
        return max(rows / seconds for rows, seconds in self.points)

    def seconds(self, rows: float) -> float:
        sizes, times = zip(*self.points, strict=True)
        return float(np.interp(rows, sizes, times))


@dataclass(frozen=True, slots=True)
class Triton:
    pool: Pool
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def server(self) -> Process:
        """The tritonserver below it. Raises CannotMeasure."""
        found = [process for process in family(self.pid) if process.program == "tritonserver"]
        if len(found) != 1:
            raise CannotMeasure(f"{len(found)} processes below {self.pool.name} look like tritonserver")
        return found[0]

    def spent(self) -> TritonTotals:
        """What its requests have spent so far, by its own statistics. Raises CannotMeasure."""
        return spent(self.url, VARIANT)


def spent(url: str, served_name: str) -> TritonTotals:
    """By Triton's own statistics. Raises CannotMeasure."""
    answer = Gateway(url).get_json(f"/v2/models/{served_name}/stats")
    try:
        (model,) = answer["model_stats"]
        stats = model["inference_stats"]
        compute = sum(int(stats[part]["ns"]) for part in ("compute_input", "compute_infer", "compute_output"))
        requests = int(stats["success"]["count"])
        return TritonTotals(requests, int(model["execution_count"]), int(stats["queue"]["ns"]) / 1e9, compute / 1e9)
    except (TypeError, KeyError, ValueError):
        raise CannotMeasure(f"Triton at {url} gives no statistics of {served_name}") from None


@dataclass(frozen=True, slots=True)
class TritonTotals:
    """Sums over requests: in Triton's queue, and from there to the answer, which is where the emulated device keeps them waiting."""

    num_requests: int
    num_executions: int
    queue_s: float
    compute_s: float

    def since(self, before: TritonTotals) -> TritonTotals:
        return TritonTotals(
            self.num_requests - before.num_requests,
            self.num_executions - before.num_executions,
            self.queue_s - before.queue_s,
            self.compute_s - before.compute_s,
        )

    def plus(self, other: TritonTotals) -> TritonTotals:
        return TritonTotals(
            self.num_requests + other.num_requests,
            self.num_executions + other.num_executions,
            self.queue_s + other.queue_s,
            self.compute_s + other.compute_s,
        )

    @property
    def requests_per_execution(self) -> float:
        return self.num_requests / self.num_executions if self.num_executions else 0.0

    def waited_ratio(self, pool: Pool) -> float:
        """How long a request waited in Triton for its own execution to begin, in executions of the size they had. Raises CannotMeasure."""
        if not self.num_requests or not self.num_executions:
            raise CannotMeasure(f"{pool.name} computed nothing")
        execution_s = pool.seconds(self.num_requests / self.num_executions)
        return ((self.queue_s + self.compute_s) / self.num_requests - execution_s) / execution_s


@contextmanager
def triton(
    pool: Pool,
    folder: Path,
    port: int | None = None,
    *,
    repository: Path = MODEL_REPOSITORY,
    curves: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Triton]:
    """`curves`: by variant, where they differ from the pool's. Raises CannotMeasure."""
    folder.mkdir(parents=True, exist_ok=True)
    http, grpc, metrics = free_ports(3)
    http = port or http
    file, ready, log = folder / "curves.json", folder / "ready", folder / LOG
    file.write_text(json.dumps({"version": 1, "name": "made-up", "variants": {"fp32": pool.points, **(curves or {})}}))
    command = [*TANDEM, "triton", "--pool", pool.name, "--emulate", str(file)]
    command += ["--model-repository", str(repository), "--ready-file", str(ready)]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    command += ["--exit-timeout-s", str(EXIT_TIMEOUT_S), *options]
    with running(command, log, ready.exists, START_TIMEOUT_S) as process:
        yield Triton(pool, http, process.pid)


def num_too_busy(folder: Path) -> dict[str, int]:
    """Counts the warnings in the logs below this folder, by the folder of each log. They are not answers: one line covers ten seconds."""
    logs = {log: log.read_text(errors="replace").count(TOO_BUSY) for log in sorted(folder.rglob(LOG))}
    return {str(log.parent.relative_to(folder)): count for log, count in logs.items() if count}


@dataclass(frozen=True, slots=True)
class LocalGateway(Gateway):
    pid: int = 0


@contextmanager
def gateway(
    pools: Mapping[Pool, str],
    folder: Path,
    name: str = "gateway",
    *,
    device: Callable[[Pool], str] = lambda _: "emulated",
    options: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Iterator[LocalGateway]:
    """Ready: its first pool answers. `pools`: to the URL of each; `more`: of its settings. Raises CannotMeasure."""
    (port,) = free_ports(1)
    config = folder / f"{name}.yaml"
    described: dict[str, Any] = {
        pool.name: {"urls": [url], "device": device(pool), "price_per_hour": pool.price} for pool, url in pools.items()
    }
    config.write_text(json.dumps({"version": 1, "pools": described, **(more or {})}))
    here = Gateway(f"http://127.0.0.1:{port}")
    command = [*TANDEM, "gateway", "--config", str(config), "--port", str(port), *options]
    with running(command, folder / f"{name}.log", here.is_ready, START_S) as process:
        yield LocalGateway(here.url, pid=process.pid)


@contextmanager
def gateway_before(pools: Sequence[Pool], folder: Path) -> Iterator[LocalGateway]:
    """A gateway that sees these pools, each a Triton of its own. Raises CannotMeasure."""
    with ExitStack() as running:
        urls = {pool: running.enter_context(triton(pool, folder / pool.name)).url for pool in pools}
        here = running.enter_context(gateway(urls, folder))
        wait_until(lambda: all(serves(here, pool) for pool in pools), "all pools are seen")
        yield here


def serves(gateway: Gateway, pool: Pool) -> bool:
    return any(where == pool.name for model, _, where in gateway.served() if model == MODEL)


def state(gateway: Gateway, pool: Pool) -> str:
    """The state in the gateway's metrics: cold, waking, warming, ready … Empty where they have none."""
    connection = Connection(gateway.url, ANSWER_TIMEOUT_S)
    try:
        text = connection.send(request_bytes("GET", gateway.url, "/metrics", {})).body.decode()
    except OSError:
        return ""
    finally:
        connection.close()
    found = re.search(
        rf'^tandem_pool_state{{pool="{re.escape(pool.name)}",state="(\w+)"}} 1(?:\.0)?$', text, re.MULTILINE
    )
    return found[1] if found else ""


def wait_until(happened: Callable[[], bool], what: str, limit_s: float = SEEN_S) -> float:
    """Waits for a condition and returns the moment at which it held. Raises CannotMeasure."""
    end_s = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end_s:
            raise CannotMeasure(f"not within {limit_s:g} s: {what}")
        time.sleep(POLL_S)
    return time.monotonic()


def digits(rows: int = 1) -> bytes:
    """A request with so many real digits, as JSON."""
    request = json.loads((MODEL_REPOSITORY / VARIANT / "sample.json").read_bytes())
    (tensor,) = request["inputs"]
    tensor["shape"][0] = rows
    tensor["data"] = tensor["data"] * rows
    return json.dumps(request).encode()
