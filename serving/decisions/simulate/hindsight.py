"""What would have been best? The oracle: it has seen the run, and may run it again.

It plans servers for the known demand, loaded to the edge; runs; plans more for every slot in which somebody was not in time; and so on. Of
all that was tried, and of what the other policies did, it takes the fewest violations, and of those the least cost: so by its making no
other policy is better. Rule: it is not proven to be the best there is, and must not be called that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from serving.decisions.fleet import Load
from serving.decisions.simulate.arrivals import Arrivals
from serving.decisions.simulate.oracle import Plan, demands, plan
from serving.decisions.simulate.outcome import Outcome
from serving.decisions.simulate.run import Draws, Run
from serving.decisions.simulate.setting import POLICIES, Policy, Setting

MAX_TRIES = 8
FIRST_LOAD_RATIO = 0.9  # of a server; what that makes late is tried again with more
MORE = 1.3  # servers for a slot that had too few
MAX_RAISES = 10  # until the plan is another: 1.3¹⁰ is 14 times the servers


def simulate(
    setting: Setting,
    policy: Policy,
    arrivals: Arrivals,
    draws: Callable[[], Draws],
    *,
    per_second: int | None = None,
    rivals: Sequence[Outcome] = (),
) -> Outcome:
    """`draws` gives the same chance at every call. `rivals`: what other policies did, if it is known; only the oracle asks."""
    slots = demands(arrivals, setting, policy)
    if policy.scaler != "oracle":
        return Run(setting, policy, arrivals, slots, draws(), per_second=per_second).through()
    known = {outcome.policy: outcome for outcome in rivals}
    others = [
        known.get(other.name) or simulate(setting, other, arrivals, draws, per_second=per_second)
        for other in POLICIES
        if other.scaler != "oracle"
    ]

    def attempt(planned: Plan) -> Run:
        return Run(setting, policy, arrivals, slots, draws(), per_second=per_second, plan=planned)

    best = min((*others, *_tries(setting, slots, attempt)), key=lambda o: (o.num_violations, round(o.cost, 9)))
    return replace(best, policy=policy.name)


def _tries(setting: Setting, slots: list[Load], attempt: Callable[[Plan], Run]) -> list[Outcome]:
    # A reserve is for who does not know.
    free = replace(setting, cpu=replace(setting.cpu, min_replicas=0), gpu=replace(setting.gpu, min_replicas=0))
    factors = [setting.wake.max_load_ratio / FIRST_LOAD_RATIO] * len(slots)
    planned = plan(_more(slots, factors), free)
    outcomes: list[Outcome] = []
    for _ in range(MAX_TRIES):
        run = attempt(planned)
        outcomes.append(run.through())
        if not run.tally.violations:
            break
        short = {near for slot in run.tally.violations for near in (slot - 1, slot)}
        before = planned
        for _ in range(MAX_RAISES):
            factors = [factor * MORE if at in short else factor for at, factor in enumerate(factors)]
            planned = plan(_more(slots, factors), free)
            if planned != before:
                break
        else:
            break  # there are no more servers
    return outcomes


def _more(slots: list[Load], factors: list[float]) -> list[Load]:
    return [Load(*(servers * factor for servers in slot.each)) for slot, factor in zip(slots, factors, strict=True)]
