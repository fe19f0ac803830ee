"""Are executions full under overload where something is really computed, and how much is done in time?

Untrained nets on real Triton, an open loop of single rows with Poisson arrivals; gateway and generator share a core, Triton has the
others. Capacity and the rows of an execution are those of a closed loop with the same requests, just before. A net whose execution costs
the same for one row and for eight is the case of a GPU: whoever lets half-empty executions run there needs twice the cards. Rule: how busy
each process was and how late the generator are told beside; its lateness counts as the gateway's, and a rate at which their core is full
is not judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import spent
from loadtest.bench.prove.overload import EXPIRED, GOODPUT, REFUSED, Overload, overload
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, request_to
from loadtest.processes import cpu_s, family, run_command
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop, open_loop
from loadtest.sending.sent_request import lag
from loadtest.stack import Stack, stack
from serving.http_client import address

MAX_BATCH = 8
NETS: Mapping[str, str] = {"resnet50": "each row costs the same", "mlp": "rows cost next to nothing"}
TIMES = (1.0, 2.0, 3.0)  # of capacity; the first that cannot be measured ends it
EXECUTIONS = 5.0  # full ones, that the deadline is
NUM_CLIENTS = 4 * MAX_BATCH
LASTING_S, STEADY_S = 8.0, 2.0
MAKING_TIMEOUT_S = 300.0
FULL = AtLeast(0.95)  # from 1.5 times capacity on
LATE = AtMost(0.005)
MOST_BUSY = 0.9  # of the core that gateway and generator share: beyond it they are measured, and not what they decide


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
        return self.gateway + self.generator <= MOST_BUSY


@dataclass(frozen=True, slots=True)
class Trial:
    overload: Overload
    requests_per_execution: float
    busy: Busy
    lag_s: float  # of the generator, p99: counts as the gateway's


def judged(name: str, trial: Trial, closed_requests_per_execution: float, times: float) -> Iterator[Verdict]:
    """Pure."""
    outcome, busy = trial.overload, trial.busy
    note = f"offered {outcome.offered_ratio:.2f} times, {trial.lag_s * 1000:.1f} ms late at p99; {busy}"
    if not busy.is_measurable:
        raise CannotMeasure(f"{name}: the core of gateway and generator is full ({note})")
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
        (logs := folder / f"{model}-logs").mkdir()
        with _apart(repository, logs) as here:
            yield from _of_net(net, here, f"{model}, {what}")


@contextmanager
def _apart(repository: Path, logs: Path) -> Iterator[Stack]:
    """Gateway and generator on the last core, Triton on the others. Raises CannotMeasure where there is one core alone."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise CannotMeasure("one core for Triton and one for the rest are needed")
    try:
        os.sched_setaffinity(0, cores[:-1])  # inherited: Triton counts its cores when it starts
        with stack(repository, logs) as here:
            os.sched_setaffinity(here.gateway.pid, cores[-1:])
            os.sched_setaffinity(0, cores[-1:])
            yield here
    finally:
        os.sched_setaffinity(0, cores)


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
        trial = _trial(net, here, hurried, times, 0, capacity_rps, deadline_s)
        yield from judged(f"{times:g} × {name}, deadline {deadline_s * 1000:.0f} ms", trial, full, times)


def _trial(
    net: Net, here: Stack, request: Request, times: float, seed: int, capacity_rps: float, deadline_s: float
) -> Trial:
    before, cpu_before = spent(here.triton.url, net.served_name), _cpu_s(here)
    load = open_loop([request], schedule(Arrivals("poisson", times * capacity_rps), LASTING_S, seed))
    per_execution = spent(here.triton.url, net.served_name).since(before).requests_per_execution
    busy = Busy(*((after - then) / LASTING_S for after, then in zip(_cpu_s(here), cpu_before, strict=True)))
    begin_s, end_s = load.began_s + STEADY_S, load.began_s + LASTING_S
    outcome = overload(load.shots, begin_s, end_s, deadline_s, capacity_rps)
    lag_s, _ = lag(load.shots, deadline_s)
    return Trial(outcome, per_execution, busy, lag_s)


def _cpu_s(here: Stack) -> tuple[float, float, float]:
    """Of Triton with its backends, the gateway, and this process."""
    triton = sum(cpu_s(process.pid) for process in family(here.triton.pid))
    return triton, sum(cpu_s(process.pid) for process in family(here.gateway.pid)), cpu_s(os.getpid())
