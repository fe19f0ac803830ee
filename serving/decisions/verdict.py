"""Does the GPU pay, for this model at this load and objective? `pays`, `does_not_pay`, `depends`, or `inconclusive` and why.

Pure: a plan and the profiles that it was made from, in; a verdict in numbers, out. How it is said is `wording.py`'s.
Rule: an answer is told only if it holds at both ends of what was measured; where somebody's file or too few runs stand behind a number that
decides, there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from serving.decisions.break_even import break_evens
from serving.decisions.fleet import CheapestFleets, PricedFleet, choices, is_stricter
from serving.decisions.plan.result import Objective, Plan, PricedServer
from serving.decisions.prices import pool_of
from serving.decisions.profile import MaxRate, Profile, ServerProfile, provenance_of
from serving.decisions.sensitivity import Flip, flips

Word = Literal["pays", "does_not_pay", "depends", "inconclusive"]
ReasonKind = Literal[
    "cheaper",
    "only_one",  # of the two meets the objective
    "unmet",  # by either
    "over_cap",  # whatever carries it costs more than it may
    "rate",
    "measurement",
    "price",
    "generator",
    "stricter",  # than asked for was the objective of what was measured
    "too_few",
    "few_requests",  # behind a rate that decides
    "void",
    "missing",
    "unpriced",
    "what_if",
]
POOLS = ("cpu", "gpu")

# Fewer have no interval (`serving/measure`), and as many misses are asked for before a server is called too slow at any rate.
MIN_RUNS = 3
# Requests behind a highest rate, all its runs together. With fewer, one in a hundred could be late in 5 % of cases although none was seen
# to be: 0.99 ** 299 = 0.05.
MIN_REQUESTS = 299
# Two sides nearer than this are not told apart: one region's list differs from the next by more. A guess, not measured.
MIN_SAVING_RATIO = 0.02


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
    """The cheapest whole servers at a rate: CPU servers alone, or some with a GPU, beside which CPU servers may stand.

    `low` and `high`: over the readings of what was measured, from the GPU's best to its worst.
    """

    servers: tuple[tuple[str, int], ...]  # label, how many
    per_hour: float
    low_per_hour: float
    high_per_hour: float | None  # None: by one reading nothing of this kind carries it


@dataclass(frozen=True, slots=True)
class AtRate:
    """What holds at one of the rates asked for. A side is None where nothing of its kind meets the objective."""

    hours: float
    rate_rps: float
    cpu: Side | None
    gpu: Side | None
    word: Word


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
    rates = [(hours, rate) for hours, rate in objective.rates if rate > 0]
    read = [choices(cpu, gpu, rate, objective) for _, rate in rates]
    at_rates = tuple(_at_rate(hours, rate, three) for (hours, rate), three in zip(rates, read, strict=True))
    absent = [reason for pool in POOLS if (reason := _absent(pool, plan, profiles)) is not None]
    deciding = _deciding(read)
    answer, why = _too_dear(plan) or _answer(at_rates, deciding, objective)
    doubts = absent + _doubts(deciding)
    told_by_file = [
        Reason("what_if", p.pool, detail=provenance_of(p.profile, p.server))
        for p in deciding
        if provenance_of(p.profile, p.server) != "measured"
    ] + _slow_by_file(plan, profiles)
    word: Word
    what_if: Word | None
    if doubts:
        word, what_if, reasons = "inconclusive", None, doubts + told_by_file
    elif told_by_file:
        word, what_if, reasons = "inconclusive", answer, told_by_file + why
    else:
        word, what_if, reasons = answer, None, why
    low, middle, high = break_evens(cpu, gpu, objective)
    return Verdict(
        word,
        what_if,
        tuple(dict.fromkeys(reasons)),
        tuple(replace(at, word=word) if word == "inconclusive" else at for at in at_rates),
        () if absent or not rates else flips(cpu, gpu, middle, objective),
        middle,
        low,
        high,
    )


# -- the answer --------------------------------------------------------------------------------------------------------


def _at_rate(hours: float, rate_rps: float, read: tuple[CheapestFleets, CheapestFleets, CheapestFleets]) -> AtRate:
    """An answer holds by all three readings; servers are whole, so that the middle need not lie between both ends."""
    words = {_word(choice) for choice in read}
    cpu, gpu = _side([choice.cpu for choice in read]), _side([choice.gpu for choice in read])
    return AtRate(hours, rate_rps, cpu, gpu, words.pop() if len(words) == 1 else "depends")


def _side(fleets: Sequence[PricedFleet | None]) -> Side | None:
    """`fleets`: in the middle the one of the middle."""
    known = [fleet for fleet in fleets if fleet is not None]
    if not known:
        return None
    middle = fleets[1] or known[0]
    servers = tuple((priced.server.label, count) for priced, count in middle.servers)
    prices = [fleet.per_hour for fleet in known]
    return Side(servers, middle.per_hour, min(prices), max(prices) if len(known) == len(fleets) else None)


def _word(choice: CheapestFleets) -> Word:
    """By one reading of what was measured."""
    if choice.gpu is None:
        return "does_not_pay"
    if choice.cpu is None or choice.gpu.per_hour <= choice.cpu.per_hour * (1 - MIN_SAVING_RATIO):
        return "pays"
    return "does_not_pay" if choice.cpu.per_hour <= choice.gpu.per_hour * (1 - MIN_SAVING_RATIO) else "depends"


def _too_dear(plan: Plan) -> tuple[Word, list[Reason]] | None:
    """What nobody may pay for does not pay, whichever side is the cheaper one."""
    cap = next((binding for binding in plan.bindings if binding.constraint == "price"), None)
    return None if cap is None else ("does_not_pay", [Reason("over_cap", None, cap.possible, cap.wanted)])


def _answer(
    at_rates: Sequence[AtRate], deciding: Sequence[PricedServer], objective: Objective
) -> tuple[Word, list[Reason]]:
    words = {at.word for at in at_rates}
    if not at_rates:
        return "inconclusive", [Reason("unmet", detail="no rate above 0")]
    if words == {"pays"} or words == {"does_not_pay"}:
        return at_rates[0].word, [_why(max(at_rates, key=lambda at: at.rate_rps), objective)]
    if words == {"pays", "does_not_pay"}:
        return "depends", [Reason("rate", value=min(at.rate_rps for at in at_rates if at.word == "pays"))]
    unsure = [at for at in at_rates if at.word == "depends"]
    if any(p.max_rate.is_bounded_by_generator for p in deciding):
        return "inconclusive", [Reason("generator", value=unsure[0].rate_rps)]
    if stricter := [p.max_rate.objective_s for p in deciding if is_stricter(p, objective)]:
        asked_s = objective.latency_p99_s
        return "inconclusive", [Reason("stricter", value=unsure[0].rate_rps, limit=asked_s, detail=f"{stricter[0]:g}")]
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


def _deciding(choices: Sequence[tuple[CheapestFleets, CheapestFleets, CheapestFleets]]) -> list[PricedServer]:
    """Servers that are in the cheapest fleet of either kind somewhere within what was measured, at a rate that was asked for."""
    fleets = [fleet for three in choices for one in three for fleet in (one.cpu, one.gpu) if fleet is not None]
    found = {id(priced.server): priced for fleet in fleets for priced, count in fleet.servers if count}
    return list(found.values())


def _doubts(deciding: Sequence[PricedServer]) -> list[Reason]:
    """Of what was measured by ourselves; what a file tells has no runs."""
    doubts = []
    for priced in deciding:
        if provenance_of(priced.profile, priced.server) != "measured":
            continue
        num_runs = len(priced.max_rate.runs)
        if num_runs < MIN_RUNS or priced.max_rate.low_rps is None or priced.max_rate.high_rps is None:
            doubts.append(Reason("too_few", priced.pool, num_runs, MIN_RUNS, priced.server.label))
        points = priced.server.load
        num_due = _num_behind(priced)
        if num_due is not None and num_due < MIN_REQUESTS:
            doubts.append(Reason("few_requests", priced.pool, num_due, MIN_REQUESTS, priced.server.label))
        voids = [point.void for point in points if point.void is not None]
        if voids and len(voids) == len(points):
            doubts.append(Reason("void", priced.pool, len(voids), len(points), voids[0]))
    return doubts


def _num_behind(priced: PricedServer) -> int | None:
    """Requests that were due in the runs that met the highest rate. None where a profile keeps no runs."""
    highest = priced.max_rate
    behind = [
        point.num_due
        for point in priced.server.load
        if point.is_met
        and (point.objective_s, point.batch_size) == (highest.objective_s, highest.batch_size)
        and any(abs(point.rate_rps - rate) <= 1e-9 * rate for rate in highest.runs)
    ]
    return sum(behind) if behind else None


def _slow_by_file(plan: Plan, profiles: Sequence[Profile]) -> list[Reason]:
    """Of kinds of which nothing could be weighed: that they are too slow is what a file tells."""
    return [
        Reason("what_if", pool, detail=provenance_of(profile, server))
        for pool in POOLS
        if not any(priced.pool == pool for priced in plan.considered)
        for profile in profiles
        for server in profile.servers
        if pool_of(server) == pool and provenance_of(profile, server) != "measured"
    ]


def _absent(pool: str, plan: Plan, profiles: Sequence[Profile]) -> Reason | None:
    """Why nothing of this kind could be weighed, other than that it is too slow."""
    if any(priced.pool == pool for priced in plan.considered):
        return None
    every = [(profile, s) for profile in profiles for s in profile.servers if pool_of(s) == pool]
    servers = [server for _, server in every]
    if not servers:
        return Reason("missing", pool)
    target = plan.objective
    tried = [(s, m) for s in servers if (m := s.max_rate_rps(target.latency_p99_s, target.batch_size)) is not None]
    if not tried:
        return Reason("missing", pool, limit=target.latency_p99_s, detail="no rate at this objective")
    if any(measured.rate_rps > 0 for _, measured in tried):
        return Reason("unpriced", pool, detail=servers[0].device_name)
    if bounded := [server for server, measured in tried if measured.is_bounded_by_generator]:
        voids = [point.void for server in bounded for point in server.load if point.void is not None]
        return Reason("void", pool, len(voids), detail=voids[0] if voids else "the generator was too slow")
    from_files = {id(server) for profile, server in every if provenance_of(profile, server) != "measured"}
    unsure = [(s, m) for s, m in tried if id(s) not in from_files and not _is_alone_too_slow(s, m)]
    fewest = min(((_num_missed(s, m), s.label) for s, m in unsure), default=None)
    if fewest is not None and fewest[0] < MIN_RUNS:
        return Reason("too_few", pool, fewest[0], MIN_RUNS, fewest[1])
    return None


def _is_alone_too_slow(server: ServerProfile, measured: MaxRate) -> bool:
    """Whether half of all requests took longer than the objective although they came one at a time."""
    through = [t for t in server.ladder if t.rung.startswith("gateway") and t.batch_size == measured.batch_size]
    return any((t.latency_p50_s if t.low_s is None else t.low_s) > measured.objective_s for t in through)


def _num_missed(server: ServerProfile, measured: MaxRate) -> int:
    """Runs that count and missed the objective: each at a rate at which the server should have been in time."""
    target = (measured.batch_size, measured.objective_s)
    return sum(p.void is None and not p.is_met and (p.batch_size, p.objective_s) == target for p in server.load)
