"""Which experiments do the claims need, in which order, and what is each given? Nothing runs before it is called.

Nets come one by one, the quick ones first, so that an interruption costs one of them. Rule: an experiment that two claims need runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from loadtest.claims import bandwidth, pricing, scaling, served, speeds, trees
from loadtest.claims.claims_file import Claim, Suite
from loadtest.claims.values import Findings, Served
from loadtest.errors import CannotMeasure
from serving.decisions.engines import POOL, EnginePython
from serving.decisions.files.prices import read_prices
from serving.measure.machine import Machine

Experiment = Callable[[], Findings]


@dataclass(frozen=True, slots=True)
class Here:
    """What there is to measure with. `nets`: the repository of untrained nets, made where they lack; `trained`: that of digits."""

    suite: Suite
    claims: tuple[Claim, ...]
    machine: Machine
    engines: Mapping[str, EnginePython]
    num_threads: int
    nets: Path
    trained: Path


def experiments(here: Here, say: Callable[[str], None]) -> Iterator[tuple[str, Experiment]]:
    """Those that the claims need, in their order; nets one by one, so that an interruption costs one of them."""
    numbers = {claim.number for claim in here.claims}
    settings = here.suite.experiments
    if "price_gain" in numbers:
        yield "prices", lambda: Findings(prices=pricing.prices(read_prices(None), here.machine))
    if "weights_share" in numbers:
        yield "bandwidth", lambda: _bandwidths(here, settings["bandwidth"]["rounds"], say)
    for name in names_of_nets(here.claims):
        yield f"speeds of {name}", partial(_speeds, here, name, say)
    if "weights_share" in numbers:  # the machine may have been another one meanwhile
        yield "bandwidth again", lambda: _bandwidths(here, settings["bandwidth"]["rounds"], say, when="after")
    if "trees_latency" in numbers:
        yield trees.NAME, lambda: trees.measure(here.engines, _timing(settings["trees"], here), say)
    if policies := sorted({policy for claim in here.claims for policy in claim.policies}):
        yield "scaling", lambda: scaling.measure(settings["scaling"], here.suite.folder, policies, say)
    for asked in _asked_to_serve(here):
        yield f"serving {asked.title}", partial(_served, here, asked, say)


def names_of_nets(claims: tuple[Claim, ...]) -> list[str]:
    needed = {model for c in claims if c.experiment == "speeds" and c.number != "energy_gain" for model in c.models}
    return [name for name in speeds.ORDER if name in needed]


def _timing(settings: dict[str, Any], here: Here) -> speeds.Timing:
    """Of nets, and of trees, which say less."""
    return speeds.Timing(
        batch_sizes=settings["batch_sizes"],
        seconds=settings["seconds"],
        max_seconds=settings.get("max_seconds", 4 * settings["seconds"] + 5),
        num_rounds=settings.get("rounds", here.suite.experiments["speeds"]["rounds"]),
        num_threads=here.num_threads,
    )


def _speeds(here: Here, name: str, say: Callable[[str], None]) -> Findings:
    speeds.make([name], here.nets, say)
    return speeds.measure(name, here.nets, here.engines, _timing(here.suite.experiments["speeds"], here), say)


def _bandwidths(
    here: Here, num_rounds: int, say: Callable[[str], None], when: Literal["before", "after"] = "before"
) -> Findings:
    say(f"measuring the memory's bandwidth, {when} the nets")
    found = [bandwidth.cpu(num_rounds, here.num_threads)]
    if "cuda" in here.engines:
        found.append(bandwidth.card(here.engines["cuda"], num_rounds))
    return Findings(bandwidths=tuple(replace(one, when=when) for one in found))


def _asked_to_serve(here: Here) -> list[served.ServedCase]:
    """Each variant on each pool once; pools without their device are left out, which the cells say."""
    asked: dict[tuple[str, str, str], bool] = {}
    for claim in here.claims:
        if claim.experiment == "served":
            sides = [(claim.variant, claim.engine)]
            if claim.number == "served_gain":
                sides.append((claim.against_variant, claim.against_engine))
            for model in claim.models:
                for variant, engine in sides:
                    key = (model, variant, engine)
                    asked[key] = asked.get(key, False) or claim.number == "served_share"
    return [
        served.ServedCase(*key, here.trained if key[0] == "digits" else here.nets, is_share)
        for key, is_share in asked.items()
        if POOL[key[2]] == "cpu" or key[2] in here.engines
    ]


def _served(here: Here, asked: served.ServedCase, say: Callable[[str], None]) -> Findings:
    settings = here.suite.experiments["served"]
    timing = served.Timing(
        batch_sizes=settings["batch_sizes"],
        seconds=settings["seconds"],
        num_rounds=settings["rounds"],
        num_outstanding=settings["outstanding"],
        num_threads=here.num_threads,
    )
    if asked.repository == here.nets:
        speeds.make([asked.model], here.nets, say)
    try:
        return served.measure(asked, here.engines, timing, say)
    except CannotMeasure as error:
        say(f"serving {asked.title}: {error}")
        reason = str(error)
        return Findings(served=(Served(asked.model, asked.variant, asked.pool, 1, reason=reason),))
