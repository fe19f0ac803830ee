"""What `tandem simulate` does: checks what was asked, makes the requests, has every policy answer them, shows the outcomes.

Random numbers are made here, from one seed: every policy gets the same requests and the same cold starts. Rule: nothing is decided here.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from shlex import join
from time import process_time
from typing import Any

from serving.decisions.simulate import arrivals as make
from serving.decisions.simulate import flow
from serving.decisions.simulate.answer import answer, flow_answer
from serving.decisions.simulate.arrivals import Arrivals, Bursts
from serving.decisions.simulate.outcome import Outcome, as_json, table
from serving.decisions.simulate.rivals import rivals
from serving.decisions.simulate.run import Draws, simulate
from serving.decisions.simulate.scenario import POLICIES, Policy, Setting, read_scenario
from serving.decisions.traces import read_trace
from serving.errors import UserError

MANY = 2_000_000  # requests; one by one they would take a minute a policy
PER_SECOND = 100  # of many requests, that are looked at in a second in which nothing changes


OF_MADE = ("arrivals", "rate_rps", "duration_s", "burst_times", "burst_every_s", "burst_lasting_s", "swing")


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """`given`: which of these were said, were it with the value that they have anyway."""

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
    report: Path | None = None
    as_json: bool = False
    flow: bool = False
    recommend: bool = False
    given: frozenset[str] = frozenset()

    @staticmethod
    def of(**said: Any) -> SimulateOptions:
        """None: nothing was said."""
        given = {name: value for name, value in said.items() if value is not None}
        return SimulateOptions(**given, given=frozenset(given))


@dataclass(frozen=True, slots=True)
class Traffic:
    arrivals: Arrivals
    says: str
    per_second: int | None


def run(options: SimulateOptions) -> int:
    check(options)
    setting = _setting(options)
    traffic = _traffic(options, setting)
    if options.flow or options.recommend:
        return _flow(options, setting, traffic)
    outcomes: list[Outcome] = []
    for policy in POLICIES:
        if policy.name in (options.policies or _ALL):
            outcomes.append(_outcome(policy, setting, traffic, options, outcomes))
    _show(outcomes, options, setting, traffic)
    if options.report is not None:
        from serving.decisions.simulate.page import render  # needs packages that the gateway's image lacks

        page = render(outcomes, options.scenario, traffic.says, setting.objective_s, f"tandem {join(sys.argv[1:])}")
        options.report.write_text(page, encoding="utf-8")
    if options.picture is not None:
        from serving.decisions.simulate.picture import draw  # the same

        options.picture.write_text(
            draw(outcomes, f"what-if: {traffic.says}, objective {setting.objective_s:g} s"), encoding="utf-8"
        )
    return 0


def _flow(options: SimulateOptions, setting: Setting, traffic: Traffic) -> int:
    """The scaler's rule and others' over all pools, by a flow of work."""
    work, sizes = flow.of_arrivals(traffic.arrivals, setting)
    rules, first = setting.wake, flow.first_of(work, sizes, setting.wake)
    rule = {"tandem": flow.by_scaler(sizes, rules, first), **rivals(sizes, first, rules.max_load_ratio)}
    outcomes = [flow.play(name, work, sizes, rules, wanted, first) for name, wanted in rule.items()]
    best = flow.optimum(work, sizes, rules, traffic.arrivals.duration_s, first)
    said: dict[str, float] = {}
    if options.recommend:
        advised, outcome = flow.recommended(work, sizes, rules)
        outcomes.append(outcome)
        said = {name: value for name, value in advised.model_dump().items() if value != getattr(rules, name)}
    if options.as_json:
        found = [{**asdict(it), "charged": it.charged, "regret": flow.regret(it, best)} for it in (*outcomes, best)]
        facts = {"version": 1, "is_what_if": True, "scenario": str(options.scenario), "traffic": traffic.says}
        told = {"sentence": flow_answer(outcomes, best).sentence, "rules": found, "scaling": said}
        print(json.dumps({**facts, "seed": options.seed, **told}, indent=2))
        return 0
    print(f"{flow_answer(outcomes, best).lines()}\n")
    print(f"{traffic.says}; what-if by a flow of work: curves and prices are those of {options.scenario}")
    print(flow.table(outcomes, best))
    if options.recommend:
        print("\nscaling: {}  # as it is" if not said else "\nscaling:")
        for name, value in said.items():
            print(f"  {name}: {value:g}  # instead of {getattr(rules, name):g}")
    return 0


def _show(outcomes: list[Outcome], options: SimulateOptions, setting: Setting, traffic: Traffic) -> None:
    if options.as_json:
        facts = {"scenario": str(options.scenario), "traffic": traffic.says, "objective_s": setting.objective_s}
        facts["sentence"] = answer(outcomes, setting.objective_s).sentence
        print(
            json.dumps(as_json(outcomes, {**facts, "per_second": traffic.per_second, "seed": options.seed}), indent=2)
        )
        return
    print(f"{answer(outcomes, setting.objective_s).lines()}\n")
    part = f", {traffic.per_second} of each second looked at" if traffic.per_second is not None else ""
    print(
        f"{traffic.says}{part}; objective {setting.objective_s:g} s; what-if: curves and prices are those of {options.scenario}"
    )
    print(table(outcomes))


_ALL = tuple(policy.name for policy in POLICIES)


def _setting(options: SimulateOptions) -> Setting:
    setting = read_scenario(options.scenario)
    if options.objective_s is not None:
        setting = replace(setting, objective_s=options.objective_s)
    if (noise := options.noise_ratio) is not None:
        setting = replace(setting, pools=tuple(replace(it, noise_ratio=noise) for it in setting.pools))
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
    arrivals = make.ListedArrivals([at for at, _ in came], came[-1][0] + 1.0, [rows for _, rows in came])
    says = f"{len(came):,} requests of {path.name}" + (
        f", each arrival {options.copies} times" if options.copies > 1 else ""
    )
    return Traffic(arrivals, says, options.per_second or (PER_SECOND if len(came) > MANY else None))


def _made(options: SimulateOptions, setting: Setting) -> Traffic:
    rate, duration_s = options.rate_rps, options.duration_s
    kinds: dict[str, Callable[[], Callable[[float], float]]] = {
        "poisson": lambda: make.steady(rate),
        "daily": lambda: make.daily(rate, options.swing),
        "bursts": lambda: make.bursts(rate, _bursts(options), random.Random(f"bursts {options.seed}")),
    }
    arrivals = make.PoissonArrivals(
        kinds[options.arrivals](), duration_s, lambda number: random.Random(f"{number} {options.seed}"), setting.rows
    )
    return Traffic(
        arrivals,
        f"{options.arrivals} arrivals, {rate:g}/s for {duration_s:g} s, seed {options.seed}",
        options.per_second or (PER_SECOND if rate * duration_s > MANY else None),
    )


def _bursts(options: SimulateOptions) -> Bursts:
    return Bursts(options.burst_times, options.burst_every_s, options.burst_lasting_s)


def check(options: SimulateOptions) -> None:
    """What the command line alone can tell. Raises UserError."""
    if options.trace is not None and not options.given.isdisjoint(OF_MADE):
        raise UserError(
            "--trace brings its own arrivals: leave out --arrivals, --rate, --duration and what belongs to them"
        )
    if options.trace is None and options.copies != 1:
        raise UserError("--copies is for a trace; --rate says how many requests are made")
    if options.flow or options.recommend:
        of_requests = {
            "--policy": options.policies,
            "--picture": options.picture,
            "--report": options.report,
            "--per-second": options.per_second,
            "--noise": options.noise_ratio,
        }
        for option, given in of_requests.items():
            if given:
                raise UserError(f"{option} is for requests one by one, and a flow of work has none; leave it out")
    _check_use(options)
    if options.arrivals == "bursts":
        try:
            _bursts(options)
        except ValueError as error:
            raise UserError(f"--burst-times, --burst-every, --burst-lasting: {error}") from None
    for option, path in (("--picture", options.picture), ("--report", options.report)):
        if path is not None:
            _check_file(option, path)


def _check_use(options: SimulateOptions) -> None:
    """What was given does something."""
    only_for = {
        "jitter_s": ("--jitter", "--copies above 1", options.copies > 1),
        "swing": ("--swing", "--arrivals daily", options.arrivals == "daily"),
        "burst_times": ("--burst-times", "--arrivals bursts", options.arrivals == "bursts"),
        "burst_every_s": ("--burst-every", "--arrivals bursts", options.arrivals == "bursts"),
        "burst_lasting_s": ("--burst-lasting", "--arrivals bursts", options.arrivals == "bursts"),
    }
    for name, (option, what, is_used) in only_for.items():
        if name in options.given and not is_used:
            raise UserError(f"{option} does nothing here: it is for {what}")


def _check_file(option: str, path: Path) -> None:
    """Before minutes of simulating: whether it can be written after them."""
    if path.is_dir():
        raise UserError(f"{option}: {path} is a folder; give the file that is to be written")
    if not path.parent.is_dir():
        raise UserError(f"{option}: there is no folder {path.parent}; make it, or give another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option}: {path} may not be written")
