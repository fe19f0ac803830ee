"""Stage 5: what the claims need beyond the stages before, a verdict for three models, and the claims suite, which answers by all of it.

Each experiment is a unit, and units come in order of worth: those that answer most claims for least time first. A verdict of minutes is
asked for quickly (`--quick`): too few runs for an answer, and said so in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from loadtest.claims import values
from loadtest.claims.claims_file import Claim, read_suite
from loadtest.claims.command import RESULTS, ClaimsOptions, result
from loadtest.claims.command import run as run_claims
from loadtest.claims.experiments import Experiment, SuiteSetup, experiments, prices
from loadtest.claims.values import Findings, Price, Result
from loadtest.errors import CannotMeasure
from loadtest.gpu import served, table
from loadtest.gpu.ledger import Check, Report
from loadtest.gpu.unit import Setup, Unit, UnitResult, environment
from loadtest.processes import ROOT, TANDEM, run_command
from loadtest.profile.selection import linked
from loadtest.verdict.report import FILE
from serving.decisions.prices import PriceList, read_prices
from serving.repository import Repository

CLAIMS = ROOT / "loadtest" / "campaigns" / "claims.yaml"
NAME = "conclusions"  # of this stage
QUICK_CLAIMS = ("served-cpu-path",)
# Kinds of experiments, those that answer most for least time first, and those that need no card last; then nets that a stage before
# failed at.
ORDER = ("bandwidth", "serving", "bandwidth again", "trees", "scaling")
BEFORE_VERDICTS = 2  # of them
SERVED = {"seconds": 0.7, "rounds": 4}  # as in stage 3: half of the claims' own time
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
    wanted = _experiments(setup)
    verdicts = [
        Unit(f"verdict {of.model}", partial(_verdict, setup, of))
        for of in (QUESTIONS[-1:] if setup.is_quick else QUESTIONS)
    ]
    needed = [
        Unit(name, partial(_experiment, run)) for name, run in sorted(wanted.items(), key=lambda one: _worth(one[0]))
    ]
    first = [one for one in needed if _worth(one.name) < BEFORE_VERDICTS]
    yield from (*first, *verdicts, *needed[len(first) :])
    yield Unit("claims", partial(_claims, setup, tuple(wanted)))


def _worth(name: str) -> int:
    kind = name if name in ORDER else name.split()[0]
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def _experiments(setup: Setup) -> dict[str, Experiment]:
    """Those that no stage before has done. Prices are a list, which needs no time."""
    known = {"prices", *_known(setup)}
    found = experiments(_suite_setup(setup), setup.say)
    return {name: run for name, run in found if name not in known}


def _suite_setup(setup: Setup) -> SuiteSetup:
    """A stand-in's card answers no claim."""
    engines = {name: one for name, one in setup.card.engines.items() if name == "cpu" or not setup.card.is_stand_in}
    here = setup.claims_setup(engines)
    served = {**setup.suite.experiments["served"], **({} if setup.is_quick else SERVED)}
    suite = replace(setup.suite, experiments={**setup.suite.experiments, "served": served})
    return replace(here, suite=suite, claims=suite.only(QUICK_CLAIMS if setup.is_quick else ()))


def _known(setup: Setup) -> frozenset[str]:
    done = frozenset(entry.unit for entry in setup.report().entries if entry.outcome == "done")
    return table.experiments_known(done) | served.experiments_known(setup, done)


def _experiment(run: Experiment) -> UnitResult:
    found = run()
    reasons = [one.reason for one in found.served if one.reason]
    if wrong := [*found.not_run.values(), *reasons]:
        raise CannotMeasure(wrong[0])
    return UnitResult(findings=found)


def _claims(setup: Setup, wanted: tuple[str, ...]) -> UnitResult:
    """Nothing is measured here."""
    report = setup.report()
    done = {entry.unit for entry in report.of(NAME) if entry.outcome == "done"}
    output = _fresh(setup.output / "claims")
    options = ClaimsOptions(
        CLAIMS,
        output,
        only=QUICK_CLAIMS if setup.is_quick else (),
        is_quick=setup.is_quick,
        nets=setup.nets,
        engines=_suite_setup(setup).engines,
        model_repository=setup.trained,
        found=report.findings,
        known=frozenset(wanted) | _known(setup),
    )
    code = run_claims(options)
    if not (output / RESULTS).exists():
        raise CannotMeasure(f"the claims suite ended with exit code {code} and no result")
    missing = [name for name in wanted if name not in done]
    return UnitResult(claims_checks(values.from_json((output / RESULTS).read_text(encoding="utf-8"), RESULTS), missing))


def claims_checks(report: values.Report, missing: Sequence[str] = ()) -> tuple[Check, ...]:
    """Every claim is answered by a number, or says why not: a suite in which none is measured checked nothing."""
    answered = [one for one in report.results if one.answer not in (values.NOT_MEASURED_HERE, values.NOT_RUN)]
    text = f"{len(answered)} of {len(report.results)} have a number here"
    failed = [
        *(f"{name}: {why}" for name, why in report.findings.not_run.items()),
        *(f"{name}: not done" for name in missing),
    ]
    return (
        Check("claims are answered", bool(answered), text),
        Check("experiments of the claims ran", not failed, "; ".join(failed) or "all"),
    )


@cache
def _shipped_prices() -> PriceList:
    return read_prices(None)


@cache
def _asked() -> tuple[Claim, ...]:
    """Read once, as a page is written after each unit."""
    return read_suite(CLAIMS).claims


def prices_of(report: Report) -> tuple[Price, ...]:
    return prices(_shipped_prices(), report.run.machine)


def answers(report: Report) -> tuple[Result, ...]:
    """Every claim by what the stages measured and the price list; nothing is run."""
    found = report.findings + Findings(prices=prices_of(report))
    return tuple(result(claim, found, report.run.machine) for claim in _asked())


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
