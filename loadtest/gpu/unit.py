"""A unit of a stage: the smallest thing that is measured whole or not at all, and what the stages measure with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.claims import speeds
from loadtest.claims.claims_file import Suite
from loadtest.claims.experiments import SuiteSetup
from loadtest.claims.values import Findings
from loadtest.gpu.card import Card
from loadtest.gpu.ledger import Check, Report
from loadtest.processes import TANDEM, run_command
from serving.decisions.engines import EnginePython
from serving.measure.machine import Machine

Say = Callable[[str], None]
MAX_BATCH_SIZE = 128  # of the nets
ENVIRONMENTS = "environments"  # the unit
ENVIRONMENT_S = 300.0  # 600 MB of wheels are unpacked (guess, not measured)


@dataclass(frozen=True, slots=True)
class UnitResult:
    checks: tuple[Check, ...] = ()
    findings: Findings = field(default_factory=Findings)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """`run` raises CannotMeasure where nothing could be measured."""

    name: str
    run: Callable[[], UnitResult]


@dataclass(frozen=True, slots=True)
class Setup:
    """`work`: a folder that stays between runs, with the nets. `files`: what was carried. `output`: of the results.

    `report`: what was measured so far. `is_quick`: short times, for rehearsals.
    """

    card: Card
    machine: Machine
    suite: Suite
    work: Path
    files: Path
    output: Path
    trained: Path
    report: Callable[[], Report]
    say: Say
    is_quick: bool = False

    @property
    def nets(self) -> Path:
        return self.work / "nets"

    def make(self, net: str) -> None:
        """The untrained net, where it is not there yet. Raises CannotMeasure."""
        speeds.make([net], self.nets, self.say, MAX_BATCH_SIZE)

    def claims_setup(self, engines: Mapping[str, EnginePython] | None = None) -> SuiteSetup:
        chosen = self.card.engines if engines is None else engines
        return SuiteSetup(self.suite, self.suite.claims, self.machine, chosen, self.nets, self.trained)


def environment(setup: Setup) -> Unit:
    """Of Tritons, made before anything waits for one: a pool's first start would make it."""

    def made() -> UnitResult:
        for pool in dict.fromkeys(("cpu", setup.card.pool)):
            setup.say(f"making the environment of the {pool} pool, if it is not there")
            run_command([*TANDEM, "environment", pool], f"the environment of the {pool} pool", ENVIRONMENT_S)
        return UnitResult()

    return Unit(ENVIRONMENTS, made)


Units = Callable[[Setup], Iterator[Unit]]
