"""Times each variant on each engine beside all the others, on this processor.

All entrants run in turns, whatever engine and process they live in, so that what else the machine does hits them all; each
sweep of turns gives one ratio for every two of them. Sessions are made afresh in every round. Rule: one entrant's crash or
refusal leaves that one out with its reason and costs the others a round at most; no batch size takes longer than `max_seconds`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.decisions.engines import POOL, EnginePython
from serving.export.progress import Progress, silent
from serving.export.scratch import scratch, writing_into
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefusal
from serving.export.speed.results import Entrant, Key, Results
from serving.measure.intervals import MIN_REPEATS
from serving.measure.machine import card_name, processor_key
from serving.measure.rounds import order

# One turn: long against a timer call (0.1 µs), a pipe's round trip (0.1 ms) and a scheduler tick's edge, short against a
# neighbour's burst
TURN_S = 0.002
NUM_ROUNDS = 5  # new sessions: 3 would leave the interval to luck, each one costs a load and a warm-up
MIN_ROUNDS = MIN_REPEATS  # what a slow model is content with; fewer give no interval
NUM_MORE = 2  # times that the number of rounds is doubled where noise leaves a ratio undecided
MIN_SWEEPS = 2  # per round, so 6 ratios at least
MAX_SECONDS = 120.0  # per batch size: BERT-base at batch 32 takes seconds a run (guess, not measured)
HELLO_TIMEOUT_S = 60.0  # importing ONNX Runtime takes 0.3 s, CUDA's libraries seconds (guess, not measured)
GRACE_S = 5.0  # a run that began in time may end late

Times = dict[Key, NDArray[Any]]  # seconds per run, float64 [sweeps]


class _EntrantFailure(Exception):
    """One entrant cannot go on."""

    def __init__(self, key: Key, reason: str, *, is_crash: bool) -> None:
        super().__init__(reason)
        self.key, self.reason, self.is_crash = key, reason, is_crash


def contest(
    entrants: Sequence[Entrant],
    *,
    engines: Mapping[str, EnginePython],
    batch_sizes: Sequence[int] = (1, 8, 32),
    inputs: Mapping[str, NDArray[Any]] | Path | None = None,
    num_threads: int = 1,
    seconds: float = 1.0,
    max_seconds: float = MAX_SECONDS,
    num_rounds: int = NUM_ROUNDS,
    settle_s: float = 0.0,
    allow_spinning: bool = False,
    progress: Progress = silent,
) -> Results:
    """`seconds` are per batch size and entrant beside the first; `max_seconds` per batch size for all, loads included; `settle_s` for
    more rounds where those leave a ratio undecided and its interval wide.

    `inputs`: arrays [n, …] by input name, or the .npz file that holds them, repeated to fill a batch; else made-up numbers.
    """
    with _file_of(inputs, max(batch_sizes)) as file:
        how = {"num_threads": num_threads, "allow_spinning": allow_spinning, "inputs": str(file) if file else None}
        run = _Contest(entrants, engines, sorted(batch_sizes), how, seconds, max_seconds, num_rounds)
        try:
            run.rounds(progress)
            run.settle(settle_s, num_threads, progress)
        finally:
            run.end()
    return run.results(num_threads)


class _Contest:
    """The rounds of one contest. Entrants go from `_waiting` to `_left_out`, never back."""

    def __init__(
        self,
        entrants: Sequence[Entrant],
        engines: Mapping[str, EnginePython],
        batch_sizes: Sequence[int],
        how: Mapping[str, Any],
        seconds: float,
        max_seconds: float,
        num_rounds: int,
    ) -> None:
        self._engines, self._sizes, self._how = engines, tuple(dict.fromkeys(batch_sizes)), how
        self._seconds, self._max_seconds, self._num_rounds = seconds, max_seconds, num_rounds
        self._waiting: dict[Key, Entrant] = {}
        self._left_out: dict[Key, str] = {}
        self._crashed: set[Key] = set()
        self._warnings: list[str] = []
        self._workers: dict[str, WorkerProcess] = {}
        self._versions: dict[str, str] = {}
        self._times: dict[int, list[Times]] = {size: [] for size in self._sizes}
        self._spent_s = dict.fromkeys(self._sizes, 0.0)
        self._slot_s: dict[int, float] = {}  # in the last round
        self._too_slow: set[int] = set()
        self._num_done, self._longest_s = 0, 0.0
        self._end_s = time.monotonic() + max_seconds * len(self._sizes)
        for entrant in entrants:
            if entrant.key in self._waiting:
                raise ValueError(f"{entrant} takes part twice")
            if entrant.engine not in engines:
                self._left_out[entrant.key] = f"{entrant.engine} is not installed here"
                continue
            self._waiting[entrant.key] = entrant

    # -- rounds -------------------------------------------------------------------------------------------------------

    def rounds(self, progress: Progress) -> None:
        self._more_rounds(
            self._num_rounds, f"timing {len(self._waiting)} files on {len(self._engines)} engines", progress
        )
        if self._waiting:
            self._warn_of_few_rounds()

    def _more_rounds(self, number: int, step: str, progress: Progress) -> None:
        last = self._num_done + number
        while self._num_done < last and self._waiting and self._too_slow < set(self._sizes):
            progress(step, number - (last - self._num_done), number)
            began_s = time.monotonic()
            if began_s + self._longest_s > self._end_s:
                break
            try:
                taken = self._round()
            except _EntrantFailure as left:
                self._leave_out(left)
                continue
            for size, times in taken.items():
                self._times[size].append(times)
            self._num_done += 1
            self._longest_s = self._drop_what_cannot_fit(self._num_done, time.monotonic() - began_s)
        progress(step, number, number)

    def settle(self, budget_s: float, num_threads: int, progress: Progress) -> None:
        """Times as many rounds again, twice at most, while noise leaves a ratio undecided. More looks would find a gain by chance."""
        until_s = time.monotonic() + budget_s
        self._end_s = until_s
        self._max_seconds += budget_s
        for _ in range(NUM_MORE):
            if not self._waiting or time.monotonic() + self._longest_s > until_s:
                return
            if undecided := self.results(num_threads).undecided():
                step = f"timing again: noise leaves {len(undecided)} ratios undecided, {undecided[0]}"
                self._more_rounds(self._num_done, step, progress)

    def _drop_what_cannot_fit(self, num_done: int, round_s: float) -> float:
        """Leaves out the largest batch sizes where they would keep the others from their rounds. Returns how long the next round takes."""
        missing = min(MIN_ROUNDS, self._num_rounds) - num_done
        for size in sorted(self._slot_s, reverse=True):
            left_s = self._end_s - time.monotonic()
            is_too_long = missing > 0 and missing * round_s > left_s and len(self._slot_s) > 1
            if is_too_long or self._slot_s[size] * MIN_ROUNDS > self._max_seconds:
                slot_s = self._slot_s.pop(size)
                round_s -= slot_s
                self._too_slow.add(size)
                self._times[size].clear()
                self._warnings.append(f"batch {size} was left out: a round of it takes {slot_s:.0f} s")
        return round_s

    def _leave_out(self, left: _EntrantFailure) -> None:
        """Drops the entrant and its times. A lost worker takes its sessions along, so that all begin this round anew."""
        entrant = self._waiting.pop(left.key)
        self._left_out[left.key] = left.reason
        worker = self._workers.get(entrant.engine)
        if left.is_crash:
            self._crashed.add(left.key)
            if worker is not None:
                self._workers.pop(entrant.engine).end()
        elif worker is not None:
            with suppress(WorkerLost):  # the next one to ask it will see
                worker.ask(GRACE_S, "close", name=_name(entrant))
        for rounds in self._times.values():
            for times in rounds:
                times.pop(left.key, None)

    def _warn_of_few_rounds(self) -> None:
        for size in self._sizes:
            if size not in self._too_slow and len(self._times[size]) < min(MIN_ROUNDS, self._num_rounds):
                rounds = len(self._times[size])
                text = f"batch {size}: only {rounds} of {self._num_rounds} rounds fitted into {self._max_seconds:g} s"
                self._warnings.append(text)

    def _round(self) -> dict[int, Times]:
        """Opens new sessions of all entrants and sweeps over each batch size."""
        taken: dict[int, Times] = {}
        for entrant in self._waiting.values():
            self._open(entrant)
        per_row_s = 0.0  # all once, at the batch size before; guesses what the next one costs
        for size in self._sizes:
            if not self._fits(size, per_row_s * size):
                continue
            began_s = time.monotonic()
            per_run = {key: self._prepare(entrant, size) for key, entrant in self._waiting.items()}
            taken[size] = self._sweeps(size, per_run, began_s)
            self._slot_s[size] = time.monotonic() - began_s
            self._spent_s[size] += self._slot_s[size]
            per_row_s = sum(per_run.values()) / size
        for entrant in self._waiting.values():
            self._ask(entrant, GRACE_S, "close")
        return taken

    def _fits(self, size: int, sweep_s: float) -> bool:
        """Says whether there is time for a warm-up and a sweep. `sweep_s`: a guess of how long each of them takes; 0 is none."""
        if size in self._too_slow:
            return False
        if self._spent_s[size] + 2 * sweep_s <= self._max_seconds:
            return True
        if not self._times[size]:
            self._too_slow.add(size)
            self._warnings.append(f"batch {size} was not timed: each run once takes about {sweep_s:.0f} s")
        return False

    def _sweeps(self, size: int, per_run: Mapping[Key, float], began_s: float) -> Times:
        """Gives all entrants turns, over and over."""
        num_runs = {key: max(1, round(TURN_S / max(seconds, 1e-9))) for key, seconds in per_run.items()}
        wanted_s = min(self._seconds * max(1, len(per_run) - 1), self._max_seconds) / self._num_rounds
        left_s = self._max_seconds - self._spent_s[size]
        times: dict[Key, list[float]] = {key: [] for key in per_run}
        num_cycle = 2 * len(per_run)  # sweeps until each entrant was first, and last, equally often
        orders = cycle([order(list(per_run), number, num_cycle) for number in range(num_cycle)])
        num_sweeps, sweep_s = 0, sum(per_run.values())
        start_s = time.monotonic()
        while num_sweeps < MIN_SWEEPS or time.monotonic() - start_s < wanted_s:
            if num_sweeps and time.monotonic() - began_s + sweep_s > left_s:
                break
            sweep_start_s = time.monotonic()
            for key in next(orders):
                times[key].append(self._turn(self._waiting[key], num_runs[key], size))
            num_sweeps += 1
            sweep_s = time.monotonic() - sweep_start_s
        if num_sweeps < MIN_SWEEPS:
            self._warnings.append(f"batch {size}: only {num_sweeps} turn of each fitted into a round")
        return {key: np.array(taken, np.float64) for key, taken in times.items()}

    # -- workers ------------------------------------------------------------------------------------------------------

    def _open(self, entrant: Entrant) -> None:
        timeout_s = max(1.0, self._end_s - time.monotonic()) + GRACE_S
        what: dict[str, Any] = {"file": str(entrant.model), "engine": entrant.engine, "precision": entrant.variant}
        what |= {"cuda": dict(entrant.cuda), "has_buffers": entrant.has_buffers}
        self._ask(entrant, timeout_s, "open", **what, **self._how)

    def _prepare(self, entrant: Entrant, size: int) -> float:
        return float(self._ask(entrant, self._left_s(size), "prepare", batch_size=size)["seconds"])

    def _turn(self, entrant: Entrant, num_runs: int, size: int) -> float:
        return float(self._ask(entrant, self._left_s(size), "turn", num_runs=num_runs)["seconds"])

    def _left_s(self, size: int) -> float:
        return max(0.0, self._max_seconds - self._spent_s[size]) + GRACE_S

    def _ask(self, entrant: Entrant, timeout_s: float, do: str, **command: Any) -> dict[str, Any]:
        try:
            worker = self._worker(entrant)
            return worker.ask(timeout_s, do, name=_name(entrant), **command)
        except WorkerRefusal as refused:
            raise _EntrantFailure(entrant.key, str(refused), is_crash=False) from None
        except WorkerLost as lost:
            doing = {"open": "its load", "close": "its end"}.get(do, "a run")
            raise _EntrantFailure(entrant.key, f"{doing} {lost}", is_crash=True) from None

    def _worker(self, entrant: Entrant) -> WorkerProcess:
        if entrant.engine not in self._workers:
            worker = WorkerProcess(self._engines[entrant.engine])
            self._workers[entrant.engine] = worker
            self._versions[entrant.engine] = worker.ask(HELLO_TIMEOUT_S, "hello")["onnxruntime"]
        return self._workers[entrant.engine]

    def end(self) -> None:
        for worker in self._workers.values():
            worker.end()

    def results(self, num_threads: int) -> Results:
        pools = {POOL[engine] for engine in self._versions}
        return Results(
            times={size: rounds for size, rounds in self._times.items() if rounds},
            versions=self._versions,
            processors={pool: processor_key() if pool == "cpu" else card_name() for pool in pools},
            num_threads=num_threads,
            measured=datetime.datetime.now(datetime.UTC).date().isoformat(),
            left_out=self._left_out,
            crashed=frozenset(self._crashed),
            warnings=tuple(dict.fromkeys(self._warnings)),
        )


def _name(entrant: Entrant) -> str:
    """The name of its session in a worker."""
    return f"{entrant.variant} on {entrant.engine}"


@contextmanager
def _file_of(inputs: Mapping[str, NDArray[Any]] | Path | None, max_rows: int) -> Iterator[Path | None]:
    """Puts the first rows on disk, where every worker can read them."""
    if inputs is None:
        yield None
        return
    with scratch("speed") as folder:
        file = folder / "inputs.npz"
        if isinstance(inputs, Path):
            with inputs.open("rb") as opened, np.load(opened) as given:
                rows: dict[str, Any] = {name: given[name][:max_rows] for name in given}
        else:
            rows = {name: np.asarray(values)[:max_rows] for name, values in inputs.items()}
        with writing_into(folder):
            np.savez(file, **rows)
        yield file
