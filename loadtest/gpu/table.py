"""Stage 2: rows per second and joules per row of each net, precision and batch size, on the card and the processor beside it, in process.

Units come in order of worth: the nets that most people ask about first, and of each the batch sizes that show its shape before those
between; what takes long to begin comes last, so that it eats nobody else's time. The stopwatch is that of the claims. Rule: a rate outside
its sanity band fails its unit: a broken measurement is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loadtest.claims import speeds
from loadtest.claims.speeds import Timing
from loadtest.claims.values import TREES, Energy, Findings, Omission
from loadtest.errors import CannotMeasure
from loadtest.gpu import bands, options
from loadtest.gpu.ledger import Check
from loadtest.gpu.unit import Setup, Unit, UnitResult
from serving.decisions.engines import BASELINE, POOL
from serving.export.scratch import scratch
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefusal
from serving.export.speed_nets import net
from serving.export.speed_nets.compare import TF32, inputs_of
from serving.repository import Repository

NETS = ("resnet50", "minilm", "bert-base", "mlp", "efficientnet-b2")
FIRST, BETWEEN = (1, 8, 32, 128), (2, 4, 16, 64)
ON_CPU = (1, 8, 32)  # larger ones take seconds a run, and bring a processor nothing
CARD = Timing(FIRST, seconds=0.3, max_seconds=8.0, num_rounds=3, num_threads=1)
# Nets for which each new session costs seconds: cuDNN tries all algorithms for each convolution and size of batch, and those that are
# depthwise are slow to try. A round took an H200 5 to 9 s for a batch size (2026-11-26): three fit.
SLOW_TO_BEGIN = {"efficientnet-b2": 30.0}
CPU = Timing(ON_CPU, seconds=0.3, max_seconds=6.0, num_rounds=3, num_threads=1)
QUICK_NET = "mlp"  # of a rehearsal: a row takes milliseconds
QUICK = Timing((1,), seconds=0.02, max_seconds=180.0, num_rounds=3, num_threads=1)
ENERGY_S, NUM_ENERGY_ROUNDS = 1.0, 3  # the card's counter moves every 0.1 s or so (guess, not measured)
WORKER_TIMEOUT_S = 60.0
ON_CARD = (BASELINE, TF32, "fp16")
SAME_RATIO = 0.5  # two ways to measure one rate differ by less, or one of them is broken (guess, not measured)


def units(setup: Setup) -> Iterator[Unit]:
    nets = (QUICK_NET,) if setup.is_quick else NETS
    quick = [name for name in nets if name not in SLOW_TO_BEGIN]
    for name in quick:
        yield from _of_net(setup, name)
    yield Unit("boosted trees on cpu", partial(_trees, setup))
    yield from options.units(setup)
    for name in quick:
        yield _on_card(setup, name, BETWEEN)
    for name in nets:
        if name in SLOW_TO_BEGIN:
            yield from _of_net(setup, name)
            yield from (_on_card(setup, name, (size,)) for size in BETWEEN)


def _of_net(setup: Setup, name: str) -> Iterator[Unit]:
    yield Unit(f"{name} made", partial(_made, setup, name))
    yield from (_on_card(setup, name, sizes) for sizes in _first_sizes(name))
    yield Unit(_speeds_unit(name, "cpu", ON_CPU), partial(_speeds, setup, name, "cpu", ON_CPU))
    for variant in ON_CARD:
        yield Unit(f"joules of {name} {variant} on cuda", partial(_joules, setup, name, variant, "cuda", FIRST[-1]))
    for variant in (BASELINE, "int8"):
        yield Unit(f"joules of {name} {variant} on cpu", partial(_joules, setup, name, variant, "cpu", ON_CPU[1]))


def _first_sizes(name: str) -> list[tuple[int, ...]]:
    """A unit each: where a session takes seconds to begin, the clock's end costs one size."""
    return [(size,) for size in FIRST] if name in SLOW_TO_BEGIN else [FIRST]


def _on_card(setup: Setup, name: str, sizes: tuple[int, ...]) -> Unit:
    return Unit(_speeds_unit(name, "cuda", sizes), partial(_speeds, setup, name, "cuda", sizes))


def _speeds_unit(name: str, engine: str, sizes: tuple[int, ...]) -> str:
    return f"{name} on {engine} at batch {', '.join(map(str, sizes))}"


def _made(setup: Setup, name: str) -> UnitResult:
    setup.make(name)
    return UnitResult()


def _speeds(setup: Setup, name: str, engine: str, sizes: tuple[int, ...]) -> UnitResult:
    _made(setup, name)
    of_pool = {one: python for one, python in setup.card.engines.items() if POOL[one] == POOL[engine]}
    timing = replace(CARD if engine == "cuda" else CPU, batch_sizes=sizes)
    if engine == "cuda" and name in SLOW_TO_BEGIN:
        timing = replace(timing, max_seconds=SLOW_TO_BEGIN[name])
    timing = replace(QUICK if setup.is_quick else timing, num_threads=setup.claims_setup().num_threads)
    found = speeds.measure(name, setup.nets, of_pool, timing, setup.say)
    if not any(one.engine == engine for one in found.speeds):
        reasons = [one.reason for one in found.left_out] or ["nothing was timed"]
        raise CannotMeasure(f"{name} on {engine}: {reasons[0]}")
    found = replace(found, left_out=(*found.left_out, *_without_tensorrt(setup, name, engine)))
    checks = bands.checks(setup.card.name, found) if engine == "cuda" else ()
    return UnitResult(checks, found)


def _without_tensorrt(setup: Setup, name: str, engine: str) -> list[Omission]:
    if engine != "cuda" or "tensorrt" in setup.card.engines:
        return []
    return [Omission(name, "int8", "tensorrt", None, "TensorRT is not installed here")]


def _joules(setup: Setup, name: str, variant: str, engine: str, batch_size: int) -> UnitResult:
    """While nothing else is timed: in turns of milliseconds a counter tells nothing of one variant."""
    counter = setup.card.energy_of(engine)
    if counter is None:
        return UnitResult(note=f"nothing tells the energy of {engine} here")
    batch_size = 1 if setup.is_quick else batch_size
    model, timed_s = net(name).model, 0.05 if setup.is_quick else ENERGY_S
    file_variant = BASELINE if variant == TF32 else variant
    files = [one.model_path for one in Repository(setup.nets).variants() if one.name == f"{model}-{file_variant}"]
    if not files:
        raise CannotMeasure(f"{model}-{file_variant} was not made")
    joules, rates = [], []
    with scratch("joules") as folder:
        inputs = folder / "inputs.npz"
        arrays: Any = inputs_of(model, batch_size) or {}
        np.savez(inputs, **arrays)
        how: dict[str, Any] = {"file": str(files[0]), "engine": engine, "precision": variant, "inputs": str(inputs)}
        how |= {"num_threads": setup.claims_setup().num_threads, "allow_spinning": False}
        try:
            worker = WorkerProcess(setup.card.engines[engine])
            try:
                worker.ask(WORKER_TIMEOUT_S, "open", name="net", **how)
                per_run_s = worker.ask(WORKER_TIMEOUT_S, "prepare", name="net", batch_size=batch_size)["seconds"]
                num_runs = max(1, round(timed_s / per_run_s))
                for _ in range(NUM_ENERGY_ROUNDS):
                    before_j = counter()
                    took_s = worker.ask(WORKER_TIMEOUT_S, "turn", name="net", num_runs=num_runs)["seconds"]
                    joules.append((counter() - before_j) / (num_runs * batch_size))
                    rates.append(batch_size / took_s)
            finally:
                worker.end()
        except (WorkerLost, WorkerRefusal) as failure:
            raise CannotMeasure(f"{name} {variant} on {engine}: {failure}") from None
    energy = Energy(name, variant, engine, batch_size, tuple(joules), tuple(rates))
    beside = Findings() if setup.is_quick else setup.report().findings  # milliseconds tell nothing of a rate
    return UnitResult(energy_checks(energy, beside), Findings(energies=(energy,)))


def energy_checks(energy: Energy, found: Findings) -> tuple[Check, ...]:
    """A counter rises, and the steady rate is near that of the contest."""
    least = min(energy.joules)
    what = f"{energy.model} {energy.variant} on {energy.engine}"
    checks = [Check(f"energy of {what}", least > 0, f"{least:.3g} J a row at least")]
    key = (energy.model, energy.variant, energy.engine, energy.batch_size)
    for one in found.speeds:
        if (one.model, one.variant, one.engine, one.batch_size) == key:
            ratio = float(np.median(energy.rates) * np.median(one.rounds_s) / one.batch_size)
            is_near = 1 - SAME_RATIO < ratio < 1 / (1 - SAME_RATIO)
            checks.append(Check(f"rate of {what}", is_near, f"without a pause {ratio:.2f} times that in turns"))
    return tuple(checks)


def _trees(setup: Setup) -> UnitResult:
    """Carried, because what trains them is larger than all the rest; else trained here."""
    timing = Timing((1, 32, 128), 0.5, 5.0, 3, setup.claims_setup().num_threads)
    cpu = {"cpu": setup.card.engines["cpu"]}
    file, rows = setup.files / "trees.onnx", setup.files / "trees.npz"
    if file.exists() and rows.exists():
        with np.load(rows) as held_out:
            found = speeds.time_trees(file, dict(held_out), cpu, timing, setup.say)
    else:
        found = speeds.measure_trees(cpu, timing, setup.say)
    if not any(one.model == TREES for one in found.speeds):
        raise CannotMeasure(next(iter(found.not_run.values()), "the trees were not timed"))
    return UnitResult(findings=found)


def experiments_known(done: frozenset[str]) -> frozenset[str]:
    """The claims' own names of what need not run again."""
    nets = {
        name
        for name in NETS
        if {_speeds_unit(name, "cpu", ON_CPU), *(_speeds_unit(name, "cuda", s) for s in _first_sizes(name))} <= done
    }
    trees = {speeds.TREES_EXPERIMENT} if "boosted trees on cpu" in done else set()
    return frozenset({f"speeds of {name}" for name in nets} | trees)
