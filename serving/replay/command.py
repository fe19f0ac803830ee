"""What `tandem simulate` does: checks what was asked, makes the requests, has every policy answer them, shows the outcomes.

Random numbers are made here, from one seed: every policy gets the same requests and the same cold starts. Rule: nothing is decided here.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from time import process_time

from serving.errors import UserError
from serving.planning.simulate import arrivals as make
from serving.planning.simulate.arrivals import Arrivals
from serving.planning.simulate.hindsight import simulate
from serving.planning.simulate.outcome import Outcome
from serving.planning.simulate.run import Draws
from serving.planning.simulate.setting import POLICIES, Policy, Setting
from serving.replay.picture import draw
from serving.replay.scenario import read_scenario
from serving.replay.table import as_json, table
from serving.replay.traces import read_trace

MANY = 2_000_000  # requests; one by one they would take a minute a policy
PER_SECOND = 100  # of many requests, that are looked at in a second in which nothing changes


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
    per_second: int | None = None
    noise_ratio: float | None = None
    objective_s: float | None = None
    policies: tuple[str, ...] = ()
    seed: int = 1
    picture: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    arrivals: Arrivals
    says: str
    per_second: int | None


def run(options: SimulateOptions) -> int:
    check(options)
    setting = _setting(options)
    traffic = _traffic(options, setting)
    outcomes: list[Outcome] = []
    for policy in POLICIES:
        if policy.name in (options.policies or _ALL):
            outcomes.append(_outcome(policy, setting, traffic, options, outcomes))
    if options.picture is not None:
        options.picture.write_text(
            draw(outcomes, f"what-if: {traffic.says}, objective {setting.objective_s:g} s"), encoding="utf-8"
        )
    if options.as_json:
        facts = {"scenario": str(options.scenario), "traffic": traffic.says, "objective_s": setting.objective_s}
        print(
            json.dumps(as_json(outcomes, {**facts, "per_second": traffic.per_second, "seed": options.seed}), indent=2)
        )
        return 0
    part = f", {traffic.per_second} of each second looked at" if traffic.per_second is not None else ""
    print(
        f"{traffic.says}{part}; objective {setting.objective_s:g} s; what-if: curves and prices are those of {options.scenario}"
    )
    print(table(outcomes))
    return 0


_ALL = tuple(policy.name for policy in POLICIES)


def _setting(options: SimulateOptions) -> Setting:
    setting = read_scenario(options.scenario)
    if options.objective_s is not None:
        setting = replace(setting, objective_s=options.objective_s)
    if (noise := options.noise_ratio) is not None:
        setting = replace(
            setting, cpu=replace(setting.cpu, noise_ratio=noise), gpu=replace(setting.gpu, noise_ratio=noise)
        )
    return setting


def _outcome(
    policy: Policy, setting: Setting, traffic: Traffic, options: SimulateOptions, rivals: list[Outcome]
) -> Outcome:
    began = process_time()
    outcome = simulate(
        setting,
        policy,
        traffic.arrivals,
        lambda: draws(options.seed),
        per_second=traffic.per_second,
        rivals=rivals,
    )
    if not options.as_json:
        print(f"{policy.name}: {process_time() - began:.1f} s of processor time", file=sys.stderr)
    return outcome


def draws(seed: int) -> Draws:
    """Cold starts and the noise of executions have generators of their own: neither changes the other, nor the arrivals."""
    cold_start, noise = random.Random(f"cold starts {seed}"), random.Random(f"noise {seed}")

    def stretch(noise_ratio: float) -> float:
        """Lognormal, with the mean 1."""
        variance = log(1 + noise_ratio**2)
        return exp(noise.gauss(-variance / 2, sqrt(variance)))

    return Draws(cold_start.random, stretch)


def _traffic(options: SimulateOptions, setting: Setting) -> Traffic:
    return _made(options, setting) if options.trace is None else _traced(options, options.trace, setting)


def _traced(options: SimulateOptions, path: Path, setting: Setting) -> Traffic:
    came = make.copies(
        read_trace(path, setting.rows), options.copies, options.jitter_s, random.Random(f"copies {options.seed}")
    )
    arrivals = make.Listed([at for at, _ in came], came[-1][0] + 1.0, [rows for _, rows in came])
    says = f"{len(came):,} requests of {path.name}" + (
        f", each arrival {options.copies} times" if options.copies > 1 else ""
    )
    return Traffic(arrivals, says, options.per_second or (PER_SECOND if len(came) > MANY else None))


def _made(options: SimulateOptions, setting: Setting) -> Traffic:
    rate, duration_s = options.rate_rps, options.duration_s
    kinds: dict[str, Callable[[], Callable[[float], float]]] = {
        "poisson": lambda: make.steady(rate),
        "daily": lambda: make.daily(rate, options.swing),
        "bursts": lambda: make.bursts(
            rate,
            options.burst_times,
            options.burst_every_s,
            options.burst_lasting_s,
            duration_s,
            random.Random(f"bursts {options.seed}"),
        ),
    }
    arrivals = make.Made(
        kinds[options.arrivals](), duration_s, lambda number: random.Random(f"{number} {options.seed}"), setting.rows
    )
    return Traffic(
        arrivals,
        f"{options.arrivals} arrivals, {rate:g}/s for {duration_s:g} s, seed {options.seed}",
        options.per_second or (PER_SECOND if rate * duration_s > MANY else None),
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
