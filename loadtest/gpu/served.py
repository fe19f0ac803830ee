"""Stage 3: what the gpu pool gives through gateway and Triton, beside the same file and ONNX Runtime in process, in alternating rounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from loadtest.claims import speeds
from loadtest.claims.experiments import ServingCase, serve
from loadtest.claims.values import Findings, ServingRates
from loadtest.gpu.ledger import Check
from loadtest.gpu.table import MAX_BATCH_SIZE
from loadtest.gpu.unit import Setup, Unit, UnitResult, environment
from serving.decisions.engines import PLAIN

# Model, variant: a net in which computing dominates, and one in which serving does.
CASES = (("resnet50", "fp16"), ("resnet50", "fp32"), ("digits", "fp32"))
LEAST_RATIO = 0.05  # of what is in process; below, something else was measured (guess, not measured)
MOST_RATIO = 1.3  # several instances overlap what one session does one after another; more is a broken clock (guess)


def units(setup: Setup) -> Iterator[Unit]:
    yield environment(setup)
    for case in cases(setup):
        yield Unit(case.title, partial(_served, setup, case))


def cases(setup: Setup) -> list[ServingCase]:
    """On the card's pool. No pool of processors serves FP16, so a stand-in has none of it."""
    pool = setup.card.pool
    chosen = [one for one in CASES if pool == "gpu" or one[1] != "fp16"]
    if setup.is_quick:
        chosen = [one for one in chosen if one[0] == "digits"]
    trained = setup.trained
    return [
        ServingCase(model, variant, PLAIN[pool], trained if model == "digits" else setup.nets, is_share=True)
        for model, variant in chosen
    ]


def _served(setup: Setup, case: ServingCase) -> UnitResult:
    if case.repository == setup.nets:
        speeds.make([case.model], setup.nets, setup.say, MAX_BATCH_SIZE)
    found = tuple(serve(setup.claims_setup(), case, setup.say))
    return UnitResult(checks(case.title, found), Findings(served=found))


def checks(title: str, found: tuple[ServingRates, ...]) -> tuple[Check, ...]:
    """At the batch size at which the engine alone does most."""
    best = max(found, key=lambda one: float(np.median(one.in_process)) if one.in_process else 0.0)
    if not best.served or not best.in_process:
        return (Check(f"{title} is served", False, best.reason or "no round was finished"),)
    ratio = float(np.median(np.divide(best.served, best.in_process)))
    text = f"{ratio:.2f} of in process at batch {best.batch_size}"
    return (Check(f"{title} is served", LEAST_RATIO <= ratio <= MOST_RATIO, text),)


def experiments_known(setup: Setup, done: frozenset[str]) -> frozenset[str]:
    """The claims' own names of what need not run again."""
    return frozenset(f"serving {case.title}" for case in cases(setup) if case.title in done)
