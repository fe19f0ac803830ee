"""Stage 5: the claims suite, which takes what the stages before measured and measures the rest, and a verdict for three models.

A verdict of minutes is asked for quickly (`--quick`): too few runs for an answer, and said so in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest.claims import values
from loadtest.claims.command import RESULTS, ClaimsOptions
from loadtest.claims.command import run as run_claims
from loadtest.errors import CannotMeasure
from loadtest.gpu import served, table
from loadtest.gpu.ledger import Check
from loadtest.gpu.unit import Setup, Unit, UnitResult, environment
from loadtest.processes import ROOT, TANDEM, run_command
from loadtest.profile.selection import linked
from loadtest.verdict.report import FILE
from serving.repository import Repository

CLAIMS = ROOT / "loadtest" / "campaigns" / "claims.yaml"
VERDICT_S = 200.0
VARIANTS = ("int8", "fp16")  # the best of each device: a pool with one variant is profiled in half the time


@dataclass(frozen=True, slots=True)
class Question:
    """`model` as it is served; `net` makes it, None: trained."""

    model: str
    net: str | None
    rate_rps: float
    p99: str


QUESTIONS = (
    Question("resnet50", "resnet50", 200, "50ms"),
    Question("minilm-untrained", "minilm", 200, "50ms"),
    Question("digits", None, 200, "20ms"),
)


def units(setup: Setup) -> Iterator[Unit]:
    yield environment(setup)
    yield Unit("claims", partial(_claims, setup))
    for question in QUESTIONS[-1:] if setup.is_quick else QUESTIONS:
        yield Unit(f"verdict {question.model}", partial(_verdict, setup, question))


def _claims(setup: Setup) -> UnitResult:
    report = setup.report()
    done = frozenset(entry.unit for entry in report.entries if entry.outcome == "done")
    output = _fresh(setup.output / "claims")
    engines = {name: one for name, one in setup.card.engines.items() if name == "cpu" or not setup.card.is_stand_in}
    options = ClaimsOptions(
        CLAIMS,
        output,
        only=("served-cpu-path",) if setup.is_quick else (),
        is_quick=setup.is_quick,
        nets=setup.nets,
        engines=engines,
        model_repository=setup.trained,
        found=report.findings,
        known=table.experiments_known(done) | served.experiments_known(setup, done),
    )
    code = run_claims(options)
    if not (output / RESULTS).exists():
        raise CannotMeasure(f"the claims suite ended with exit code {code} and no result")
    return UnitResult(claims_checks(values.from_json((output / RESULTS).read_text(encoding="utf-8"), RESULTS)))


def claims_checks(report: values.Report) -> tuple[Check, ...]:
    """Every claim is answered by a number, or says why not: a suite in which none is measured checked nothing."""
    answered = [one for one in report.results if one.answer not in (values.NOT_MEASURED_HERE, values.NOT_RUN)]
    text = f"{len(answered)} of {len(report.results)} have a number here"
    failed = [f"{name}: {why}" for name, why in report.findings.not_run.items()]
    return (
        Check("claims are answered", bool(answered), text),
        Check("experiments of the claims ran", not failed, "; ".join(failed) or "all"),
    )


def _verdict(setup: Setup, question: Question) -> UnitResult:
    """Raises CannotMeasure."""
    output = _fresh(setup.output / f"verdict-{question.model}")
    source = setup.trained if question.net is None else setup.nets
    family = [one for one in Repository(source).variants() if one.record.model == question.model]
    variants = [one for one in family if one.record.variant in VARIANTS]
    if not variants:
        raise CannotMeasure(f"{question.model} was not made")
    folder = setup.work / f"verdict-{question.model}"
    shutil.rmtree(folder, ignore_errors=True)
    repository = linked(folder, variants)
    command = [*TANDEM, "verdict", question.model, "--rate", f"{question.rate_rps:g}", "--p99", question.p99, "--quick"]
    command += ["--model-repository", str(repository), "--output", str(output)]
    try:
        run_command(command, f"the verdict of {question.model}", VERDICT_S)
    except CannotMeasure:
        if not (output / FILE).exists():  # exit code 1 is an answer too: nothing here meets the p99
            raise
    found = json.loads((output / FILE).read_text(encoding="utf-8"))
    return UnitResult(verdict_checks(setup, question, found), note=str(found["paragraph"]))


def verdict_checks(setup: Setup, question: Question, found: dict[str, object]) -> tuple[Check, ...]:
    paragraph = str(found.get("paragraph", ""))
    servers = json.dumps(found.get("servers", []))
    has_card = setup.card.is_stand_in or setup.card.name in servers
    return (
        Check(f"verdict of {question.model}", bool(paragraph), paragraph or "it says nothing"),
        Check("it knows the card", has_card, setup.card.name if has_card else f"no server on {setup.card.name}"),
    )


def _fresh(folder: Path) -> Path:
    """Whoever is cut off leaves half a folder, which the next run replaces."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
