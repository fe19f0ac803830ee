"""How `tandem models` and `tandem verify` look on a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys

from rich.console import Console
from rich.table import Table

from serving.decisions.engines import PLAIN, POOL
from serving.export.inventory import Models, Row
from serving.export.verify import VariantVerdict, Verification
from serving.repository import UNTRAINED, Speed

COLUMNS = ("variant", "proof (FP32)", "size", "pools", "speed against FP32", "digest")
MAX_CHECKS = 3  # of a gate: the headline first, all of them are in the JSON
WIDTH = 180  # holds a row of every model that Tandem can build; a narrower terminal wraps


def show_models(models: Models, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(models), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    console.print(f"{models.repository}, speed as measured on {measured_on(models)}", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for row in models.variants:
        pools = "\n".join(
            f"{pool} {given.status}{f' ({given.engine})' if given.is_loadable else ''}"
            for pool, given in row.pools.items()
        )
        speed = _speed(row, has_cards=len(models.cards) > 1)
        table.add_row(row.name, proof(row), size(row.size_bytes), pools, speed, row.digest[:12])
    console.print(table)
    for row in models.variants:
        for variant, reason in row.not_made.items():
            console.print(f"{row.model}-{variant}: not made: {reason}", markup=False)
    for name, reason in models.unreadable.items():
        console.print(f"{name}: cannot be read: {reason}", markup=False)
    for name, reason in models.not_served.items():
        console.print(f"{name}: not served: {reason}", markup=False)
    for name in models.ungated:
        console.print(f"{name}: has no tandem.json, so nothing proves it and it is not served", markup=False)


def measured_on(models: Models) -> str:
    return " and ".join((models.processor, *models.cards))


def proof(row: Row) -> str:
    """What every reader has to see first: a number with FP32's beside it, or that there is none."""
    if row.is_untrained:
        return UNTRAINED
    if row.is_ungated:
        return "ungated: no proof"
    shown = []
    for check in row.gate.checks[:MAX_CHECKS]:
        beside = "" if check.reference is None else f" ({check.reference:.4f})"
        shown.append(f"{check.metric} {check.value:.4g}{beside}")
    return "\n".join(shown)


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**10:.0f} KiB" if num_bytes < 2**20 else f"{num_bytes / 2**20:.0f} MiB"


def _speed(row: Row, *, has_cards: bool) -> str:
    """Beside FP32 on the engine that runs FP32 best, and on the plain one where that is another. `has_cards`: of several."""
    if not row.speed:
        return "the baseline" if row.variant == "fp32" else "unmeasured here"
    lines = [_one(row, speed, has_cards=has_cards) for speed in row.speed if not _is_itself(row, speed)]
    return "\n".join(lines) or "the baseline"


def _is_itself(row: Row, speed: Speed) -> bool:
    return row.variant == "fp32" and speed.engine == speed.baseline_engine


def _one(row: Row, speed: Speed, *, has_cards: bool) -> str:
    plain = PLAIN[POOL[speed.engine]]
    engine = f" on {speed.engine}" if len({s.engine for s in row.speed}) > 1 or speed.engine != "cpu" else ""
    card = f" of {speed.processor}" if has_cards and POOL[speed.engine] == "gpu" else ""
    beside = f" beside {speed.baseline_engine}" if speed.baseline_engine != plain else ""
    interval = f"{speed.ratio:.2f} ({speed.ratio_low:.2f} to {speed.ratio_high:.2f})"
    return f"batch {speed.batch_size}{engine}{card}{beside}: {interval}"


def show_verification(verification: Verification, *, as_json: bool) -> None:
    if as_json:
        told = {**dataclasses.asdict(verification), "is_whole": all(v.is_whole for v in verification.variants)}
        print(json.dumps({**told, "has_passed": verification.has_passed}, indent=2))
        return
    for name, reason in verification.unread.items():
        print(f"tandem: {name}, which was not asked for, cannot be read: {reason}", file=sys.stderr)
    for variant in verification.variants:
        print(f"{variant.name}: {_verified(variant)}")


def _verified(variant: VariantVerdict) -> str:
    if variant.problems:
        return "; ".join((*variant.problems, *variant.notes))
    gate = {"passed": "whole, gate passed again"}.get(variant.gate, "whole")
    return "; ".join((gate, *variant.notes))
