"""Manifests and rows for the tests of reports, made by hand: no server, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest import records
from loadtest.records import ArmRecord, Load, Manifest, Payload, Row, RunRecord
from serving.measure.machine import Machine

LOAD = Load(warmup_s=1.0, duration_s=2.0, repeats=2, seed=7, users=(2,))
CPU = 'cpu; name="A Processor"'
ARMS = (
    ArmRecord("fp32-cpu", "fp32", "cpu"),
    ArmRecord("int8-cpu", "int8", "cpu"),
    ArmRecord("fp16-gpu", "fp16", "gpu", "no GPU on this machine"),
)


def row(start_s: float = 1.5, latency_s: float = 0.01, **changes: Any) -> Row:
    good = Row(start_s, 0.0, latency_s, 200, 100, 1, "fp32", "cpu", CPU, "")
    return good._replace(**changes)


def rows(latency_s: float, count: int = 100, **changes: Any) -> list[Row]:
    """So many requests, evenly over the two measured seconds."""
    return [row(1.0 + 2.0 * index / count, latency_s, **changes) for index in range(count)]


def run(arm: str = "fp32-cpu", repeat: int = 1, **changes: Any) -> RunRecord:
    defaults: dict[str, Any] = {
        "rows": f"runs/{arm}-{repeat}.csv",
        "seed": 7,
        "started": "2026-11-21T04:00:00.000+00:00",
        "state": "done",
    }
    return RunRecord(arm, changes.pop("point", 2), repeat, **(defaults | changes))


def manifest(runs: Sequence[RunRecord] = (), **changes: Any) -> Manifest:
    defaults: dict[str, Any] = {
        "name": "digits",
        "model": "digits",
        "started": "2026-11-21T04:00:00+00:00",
        "command": "tandem campaign run digits.yaml",
        "url": "http://127.0.0.1:8080",
        "is_local": True,
        "machine": Machine("A Processor", ("avx2",), 2.0, "Linux"),
        "versions": {"python": "3.11.7", "locust": "2.47.0"},
        "load": LOAD,
        "payload": Payload("digits", "json", 1),
        "baseline": "fp32-cpu",
        "arms": ARMS,
        "runs": tuple(runs),
        "num_planned": len(runs),
    }
    return Manifest(**(defaults | changes))


def campaign(directory: Path, given: Manifest, by_run: dict[str, list[Row]]) -> Path:
    """A results directory as a campaign leaves it."""
    (directory / records.RUNS).mkdir(parents=True)
    records.write_manifest(directory, given)
    for file, written in by_run.items():
        records.write_rows(directory / file, written)
    return directory


def two_arms(int8_latency_s: float = 0.005, repeats: int = 2) -> tuple[Manifest, dict[str, list[Row]]]:
    """Repeats of FP32 and of INT8 with twice as many answers."""
    runs = [run(arm, repeat) for repeat in range(1, repeats + 1) for arm in ("fp32-cpu", "int8-cpu")]
    by_run = {
        r.rows: rows(0.01, 100 + r.repeat)
        if r.arm == "fp32-cpu"
        else rows(int8_latency_s, 200 + r.repeat, variant="int8")
        for r in runs
    }
    return manifest(runs), by_run
