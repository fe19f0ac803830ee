"""What a run leaves on disk: one CSV row per request, and one manifest per campaign.

Rows are the truth; everything a report says is computed from them again. Deliberately not here: what the rows mean
(`report/build.py`) and how they come about (`locustfile.py`). An editor keeps this importable without Locust, and raises VERSION
with any change of a column or a key.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from loadtest.arrivals import Arrivals, Kind
from loadtest.errors import ResultsError
from serving.documents.reader import read_document
from serving.measure.machine import Machine

VERSION = 3
MANIFEST = "manifest.json"
RUNS = "runs"

# `done`: ran to its end. `interrupted`: stopped by Ctrl-C while it ran. `failed`: the generator itself broke.
State = Literal["done", "interrupted", "failed"]


class Row(NamedTuple):
    """One request. A tuple, because a generator makes thousands of them a second."""

    start_s: float  # when it was to be sent, from the start of the warm-up
    lag_s: float  # how much later it was sent; 0 in a closed loop, where nobody says when
    latency_s: float  # from when it was to be sent until the whole answer was read
    status: int  # 0: no answer came
    num_bytes: int  # of the answer's body
    correct: int | None  # 1 or 0: the answer's first label is the true one; None: no true label, or no answer
    variant: str  # the receipt: Tandem-Variant, Tandem-Pool, Tandem-Device
    pool: str
    device: str
    error: str  # "" for a good answer; else Tandem-Error's value, `http_<status>`, `timeout`, `connection`, `body` or `dropped`

    @property
    def is_ok(self) -> bool:
        return self.status == 200 and not self.error


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Appends rows (times to the microsecond), with a header line if the file is new."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(Row._fields)
        for r in rows:
            correct = "" if r.correct is None else r.correct
            timing = (f"{r.start_s:.6f}", f"{r.lag_s:.6f}", f"{r.latency_s:.6f}")
            writer.writerow((*timing, r.status, r.num_bytes, correct, r.variant, r.pool, r.device, r.error))


def read_rows(path: Path) -> list[Row]:
    """The rows of one run. A last line cut short by a kill is dropped; any other broken line is an error that names it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path}: byte {error.start} is no text. Delete the file to leave this run out.") from error
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
    rows: list[Row] = []
    for number, cells in enumerate(csv.reader(io.StringIO(text)), start=1):
        if number == 1:
            if tuple(cells) != Row._fields:
                raise ResultsError(
                    f"{path}: its first line is not that of version {VERSION}; was it written by another Tandem?"
                )
            continue
        try:
            rows.append(_row(cells))
        except ValueError as error:
            raise ResultsError(f"{path}, line {number}: {error}. Delete the file to leave this run out.") from error
    return rows


def _row(cells: list[str]) -> Row:
    if len(cells) != len(Row._fields):
        raise ValueError(f"{len(cells)} cells instead of {len(Row._fields)}")
    start_s, lag_s, latency_s, status, num_bytes, correct, *receipt = cells
    times_s = float(start_s), float(lag_s), float(latency_s)
    if not all(map(math.isfinite, times_s)):
        raise ValueError("a time that is no number")
    return Row(*times_s, int(status), int(num_bytes), int(correct) if correct else None, *receipt)


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """An arm as it was asked for; `not_run` says why it was left out, None if it ran."""

    name: str
    variant: str
    pool: str
    not_run: str | None = None
    is_again: bool = False  # the baseline a second time, to see whether two equal arms are told apart


@dataclass(frozen=True, slots=True)
class Evidence:
    """What servers and machine counted during one run. None: it could not be read, or its server began anew.

    Triton's numbers and the gateway's queue are of the whole run, warm-up included, and its times means per request, in which each request
    of a batch counts the batch's whole time. CPU seconds and energy are of the measured seconds, and of nothing less than all cards, or
    whole processors with whatever else ran on them.
    """

    num_requests: int | None = None
    num_rows: int | None = None
    num_executions: int | None = None
    triton_queue_s: float | None = None
    triton_input_s: float | None = None
    triton_infer_s: float | None = None
    triton_output_s: float | None = None
    gateway_queue_s: float | None = None
    gateway_cpu_s: float | None = None
    triton_cpu_s: float | None = None  # with its backends' processes
    cpu_energy_j: float | None = None
    gpu_utilization_ratio: float | None = None
    gpu_power_w: float | None = None
    gpu_energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of one arm. What the servers counted is the difference over the run, warm-up included; None where it could not be read."""

    arm: str
    point: float  # of the load: users, or requests per second
    repeat: int  # from 1
    rows: str  # file, relative to the results directory
    seed: int
    started: str  # ISO 8601 with offset
    state: State
    reason: str | None = None  # of a state other than `done`
    is_reachable_after: bool = True
    gateway_counted: int | None = None  # requests
    triton_counted: int | None = None  # requests of this variant; None too where several servers hold it
    generator_cpu_ratio: float | None = None  # of one core, over the whole run; of several processes the busiest
    is_generator_real_time: bool | None = None  # it went before all other work of its machine
    num_scheduled: int | None = None  # open loop: requests that were due in the measured time
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """`closed`: every user sends its next request when the last one is answered. `open`: requests are sent when they are due."""

    warmup_s: float
    duration_s: float
    repeats: int
    seed: int
    kind: Literal["closed", "open"] = "closed"
    users: tuple[int, ...] = ()  # closed: one run for each number
    rate_rps: tuple[float, ...] = ()  # open: one run for each rate; of a trace its mean
    arrivals: Kind = "poisson"  # open, like all below
    burst_times: float = 4.0
    burst_every_s: float = 10.0
    burst_lasting_s: float = 2.0
    trace: str | None = None  # the file whose times were used, as the campaign file names it
    objective_s: float | None = None  # a later answer is worth nothing
    max_in_flight: int = 512  # of each process
    processes: int = 1

    @property
    def points(self) -> tuple[float, ...]:
        return self.users if self.kind == "closed" else self.rate_rps

    @property
    def end_s(self) -> float:
        return self.warmup_s + self.duration_s

    def at(self, rate_rps: float, times_s: Sequence[float] = ()) -> Arrivals:
        """`times_s`: those of the trace. Raises ValueError."""
        return Arrivals(
            self.arrivals, rate_rps, self.burst_times, self.burst_every_s, self.burst_lasting_s, tuple(times_s)
        )


@dataclass(frozen=True, slots=True)
class Payload:
    """The first five as the campaign file says, the rest what came of it: None until the inputs are made."""

    data: str  # digits, random, photographs, texts, or a file's name
    encoding: str
    batch_size: int
    length: int | None = None  # of dimensions that the model leaves open, in random inputs
    model_repository: str | None = None  # as the campaign file names it
    what: str | None = None  # in words
    remark: str | None = None  # what a reader must know about them
    num_distinct: int | None = None  # sent again from the first when all were sent
    digest: str | None = None  # of all arrays, so that two campaigns can tell whether they sent the same


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a campaign but its rows."""

    name: str
    model: str
    started: str  # ISO 8601 with offset
    command: str
    url: str
    is_local: bool  # the gateway is on this machine, so generator and server share its cores
    machine: Machine
    versions: dict[str, str]
    load: Load
    payload: Payload
    baseline: str
    arms: tuple[ArmRecord, ...]
    runs: tuple[RunRecord, ...] = ()
    num_planned: int = 0
    is_interrupted: bool = False
    note: str | None = None  # of the campaign file: what a reader must know about the model
    version: int = VERSION


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest in one step, so that a kill leaves the old or the new one."""
    write_json(directory / MANIFEST, asdict(manifest))


def write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read_manifest(directory: Path) -> Manifest:
    """Raises ResultsError."""
    path = directory / MANIFEST
    if not path.exists():
        raise ResultsError(f"{directory} holds no {MANIFEST}; give a directory that `tandem campaign run` wrote.")
    document = read_document(path, "the manifest", ResultsError)
    way_out = "measure again with `tandem campaign run`, or read the report.html beside it"
    document.version(VERSION, "a manifest", way_out)
    return document.values(Manifest)
