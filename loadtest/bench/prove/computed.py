"""Are executions full under overload where something is really computed, and how much is done in time?

Nets on real Triton, an open loop of single rows with Poisson arrivals, to one gateway or in turn to two, to one variant or in turn to two
at once, which are two nets of one form; gateways and generator share a core, Triton has the others. Capacity and the rows of an execution
are those of a closed loop with the same requests, just before. A net whose execution costs the same for one row and for eight is the case
of a GPU: whoever lets half-empty executions run there needs twice the cards. Beside each row stands what the simulator makes of the same
arrivals; it knows two times of the net, those of one row alone and of a full execution. Rule: how busy each process was and how late the
generator are told beside; its lateness counts as the gateway's, and a row whose cores are full without the net, or had other work, is not
judged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path
from statistics import fmean, median

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.computed_nets import MAX_BATCH, layers_for, write
from loadtest.bench.prove.emulated import TritonTotals, spent
from loadtest.bench.prove.overload import EXPIRED, GOODPUT, REFUSED, Overload, overload
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, request_to
from loadtest.processes import cpu_s, family, worked_s
from loadtest.sending.link import Request
from loadtest.sending.sender import closed_loop, one_by_one, open_loop
from loadtest.sending.sent_request import Shot, lag, listed
from loadtest.stack import Server, Stack, beside, stack
from serving.decisions.simulate.fixed_pools import FixedPool, replay
from serving.http_client import address
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service

MODELS = "chain", "chain-too"  # of one form, with other weights: two variants to Triton and to the gateway
TIMES = 1.0, 2.0, 3.0  # of capacity
EXECUTIONS = 5.0  # full ones, that the deadline is
NUM_CLIENTS = 4 * MAX_BATCH  # of each net
LASTING_S, STEADY_S = 8.0, 2.0
LEARNING_S = 4.0  # of simulated load, that stands for the closed loop in which real gateways have learnt before
START_S = 10.0  # Triton, two gateways, and the nets' making (guess: on an idle machine it is less)
FULL = AtLeast(0.95)  # above 1 time capacity
LATE = AtMost(0.005)
SIMULATED = AtMost(0.05)
NUM_ALONE = 30  # requests one by one
MOST_BUSY = 0.9  # of the core that gateway and generator share: beyond it they are measured, and not what they decide
MAX_OTHERS = 0.05  # of the cores that Triton has, or of that one: as much as the simulator may be off


@dataclass(frozen=True, slots=True)
class Cell:
    """`execution_s`: of a full one, about."""

    is_fixed: bool
    execution_s: float
    num_gateways: int
    num_variants: int

    def __str__(self) -> str:
        cost = "rows cost nothing" if self.is_fixed else "each row costs the same"
        gateways, variants = _several(self.num_gateways, "gateway"), _several(self.num_variants, "variant")
        return f"{self.execution_s * 1000:.0f} ms, {cost}, {gateways}, {variants}"


def _several(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


EXECUTIONS_S = 0.010, 0.040
ALL = tuple(Cell(*of) for of in product((True, False), EXECUTIONS_S, (1, 2), (1, 2)))
# Each value of each property twice.
FEW = tuple(Cell(*of) for of in ((True, 0.010, 1, 1), (True, 0.040, 2, 2), (False, 0.010, 2, 1), (False, 0.040, 1, 2)))


def allotted_s(cells: Sequence[Cell]) -> float:
    """About as long as they take on an idle machine."""
    starts = len({(cell.is_fixed, cell.execution_s) for cell in cells})
    loads_s = (len(TIMES) + 1) * LASTING_S + STEADY_S
    return starts * START_S + sum(loads_s + (NUM_ALONE + 4 * EXECUTIONS) * cell.execution_s for cell in cells)


@dataclass(frozen=True, slots=True)
class Busy:
    """Cores, on average, of each process; and the part of Triton's cores, and of the one of the rest, that other work took."""

    triton: float
    generator: float
    gateways: tuple[float, ...]
    others_at_triton: float
    others_beside: float

    def __str__(self) -> str:
        gateways = " and ".join(f"{one:.2f}" for one in self.gateways)
        others = f"{self.others_at_triton:.0%} and {self.others_beside:.0%}"
        return (
            f"cores: Triton {self.triton:.2f}, gateway {gateways}, generator {self.generator:.2f}, other work {others}"
        )

    @property
    def void(self) -> str | None:
        """Why a load was not measurable."""
        if self.others_at_triton > MAX_OTHERS or self.others_beside > MAX_OTHERS:
            return "other work took part of the cores"
        if sum(self.gateways) + self.generator > MOST_BUSY:
            return "the core of gateway and generator is full"
        return None


@dataclass(frozen=True, slots=True)
class Calm:
    """Of the nets by themselves, in a closed loop: answers a second, rows of an execution, and seconds that one alone takes.

    Nets that are busy at once share the cores: an execution of one takes as many times as long as there are nets.
    """

    capacity_rps: float
    requests_per_execution: float
    alone_s: float
    num_nets: int = 1

    @property
    def full_s(self) -> float:
        """Of MAX_BATCH rows. Executions are not so full where a row costs the same in each: then full ones take as long for a row."""
        return MAX_BATCH * self.num_nets / self.capacity_rps

    @property
    def service(self) -> Service:
        """As the simulator knows it. One row alone has the way through the gateway in it, which a full execution hides."""
        alone_s = min(self.alone_s * self.num_nets, self.full_s)
        return Service(Curve(((1, alone_s), (MAX_BATCH, self.full_s))), 1, MAX_BATCH)


@dataclass(frozen=True, slots=True)
class Trial:
    overload: Overload
    requests_per_execution: float
    busy: Busy
    lag_s: float  # of the generator, p99: counts as the gateway's
    in_time_ratio: float  # of all that were sent
    simulated_in_time_ratio: float
    offered_ratio: float  # of capacity, over all of the load
    lateness: str = ""  # of the late answers

    @property
    def simulated_off(self) -> float:
        """Of goodput as a part of capacity."""
        return abs(self.in_time_ratio - self.simulated_in_time_ratio) * self.offered_ratio


def judged(name: str, trial: Trial, calm: Calm, times: float) -> Iterator[Verdict]:
    """Pure. Raises CannotMeasure."""
    outcome, busy = trial.overload, trial.busy
    note = f"offered {outcome.offered_ratio:.2f} times, {trial.lag_s * 1000:.1f} ms late at p99; {busy}"
    if busy.void:
        raise CannotMeasure(f"{name}: {busy.void} ({note})")
    yield Verdict(f"{name}: goodput ÷ capacity", outcome.goodput_ratio, GOODPUT, note)
    yield Verdict(f"{name}: late ÷ answered", outcome.late_ratio, LATE, trial.lateness)
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


def lateness(shots: Sequence[Shot], deadline_s: float) -> str:
    """By how much answers were late, and how many would have been in time had they been sent when they were due."""
    late = [shot for shot in shots if shot.is_answered and shot.took_s > deadline_s]
    if not late:
        return ""
    by_generator = sum(shot.took_s - shot.lag_s <= deadline_s for shot in late)
    beyond_s = [shot.took_s - deadline_s for shot in late]
    longest = f"{median(beyond_s) * 1000:.1f} ms at the median, {max(beyond_s) * 1000:.1f} at most"
    return f"{len(late)} by {longest}; {by_generator} only because the generator was"


def computed(folder: Path, cells: Sequence[Cell] = FEW) -> Iterator[Verdict]:
    """Raises CannotMeasure at the end, where rows were not measurable; at once, where nothing is."""
    missing: list[str] = []
    for of in dict.fromkeys((cell.is_fixed, cell.execution_s) for cell in cells):
        (logs := folder / f"{'fixed' if of[0] else 'growing'}-{of[1] * 1000:.0f}-ms").mkdir()
        with apart(logs, *of) as here:
            for cell in cells:
                if (cell.is_fixed, cell.execution_s) == of:
                    yield from here.measured(cell, missing)
    if missing:
        raise CannotMeasure("; ".join(missing))


@dataclass(frozen=True, slots=True)
class Apart:
    """Gateways and generator on one core, Triton on the others."""

    stack: Stack
    gateways: Sequence[Server]
    nets: Sequence[Net]
    triton_cores: Sequence[int]
    core: int

    def measured(self, cell: Cell, missing: list[str]) -> Iterator[Verdict]:
        """A row that cannot be measured is added to `missing`."""
        nets, gateways = self.nets[: cell.num_variants], self.gateways[: cell.num_gateways]
        try:
            calm = self._calm(nets, gateways)
        except CannotMeasure as error:
            missing.append(f"{cell}: {error}")
            return
        deadline_s = EXECUTIONS * calm.full_s
        for times in TIMES:
            name = f"{times:g} × {cell}, deadline {deadline_s * 1000:.0f} ms"
            trial = self._trial(nets, gateways, times, calm, deadline_s)
            try:
                yield from judged(name, trial, calm, times)
            except CannotMeasure as error:
                missing.append(str(error))

    def _calm(self, nets: Sequence[Net], gateways: Sequence[Server]) -> Calm:
        """Raises CannotMeasure."""
        requests = requests_of(nets, gateways)
        num_clients = NUM_CLIENTS // len(gateways)
        closed_loop(requests, num_clients, STEADY_S)  # not counted: what is learnt of the net
        before, spent_before = self._totals(nets), self.so_far(gateways)
        load = closed_loop(requests, num_clients, LASTING_S)
        busy = self.so_far(gateways).since(spent_before, len(self.triton_cores))
        if failed := [shot for shot in load.shots if not shot.is_answered]:
            raise CannotMeasure(f"requests without a deadline failed: {listed(failed)}")
        if busy.void:
            raise CannotMeasure(f"in the closed loop {busy.void} ({busy})")
        return Calm(
            sum(shot.ended_s - load.began_s < LASTING_S for shot in load.shots) / LASTING_S,
            self._totals(nets).since(before).requests_per_execution,
            median(shot.took_s for shot in one_by_one(requests[:1] * NUM_ALONE)),
            len(nets),
        )

    def _trial(
        self, nets: Sequence[Net], gateways: Sequence[Server], times: float, calm: Calm, deadline_s: float
    ) -> Trial:
        requests = requests_of(nets, gateways, deadline_s)
        arrivals = list(schedule(Arrivals("poisson", times * calm.capacity_rps), LASTING_S, 0))
        before, spent_before = self._totals(nets), self.so_far(gateways)
        load = open_loop(requests, arrivals)
        busy = self.so_far(gateways).since(spent_before, len(self.triton_cores))
        begin_s, end_s = load.began_s + STEADY_S, load.began_s + LASTING_S
        before_s = LEARNING_S + deadline_s
        learning = [at - before_s for at in schedule(Arrivals("poisson", times * calm.capacity_rps), LEARNING_S, 1)]
        simulated = [
            replay(
                [FixedPool("triton", calm.service, 1.0)],
                [(before_s + at, 1) for at in [*learning[net :: len(nets)], *arrivals[net :: len(nets)]]],
                deadline_s,
                num_gateways=len(gateways),
                begin_s=before_s,
            ).attainment_ratio
            for net in range(len(nets))
        ]
        in_time = sum(shot.is_answered and shot.took_s <= deadline_s for shot in load.shots)
        return Trial(
            overload(load.shots, begin_s, end_s, deadline_s, calm.capacity_rps),
            self._totals(nets).since(before).requests_per_execution,
            busy,
            lag(load.shots, deadline_s)[0],
            in_time / len(load.shots),
            fmean(simulated),  # as many arrivals each
            len(arrivals) / LASTING_S / calm.capacity_rps,
            lateness(load.shots, deadline_s),
        )

    def _totals(self, nets: Sequence[Net]) -> TritonTotals:
        return reduce(TritonTotals.plus, (spent(self.stack.triton.url, net.served_name) for net in nets))

    def so_far(self, gateways: Sequence[Server]) -> _Spent:
        pids = [self.stack.triton.pid, *(gateway.pid for gateway in gateways)]
        triton, *each = (sum(cpu_s(process.pid) for process in family(pid)) for pid in pids)
        all_s = worked_s(self.triton_cores), worked_s([self.core])
        return _Spent(time.monotonic(), triton, cpu_s(os.getpid()), tuple(each), *all_s)


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds so far: of Triton with its backends, this process and each gateway, and of all processes on their cores."""

    at_s: float
    triton_s: float
    generator_s: float
    gateways_s: tuple[float, ...]
    at_triton_s: float
    beside_s: float

    def since(self, before: _Spent, num_triton_cores: int) -> Busy:
        lasting_s = self.at_s - before.at_s
        triton_s, generator_s = self.triton_s - before.triton_s, self.generator_s - before.generator_s
        gateways_s = [after - then for after, then in zip(self.gateways_s, before.gateways_s, strict=True)]
        at_triton_s = self.at_triton_s - before.at_triton_s - triton_s
        beside_s = self.beside_s - before.beside_s - generator_s - sum(gateways_s)
        return Busy(
            triton_s / lasting_s,
            generator_s / lasting_s,
            tuple(one / lasting_s for one in gateways_s),
            max(0.0, at_triton_s / lasting_s / num_triton_cores),
            max(0.0, beside_s / lasting_s),
        )


def requests_of(nets: Sequence[Net], gateways: Sequence[Server], deadline_s: float | None = None) -> list[Request]:
    """To each net by each gateway, in turn; `kind` is the net's number."""
    headers = {} if deadline_s is None else {"Tandem-Deadline-Ms": f"{deadline_s * 1000:.1f}"}
    return [
        Request(address(gateway.url), request_to(net, gateway, headers), number)
        for gateway in gateways
        for number, net in enumerate(nets)
    ]


@contextmanager
def apart(folder: Path, is_fixed: bool, execution_s: float) -> Iterator[Apart]:
    """Two nets before two gateways. Raises CannotMeasure where there is one core alone."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise CannotMeasure("one core for Triton and one for the rest are needed")
    repository = folder / "repository"
    try:
        os.sched_setaffinity(0, cores[:-1])  # inherited: Triton counts its cores when it starts
        write(repository, MODELS, layers_for(execution_s), is_fixed=is_fixed)
        with stack(repository, folder) as here, beside(folder) as second:
            gateways = [here.gateway, second]
            for gateway in gateways:
                os.sched_setaffinity(gateway.pid, cores[-1:])
            os.sched_setaffinity(0, cores[-1:])
            yield Apart(
                here, gateways, [Net(model, repository, "random", 1) for model in MODELS], cores[:-1], cores[-1]
            )
    finally:
        os.sched_setaffinity(0, cores)
