"""What `tandem simulate` does: checks what was asked, makes the requests, has every policy answer them, shows the outcomes.

Random numbers are made here, from one seed: every policy gets the same requests and the same cold starts. Rule: nothing is decided here.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from serving.errors import UserError
from serving.planning.simulate import arrivals as make
from serving.planning.simulate.arrivals import Arrival
from serving.planning.simulate.outcome import Outcome
from serving.planning.simulate.run import simulate
from serving.planning.simulate.setting import POLICIES, Setting
from serving.replay.picture import draw
from serving.replay.scenario import read_scenario
from serving.replay.table import as_json, table
from serving.replay.traces import read_trace

MANY = 2_000_000  # requests; one by one they would take half a minute a policy
SLOT_S = 0.01  # in which many requests are counted together
Arrivals = Callable[[], Iterable[Arrival]]


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    scenario: Path
    trace: Path | None = None
    copies: int = 1
    jitter_s: float = 1.0
    arrivals: str = "poisson"
    rate_rps: float = 10.0
    duration_s: float = 3600.0
    burst_times: float = 5.0
    burst_every_s: float = 600.0
    burst_lasting_s: float = 60.0
    swing: float = 0.8
    slot_s: float | None = None
    objective_s: float | None = None
    policies: tuple[str, ...] = ()
    seed: int = 1
    picture: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    arrivals: Arrivals
    duration_s: float
    says: str
    slot_s: float | None


def run(options: SimulateOptions) -> int:
    check(options)
    setting = read_scenario(options.scenario)
    if options.objective_s is not None:
        setting = replace(setting, objective_s=options.objective_s)
    traffic = _traffic(options)
    if traffic.slot_s is not None and traffic.slot_s >= setting.objective_s / 2:
        raise UserError(
            f"--slot {traffic.slot_s:g} is half of the objective or more: what happens within it would not show"
        )
    outcomes = [
        _outcome(policy.name, setting, traffic, options)
        for policy in POLICIES
        if policy.name in (options.policies or _ALL)
    ]
    if options.picture is not None:
        options.picture.write_text(
            draw(outcomes, f"what-if: {traffic.says}, objective {setting.objective_s:g} s"), encoding="utf-8"
        )
    if options.as_json:
        facts = {"scenario": str(options.scenario), "traffic": traffic.says, "objective_s": setting.objective_s}
        print(json.dumps(as_json(outcomes, {**facts, "slot_s": traffic.slot_s, "seed": options.seed}), indent=2))
        return 0
    slots = f", counted in slots of {traffic.slot_s:g} s" if traffic.slot_s is not None else ""
    print(
        f"{traffic.says}{slots}; objective {setting.objective_s:g} s; what-if: curves and prices are those of {options.scenario}"
    )
    print(table(outcomes))
    return 0


_ALL = tuple(policy.name for policy in POLICIES)


def _outcome(name: str, setting: Setting, traffic: Traffic, options: SimulateOptions) -> Outcome:
    policy = next(policy for policy in POLICIES if policy.name == name)
    began = perf_counter()
    chance = random.Random(options.seed + 1).random
    outcome = simulate(setting, policy, traffic.arrivals, traffic.duration_s, chance=chance)
    if not options.as_json:
        print(f"{name}: {perf_counter() - began:.1f} s", file=sys.stderr)
    return outcome


def _traffic(options: SimulateOptions) -> Traffic:
    return _made(options) if options.trace is None else _traced(options, options.trace)


def _traced(options: SimulateOptions, path: Path) -> Traffic:
    times = make.copies(read_trace(path), options.copies, options.jitter_s, random.Random(options.seed))
    slot_s = options.slot_s or (SLOT_S if len(times) > MANY else None)
    says = f"{len(times):,} requests of {path.name}" + (
        f", each arrival {options.copies} times" if options.copies > 1 else ""
    )
    if slot_s is None:
        return Traffic(lambda: make.one_by_one(times), times[-1] + 1.0, says, None)
    return Traffic(lambda: make.merged(times, slot_s), times[-1] + 1.0 + slot_s, says, slot_s)


def _made(options: SimulateOptions) -> Traffic:
    rate, duration_s = options.rate_rps, options.duration_s
    slot_s = options.slot_s or (SLOT_S if rate * duration_s > MANY else None)
    kinds: dict[str, Callable[[random.Random], Callable[[float], float]]] = {
        "poisson": lambda _: make.steady(rate),
        "daily": lambda _: make.daily(rate, options.swing),
        "bursts": lambda generator: make.bursts(
            rate, options.burst_times, options.burst_every_s, options.burst_lasting_s, duration_s, generator
        ),
    }

    def arrivals() -> Iterable[Arrival]:
        generator = random.Random(options.seed)
        return make.requests(kinds[options.arrivals](generator), duration_s, generator, slot_s)

    return Traffic(
        arrivals,
        duration_s,
        f"{options.arrivals} arrivals, {rate:g}/s for {duration_s:g} s, seed {options.seed}",
        slot_s,
    )


def check(options: SimulateOptions) -> None:
    """What the command line alone can tell. Raises UserError."""
    made = SimulateOptions(scenario=options.scenario)
    of_made = ("arrivals", "rate_rps", "duration_s", "burst_times", "burst_every_s", "burst_lasting_s", "swing")
    if options.trace is not None and any(getattr(options, name) != getattr(made, name) for name in of_made):
        raise UserError(
            "--trace brings its own arrivals: leave out --arrivals, --rate, --duration and what belongs to them"
        )
    if options.trace is None and options.copies != 1:
        raise UserError("--copies is for a trace; --rate says how many requests are made")
