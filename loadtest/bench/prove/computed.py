"""Are executions full under overload where something is really computed, and how much is done in time?

Untrained nets on real Triton, an open loop of single rows with Poisson arrivals, everything on the same cores. Capacity and the rows of an
execution are those of a closed loop with the same requests, just before. A net whose execution costs the same for one row and for eight is
the case of a GPU: whoever lets half-empty executions run there needs twice the cards. Rule: how busy each process was is told beside, and
a rate at which the cores have no time left for the net is not judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import attempts, on_time, spent
from loadtest.bench.prove.overload import EXPIRED, GOODPUT, REFUSED, Overload, overload
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, request_to
from loadtest.processes import cpu_s, family, run_command
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop, open_loop
from loadtest.stack import Stack, stack
from serving.http_client import address

MAX_BATCH = 8
NETS: Mapping[str, str] = {"mlp": "rows cost next to nothing", "resnet50": "each row costs the same"}
TIMES = (1.0, 2.0, 3.0)  # of capacity
EXECUTIONS = 5.0  # full ones, that the deadline is
NUM_CLIENTS = 4 * MAX_BATCH
LASTING_S, STEADY_S = 8.0, 2.0
MAKING_TIMEOUT_S = 300.0
FULL = AtLeast(0.95)  # from 1.5 times capacity on
LATE = AtMost(0.005)
CORES_LEFT = 0.9  # of a core at least, for the net: with less it is the generator that is measured


@dataclass(frozen=True, slots=True)
class Busy:
    """Cores, on average, of each process."""

    triton: float
    gateway: float
    generator: float

    def __str__(self) -> str:
        return f"cores: Triton {self.triton:.2f}, gateway {self.gateway:.2f}, generator {self.generator:.2f}"

    @property
    def is_measurable(self) -> bool:
        return len(os.sched_getaffinity(0)) - self.gateway - self.generator >= CORES_LEFT


@dataclass(frozen=True, slots=True)
class Trial:
    overload: Overload
    requests_per_execution: float
    busy: Busy


def judged(name: str, trial: Trial, closed_requests_per_execution: float, times: float) -> Iterator[Verdict]:
    """Pure."""
    outcome, busy = trial.overload, trial.busy
    note = f"offered {outcome.offered_ratio:.2f} times; {busy}"
    if not busy.is_measurable:
        yield Verdict(f"{name}: goodput ÷ capacity", None, GOODPUT, f"not measurable: {busy}")
        return
    yield Verdict(f"{name}: goodput ÷ capacity", outcome.goodput_ratio, GOODPUT, note)
    yield Verdict(f"{name}: late ÷ answered", outcome.late_ratio, LATE)
    yield Verdict(f"{name}: 504 ÷ let in", outcome.expired_ratio, EXPIRED)
    if times > 1:
        ratio = trial.requests_per_execution / closed_requests_per_execution
        rows = f"{trial.requests_per_execution:.2f} of {closed_requests_per_execution:.2f} rows"
        yield Verdict(f"{name}: rows of an execution ÷ the closed loop's", ratio, FULL, rows)
        yield Verdict(f"{name}: refusals, p99", outcome.refused_p99_s, REFUSED)


def computed(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    for model, what in NETS.items():
        repository = folder / model
        command = [sys.executable, "-m", "serving.export.speed_nets", str(repository), "--net", model]
        command += ["--variant", "fp32", "--max-batch-size", str(MAX_BATCH)]
        run_command(command, f"{model} could not be made", MAKING_TIMEOUT_S)
        net = Net(model, repository, "random", 1)
        (place := folder / f"{model}-logs").mkdir()
        with stack(repository, place) as here:
            yield from _of_net(net, here, f"{model}, {what}")


def _of_net(net: Net, here: Stack, name: str) -> Iterator[Verdict]:
    calm = Request(address(here.gateway.url), request_to(net, here.gateway))
    closed_loop([calm], NUM_CLIENTS, STEADY_S)  # not counted: what is learnt of the net
    before = spent(here.triton.url, net.served_name)
    load = closed_loop([calm], NUM_CLIENTS, LASTING_S)
    if any(not shot.is_answered for shot in load.shots):
        raise CannotMeasure("requests without a deadline failed; see the log of the gateway")
    full = spent(here.triton.url, net.served_name).since(before).requests_per_execution
    capacity_rps = sum(shot.ended_s - load.began_s < LASTING_S for shot in load.shots) / LASTING_S
    deadline_s = EXECUTIONS * full / capacity_rps
    headers = {"Tandem-Deadline-Ms": f"{deadline_s * 1000:.1f}"}
    hurried = Request(address(here.gateway.url), request_to(net, here.gateway, headers))
    for times in TIMES:
        trial = attempts(lambda seed: _trial(net, here, hurried, times, seed, capacity_rps, deadline_s))  # noqa: B023
        yield from judged(f"{times:g} × {name}, deadline {deadline_s * 1000:.0f} ms", trial, full, times)


def _trial(
    net: Net, here: Stack, request: Request, times: float, seed: int, capacity_rps: float, deadline_s: float
) -> Trial:
    before, cpu_before = spent(here.triton.url, net.served_name), _cpu_s(here)
    load = open_loop([request], schedule(Arrivals("poisson", times * capacity_rps), LASTING_S, seed))
    per_execution = spent(here.triton.url, net.served_name).since(before).requests_per_execution
    busy = Busy(*((after - then) / LASTING_S for after, then in zip(_cpu_s(here), cpu_before, strict=True)))
    begin_s, end_s = load.began_s + STEADY_S, load.began_s + LASTING_S
    outcome = overload(on_time(load, deadline_s), begin_s, end_s, deadline_s, capacity_rps)
    return Trial(outcome, per_execution, busy)


def _cpu_s(here: Stack) -> tuple[float, float, float]:
    """Of Triton with its backends, the gateway, and this process."""
    triton = sum(cpu_s(process.pid) for process in family(here.triton.pid))
    return triton, sum(cpu_s(process.pid) for process in family(here.gateway.pid)), cpu_s(os.getpid())
