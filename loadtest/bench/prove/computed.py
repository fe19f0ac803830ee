"""Are executions full under overload where something is really computed, and how much is done in time?

Untrained nets on real Triton, an open loop of single rows with Poisson arrivals, to one gateway or in turn to two; gateways and generator
share a core, Triton has the others. Capacity and the rows of an execution are those of a closed loop with the same requests, just before. A
net whose execution costs the same for one row and for eight is the case of a GPU: whoever lets half-empty executions run there needs twice
the cards. Beside each row stands what the simulator makes of the same arrivals; it knows two times of the net, those of one row alone and
of a full execution. Rule: how busy each process was and how late the generator are told beside; its lateness counts as the gateway's, and
a rate at which their core is full is not judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import spent
from loadtest.bench.prove.overload import EXPIRED, GOODPUT, REFUSED, Overload, overload
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, request_to
from loadtest.processes import cpu_s, family, run_command
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop, one_by_one, open_loop
from loadtest.sending.sent_request import lag, listed
from loadtest.stack import Server, Stack, beside, stack
from serving.decisions.simulate.fixed_pools import FixedPool, replay
from serving.http_client import address
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service

MAX_BATCH = 8
NETS: Mapping[str, str] = {"resnet50": "each row costs the same", "mlp": "rows cost next to nothing"}
TIMES = (1.0, 2.0, 3.0)  # of capacity; the first that cannot be measured ends it
EXECUTIONS = 5.0  # full ones, that the deadline is
NUM_CLIENTS = 4 * MAX_BATCH
LASTING_S, STEADY_S = 8.0, 2.0
MAKING_TIMEOUT_S = 300.0
FULL = AtLeast(0.95)  # from 1.5 times capacity on
LATE = AtMost(0.005)
SIMULATED = AtMost(0.05)
NUM_ALONE = 30  # requests one by one
GATEWAYS = 1, 2
MOST_BUSY = 0.9  # of the core that gateway and generator share: beyond it they are measured, and not what they decide


@dataclass(frozen=True, slots=True)
class Busy:
    """Cores, on average, of each process."""

    triton: float
    generator: float
    gateways: tuple[float, ...]

    def __str__(self) -> str:
        gateways = " and ".join(f"{one:.2f}" for one in self.gateways)
        return f"cores: Triton {self.triton:.2f}, gateway {gateways}, generator {self.generator:.2f}"

    @property
    def is_measurable(self) -> bool:
        return sum(self.gateways) + self.generator <= MOST_BUSY


@dataclass(frozen=True, slots=True)
class Calm:
    """Of a net by itself, in a closed loop: answers a second, rows of an execution, and seconds that one alone takes."""

    capacity_rps: float
    requests_per_execution: float
    alone_s: float

    @property
    def full_s(self) -> float:
        return self.requests_per_execution / self.capacity_rps

    @property
    def service(self) -> Service:
        """As the simulator knows it. One row alone has the way through the gateway in it, which a full execution hides."""
        return Service(Curve(((1, min(self.alone_s, self.full_s)), (MAX_BATCH, self.full_s))), 1, MAX_BATCH)


@dataclass(frozen=True, slots=True)
class Trial:
    overload: Overload
    requests_per_execution: float
    busy: Busy
    lag_s: float  # of the generator, p99: counts as the gateway's
    in_time_ratio: float  # of all that were sent
    simulated_in_time_ratio: float
    offered_ratio: float  # of capacity, over all of the load

    @property
    def simulated_off(self) -> float:
        """Of goodput as a part of capacity."""
        return abs(self.in_time_ratio - self.simulated_in_time_ratio) * self.offered_ratio


def judged(name: str, trial: Trial, calm: Calm, times: float) -> Iterator[Verdict]:
    """Pure. Raises CannotMeasure."""
    outcome, busy = trial.overload, trial.busy
    note = f"offered {outcome.offered_ratio:.2f} times, {trial.lag_s * 1000:.1f} ms late at p99; {busy}"
    if not busy.is_measurable:
        raise CannotMeasure(f"{name}: the core of gateway and generator is full ({note})")
    yield Verdict(f"{name}: goodput ÷ capacity", outcome.goodput_ratio, GOODPUT, note)
    yield Verdict(f"{name}: late ÷ answered", outcome.late_ratio, LATE)
    yield Verdict(f"{name}: 504 ÷ let in", outcome.expired_ratio, EXPIRED)
    both = [f"{ratio * trial.offered_ratio:.2f}" for ratio in (trial.simulated_in_time_ratio, trial.in_time_ratio)]
    yield Verdict(
        f"{name}: simulated goodput ÷ capacity, off by", trial.simulated_off, SIMULATED, f"{both[0]} and {both[1]}"
    )
    if times > 1:
        ratio = trial.requests_per_execution / calm.requests_per_execution
        rows = f"{trial.requests_per_execution:.2f} of {calm.requests_per_execution:.2f} rows"
        yield Verdict(f"{name}: rows of an execution ÷ the closed loop's", ratio, FULL, rows)
        yield Verdict(f"{name}: refusals, p99", outcome.refused_p99_s, REFUSED)


def computed(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure at the end, where rows were not measurable; at once, where nothing is."""
    missing: list[str] = []
    for model, what in NETS.items():
        repository = folder / model
        command = [sys.executable, "-m", "serving.export.speed_nets", str(repository), "--net", model]
        command += ["--variant", "fp32", "--max-batch-size", str(MAX_BATCH)]
        run_command(command, f"{model} could not be made", MAKING_TIMEOUT_S)
        net = Net(model, repository, "random", 1)
        (logs := folder / f"{model}-logs").mkdir()
        with _apart(repository, logs) as (here, gateways):
            for number in GATEWAYS:
                name = f"{model}, {what}, {number} {'gateway' if number == 1 else 'gateways'}"
                yield from _of_net(net, here, gateways[:number], name, missing)
    if missing:
        raise CannotMeasure("; ".join(missing))


@contextmanager
def _apart(repository: Path, logs: Path) -> Iterator[tuple[Stack, list[Server]]]:
    """Gateways and generator on the last core, Triton on the others. Raises CannotMeasure where there is one core alone."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise CannotMeasure("one core for Triton and one for the rest are needed")
    try:
        os.sched_setaffinity(0, cores[:-1])  # inherited: Triton counts its cores when it starts
        with stack(repository, logs) as here, beside(logs) as second:
            gateways = [here.gateway, second]
            for gateway in gateways:
                os.sched_setaffinity(gateway.pid, cores[-1:])
            os.sched_setaffinity(0, cores[-1:])
            yield here, gateways
    finally:
        os.sched_setaffinity(0, cores)


def _of_net(net: Net, here: Stack, gateways: Sequence[Server], name: str, missing: list[str]) -> Iterator[Verdict]:
    """A rate that cannot be measured ends it, and is added to `missing`."""
    calm = _calm(net, here, gateways)
    deadline_s = EXECUTIONS * calm.full_s
    headers = {"Tandem-Deadline-Ms": f"{deadline_s * 1000:.1f}"}
    hurried = [Request(address(gateway.url), request_to(net, gateway, headers)) for gateway in gateways]
    for times in TIMES:
        trial = _trial(net, here, gateways, hurried, times, calm, deadline_s)
        try:
            yield from judged(f"{times:g} × {name}, deadline {deadline_s * 1000:.0f} ms", trial, calm, times)
        except CannotMeasure as error:
            missing.append(str(error))
            return


def _calm(net: Net, here: Stack, gateways: Sequence[Server]) -> Calm:
    """Raises CannotMeasure."""
    requests = [Request(address(gateway.url), request_to(net, gateway)) for gateway in gateways]
    num_clients = NUM_CLIENTS // len(gateways)
    closed_loop(requests, num_clients, STEADY_S)  # not counted: what is learnt of the net
    before = spent(here.triton.url, net.served_name)
    load = closed_loop(requests, num_clients, LASTING_S)
    if failed := [shot for shot in load.shots if not shot.is_answered]:
        raise CannotMeasure(f"requests without a deadline failed: {listed(failed)}")
    full = spent(here.triton.url, net.served_name).since(before).requests_per_execution
    alone = one_by_one(requests[:1] * NUM_ALONE)
    return Calm(
        sum(shot.ended_s - load.began_s < LASTING_S for shot in load.shots) / LASTING_S,
        full,
        median(shot.took_s for shot in alone),
    )


def _trial(
    net: Net,
    here: Stack,
    gateways: Sequence[Server],
    requests: Sequence[Request],
    times: float,
    calm: Calm,
    deadline_s: float,
) -> Trial:
    before, cpu_before = spent(here.triton.url, net.served_name), _cpu_s(here, gateways)
    arrivals = list(schedule(Arrivals("poisson", times * calm.capacity_rps), LASTING_S, 0))
    load = open_loop(requests, arrivals)
    per_execution = spent(here.triton.url, net.served_name).since(before).requests_per_execution
    triton, generator, *each = (
        (after - then) / LASTING_S for after, then in zip(_cpu_s(here, gateways), cpu_before, strict=True)
    )
    begin_s, end_s = load.began_s + STEADY_S, load.began_s + LASTING_S
    outcome = overload(load.shots, begin_s, end_s, deadline_s, calm.capacity_rps)
    lag_s, _ = lag(load.shots, deadline_s)
    simulated = replay([FixedPool("triton", calm.service, 1.0)], [(at, 1) for at in arrivals], deadline_s)
    in_time = sum(shot.is_answered and shot.took_s <= deadline_s for shot in load.shots)
    return Trial(
        outcome,
        per_execution,
        Busy(triton, generator, tuple(each)),
        lag_s,
        in_time / len(load.shots),
        simulated.attainment_ratio,
        len(arrivals) / LASTING_S / calm.capacity_rps,
    )


def _cpu_s(here: Stack, gateways: Sequence[Server]) -> list[float]:
    """Of Triton with its backends, this process, and each gateway."""
    pids = [here.triton.pid, *(gateway.pid for gateway in gateways)]
    triton, *each = (sum(cpu_s(process.pid) for process in family(pid)) for pid in pids)
    return [triton, cpu_s(os.getpid()), *each]
