"""What does a new version cost those who ask meanwhile, and what do many leave behind in Triton?

A real `tandem up`, an open loop at a fixed rate, and new versions of the digits that are published one after the other: each answers its
gate's rows beside the old one, takes its place and lets it go. The judging is pure. Memory is the processes' own and their part of what
they share (Pss); what a swap leaves in tritonserver is the slope of its memory between swaps (Theil and Sen).
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtest.bench.prove.restarts import LONGEST, MODEL, NONE, RunningTandem, up
from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, family
from loadtest.sending.sender import infer, open_load
from loadtest.sending.sent_request import Shot
from loadtest.target import Gateway
from serving.export.publish import publish, writing
from serving.repository import RECORD_FILE, Repository

NUM_SWAPS, RATE_RPS = 50, 200.0
SWAP_S = 60.0  # that one may take on a busy machine before it counts as not coming
STEADY_S = 2.0  # of load before the first
NUM_WARM = 5  # swaps after which Triton's allocator has what it needs (guess, not measured)
SAMPLE_S = 0.2
MOST_AT_ONCE = AtMost(2.0)  # the old, the new and Tandem itself; Triton with two nets takes less than with all twice
LEFT_MB = AtMost(1.0, "MB")  # 50 versions a day for a week in a quarter of a GB (guess, not measured)


@dataclass(slots=True)
class Memory:
    """Bytes: `at_once` of all processes, now and then; `after` of tritonserver, after each swap."""

    at_once: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    @property
    def left_bytes(self) -> float | None:
        """By a swap; None of fewer than three after those that warm it."""
        settled = self.after[NUM_WARM:]
        slopes = [(b - a) / (n - m) for (m, a), (n, b) in itertools.combinations(enumerate(settled), 2)]
        return statistics.median(slopes) if len(settled) > 2 else None


def verdicts(shots: Sequence[Shot], memory: Memory, num_swapped: int, num_swaps: int) -> Iterator[Verdict]:
    wrong = Counter(str(shot) for shot in shots if not shot.is_answered)
    took = sorted(shot.took_s for shot in shots if shot.is_answered)
    name = f"{num_swaps} versions at {RATE_RPS:g}/s"
    listed = ", ".join(f"{count} × {what}" for what, count in wrong.most_common(4))
    yield Verdict(f"{name}: versions that did not come", num_swaps - num_swapped, NONE)
    yield Verdict(f"{name}: requests without a 200", wrong.total(), NONE, listed or f"{len(took)} answered")
    if took:
        p99 = took[int(len(took) * 0.99)]
        yield Verdict(f"{name}: p99", p99, LONGEST, f"median {statistics.median(took) * 1e3:.2g} ms")
    before, most = memory.at_once[0], max(memory.at_once)
    note = f"{before / 1e6:.0f} MB before, {most / 1e6:.0f} MB at most"
    yield Verdict(f"{name}: most memory at once, of that before", most / before, MOST_AT_ONCE, note)
    if (left := memory.left_bytes) is not None:
        note = f"tritonserver {memory.after[0] / 1e6:.0f} MB after the first, {memory.after[-1] / 1e6:.0f} MB after the last"
        yield Verdict(f"{name}: left in tritonserver by one", max(0.0, left / 1e6), LEFT_MB, note)


def swaps(folder: Path, num_swaps: int = NUM_SWAPS) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    repository, memory = folder / "repository", Memory()
    write(repository, 1)
    with up(folder, 0, "--no-measure", repository=repository) as here:
        body = (MODEL_REPOSITORY / f"{MODEL}-fp32" / "sample.json").read_bytes()
        arrivals = (number / RATE_RPS for number in itertools.count())
        is_over = threading.Event()
        until_over = itertools.takewhile(lambda _: not is_over.is_set(), arrivals)
        num_swapped = 0
        with _watched(here, memory), open_load([infer(here.url, MODEL, body)], until_over) as load:
            try:
                time.sleep(STEADY_S)
                for version in range(2, num_swaps + 2):
                    write(repository, version)
                    if not _is_served(here, Repository(repository).variant(f"{MODEL}-fp32").digest):
                        break
                    num_swapped += 1
                    memory.after.append(_pss_bytes(_triton(here)))
            finally:
                is_over.set()
        yield from verdicts(load.shots, memory, num_swapped, num_swaps)


def write(repository: Path, version: int) -> None:
    """The digits in FP32 as this version, whose file differs in an unknown field of protobuf alone."""
    variant = Repository(MODEL_REPOSITORY).variant(f"{MODEL}-fp32")
    record = replace(variant.record, model_version=version)
    generated = {RECORD_FILE, *variant.config_files(), variant.record.model_file}
    files = {path: (variant.directory / path).read_bytes() for path in variant.record.files if path not in generated}
    files[record.model_file] = variant.model_path.read_bytes() + b"\xfa\x7f\x02" + version.to_bytes(2, "big")
    with writing(repository):
        publish(repository, record, files)


def _is_served(here: RunningTandem, digest: str) -> bool:
    """Within the time that one may take, by the gateway, and the version before it gone."""
    gateway, until_s = Gateway(here.url), time.monotonic() + SWAP_S
    while time.monotonic() < until_s:
        told = ((gateway.status() or {}).get("models") or {}).get(MODEL, {})
        served = {variant["digest"] for variant in told.get("variants", [])}
        if served == {f"sha256:{digest}"} and all(entry["state"] == "served" for entry in told["account"]):
            return True
        time.sleep(SAMPLE_S)
    return False


def _triton(here: RunningTandem) -> int:
    return here.one("tritonserver", lambda process: process.program == "tritonserver").pid


@contextmanager
def _watched(here: RunningTandem, memory: Memory) -> Iterator[None]:
    """Samples what all its processes take while the block runs."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(SAMPLE_S):
            memory.at_once.append(sum(_pss_bytes(process.pid) for process in family(here.process.pid)))

    memory.at_once.append(sum(_pss_bytes(process.pid) for process in family(here.process.pid)))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _pss_bytes(pid: int) -> int:
    """0 of a process that is gone."""
    try:
        text = Path("/proc", str(pid), "smaps_rollup").read_text()
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), None)
    if line is None:
        raise CannotMeasure("this kernel tells no Pss in /proc/PID/smaps_rollup")
    return int(line.split()[1]) * 1024
