"""How `tandem models` and `tandem verify` look on a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json

from rich.console import Console
from rich.table import Table

from serving.export.inventory import Models, Row, Verification


def show_models(models: Models, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(models), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True, width=110)
    console.print(f"{models.repository}, speed as measured on {models.processor}", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("variant", "accuracy (FP32)", "size", "pools", "speed against FP32", "digest"):
        table.add_column(column, no_wrap=True)
    for row in models.variants:
        gate = row.gate
        accuracy = f"{gate.metric} {gate.value:.4f} ({gate.fp32_value:.4f})"
        pools = "\n".join(f"{pool} {given.status}" for pool, given in row.pools.items())
        table.add_row(row.name, accuracy, f"{row.size_bytes / 1024:.0f} KiB", pools, _speed(row), row.digest[:12])
    console.print(table)
    for name in models.ungated:
        console.print(f"{name}: has no tandem.json, so nothing proves it and it is not served", markup=False)


def _speed(row: Row) -> str:
    if row.variant == "fp32":
        return "1 (the baseline)"
    if not row.speed:
        return "unmeasured"
    return "\n".join(
        f"batch {s.batch_size}: {s.ratio:.2f} ({s.ratio_low:.2f} to {s.ratio_high:.2f})" for s in row.speed
    )


def show_verification(verification: Verification, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**dataclasses.asdict(verification), "is_whole": verification.is_whole}, indent=2))
        return
    for check in verification.checks:
        print(f"{check.name}: {'whole' if check.is_whole else check.problem}")
