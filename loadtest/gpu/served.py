"""Stage 3: what the gpu pool gives through gateway and Triton, beside the same file in process, and where the rest goes.

A unit is one round, in which every way to the net has its turn: each leaves its rates at once, and a run that is cut off goes on with the
next. The servers of a net run from its first round to its last. Rule: whether a rate is good is an aim of the report (`aims.py`); what
fails here is a measurement that cannot be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from loadtest.claims.experiments import PIXELS, ServingCase
from loadtest.claims.values import Findings, Omission, ServedRound
from loadtest.errors import CannotMeasure
from loadtest.evidence.counts import Counters, counters
from loadtest.gpu.ledger import Check
from loadtest.gpu.served_parts import (
    ARMS,
    DIRECT,
    GATEWAY,
    GENERATOR,
    GRAPHS,
    IN_PROCESS,
    MOST_RATIO,
    SOCKET,
    UNCOMPILED,
    key,
    served_rates,
)
from loadtest.gpu.unit import MAX_BATCH_SIZE, Setup, Unit, UnitResult, environment
from loadtest.nets import Net, device_of, in_process_rps, request_to, served, served_rps
from loadtest.processes import cpu_s, family
from loadtest.profile.selection import linked
from loadtest.stack import Server, beside, quick_server, stack
from loadtest.target import Gateway
from serving import scheduling
from serving.compiled import folder as compiled_folder
from serving.decisions.engines import PLAIN
from serving.export.scratch import scratch
from serving.export.speed_nets import net as speed_net
from serving.export.speed_nets.compare import inputs_of
from serving.measure.rounds import order
from serving.repository import Repository

# Model, variant and batch sizes, most telling first: nets in which computing dominates, then one in which serving does.
CASES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("resnet50", "fp16", (32, 1, 8)),
    ("bert-base", "fp16", (128,)),
    ("minilm", "fp16", (128,)),
    ("digits", "fp32", (32, 1, 8)),
)
QUICK_SIZES = (8, 1)
NUM_ROUNDS, NUM_QUICK_ROUNDS = 4, 2
SECONDS, QUICK_SECONDS, WARM_S = (
    0.7,
    0.3,
    0.5,
)  # of a turn; rounds of 7 turns took an H100 7 s each, and starts 30 to 70 s a net: what the clock leaves out comes last
OUTSTANDING = 4  # requests, as the claims have it
LEAST_COUNTED = 0.1  # of the requests that were answered: Triton may count the last batch a moment later (guess)
PROGRAMS = {"tritonserver": "Triton", "triton_python_backend_stub": "stub"}


def units(setup: Setup) -> Iterator[Unit]:
    yield environment(setup)
    for case, sizes in cases(setup):
        with ExitStack() as until_last:
            ways = cache(partial(open_ways, setup, case, until_last))
            for size in sizes:
                for number in range(_num_rounds(setup)):
                    yield Unit(_name(case, size, number), partial(measure_round, setup, case, size, number, ways))


def _name(case: ServingCase, size: int, number: int) -> str:
    return f"{case.title}, batch {size}, round {number + 1}"


def _num_rounds(setup: Setup) -> int:
    return NUM_QUICK_ROUNDS if setup.is_quick else NUM_ROUNDS


def cases(setup: Setup) -> list[tuple[ServingCase, tuple[int, ...]]]:
    """On the card's pool. No pool of processors serves FP16, so a stand-in has none of it."""
    pool = setup.card.pool
    chosen = [one for one in CASES if pool == "gpu" or one[1] != "fp16"]
    if setup.is_quick:
        chosen = [(*one[:2], QUICK_SIZES) for one in chosen if one[0] == "digits"]
    trained = setup.trained
    return [
        (ServingCase(model, variant, PLAIN[pool], trained if model == "digits" else setup.nets, is_share=True), sizes)
        for model, variant, sizes in chosen
    ]


def _published(setup: Setup, case: ServingCase) -> str:
    """The name under which it is served: an untrained net's may be another one."""
    return speed_net(case.model).model if case.repository == setup.nets else case.model


def _data(setup: Setup, case: ServingCase) -> str:
    """What both sides are given: texts of the length that a net's times are told for."""
    if case.model in PIXELS:
        return PIXELS[case.model]
    file = setup.work / f"{case.model}.npz"
    if not file.exists():
        np.savez(file, **cast(dict[str, Any], inputs_of(_published(setup, case), MAX_BATCH_SIZE)))
    return str(file)


def experiments_known(setup: Setup, done: frozenset[str]) -> frozenset[str]:
    """The claims' own names of what need not run again."""
    rounds = range(_num_rounds(setup))
    known = [case for case, sizes in cases(setup) if {_name(case, s, n) for s in sizes for n in rounds} <= done]
    return frozenset(f"serving {case.title}" for case in known)


# -- the ways to a net ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """`triton` None: whoever answers has none below it."""

    server: Server
    triton: Server | None


@dataclass(slots=True)
class Ways:
    """`left_out`: arm -> why there is none, or none any more. `warm`: batch sizes that servers have had."""

    repository: Path
    by_arm: dict[str, Way]
    left_out: dict[str, str]
    warm: set[int] = field(default_factory=set)

    def leave_out(self, arm: str, why: CannotMeasure) -> None:
        """Raises it where nothing could be told without that arm."""
        if arm in (GATEWAY, IN_PROCESS):
            raise why
        self.left_out[arm] = str(why)
        del self.by_arm[arm]


def is_compiled() -> bool:
    return os.environ.get("TANDEM_COMPILED") != "0" and compiled_folder(Path(scheduling.__file__).parent).is_dir()


def open_ways(setup: Setup, case: ServingCase, until_last: ExitStack) -> Ways:
    """Raises CannotMeasure where there is no gateway."""
    if case.repository == setup.nets:
        setup.make(case.model)
    name = f"{_published(setup, case)}-{case.variant}"
    variants = [one for one in Repository(case.repository).variants() if one.name == name]
    if not variants:
        raise CannotMeasure(f"there is no {name} in the repository")
    left_out = dict[str, str]()
    with ExitStack() as half:
        folder = half.enter_context(scratch("served"))
        repository = linked(folder / "models", variants)
        plain, graphs = folder / "plain", folder / "graphs"
        for each in (plain, graphs):
            each.mkdir()
        setup.say(f"{case.title}: starting a Triton and gateways before it")
        here = half.enter_context(stack(repository, plain, pool=case.pool, device=case.pool))
        by_arm = {GATEWAY: Way(here.gateway, here.triton), DIRECT: Way(here.triton, here.triton)}
        by_arm[SOCKET] = Way(half.enter_context(beside(plain, SOCKET, over_socket=True)), here.triton)
        if is_compiled():
            python = half.enter_context(beside(plain, UNCOMPILED, variables={"TANDEM_COMPILED": "0"}))
            by_arm[UNCOMPILED] = Way(python, here.triton)
        else:
            left_out[UNCOMPILED] = "nothing is compiled here, so that every gateway was this one"
        by_arm[GENERATOR] = Way(half.enter_context(quick_server(folder)), None)
        # A processor has buffers, and no graphs.
        options = ["--batch-buckets", "auto", *(("--cuda-option", "enable_cuda_graph=1") if case.pool == "gpu" else ())]
        if case.model not in PIXELS:
            options += ["--bucket-lengths", str(speed_net(case.model).num_tokens)]
        try:
            captured = half.enter_context(stack(repository, graphs, pool=case.pool, device=case.pool, options=options))
            by_arm[GRAPHS] = Way(captured.gateway, captured.triton)
        except CannotMeasure as error:
            left_out[GRAPHS] = str(error)
        until_last.push(half.pop_all())
    return Ways(repository, by_arm, left_out)


def measure_round(setup: Setup, case: ServingCase, size: int, number: int, opened: Callable[[], Ways]) -> UnitResult:
    """Every way once, each round in another order. Raises CannotMeasure where the gateway or the net in process gives nothing."""
    ways = opened()
    net = Net(_published(setup, case), ways.repository, _data(setup, case), size, case.variant)
    request = request_to(net, ways.by_arm[GATEWAY].server)
    if size not in ways.warm:
        _warm(case, request, ways)
        ways.warm.add(size)
    found, counted = list[ServedRound](), dict[str, float]()
    for arm in order([arm for arm in ARMS if arm == IN_PROCESS or arm in ways.by_arm], number, _num_rounds(setup)):
        try:
            one, counted_ratio = _turn(setup, case, net, arm, ways.by_arm.get(arm), request)
        except CannotMeasure as error:
            ways.leave_out(arm, error)
            continue
        found.append(one)
        if counted_ratio is not None:
            counted[arm] = counted_ratio
    left_out = tuple(
        Omission(case.model, f"{case.variant} {arm}", case.engine, size, why) for arm, why in ways.left_out.items()
    )
    checks = [counted_check(case.title, counted)]
    if number == _num_rounds(setup) - 1 and not setup.is_quick:  # short turns on a busy machine are far apart
        so_far = Findings() if number == 0 else setup.report().findings
        checks += rates_checks(case.title, [one for one in (*so_far.rounds, *found) if key(one) == key(found[0])])
    return UnitResult(tuple(checks), Findings(rounds=tuple(found), left_out=left_out))


def _warm(case: ServingCase, request: bytes, ways: Ways) -> None:
    """Receipts must name the pool's device. Raises CannotMeasure."""
    for arm in (GATEWAY, GRAPHS):  # one before each Triton
        if (way := ways.by_arm.get(arm)) is None:
            continue
        try:
            if (device := device_of(request, way.server)) != case.pool:
                raise CannotMeasure(f"{case.title}: the receipt says {device or 'nothing of a device'}")
            served_rps(request, way.server, WARM_S, OUTSTANDING)
        except CannotMeasure as error:
            ways.leave_out(arm, error)


def _turn(
    setup: Setup, case: ServingCase, net: Net, arm: str, way: Way | None, request: bytes
) -> tuple[ServedRound, float | None]:
    """And of the requests that were answered the part that its Triton counted. Raises CannotMeasure."""
    what = (case.model, case.variant, case.pool, net.batch_size, arm)
    seconds = QUICK_SECONDS if setup.is_quick else SECONDS
    if way is None:
        claims = setup.claims_setup()
        rate = in_process_rps(net, claims.engines[case.engine], seconds, num_threads=claims.num_threads)[1]
        return ServedRound(*what, rate * net.batch_size), None
    before, began, began_s = _counted(way, net), _spent(way), time.monotonic()
    num_answered, rate = served(request, way.server, seconds, OUTSTANDING)
    took_s, spent, after = time.monotonic() - began_s, _spent(way), _counted(way, net)
    cores = {name: round((spent[name] - began[name]) / took_s, 3) for name in spent if name in began}
    if before is None or after is None:
        return ServedRound(*what, rate * net.batch_size, cores), None
    num_requests, num_rows, num_runs, _, *work_ns = (now - then for now, then in zip(after, before, strict=True))
    per_run_s = sum(work_ns) / 1e9 / max(1, num_requests)  # of the runs that requests were in
    at_work = min(1.0, num_runs * per_run_s / took_s)
    turn = ServedRound(*what, rate * net.batch_size, cores, at_work, num_rows / max(1, num_runs))
    return turn, num_requests / num_answered


def _counted(way: Way, net: Net) -> Counters | None:
    """Raises CannotMeasure."""
    if way.triton is None:
        return None
    found = counters(Gateway(way.triton.url).get_json(f"/v2/models/{net.served_name}/stats"))
    if found is None:
        raise CannotMeasure("Triton's statistics of the model cannot be read")
    return found


def _spent(way: Way) -> dict[str, float]:
    """Seconds of processors so far, of the generator, whoever it asks, and Triton's processes."""
    spent = {"generator": time.process_time()}
    if way.triton is None or way.server.pid != way.triton.pid:
        spent["gateway" if way.triton else "server"] = cpu_s(way.server.pid)
    for process in family(way.triton.pid) if way.triton else ():
        if name := PROGRAMS.get(process.program):
            spent[name] = spent.get(name, 0.0) + cpu_s(process.pid)
    return spent


def counted_check(title: str, counted: Mapping[str, float]) -> Check:
    """`counted`: arm -> of the requests that were answered the part that its Triton counted. Who else answers leaves them out."""
    arm = min(counted, key=lambda one: counted[one])
    text = f"{counted[arm]:.2f} of the requests at least that were answered ({arm}); below {LEAST_COUNTED} something else answered"
    return Check(f"{title}: Triton computed what was answered", counted[arm] >= LEAST_COUNTED, text)


def rates_checks(title: str, rounds: Sequence[ServedRound]) -> list[Check]:
    """`rounds`: of one net and batch size."""
    (one,) = served_rates(rounds)
    ratio = float(np.median(np.divide(one.served, one.in_process)))
    text = f"{ratio:.2f} of in process at batch {one.batch_size}; above {MOST_RATIO} the measurement is broken"
    return [Check(f"{title}: the rates are possible", ratio <= MOST_RATIO, text)]
