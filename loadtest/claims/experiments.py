"""Which experiments do the claims need, and in which order? Nothing runs before it is called.

Nets come one by one, the quick ones first, so that an interruption costs one of them. Timing engines is `speeds`', memory `bandwidth`'s;
the others are here: prices by a dated list, scaling by `tandem simulate` (simulated, never measured, and said so wherever it is shown), and
serving beside the same file in process, in alternating rounds. Rule: an experiment that two claims need runs once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from loadtest.claims import bandwidth, speeds
from loadtest.claims.claims_file import Claim, Suite
from loadtest.claims.values import Findings, Price, ScalingRun, ServingRates
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, device_of, in_process_rps, request_to, served_rps
from loadtest.processes import TANDEM, run_command
from loadtest.profile.selection import linked
from loadtest.stack import stack
from serving.decisions.engines import POOL, EnginePython
from serving.decisions.prices import Match, PriceList, match, read_prices
from serving.decisions.profile import Profile, ServerProfile, Settings
from serving.export.scratch import scratch
from serving.measure.machine import Machine
from serving.measure.rounds import in_turn
from serving.repository import Repository

Experiment = Callable[[], Findings]


ALWAYS = "gpu-always"
LIMIT_S = 600.0  # of one seed; 10 s on two busy cores
OPTIONS = ("rate_rps", "duration_s", "burst_times", "burst_every_s", "burst_lasting_s")
PIXELS = {"digits": "digits", "resnet50": "random"}
_FIT = {
    "alike": " (this processor names its family alone; that one has the same instruction sets)",
    "any": " (the offer names no processor)",
    "guess": " (a guess: no offer is known to have this processor)",
}


@dataclass(frozen=True, slots=True)
class SuiteSetup:
    """The suite and what it is measured with. `nets`: the repository of untrained nets, made on demand; `trained`: that of digits."""

    suite: Suite
    claims: tuple[Claim, ...]
    machine: Machine
    engines: Mapping[str, EnginePython]
    nets: Path
    trained: Path

    @property
    def num_threads(self) -> int:
        return max(1, min(int(self.machine.num_cores), len(os.sched_getaffinity(0))))


@dataclass(frozen=True, slots=True)
class ServingCase:
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


def experiments(setup: SuiteSetup, say: Callable[[str], None]) -> Iterator[tuple[str, Experiment]]:
    """Those that the claims need, in their order; nets one by one, so that an interruption costs one of them."""
    numbers = {claim.number for claim in setup.claims}
    settings = setup.suite.experiments
    if "price_gain" in numbers:
        yield "prices", lambda: Findings(prices=prices(read_prices(None), setup.machine))
    if "weights_share" in numbers:
        yield "bandwidth", lambda: _bandwidths(setup, settings["bandwidth"]["rounds"], say)
    for name in names_of_nets(setup.claims):
        yield f"speeds of {name}", partial(_speeds, setup, name, say)
    if "weights_share" in numbers:  # the machine may have been another one meanwhile
        yield "bandwidth again", lambda: _bandwidths(setup, settings["bandwidth"]["rounds"], say, when="after")
    if "trees_latency" in numbers:
        yield (
            speeds.TREES_EXPERIMENT,
            lambda: speeds.measure_trees(setup.engines, _timing(settings["trees"], setup), say),
        )
    if policies := sorted({policy for claim in setup.claims for policy in claim.policies}):
        yield "scaling", lambda: measure_scaling(settings["scaling"], setup.suite.folder, policies, say)
    for case in _served_cases(setup):
        yield f"serving {case.title}", partial(_served, setup, case, say)


def names_of_nets(claims: tuple[Claim, ...]) -> list[str]:
    needed = {model for c in claims if c.experiment == "speeds" and c.number != "energy_gain" for model in c.models}
    return [name for name in speeds.ORDER if name in needed]


def _timing(settings: dict[str, Any], setup: SuiteSetup) -> speeds.Timing:
    """Of nets, and of trees, which say less."""
    return speeds.Timing(
        batch_sizes=settings["batch_sizes"],
        seconds=settings["seconds"],
        max_seconds=settings.get("max_seconds", 4 * settings["seconds"] + 5),
        num_rounds=settings.get("rounds", setup.suite.experiments["speeds"]["rounds"]),
        num_threads=setup.num_threads,
    )


def _speeds(setup: SuiteSetup, name: str, say: Callable[[str], None]) -> Findings:
    speeds.make([name], setup.nets, say)
    return speeds.measure(name, setup.nets, setup.engines, _timing(setup.suite.experiments["speeds"], setup), say)


def _bandwidths(
    setup: SuiteSetup, num_rounds: int, say: Callable[[str], None], when: Literal["before", "after"] = "before"
) -> Findings:
    say(f"measuring the memory's bandwidth, {when} the nets")
    found = [bandwidth.cpu(num_rounds, setup.num_threads)]
    if "cuda" in setup.engines:
        found.append(bandwidth.card(setup.engines["cuda"], num_rounds))
    return Findings(bandwidths=tuple(replace(one, when=when) for one in found))


def _served_cases(setup: SuiteSetup) -> list[ServingCase]:
    """Each variant on each pool once; pools without their device are left out, which the cells say."""
    cases: dict[tuple[str, str, str], bool] = {}
    for claim in setup.claims:
        if claim.experiment == "served":
            sides = [(claim.variant, claim.engine)]
            if claim.number == "served_gain":
                sides.append((claim.against_variant, claim.against_engine))
            for model in claim.models:
                for variant, engine in sides:
                    key = (model, variant, engine)
                    cases[key] = cases.get(key, False) or claim.number == "served_share"
    return [
        ServingCase(*key, setup.trained if key[0] == "digits" else setup.nets, is_share)
        for key, is_share in cases.items()
        if POOL[key[2]] == "cpu" or key[2] in setup.engines
    ]


def _served(setup: SuiteSetup, case: ServingCase, say: Callable[[str], None]) -> Findings:
    """Both sides: the same file and ONNX Runtime; in process one session with all cores (or the card), served as the generated
    configuration says. The client runs on the same cores."""
    if case.repository == setup.nets:
        speeds.make([case.model], setup.nets, say)
    say(f"serving {case.title}")
    try:
        return Findings(served=tuple(serve(setup, case, say)))
    except CannotMeasure as error:
        say(f"serving {case.title}: {error}")
        return Findings(served=(ServingRates(case.model, case.variant, case.pool, 1, reason=str(error)),))


def serve(setup: SuiteSetup, case: ServingCase, say: Callable[[str], None]) -> Iterator[ServingRates]:
    """Size by size. Raises CannotMeasure, also where the receipt of an answer names another device than the pool's."""
    settings = setup.suite.experiments["served"]
    name = f"{case.model}-{case.variant}"
    everything = Repository(case.repository).variants() if case.repository.is_dir() else []
    variants = [one for one in everything if one.name == name]
    if not variants:
        raise CannotMeasure(f"there is no {name} in the repository")
    with scratch("served") as folder:
        repository = linked(folder / "models", variants)
        with stack(repository, folder, pool=case.pool, device=case.pool) as running:
            for size in settings["batch_sizes"]:
                say(f"{case.title}: batch {size}")
                net = Net(case.model, repository, PIXELS[case.model], size, case.variant)
                request, seconds = request_to(net, running.gateway), settings["seconds"]
                if (device := device_of(request, running.gateway)) != case.pool:
                    raise CannotMeasure(f"{case.title}: the receipt says {device or 'nothing of a device'}")
                sides = {"served": partial(served_rps, request, running.gateway, seconds, settings["outstanding"])}
                if case.is_share:
                    sides["alone"] = partial(_alone_rps, net, setup.engines[case.engine], seconds, setup.num_threads)
                rates = {
                    side: tuple(rate * size for rate in taken)
                    for side, taken in in_turn(sides, settings["rounds"]).items()
                }
                yield ServingRates(case.model, case.variant, case.pool, size, rates["served"], rates.get("alone", ()))


def _alone_rps(net: Net, engine: EnginePython, seconds: float, num_threads: int) -> float:
    return in_process_rps(net, engine, seconds, num_threads=num_threads)[1]


def measure_scaling(
    settings: dict[str, Any], folder: Path, policies: Sequence[str], say: Callable[[str], None]
) -> Findings:
    """`folder`: of the file, where the scenario's path begins. Raises CannotMeasure."""
    scenario = folder / settings["scenario"]
    found: list[ScalingRun] = []
    for seed in settings["seeds"]:
        say(f"simulating {scenario.stem}, seed {seed}")
        command = [*TANDEM, "simulate", str(scenario.resolve()), "--arrivals", "bursts", "--json"]
        for option in OPTIONS:
            name = option.removesuffix("_s").removesuffix("_rps").replace("_", "-")
            command += [f"--{name}", f"{settings[option]:g}"]
        for policy in (*policies, ALWAYS):
            command += ["--policy", policy]
        output = run_command([*command, "--seed", str(seed)], f"{scenario.name} could not be simulated", LIMIT_S)
        found += compared(json.loads(output), seed)
    return Findings(simulated=tuple(found))


def compared(printed: dict[str, Any], seed: int) -> list[ScalingRun]:
    """Compares each policy with GPUs that are always on. `printed`: the output of `tandem simulate --json`."""
    by_name = {outcome["policy"]: outcome for outcome in printed["policies"]}
    always = by_name.pop(ALWAYS)
    return [
        ScalingRun(
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
