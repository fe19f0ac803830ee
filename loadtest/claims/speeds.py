"""How long does each variant of each net take on each engine that is here, batch size by batch size?

The contest of `serving/export/speed` times them in turns; here is what takes part, and its outcome as values. FP16 on the CPU, which no
pool ever runs, has a contest of its own, because it would slow the turns of all others; so have gradient-boosted trees, which are trained
here and now. Rule: a variant that did not run is listed as an omission, with its reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.claims.values import TREES, EngineTime, Findings, Omission
from loadtest.processes import run_command
from serving.decisions.engines import BASELINE, PLAIN, POOL, EnginePython
from serving.export.scratch import scratch
from serving.export.speed import Entrant, Results, contest
from serving.export.speed_nets import net
from serving.export.speed_nets.compare import by_device, inputs_of
from serving.repository import Repository, Variant

VARIANTS = ("fp32", "fp16", "int8")  # BF16 has no file of its own
ORDER = (
    "mlp",
    "minilm",
    "resnet50",
    "efficientnet-b2",
    "bert-base",
)  # the quick ones first: an interruption costs less
BUILD_TIMEOUT_S = 300.0  # of all variants of one net
TREES_EXPERIMENT = "trees"
NO_TREES = "scikit-learn and skl2onnx are not installed here, so no trees could be trained"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """`max_seconds`: for each batch size of a net, all that take part together."""

    batch_sizes: tuple[int, ...]
    seconds: float
    max_seconds: float
    num_rounds: int
    num_threads: int


def make(names: Sequence[str], folder: Path, say: Say, max_batch_size: int | None = None) -> None:
    """The untrained nets that are not there yet. `max_batch_size` None: each net's own. Raises CannotMeasure."""
    there = {variant.record.model for variant in Repository(folder).variants()} if folder.is_dir() else set()
    for name in names:
        if net(name).model in there:
            continue
        say(f"making {name} with random weights")
        command = [sys.executable, "-m", "serving.export.speed_nets", str(folder), "--net", name]
        command += [f"--variant={variant}" for variant in VARIANTS]
        command += [] if max_batch_size is None else ["--max-batch-size", str(max_batch_size)]
        run_command(command, f"{name} could not be made", BUILD_TIMEOUT_S)  # a process of its own: BERT-base takes 2 GB


def measure(name: str, folder: Path, engines: Mapping[str, EnginePython], timing: Timing, say: Say) -> Findings:
    """One net, made before."""
    public = net(name).model
    variants = [variant for variant in Repository(folder).variants() if variant.record.model == public]
    largest = max(1, variants[0].record.max_batch_size)
    sizes = tuple(size for size in timing.batch_sizes if size <= largest)
    found = Findings(left_out=tuple(_too_large(name, timing.batch_sizes, largest)))
    for entrants in by_device(variants, engines):
        inputs = inputs_of(public, largest)
        found += _contest(name, entrants, engines, replace(timing, batch_sizes=sizes), inputs, say)
    return found + _half_on_cpu(name, variants, engines, timing, say) if "cpu" in engines else found


def _half_on_cpu(
    name: str, variants: Sequence[Variant], engines: Mapping[str, EnginePython], timing: Timing, say: Say
) -> Findings:
    """At batch 1 alone."""
    files = {variant.record.variant: variant.model_path for variant in variants}
    entrants = [Entrant(variant, "cpu", files[variant]) for variant in (BASELINE, "fp16") if variant in files]
    if len(entrants) < 2:
        return Findings()
    found = _contest(name, entrants, engines, replace(timing, batch_sizes=(1,)), inputs_of(net(name).model, 1), say)
    return replace(found, speeds=tuple(one for one in found.speeds if one.variant == "fp16"))


def _contest(
    name: str,
    entrants: Sequence[Entrant],
    engines: Mapping[str, EnginePython],
    timing: Timing,
    inputs: Mapping[str, NDArray[Any]] | None,
    say: Say,
) -> Findings:
    results = contest(
        entrants,
        engines=engines,
        batch_sizes=timing.batch_sizes,
        inputs=inputs,
        num_threads=timing.num_threads,
        seconds=timing.seconds,
        max_seconds=timing.max_seconds,
        num_rounds=timing.num_rounds,
        progress=partial(_step, say, name, f"{len(entrants)} variants and engines"),
    )
    return findings(name, entrants, results, timing.batch_sizes)


def _step(say: Say, name: str, what: str, _: str, done: int, total: int) -> None:
    if done < total:
        say(f"{name}: timing {what}, round {done + 1} of {total}")


def findings(name: str, entrants: Sequence[Entrant], results: Results, batch_sizes: Sequence[int]) -> Findings:
    """What a contest found, as values."""
    speeds = tuple(timed(name, entrant, results, size) for entrant in entrants for size in sorted(results.times))
    left_out = [Omission(name, *key, None, reason) for key, reason in results.left_out.items()]
    plain = PLAIN[POOL[entrants[0].engine]]
    for size in batch_sizes:
        if size not in results.times:
            words = [warning for warning in results.warnings if warning.startswith(f"batch {size} ")]
            reason = words[0] if words else f"batch {size} was not timed: no round was finished in time"
            left_out.append(Omission(name, BASELINE, plain, size, reason))
    warnings = tuple(f"{name}: {warning}" for warning in results.warnings)
    return Findings(speeds=tuple(one for one in speeds if one), left_out=tuple(left_out), warnings=warnings)


def timed(name: str, entrant: Entrant, results: Results, size: int) -> EngineTime | None:
    """None where it did not run."""
    rounds = [one[entrant.key] for one in results.times[size] if len(one.get(entrant.key, ()))]
    if not rounds:
        return None
    baseline = (BASELINE, PLAIN[POOL[entrant.engine]])
    pairs = [one for one in results.times[size] if {baseline, entrant.key} <= one.keys() and len(one[entrant.key])]
    return EngineTime(
        model=name,
        variant=entrant.variant,
        engine=entrant.engine,
        batch_size=size,
        size_bytes=entrant.model.stat().st_size,
        rounds_s=tuple(float(np.median(one)) for one in rounds),
        ratios=()
        if entrant.key == baseline
        else tuple(float(np.median(one[baseline] / one[entrant.key])) for one in pairs),
    )


def _too_large(name: str, sizes: Sequence[int], largest: int) -> Iterator[Omission]:
    for size in sizes:
        if size > largest:
            yield Omission(
                name, BASELINE, "cpu", size, f"batch {size} was not timed: the net takes {largest} rows at most"
            )


def measure_trees(engines: Mapping[str, EnginePython], timing: Timing, say: Callable[[str], None]) -> Findings:
    try:
        from serving.export import speed_trees
    except ModuleNotFoundError:
        return Findings(not_run={TREES_EXPERIMENT: NO_TREES})
    say("training boosted trees on handwritten digits")
    with scratch("trees") as folder:
        trees = speed_trees.write(folder)
        say(f"timing {trees.num_trees} trees, accuracy {trees.accuracy:.1%} on digits held out")
        return time_trees(trees.file, trees.held_out, engines, timing, say)


def time_trees(
    file: Path, held_out: Mapping[str, NDArray[Any]], engines: Mapping[str, EnginePython], timing: Timing, say: Say
) -> Findings:
    """On the CPU, where alone ONNX Runtime has kernels for them."""
    return _contest(TREES, [Entrant(BASELINE, "cpu", file)], engines, timing, held_out, say)
