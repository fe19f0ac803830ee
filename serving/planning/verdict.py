"""Does the GPU pay, for this model at this load and objective? `pays`, `does_not_pay`, `depends`, or `inconclusive` and why.

Pure: a plan and the profiles that it was made from, in; a verdict in numbers, out. How it is said is `loadtest/verdict/wording.py`'s.
Rule: an answer is told only if it holds at both ends of what was measured; where somebody's file or too few runs stand behind a number that
decides, there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from serving.planning.plan.result import Objective, Plan, Priced
from serving.planning.profile import Profile, ServerProfile

Word = Literal["pays", "does_not_pay", "depends", "inconclusive"]
ReasonKind = Literal[
    "cheaper",
    "only_one",  # of the two meets the objective
    "unmet",  # by either
    "rate",
    "measurement",
    "price",
    "generator",
    "too_few",
    "void",
    "missing",
    "unpriced",
    "what_if",
]
End = Literal["low", "middle", "high"]  # of what was measured of a server's rate
POOLS = ("cpu", "gpu")

# The lowest and the highest of three runs hold the true median between them in three of four cases; of two, in one of two. A guess.
MIN_RUNS = 3
# Two sides nearer than this are not told apart: one region's list differs from the next by more. A guess, not measured.
MIN_SAVING_RATIO = 0.02
MAX_STEPS = 20_000  # of whole servers that are looked at for a break-even; beyond, the bound itself is told


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the verdict is what it is. `value` and `limit` are in the unit that the kind has: runs, a ratio, requests per second."""

    kind: ReasonKind
    pool: str | None = None
    value: float | None = None
    limit: float | None = None
    detail: str | None = None  # what no number tells: a name, a source


@dataclass(frozen=True, slots=True)
class Side:
    """The cheapest whole servers of a kind at a rate. `low` and `high`: where its servers are as fast, or as slow, as was measured."""

    label: str
    replicas: int
    per_hour: float
    low_per_hour: float
    high_per_hour: float | None  # None: at its slowest, nothing of this kind carries it


@dataclass(frozen=True, slots=True)
class AtRate:
    """What holds at one of the rates asked for. A side is None where nothing of its kind meets the objective."""

    hours: float
    rate_rps: float
    cpu: Side | None
    gpu: Side | None
    word: Word


@dataclass(frozen=True, slots=True)
class Flip:
    """What would change the answer, all else as it is: from `now` to `at`. `price` and `speed` are of one server."""

    what: Literal["rate", "gpu_price", "cpu_price", "gpu_speed", "idle"]
    now: float
    at: float
    to: Word


@dataclass(frozen=True, slots=True)
class Verdict:
    """`what_if`: the answer if what files say were so; only where the word is inconclusive for that."""

    word: Word
    what_if: Word | None
    reasons: tuple[Reason, ...]
    at_rates: tuple[AtRate, ...]
    flips: tuple[Flip, ...]
    break_even_rps: float | None
    break_even_low_rps: float | None  # over the intervals of the rates that were measured
    break_even_high_rps: float | None  # None beside a low one: at the other end the GPU never pays


def judge(plan: Plan, profiles: Sequence[Profile]) -> Verdict:
    """`profiles` are those that the plan was made from, also where nothing in them met the objective."""
    cpu, gpu = (tuple(p for p in plan.considered if p.pool == pool) for pool in POOLS)
    objective = plan.objective
    at_rates = tuple(_at_rate(hours, rate, cpu, gpu, objective) for hours, rate in objective.rates if rate > 0)
    absent = [reason for pool in POOLS if (reason := _absent(pool, plan, profiles)) is not None]
    answer, why = _answer(at_rates, cpu, gpu, objective)
    deciding = _deciding(cpu, gpu, objective)
    doubts = absent + _doubts(deciding)
    told_by_file = [Reason("what_if", p.pool, detail=p.profile.provenance) for p in deciding if _is_told(p)]
    word: Word
    what_if: Word | None
    if doubts:
        word, what_if, reasons = "inconclusive", None, doubts + told_by_file
    elif told_by_file:
        word, what_if, reasons = "inconclusive", answer, told_by_file + why
    else:
        word, what_if, reasons = answer, None, why
    low, middle, high = _break_evens(cpu, gpu, objective)
    return Verdict(
        word,
        what_if,
        tuple(dict.fromkeys(reasons)),
        tuple(replace(at, word=word) if word == "inconclusive" else at for at in at_rates),
        () if absent else _flips(at_rates, middle, gpu, objective),
        middle,
        low,
        high,
    )


# -- what it costs -----------------------------------------------------------------------------------------------------


def _speed_rps(priced: Priced, end: End) -> float:
    measured = priced.max_rate
    if end == "high" and measured.is_bounded_by_generator:
        return math.inf  # nobody has seen its limit
    ends = {"low": measured.low_rps, "middle": measured.rate_rps, "high": measured.high_rps}
    value = ends[end]
    return measured.rate_rps if value is None else value


def _replicas(rate_rps: float, per_server_rps: float, objective: Objective) -> int | None:
    """Whole servers; None where one carries nothing."""
    if per_server_rps <= 0:
        return None
    return max(objective.min_replicas, math.ceil(rate_rps / (per_server_rps * objective.headroom_ratio) - 1e-9), 1)


def _cheapest(
    servers: Sequence[Priced], rate_rps: float, objective: Objective, end: End
) -> tuple[float, int, Priced] | None:
    """Price an hour, how many, of which."""
    found = [
        (count * priced.per_hour, count, index)
        for index, priced in enumerate(servers)
        if (count := _replicas(rate_rps, _speed_rps(priced, end), objective)) is not None
    ]
    if not found:
        return None
    price, count, index = min(found)
    return price, count, servers[index]


def _side(servers: Sequence[Priced], rate_rps: float, objective: Objective) -> Side | None:
    best = _cheapest(servers, rate_rps, objective, "high")
    if best is None:
        return None
    worst = _cheapest(servers, rate_rps, objective, "low")
    price, count, priced = _cheapest(servers, rate_rps, objective, "middle") or best
    return Side(priced.server.label, count, price, best[0], worst[0] if worst else None)


# -- the answer --------------------------------------------------------------------------------------------------------


def _at_rate(
    hours: float, rate_rps: float, cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective
) -> AtRate:
    sides = (_side(cpu, rate_rps, objective), _side(gpu, rate_rps, objective))
    return AtRate(hours, rate_rps, *sides, _compare(*sides))


def _compare(cpu: Side | None, gpu: Side | None) -> Word:
    """The GPU's dearest against the CPU's cheapest, and the other way round."""
    if gpu is None:
        return "does_not_pay"
    if cpu is None:
        return "pays" if gpu.high_per_hour is not None else "depends"
    if gpu.high_per_hour is not None and gpu.high_per_hour <= cpu.low_per_hour * (1 - MIN_SAVING_RATIO):
        return "pays"
    if cpu.high_per_hour is not None and cpu.high_per_hour <= gpu.low_per_hour * (1 - MIN_SAVING_RATIO):
        return "does_not_pay"
    return "depends"


def _answer(
    at_rates: Sequence[AtRate], cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective
) -> tuple[Word, list[Reason]]:
    words = {at.word for at in at_rates}
    if not at_rates:
        return "inconclusive", [Reason("unmet", detail="no rate above 0")]
    if words == {"pays"} or words == {"does_not_pay"}:
        return at_rates[0].word, [_why(at, objective) for at in at_rates[:1]]
    if words == {"pays", "does_not_pay"}:
        least = min(at.rate_rps for at in at_rates if at.word == "pays")
        return "depends", [Reason("rate", value=least)]
    unsure = [at for at in at_rates if at.word == "depends"]
    if any(p.max_rate.is_bounded_by_generator for p in _deciding(cpu, gpu, objective)):
        return "inconclusive", [Reason("generator", value=unsure[0].rate_rps)]
    return "depends", [_unsure(at) for at in unsure]


def _why(at: AtRate, objective: Objective) -> Reason:
    """Of an answer that is the same at all rates."""
    if at.cpu is None or at.gpu is None:
        one = next((pool for pool, side in (("cpu", at.cpu), ("gpu", at.gpu)) if side is not None), None)
        return Reason("unmet" if one is None else "only_one", one, limit=objective.latency_p99_s)
    saving = 1 - min(at.cpu.per_hour, at.gpu.per_hour) / max(at.cpu.per_hour, at.gpu.per_hour)
    return Reason("cheaper", "gpu" if at.word == "pays" else "cpu", saving)


def _unsure(at: AtRate) -> Reason:
    """Whether the answer hangs on what was measured or on a difference in price that is too small."""
    if at.cpu is None or at.gpu is None:
        return Reason("measurement", "cpu" if at.cpu is not None else "gpu", at.rate_rps)
    spread = [side.high_per_hour is None or side.high_per_hour > side.low_per_hour for side in (at.cpu, at.gpu)]
    if any(spread):
        return Reason("measurement", "cpu" if spread[0] else "gpu", at.rate_rps)
    return Reason("price", None, abs(at.gpu.per_hour / at.cpu.per_hour - 1), MIN_SAVING_RATIO)


# -- may it be told? ---------------------------------------------------------------------------------------------------


def _deciding(cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective) -> list[Priced]:
    """Servers that are the cheapest of their kind somewhere within what was measured, at a rate that was asked for."""
    ends: tuple[End, ...] = ("low", "middle", "high")
    found = {
        id(best[2]): best[2]
        for servers in (cpu, gpu)
        for _, rate in objective.rates
        for end in ends
        if rate > 0 and (best := _cheapest(servers, rate, objective, end)) is not None
    }
    return list(found.values())


def _doubts(deciding: Sequence[Priced]) -> list[Reason]:
    """Of what was measured by ourselves; what a file tells has no runs."""
    doubts = []
    for priced in deciding:
        if _is_told(priced):
            continue
        num_runs = len(priced.max_rate.runs)
        if num_runs < MIN_RUNS or priced.max_rate.low_rps is None or priced.max_rate.high_rps is None:
            doubts.append(Reason("too_few", priced.pool, num_runs, MIN_RUNS, priced.server.label))
        points = priced.server.load
        voids = [point.void for point in points if point.void is not None]
        if voids and len(voids) == len(points):
            doubts.append(Reason("void", priced.pool, len(voids), len(points), voids[0]))
    return doubts


def _is_told(priced: Priced) -> bool:
    return priced.profile.provenance != "measured" or priced.server.device.startswith("emulated")


def _absent(pool: str, plan: Plan, profiles: Sequence[Profile]) -> Reason | None:
    """Why nothing of this kind could be weighed, other than that it is too slow."""
    if any(priced.pool == pool for priced in plan.considered):
        return None
    servers = [server for profile in profiles for server in profile.servers if pool_of(server) == pool]
    if not servers:
        return Reason("missing", pool)
    tried = [m for s in servers if (m := s.max_rate_rps(plan.objective.latency_p99_s, plan.objective.batch_size))]
    if not tried:
        return Reason("missing", pool, limit=plan.objective.latency_p99_s, detail="no rate at this objective")
    if any(measured.rate_rps > 0 for measured in tried):
        return Reason("unpriced", pool, detail=servers[0].device_name)
    return None


def pool_of(server: ServerProfile) -> str:
    """An emulated device is of the kind that its name tells; a GPU where it tells none."""
    return "cpu" if server.device == "cpu" or server.device.startswith("emulated-cpu") else "gpu"


# -- what would change it ----------------------------------------------------------------------------------------------


def _flips(
    at_rates: Sequence[AtRate], break_even_rps: float | None, gpu: Sequence[Priced], objective: Objective
) -> tuple[Flip, ...]:
    """At the highest rate asked for, by the middle of what was measured."""
    at = max(at_rates, key=lambda at: at.rate_rps, default=None)
    if at is None or at.cpu is None or at.gpu is None:
        return ()
    pays = at.gpu.per_hour < at.cpu.per_hour
    to: Word = "does_not_pay" if pays else "pays"
    flips = []
    if break_even_rps is not None and (break_even_rps < at.rate_rps) == pays and break_even_rps > 0:
        flips.append(Flip("rate", at.rate_rps, break_even_rps, to))
    one_gpu, one_cpu = at.gpu.per_hour / at.gpu.replicas, at.cpu.per_hour / at.cpu.replicas
    flips.append(Flip("gpu_price", one_gpu, at.cpu.per_hour / at.gpu.replicas, to))
    flips.append(Flip("cpu_price", one_cpu, at.gpu.per_hour / at.cpu.replicas, to))
    if pays:
        flips.append(Flip("idle", 0.0, 1 - at.gpu.per_hour / at.cpu.per_hour, to))
    else:
        affordable = math.ceil(at.cpu.per_hour / one_gpu) - 1
        best = _cheapest(gpu, at.rate_rps, objective, "middle")
        if best is not None and affordable >= objective.min_replicas and affordable >= 1:
            needed = at.rate_rps / (affordable * objective.headroom_ratio)
            flips.append(Flip("gpu_speed", _speed_rps(best[2], "middle"), needed, to))
    return tuple(flips)


def _break_evens(
    cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective
) -> tuple[float | None, float | None, float | None]:
    """Where the GPU is fast and the CPU slow, in the middle, and the other way round."""
    ends: tuple[tuple[End, End], ...] = (("low", "high"), ("middle", "middle"), ("high", "low"))
    low, middle, high = (break_even_rps([_at(p, a) for p in cpu], [_at(p, b) for p in gpu], objective) for a, b in ends)
    return low, middle, high


def _at(priced: Priced, end: End) -> Priced:
    return replace(priced, max_rate=replace(priced.max_rate, rate_rps=_speed_rps(priced, end)))


def break_even_rps(cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective) -> float | None:
    """The lowest rate from which the GPU is the cheaper one for good; 0: at any rate; None: never, or a side is missing."""
    cpu, gpu = ([p for p in side if p.max_rate.rate_rps > 0] for side in (cpu, gpu))
    if not cpu or not gpu:
        return None
    least = max(objective.min_replicas, 1)
    slope = min(_slope(p, objective) for p in cpu)  # whole servers of a CPU cost at least this per request per second
    bounds = [
        least * p.per_hour / (slope - own) if own < slope * (1 - 1e-12) else math.inf
        for p in gpu
        for own in (_slope(p, objective),)
    ]
    bound = min(bounds)
    if bound == math.inf:
        return None
    steps = {0.0, bound}
    for priced in (*cpu, *gpu):
        step = priced.max_rate.rate_rps * objective.headroom_ratio
        count = int(bound / step) + 1
        if count > MAX_STEPS:
            return bound
        steps |= {step * k for k in range(1, count + 1) if step * k < bound}
    edges = sorted(steps)
    for low, high in zip(reversed(edges[:-1]), reversed(edges[1:]), strict=True):
        mine, theirs = (_cheapest(side, (low + high) / 2, objective, "middle") for side in (gpu, cpu))
        if mine is None or theirs is None or mine[0] >= theirs[0]:
            return high
    return 0.0


def _slope(priced: Priced, objective: Objective) -> float:
    return priced.per_hour / (priced.max_rate.rate_rps * objective.headroom_ratio)
