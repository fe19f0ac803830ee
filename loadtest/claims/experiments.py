"""Which experiments do the claims need, in which order, and what is each given? Nothing runs before it is called.

Nets come one by one, the quick ones first, so that an interruption costs one of them. Timing engines is `speeds`', memory `bandwidth`'s;
the others are here: prices by a dated list, scaling by `tandem simulate` (simulated, never measured, and said so wherever it is shown), and
serving beside the same file in process, in alternating rounds. Rule: an experiment that two claims need runs once.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from loadtest.claims import bandwidth, speeds
from loadtest.claims.claims_file import Claim, Suite
from loadtest.claims.values import Findings, Price, Served, Simulated
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, in_process_rps, request_to, served_rps
from loadtest.processes import run_command
from loadtest.stack import stack
from serving.decisions.engines import POOL, EnginePython
from serving.decisions.files.prices import read_prices
from serving.decisions.plan.matching import Match, match
from serving.decisions.prices import PriceList
from serving.decisions.profile import Profile, ServerProfile, Settings
from serving.export.scratch import scratch
from serving.measure.machine import Machine
from serving.measure.rounds import in_turn

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
        yield "prices", lambda: Findings(prices=prices(read_prices(None), here.machine))
    if "weights_share" in numbers:
        yield "bandwidth", lambda: _bandwidths(here, settings["bandwidth"]["rounds"], say)
    for name in names_of_nets(here.claims):
        yield f"speeds of {name}", partial(_speeds, here, name, say)
    if "weights_share" in numbers:  # the machine may have been another one meanwhile
        yield "bandwidth again", lambda: _bandwidths(here, settings["bandwidth"]["rounds"], say, when="after")
    if "trees_latency" in numbers:
        yield speeds.TREES_EXPERIMENT, lambda: speeds.measure_trees(here.engines, _timing(settings["trees"], here), say)
    if policies := sorted({policy for claim in here.claims for policy in claim.policies}):
        yield "scaling", lambda: measure_scaling(settings["scaling"], here.suite.folder, policies, say)
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


def _asked_to_serve(here: Here) -> list[ServedCase]:
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
        ServedCase(*key, here.trained if key[0] == "digits" else here.nets, is_share)
        for key, is_share in asked.items()
        if POOL[key[2]] == "cpu" or key[2] in here.engines
    ]


def _served(here: Here, asked: ServedCase, say: Callable[[str], None]) -> Findings:
    settings = here.suite.experiments["served"]
    timing = ServingTiming(
        batch_sizes=settings["batch_sizes"],
        seconds=settings["seconds"],
        num_rounds=settings["rounds"],
        num_outstanding=settings["outstanding"],
        num_threads=here.num_threads,
    )
    if asked.repository == here.nets:
        speeds.make([asked.model], here.nets, say)
    try:
        return measure_served(asked, here.engines, timing, say)
    except CannotMeasure as error:
        say(f"serving {asked.title}: {error}")
        reason = str(error)
        return Findings(served=(Served(asked.model, asked.variant, asked.pool, 1, reason=reason),))


ALWAYS = "gpu-always"
LIMIT_S = 600.0  # of one seed; 10 s on two busy cores
OPTIONS = ("rate_rps", "duration_s", "burst_times", "burst_every_s", "burst_lasting_s")


def measure_scaling(
    settings: dict[str, Any], folder: Path, policies: Sequence[str], say: Callable[[str], None]
) -> Findings:
    """`folder`: of the file, where the scenario's path begins. Raises CannotMeasure."""
    scenario = folder / settings["scenario"]
    found: list[Simulated] = []
    for seed in settings["seeds"]:
        say(f"simulating {scenario.stem}, seed {seed}")
        command = [
            sys.executable,
            "-m",
            "serving",
            "simulate",
            str(scenario.resolve()),
            "--arrivals",
            "bursts",
            "--json",
        ]
        for option in OPTIONS:
            name = option.removesuffix("_s").removesuffix("_rps").replace("_", "-")
            command += [f"--{name}", f"{settings[option]:g}"]
        for policy in (*policies, ALWAYS):
            command += ["--policy", policy]
        said = run_command([*command, "--seed", str(seed)], f"{scenario.name} could not be simulated", LIMIT_S)
        found += compared(json.loads(said), seed)
    return Findings(simulated=tuple(found))


def compared(told: dict[str, Any], seed: int) -> list[Simulated]:
    """Each policy beside the one that is always on. `told`: what `tandem simulate --json` prints."""
    by_name = {outcome["policy"]: outcome for outcome in told["policies"]}
    always = by_name.pop(ALWAYS)
    return [
        Simulated(
            policy=name,
            seed=seed,
            gpu_hours=outcome["gpu_hours"],
            always_gpu_hours=always["gpu_hours"],
            in_time_ratio=outcome["attainment_ratio"],
            always_in_time_ratio=always["attainment_ratio"],
            cost=outcome["cost"],
            always_cost=always["cost"],
        )
        for name, outcome in by_name.items()
    ]


PIXELS = {"digits": "digits", "resnet50": "random"}


@dataclass(frozen=True, slots=True)
class ServedCase:
    """`repository`: where the model's variants lie. `is_share`: in process, too."""

    model: str
    variant: str
    engine: str
    repository: Path
    is_share: bool

    @property
    def pool(self) -> str:
        return POOL[self.engine]

    @property
    def title(self) -> str:
        return f"{self.model} {self.variant} on the {self.pool} pool"


@dataclass(frozen=True, slots=True)
class ServingTiming:
    batch_sizes: tuple[int, ...]
    seconds: float
    num_rounds: int
    num_outstanding: int
    num_threads: int


def measure_served(
    asked: ServedCase, engines: Mapping[str, EnginePython], timing: ServingTiming, say: Callable[[str], None]
) -> Findings:
    """Raises CannotMeasure where it should have worked."""
    say(f"serving {asked.title}")
    with scratch("served") as folder:
        repository = folder / "models"
        for variant in sorted(asked.repository.glob(f"{asked.model}-{asked.variant}")):
            shutil.copytree(variant, repository / variant.name, copy_function=_link)
        if not repository.is_dir():
            reason = f"there is no {asked.model}-{asked.variant} in the repository"
            return Findings(served=(Served(asked.model, asked.variant, asked.pool, 1, reason=reason),))
        with stack(repository, folder, pool=asked.pool, device=asked.pool) as running:
            found = []
            for size in timing.batch_sizes:
                say(f"{asked.title}: batch {size}")
                net = Net(asked.model, repository, PIXELS[asked.model], size, asked.variant)
                request = request_to(net, running.gateway)
                sides = {
                    "served": partial(served_rps, request, running.gateway, timing.seconds, timing.num_outstanding)
                }
                if asked.is_share:
                    sides["alone"] = partial(_alone_rps, net, engines[asked.engine], timing)
                rates = {
                    side: tuple(rate * size for rate in taken)
                    for side, taken in in_turn(sides, timing.num_rounds).items()
                }
                served, alone = rates["served"], rates.get("alone", ())
                found.append(Served(asked.model, asked.variant, asked.pool, size, served, alone))
    return Findings(served=tuple(found))


def _alone_rps(net: Net, engine: EnginePython, timing: ServingTiming) -> float:
    return in_process_rps(net, engine, timing.seconds, num_threads=timing.num_threads)[1]


def _link(source: str, target: str) -> None:
    """A link where both are on one disk: BERT-base has 438 MB."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)


_FIT = {
    "alike": " (this processor names its family alone; that one has the same instruction sets)",
    "any": " (the offer names no processor)",
    "guess": " (a guess: no offer is known to have this processor)",
}


def prices(listed: PriceList, machine: Machine) -> tuple[Price, ...]:
    """Of the processor, all its cores, and of the card where one is here and on the list."""
    profile = Profile("any", "measured", listed.date, "", machine, ())
    devices = [("cpu", machine.processor), *(("gpu", name.partition(",")[0]) for name in machine.cards[:1])]
    found = []
    for device, name in devices:
        server = ServerProfile("fp32", "cpu" if device == "cpu" else "cuda", device, name, None, Settings())
        if matched := match(profile, server, listed):
            found.append(_price(listed, device, matched))
    return tuple(found)


def _price(listed: PriceList, device: str, matched: Match) -> Price:
    return Price(
        device="cpu" if device == "cpu" else "gpu",
        offer=matched.offer.name + _FIT.get(matched.fit, ""),
        per_hour=matched.per_hour,
        currency=listed.currency,
        source=f"{listed.name}, {listed.source}",
        date=listed.date,
    )
