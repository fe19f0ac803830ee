"""Two models on one device, one of them flooded: does the other get its part of the device, and is it in time?

Two nets that really compute, of one form, on the one core that Triton has; the deadline is ten full executions, five while both compute.
Then two on an emulated device, of which the one takes four times as long for an execution, whatever its rows: such a device does them one
after another, so that without shares it is the longer one's. There the same load is sent again with a gateway for each model, which knows
nothing of the other's: that is how it was without shares. Triton waits a little for fuller batches there, so that the gateway can send what
waited of a model as one execution. A part is what a model is answered in a second as a share of what it can be when
it is alone. Judging is pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.computed import EXECUTIONS, MODELS, NUM_CLIENTS, STEADY_S, Apart, apart, requests_of
from loadtest.bench.prove.computed_nets import MAX_BATCH, write
from loadtest.bench.prove.emulated import LocalGateway, Pool, attempts, gateway, on_time, triton, wait_until
from loadtest.bench.prove.tenants import FLOOD_TIMES, GOODPUT, IN_TIME, JAIN, RISE, SMALL_RPS, jain
from loadtest.bench.verdicts import Verdict
from loadtest.errors import CannotMeasure
from loadtest.nets import Net
from loadtest.sending.link import Request
from loadtest.sending.sender import Load, closed_loop, open_loop
from loadtest.sending.sent_request import Shot, percentile
from loadtest.stack import Server

EXECUTION_S = 0.020
RUN_S, CLOSED_S = 10.0, 4.0
FLOODED, SMALL = range(len(MODELS))
DEVICE = Pool("emulated-shared-device", ((1, 1.0), (MAX_BATCH, 1.0)))  # of whatever has no curve of its own: nothing
NAMES, FULLS_S = ("long", "short"), (0.160, 0.040)
LONG, SHORT = range(len(NAMES))
DEVICE_DEADLINE_S = 1.5  # nine of the long executions
WITHIN = 0.4  # of the device, which without shares gives the short one a fifth
WEIGHT = 3.0
# An eighth of the short one's execution: for so long an idle instance waits for what a gateway sends at once.
QUEUE_DELAY_US = 5000


def in_time(shots: Sequence[Shot], deadline_s: float) -> int:
    return sum(shot.is_answered and shot.took_s <= deadline_s for shot in shots)


def small_verdicts(
    beside: Sequence[Shot],
    alone: Sequence[Shot],
    deadline_s: float,
    full_s: float,
    what: str = f"a model at {SMALL_RPS:g}/s",
    before: str = "",
) -> Iterator[Verdict]:
    """Of the small model's requests beside the flooded one, and alone. `full_s`: a full execution of the flooded one."""
    name = f"{what} beside one at {FLOOD_TIMES:g} times its capacity"
    good = in_time(beside, deadline_s)
    yield Verdict(f"{name}: answered in time", good / len(beside), IN_TIME, f"{good} of {len(beside)}{before}")
    with_s, without_s = (percentile([s.took_s for s in shots if s.is_answered], 0.99) for shots in (beside, alone))
    if with_s is None or without_s is None:
        yield Verdict(f"{name}: p99 rises by", None, RISE, "nothing was answered")
        return
    note = f"{with_s * 1000:.0f} ms, alone {without_s * 1000:.0f} ms; a full execution takes {full_s * 1000:.0f} ms"
    yield Verdict(f"{name}: p99 rises by", (with_s - without_s) / full_s, RISE, note)


def parts_of(answered_rps: Mapping[int, float], alone_rps: Sequence[float]) -> list[float]:
    return [answered_rps[model] / rate_rps for model, rate_rps in enumerate(alone_rps)]


def told(parts: Sequence[float]) -> str:
    return " and ".join(f"{part:.2f}" for part in parts)


def share_verdict(
    answered_rps: Mapping[int, float], alone_rps: Sequence[float], weights: Sequence[float] = (1.0, 1.0), more: str = ""
) -> Verdict:
    """Of models that all send too much."""
    parts = parts_of(answered_rps, alone_rps)
    name = f"two models at {FLOOD_TIMES:g} times their capacity"
    if len(set(weights)) > 1:
        name += f", weights {' and '.join(f'{weight:g}' for weight in weights)}"
    fair = jain(part / weight for part, weight in zip(parts, weights, strict=True))
    return Verdict(f"{name}: Jain's index of parts", fair, JAIN, f"{told(parts)} of what each does alone{more}")


def goodput_verdict(parts: Sequence[float], before: Sequence[float]) -> Verdict:
    """Seconds of the device that answers in time took."""
    return Verdict(
        "the same: in time ÷ with a gateway for each model", sum(parts) / sum(before), GOODPUT, f"{told(before)} there"
    )


def models(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    yield from _emulated(folder)
    with apart(folder, True, EXECUTION_S) as here:
        alone_rps = [_alone_rps(here, model) for model in range(len(MODELS))]
        full_s = MAX_BATCH / alone_rps[FLOODED]
        deadline_s = 2 * EXECUTIONS * full_s
        flood_rps = FLOOD_TIMES * alone_rps[FLOODED]
        alone = _run(here, {SMALL: SMALL_RPS}, deadline_s)
        beside = _run(here, {FLOODED: flood_rps, SMALL: SMALL_RPS}, deadline_s)
        yield from small_verdicts(beside[SMALL], alone[SMALL], deadline_s, full_s)
        both = _run(here, {model: FLOOD_TIMES * rate_rps for model, rate_rps in enumerate(alone_rps)}, deadline_s)
        lasting_s = RUN_S - STEADY_S
        yield share_verdict(
            {model: sum(shot.is_answered for shot in shots) / lasting_s for model, shots in both.items()}, alone_rps
        )


def _emulated(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    repository = folder / "nets"
    write(repository, NAMES, 1, is_fixed=False)
    curves = {f"{name}-fp32": [(1, full_s), (MAX_BATCH, full_s)] for name, full_s in zip(NAMES, FULLS_S, strict=True)}
    alone_rps = [MAX_BATCH / full_s for full_s in FULLS_S]
    weights = folder / "control.json"
    weights.write_text(json.dumps({"version": 1, "models": {NAMES[SHORT]: {"weight": WEIGHT}}}))
    device = partial(
        triton, DEVICE, repository=repository, curves=curves, options=("--queue-delay-us", str(QUEUE_DELAY_US))
    )
    with ExitStack() as running:
        server = running.enter_context(device(folder=folder / DEVICE.name))
        one, *each = (
            _requests(running.enter_context(gateway({DEVICE: server.url}, folder, name)), repository)
            for name in ("gateway", *NAMES)
        )
        apart_each = [own[model] for model, own in enumerate(each)]
        floods = {model: FLOOD_TIMES * rate_rps for model, rate_rps in enumerate(alone_rps)}
        both, before = _flood(one, floods), _flood(apart_each, floods)
        parts, parts_before = (parts_of(_rps(shots), alone_rps) for shots in (both, before))
        yield share_verdict(_rps(both), alone_rps, more=f"; with a gateway for each {told(parts_before)}")
        yield goodput_verdict(parts, parts_before)
        some = {LONG: floods[LONG], SHORT: WITHIN * alone_rps[SHORT]}
        beside, there = _flood(one, some)[SHORT], _flood(apart_each, some)[SHORT]
        alone = _flood(one, {SHORT: some[SHORT]})[SHORT]
        note = f"; with a gateway for each {in_time(there, DEVICE_DEADLINE_S)} of {len(there)}"
        what = f"a model that wants {WITHIN:g} of the device"
        yield from small_verdicts(beside, alone, DEVICE_DEADLINE_S, FULLS_S[LONG], what, note)
    with (
        device(folder=folder / "weighted") as server,
        gateway({DEVICE: server.url}, folder, "weighted", options=("--control", str(weights))) as here,
    ):
        weighted = _flood(_requests(here, repository), floods)
        yield share_verdict(_rps(weighted), alone_rps, (1.0, WEIGHT))


def _requests(here: LocalGateway, repository: Path) -> list[Request]:
    """To each model, with the deadline."""
    server = Server("gateway", here.url.removeprefix("http://"), here.pid)
    wait_until(lambda: all(here.metadata(f"{name}-fp32") for name in NAMES), "both models are seen")
    return requests_of([Net(name, repository, "random", 1) for name in NAMES], [server], DEVICE_DEADLINE_S)


def _flood(requests: Sequence[Request], rates_rps: Mapping[int, float]) -> dict[int, list[Shot]]:
    """Shots of each model, the first seconds left out. Raises GeneratorLag where the generator always lags."""

    def once(attempt: int) -> dict[int, list[Shot]]:
        load = _sent(requests, rates_rps, 10 * attempt)
        on_time(load, DEVICE_DEADLINE_S)
        return _steady(load, rates_rps)

    return attempts(once)


def _rps(shots: Mapping[int, Sequence[Shot]]) -> dict[int, float]:
    """Answers in time."""
    return {model: in_time(own, DEVICE_DEADLINE_S) / (RUN_S - STEADY_S) for model, own in shots.items()}


def _sent(requests: Sequence[Request], rates_rps: Mapping[int, float], seed: int) -> Load:
    due = sorted(
        (at, model)
        for model, rate_rps in rates_rps.items()
        for at in schedule(Arrivals("poisson", rate_rps), RUN_S, seed + model)
    )
    sent = [Request(requests[model].address, requests[model].data, model) for _, model in due]
    return open_loop(sent, [at for at, _ in due])


def _steady(load: Load, rates_rps: Mapping[int, float]) -> dict[int, list[Shot]]:
    return {
        model: [s for s in load.shots if s.kind == model and s.due_s >= load.began_s + STEADY_S] for model in rates_rps
    }


def _alone_rps(here: Apart, model: int) -> float:
    requests = requests_of(here.nets[model : model + 1], here.gateways[:1])
    closed_loop(requests, NUM_CLIENTS, STEADY_S)  # not counted: what is learnt of the net
    load = closed_loop(requests, NUM_CLIENTS, CLOSED_S)
    answered = sum(shot.is_answered and shot.ended_s - load.began_s < CLOSED_S for shot in load.shots)
    if not answered:
        raise CannotMeasure(f"'{MODELS[model]}' answered nothing")
    return answered / CLOSED_S


def _run(here: Apart, rates_rps: Mapping[int, float], deadline_s: float) -> dict[int, list[Shot]]:
    """Shots of each model, the first seconds left out. Raises CannotMeasure where others worked on the cores."""
    before = here.so_far(here.gateways[:1])
    load = _sent(requests_of(here.nets, here.gateways[:1], deadline_s), rates_rps, 0)
    busy = here.so_far(here.gateways[:1]).since(before, len(here.triton_cores))
    if busy.void:
        raise CannotMeasure(f"{busy.void} ({busy})")
    return _steady(load, rates_rps)
