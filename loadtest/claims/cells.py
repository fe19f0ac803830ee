"""Which numbers answer a claim? Picks them from the findings, with one function for each kind of number.

Pure. Rule: where there is no number, a cell says why: the device is not here, or the measurement was left out, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from loadtest.claims.claims_file import GPU_ENGINES, Claim
from loadtest.claims.values import (
    NOT_MEASURED_HERE,
    NOT_RUN,
    TREES,
    Bandwidth,
    Cell,
    EngineTime,
    Findings,
    Price,
    Reading,
    ServingRates,
    apart,
    either,
    median,
    paired,
)
from serving.decisions.engines import BASELINE, PLAIN, POOL
from serving.decisions.prices import per_million
from serving.measure.machine import Machine

NO_CARD = "no GPU on this machine"
NO_COUNTER = "no energy counter is read here"
NO_TREE_KERNEL = "ONNX Runtime's CUDA provider has no kernel for trees"


def cells(claim: Claim, found: Findings, machine: Machine) -> tuple[Cell, ...]:
    """Without sides; `judge` gives them."""
    return tuple(_OF[claim.number](claim, found, machine))


def _absent(absent: str, reason: str) -> Reading:
    return Reading(absent=absent, reason=reason)


def _at(size: int) -> str:
    return f"batch {size}"


# -- in process -------------------------------------------------------------------------------------------------------


def _timed(found: Findings, model: str, variant: str, engine: str) -> dict[int, EngineTime]:
    combination = (model, variant, engine)
    return {one.batch_size: one for one in found.speeds if (one.model, one.variant, one.engine) == combination}


def _why_not(
    found: Findings, machine: Machine, model: str, variant: str, engine: str, size: int | None = None
) -> Reading:
    """The reason why there is no number of it."""
    if engine in GPU_ENGINES and not machine.cards:
        return _absent(NOT_MEASURED_HERE, NO_CARD)
    for out in found.left_out:
        is_it = out.batch_size is None and (out.model, out.variant, out.engine) == (model, variant, engine)
        if is_it or (out.model == model and size is not None and out.batch_size == size):
            return _absent(NOT_MEASURED_HERE if "not installed" in out.reason else NOT_RUN, out.reason)
    for name in (f"speeds of {model}", "speeds"):
        if name in found.not_run:
            return _absent(NOT_RUN, found.not_run[name])
    if engine == "tensorrt":
        return _absent(NOT_MEASURED_HERE, "TensorRT is not installed here")
    return _absent(NOT_RUN, f"{variant} on {engine} was not timed")


def _speed_up(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    for model in claim.models:
        own = _timed(found, model, claim.variant, claim.engine)
        other = _timed(found, model, claim.against_variant, claim.against_engine)
        batch_sizes = claim.batch_sizes or tuple(sorted(own.keys() & other.keys()))
        if not own or not other:
            missing = (claim.variant, claim.engine) if not own else (claim.against_variant, claim.against_engine)
            yield Cell(model, "", _why_not(found, machine, model, *missing))
            continue
        for size in batch_sizes:
            if size in own and size in other:
                yield Cell(model, _at(size), ratio(own[size], other[size]))
            else:
                yield Cell(model, _at(size), _why_not(found, machine, model, claim.variant, claim.engine, size))


def ratio(own: EngineTime, other: EngineTime) -> Reading:
    """How many times as fast `own` is: from the same turns where they had them."""
    pool = POOL[own.engine]
    if POOL[other.engine] == pool and (other.variant, other.engine) == (BASELINE, PLAIN[pool]) and own.ratios:
        return paired(own.ratios)
    return apart(other.rounds_s, own.rounds_s)


def _rates(one: EngineTime) -> tuple[float, ...]:
    return tuple(one.batch_size / seconds for seconds in one.rounds_s)


def fastest(timed: Iterable[EngineTime]) -> EngineTime | None:
    """By rows per second."""
    return max(timed, key=lambda one: median(_rates(one)).value or 0.0, default=None)


def _batch_gain(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    for model in claim.models:
        own = _timed(found, model, claim.variant, claim.engine)
        best = fastest(one for size, one in own.items() if size > 1)
        if 1 not in own or best is None:
            yield Cell(model, "", _why_not(found, machine, model, claim.variant, claim.engine))
            continue
        yield Cell(model, f"{best.batch_size} against 1", apart(_rates(best), _rates(own[1])))


def _weights_share(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    device = POOL[claim.engine]
    lots = [one for one in found.bandwidths if one.device == device]
    known = [one for one in lots if one.copy]
    for model in claim.models:
        one = _timed(found, model, claim.variant, claim.engine).get(1)
        if one is None:
            yield Cell(model, "", _why_not(found, machine, model, claim.variant, claim.engine, 1), unit="share")
        elif not known:
            why = next((lot.reason for lot in lots if lot.reason), "the bandwidth was not measured")
            yield Cell(model, "", _absent(NOT_RUN, why), unit="share")
        else:
            shares = [_share_of(one, lot) for lot in known]
            yield Cell(model, "batch 1", reduce(either, shares), unit="share")


def _share_of(one: EngineTime, bandwidth: Bandwidth) -> Reading:
    """By the faster of copy and triad."""
    best = max(bandwidth.copy, bandwidth.triad, key=lambda rounds: median(rounds).value or 0.0 if rounds else 0.0)
    return apart([one.size_bytes / rate for rate in best], one.rounds_s)


def _trees_latency(claim: Claim, found: Findings, _: Machine) -> Iterable[Cell]:
    own = _timed(found, TREES, BASELINE, "cpu")
    for size in claim.batch_sizes or tuple(sorted(own)) or (1,):
        if size in own:
            yield Cell(TREES, _at(size), median(own[size].rounds_s), unit="s")
        else:
            reason = found.not_run.get("trees", "this batch size was not timed")
            yield Cell(TREES, _at(size), _absent(NOT_RUN, reason), unit="s")
    for size, one in sorted(own.items()):
        yield Cell(TREES, f"{_at(size)}, CPU", median(_rates(one)), is_judged=False, unit="rows/s")
    reading = _absent(NOT_MEASURED_HERE, NO_TREE_KERNEL)
    yield Cell(TREES, "GPU", reading, is_judged=False, unit="rows/s")


# -- money and energy -------------------------------------------------------------------------------------------------


def _price(found: Findings, engine: str) -> Price | None:
    return next((price for price in found.prices if price.device == POOL[engine]), None)


def prices_of_million(one: EngineTime, price: Price) -> tuple[float, ...]:
    """What a million rows cost at full load, for each round."""
    return tuple(per_million(price.per_hour, rate) for rate in _rates(one))


def _price_gain(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    sides = ((claim.variant, claim.engine), (claim.against_variant, claim.against_engine))
    for model in claim.models:
        best = [fastest(_timed(found, model, *side).values()) for side in sides]
        costs: list[tuple[float, ...] | None] = []
        for (variant, engine), one in zip(sides, best, strict=True):
            price = _price(found, engine)
            costs.append(None if one is None or price is None else prices_of_million(one, price))
            if one is not None and price is not None:
                at = f"{variant} on {engine}, batch {one.batch_size}"
                reading, unit = median(costs[-1] or ()), f"{price.currency} per million"
                yield Cell(model, at, reading, is_judged=False, unit=unit)
        own, other = costs
        if own is None or other is None:
            yield Cell(model, "", _no_cost(claim, found, machine, model, is_own=own is None))
        else:
            yield Cell(model, "", apart(other, own))


def _no_cost(claim: Claim, found: Findings, machine: Machine, model: str, *, is_own: bool) -> Reading:
    side = (claim.variant, claim.engine) if is_own else (claim.against_variant, claim.against_engine)
    if _timed(found, model, *side) and _price(found, side[1]) is None:
        return _absent(NOT_RUN, found.not_run.get("prices", "the price list has no offer for this device"))
    return _why_not(found, machine, model, *side)


def _energy_gain(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    """Each at the batch size at which it takes least."""
    for model in claim.models:
        own = _least_joules(found, model, claim.variant, claim.engine)
        other = _least_joules(found, model, claim.against_variant, claim.against_engine)
        is_other_alone = bool(own) and not other
        reason = f"no energy counter of the {POOL[claim.against_engine]} is read here" if is_other_alone else NO_COUNTER
        reason = reason if machine.cards else f"{NO_CARD}; {NO_COUNTER}"
        yield Cell(model, "", apart(other, own) if own and other else _absent(NOT_MEASURED_HERE, reason))


def _least_joules(found: Findings, model: str, variant: str, engine: str) -> tuple[float, ...]:
    combination = (model, variant, engine)
    some = [one.joules for one in found.energies if (one.model, one.variant, one.engine) == combination and one.joules]
    return min(some, key=lambda joules: median(joules).value or 0.0, default=())


# -- simulated and served ---------------------------------------------------------------------------------------------


def _gpu_hours_saved(claim: Claim, found: Findings, _: Machine) -> Iterable[Cell]:
    for policy in claim.policies:
        runs = [run for run in found.simulated if run.policy == policy and run.always_gpu_hours > 0]
        if not runs:
            reason = found.not_run.get("scaling", "it was not simulated")
            yield Cell(policy, "simulated", _absent(NOT_RUN, reason), unit="share")
            continue
        saved = [1 - run.gpu_hours / run.always_gpu_hours for run in runs]
        yield Cell(policy, "simulated", median(saved, 1.0), unit="share")
        in_time = median([run.in_time_ratio for run in runs], 1.0)
        yield Cell(policy, "simulated: answered in time", in_time, is_judged=False, unit="share")
        cost = paired([run.cost / run.always_cost for run in runs])
        yield Cell(policy, "simulated: cost beside always on", cost, is_judged=False, unit="share")


def _of_served(found: Findings, model: str, variant: str, engine: str) -> list[ServingRates]:
    combination = (model, variant, POOL[engine])
    return [one for one in found.served if (one.model, one.variant, one.pool) == combination]


def _best_served(runs: list[ServingRates]) -> ServingRates | None:
    """The batch size at which the engine alone is fastest."""
    some = [run for run in runs if run.served and run.in_process]
    return max(some, key=lambda run: median(run.in_process).value or 0.0, default=None)


def _not_served(found: Findings, machine: Machine, runs: list[ServingRates], engine: str) -> Reading:
    if engine in GPU_ENGINES and not machine.cards:
        return _absent(NOT_MEASURED_HERE, NO_CARD)
    reasons = [run.reason for run in runs if run.reason]
    return _absent(NOT_RUN, reasons[0] if reasons else found.not_run.get("served", "it was not served"))


def _served_share(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    """At the batch size at which the engine itself does most."""
    for model in claim.models:
        runs = _of_served(found, model, claim.variant, claim.engine)
        best = _best_served(runs)
        if best is None:
            yield Cell(model, "", _not_served(found, machine, runs, claim.engine), unit="share")
            continue
        pairs = [served / alone for served, alone in zip(best.served, best.in_process, strict=True)]
        yield Cell(model, _at(best.batch_size), paired(pairs), unit="share")
        for run in runs:
            yield Cell(model, f"{_at(run.batch_size)}, served", median(run.served), is_judged=False, unit="rows/s")
            alone = median(run.in_process)
            yield Cell(model, f"{_at(run.batch_size)}, in process", alone, is_judged=False, unit="rows/s")


def _served_gain(claim: Claim, found: Findings, machine: Machine) -> Iterable[Cell]:
    """At one row, which is how such nets are used."""
    sides = ((claim.variant, claim.engine), (claim.against_variant, claim.against_engine))
    for model in claim.models:
        runs = [_of_served(found, model, *side) for side in sides]
        ones = [next((run for run in its if run.batch_size == 1 and run.served), None) for its in runs]
        for (variant, engine), one in zip(sides, ones, strict=True):
            if one is not None:
                at = f"batch 1, {variant} on the {POOL[engine]} pool"
                yield Cell(model, at, median(one.served), is_judged=False, unit="rows/s")
        own, other = ones
        if own is None or other is None:
            missing = 0 if own is None else 1
            yield Cell(model, "", _not_served(found, machine, runs[missing], sides[missing][1]))
        else:
            yield Cell(model, "batch 1", apart(own.served, other.served))


_OF: dict[str, Callable[[Claim, Findings, Machine], Iterable[Cell]]] = {
    "speed_up": _speed_up,
    "batch_gain": _batch_gain,
    "weights_share": _weights_share,
    "trees_latency": _trees_latency,
    "price_gain": _price_gain,
    "energy_gain": _energy_gain,
    "gpu_hours_saved": _gpu_hours_saved,
    "served_gain": _served_gain,
    "served_share": _served_share,
}
