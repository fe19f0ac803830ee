"""Runs stages, most valuable first: each has its own clock, leaves every result at once, and goes on where the last run was cut off.

Rules: what was done is not done again; what the clock leaves out is marked as not reached; after a failed first stage nothing is measured.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import FrameType

from loadtest.errors import CannotMeasure
from loadtest.gpu import bridge, conclusions, sanity, served, table
from loadtest.gpu.ledger import Entry, Ledger, faults
from loadtest.gpu.unit import ENVIRONMENTS, Setup, Unit, UnitResult, Units
from serving.documents.nearest import nearest
from serving.errors import TandemError


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    clock_s: float
    units: Units
    is_required: bool = False  # for all that follow


STAGES = (
    Stage("sanity", 120.0, sanity.units, is_required=True),
    Stage("table", 480.0, table.units),
    Stage("served", 360.0, served.units),
    Stage("bridge", 180.0, bridge.units),
    Stage("conclusions", 360.0, conclusions.units),
)
NAMES = tuple(stage.name for stage in STAGES)


class _ClockEnded(BaseException):
    """No Exception, so that nothing that is measured takes it for a failure of its own."""


@contextmanager
def _clock(seconds: float) -> Iterator[None]:
    """Raises _ClockEnded in the block, on the main thread."""

    def ended(_: int, __: FrameType | None) -> None:
        raise _ClockEnded

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_stages(
    stages: Sequence[Stage],
    setup: Setup,
    ledger: Ledger,
    left: Callable[[], None],
    limit_s: float,
    only: Sequence[str] = (),
) -> bool:
    """Whether everything is done. `left`: is called whenever there is something new to be shown; `limit_s`: for all together; `only`: of
    stages that are not required the units whose names have one of these words, and the environments. Raises CannotMeasure for words that
    no unit has."""
    _require_known(stages, setup, only)
    end_s = time.monotonic() + limit_s
    for stage in stages:
        is_good = _run(stage, setup, ledger, left, end_s, () if stage.is_required else only)
        if stage.is_required and not is_good:
            setup.say(f"{stage.name} failed, so nothing else is measured")
            return False
    return all(entry.outcome == "done" for entry in ledger.report().entries if entry.stage in {s.name for s in stages})


def _require_known(stages: Sequence[Stage], setup: Setup, only: Sequence[str]) -> None:
    names = [unit.name for stage in stages if only and not stage.is_required for unit in stage.units(setup)]
    for words in only:
        if not any(words in name for name in names):
            raise CannotMeasure(f"no unit of these stages has '{words}' in its name{nearest(words, names)}")


def _run(
    stage: Stage, setup: Setup, ledger: Ledger, left: Callable[[], None], end_s: float, only: Sequence[str]
) -> bool:
    """Whether nothing failed."""
    end_s = min(end_s, time.monotonic() + stage.clock_s)
    is_good = True
    for unit in stage.units(setup):
        is_left_out = only and unit.name != ENVIRONMENTS and not any(word in unit.name for word in only)
        if is_left_out or ledger.is_done(stage.name, unit.name):
            continue
        setup.say(f"{stage.name}: {unit.name}")
        try:
            entry = _measured(stage, unit, end_s - time.monotonic())
        except KeyboardInterrupt:
            ledger.add(_late(stage, unit, "the run was interrupted"))
            left()
            raise
        ledger.add(entry)
        left()
        if entry.outcome == "failed":
            is_good = False
        if entry.outcome != "done":
            setup.say(f"{stage.name}: {unit.name}: {entry.outcome.replace('_', ' ')}: {entry.note}")
    return is_good


def _measured(stage: Stage, unit: Unit, left_s: float) -> Entry:
    began, began_s = _now(), time.monotonic()
    late = _late(stage, unit, "the stage's time was over")
    if left_s <= 0:
        return late
    try:
        with _clock(left_s):
            found = unit.run()
    except _ClockEnded:
        return late
    except (CannotMeasure, TandemError, OSError) as error:
        found = UnitResult(note=str(error))
        return Entry(stage.name, unit.name, "failed", began, _since(began_s), note=found.note)
    wrong = faults(found.checks)
    return Entry(
        stage.name,
        unit.name,
        "failed" if wrong else "done",
        began,
        _since(began_s),
        found.checks,
        found.findings,
        "; ".join(wrong) or found.note,
    )


def _late(stage: Stage, unit: Unit, why: str) -> Entry:
    return Entry(stage.name, unit.name, "not_reached", _now(), 0.0, note=why)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 2)
