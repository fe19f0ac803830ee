"""What was measured so far, line by line in a file: a run that is cut off leaves all that it had, and the next goes on.

The first line says on which card, machine and software; a run of anything else may not go on with it. Rule: a line that is not whole was
being written when the power went, and counts for nothing.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from loadtest.claims.values import Findings
from loadtest.errors import ResultsError
from loadtest.gpu.served_parts import served_rates
from serving.documents.reader import parse_document
from serving.measure.machine import Machine

FILE = "ledger.jsonl"
Outcome = Literal["done", "failed", "not_reached"]


@dataclass(frozen=True, slots=True)
class Check:
    """`text`: what was seen."""

    name: str
    is_good: bool
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """On what it is measured. `card`: name, driver and memory. `notes`: what a reader must know."""

    card: str
    machine: Machine
    versions: dict[str, str]
    command: str
    started: str  # ISO
    is_stand_in: bool = False
    notes: tuple[str, ...] = ()
    version: int = 1

    @property
    def identity(self) -> tuple[object, ...]:
        """What must not change while a run goes on."""
        return self.card, self.machine.processor, self.machine.num_cores, self.versions, self.is_stand_in


@dataclass(frozen=True, slots=True)
class Entry:
    """What came of one unit of a stage. `note`: why it failed or was not reached, or what it answered."""

    stage: str
    unit: str
    outcome: Outcome
    at: str  # ISO
    seconds: float
    checks: tuple[Check, ...] = ()
    findings: Findings = field(default_factory=Findings)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All of a run: what is kept, published and shown. `entries`: the latest of each unit."""

    run: Run
    entries: tuple[Entry, ...]
    kind: str = "gpu"

    @property
    def command(self) -> str:
        """The one that measures all of it, whatever commands it came of in turn."""
        program, *words = shlex.split(self.run.command)
        stages = dict.fromkeys(entry.stage for entry in self.entries)
        return shlex.join([program, *stages, *(word for word in words if word.startswith("-"))])

    @property
    def findings(self) -> Findings:
        """Of what was done: what failed a check is believed by nobody."""
        total = Findings()
        for entry in self.entries:
            if entry.outcome == "done":
                total = total + entry.findings
        return replace(total, served=total.served + served_rates(total.rounds))

    def of(self, stage: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.stage == stage)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class Ledger:
    """Opens the one in a folder, or begins one. Raises ResultsError for one of another machine, or that is none."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._file = folder / FILE
        self._entries: dict[tuple[str, str], Entry] = {}
        self.run = run
        lines = self._file.read_text(encoding="utf-8").splitlines(keepends=True) if self._file.exists() else []
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
            self._file.write_text("".join(lines), encoding="utf-8")
        if not lines:
            self._append(asdict(run))
            return
        began = parse_document(lines[0], str(self._file), is_json=True, error=ResultsError).values(Run)
        if began.identity != run.identity:
            raise ResultsError(
                f"{folder} has results of {began.card} on {began.machine.processor} with {_words(began.versions)}, this is "
                f"{run.card} on {run.machine.processor} with {_words(run.versions)}: name another folder with --output"
            )
        self.run = replace(run, started=began.started, notes=tuple(dict.fromkeys((*began.notes, *run.notes))))
        for line in lines[1:]:
            self._keep(parse_document(line, str(self._file), is_json=True, error=ResultsError).values(Entry))

    def add(self, entry: Entry) -> None:
        """On the disk when this returns. What was done stays so."""
        if entry.outcome == "not_reached" and self.is_done(entry.stage, entry.unit):
            return
        self._keep(entry)
        self._append(asdict(entry))

    def is_done(self, stage: str, unit: str) -> bool:
        known = self._entries.get((stage, unit))
        return known is not None and known.outcome == "done"

    def report(self) -> Report:
        return Report(self.run, tuple(self._entries.values()))

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.stage, entry.unit] = entry

    def _append(self, data: object) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _words(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def faults(checks: Iterable[Check]) -> list[str]:
    return [f"{check.name}: {check.text}" for check in checks if not check.is_good]
