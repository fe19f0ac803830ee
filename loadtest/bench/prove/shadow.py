"""Do those who ask wait longer while a candidate answers a sample of their requests, too?

A net that really computes, in two versions on one real Triton, and an open loop of single rows with Poisson arrivals. In turns the control
document pins the first version alone, and has the second one as its shadow besides; p99 of the one by p99 of the other is what is told.
Triton has its cores, gateway and generator another. The judging is pure. Rule: a copy that was never compared proves nothing, so how many
were is told beside, and none is no measurement.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.computed_nets import INPUT, WIDTH, chain, layers_for, record_of
from loadtest.bench.verdicts import AtMost, Verdict, ends_text
from loadtest.errors import CannotMeasure
from loadtest.processes import cpu_s, family, worked_s
from loadtest.sending.link import Request
from loadtest.sending.sender import infer, one_by_one, open_loop
from loadtest.sending.sent_request import Shot, listed
from loadtest.stack import stack
from loadtest.target import Gateway
from serving.export.publish import publish, writing
from serving.export.speed_nets.graph import SEED
from serving.local.console import read_rollouts
from serving.measure.percentiles import between_ranks
from serving.measure.rounds import in_turn, ratio

MODEL = "chain"
EXECUTION_S = 0.020  # of eight rows, so that one takes some 2.5 ms
BUSY_RATIO = (
    0.4  # of what one row after the other would fill: there is idle capacity, and a copy may be in somebody's way
)
SAMPLE_RATIO = 0.01
NUM_TURNS, TURN_S = 8, 8.0
NUM_ALONE = 50
SEEN_S = 10.0  # for the gateway to follow, which takes it half a second
MAX_OTHERS = 0.05  # of the cores, as in `computed.py`
MOVED = AtMost(1.05)
PIN = {"pin": {"version": 1}}
ROLLOUT = {
    "candidate": {"version": 2},
    "step": "shadow",
    "sample_ratio": SAMPLE_RATIO,
    "rolls_back": False,
}
DOCUMENTS = {
    name: json.dumps({"version": 1, "models": {MODEL: of}})
    for name, of in (("off", PIN), ("shadow", PIN | {"rollout": ROLLOUT}))
}


def judged(on_s: Sequence[float], off_s: Sequence[float], num_compared: int, num_skipped: int) -> Verdict:
    """Of p99s, turn by turn. Raises CannotMeasure."""
    if not num_compared:
        raise CannotMeasure(f"no answer was compared, {num_skipped} were skipped")
    spread = ratio(on_s, off_s)
    note = f"{ends_text(spread)}; {num_compared} compared, {num_skipped} skipped"
    return Verdict(f"p99 with a shadow at {SAMPLE_RATIO:.0%} ÷ without", spread.median, MOVED, note)


def p99_s(shots: Sequence[Shot]) -> float:
    """Raises CannotMeasure."""
    if failed := [shot for shot in shots if not shot.is_answered]:
        raise CannotMeasure(f"requests without a deadline failed: {listed(failed)}")
    return between_ranks(np.sort([shot.took_s for shot in shots]), 0.99)


def shadow(folder: Path, num_turns: int = NUM_TURNS, turn_s: float = TURN_S) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise CannotMeasure("one core for Triton and one for the rest are needed")
    repository, control = folder / "repository", folder / "control.json"
    control.write_text(DOCUMENTS["off"])
    try:
        os.sched_setaffinity(0, cores[:-1])  # inherited: Triton counts its cores when it starts
        write(repository)
        options = {"options": ("--versions", "2"), "gateway_options": ("--control", str(control))}
        with stack(repository, folder, **options) as here:  # type: ignore[arg-type]
            os.sched_setaffinity(here.gateway.pid, cores[-1:])
            os.sched_setaffinity(0, cores[-1:])
            body = {"inputs": [{"name": INPUT.name, "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]}
            asked = infer(here.gateway.url, MODEL, json.dumps(body).encode())
            took_s = sorted(shot.took_s for shot in one_by_one([asked] * NUM_ALONE))
            rate_rps = BUSY_RATIO / took_s[NUM_ALONE // 2]
            compared: list[tuple[int, int]] = []
            turn = partial(_turn, here.gateway.url, control, asked, rate_rps, turn_s, compared)
            pids = [here.triton.pid, here.gateway.pid]
            before = _spent_s(pids, cores)
            told = in_turn({name: partial(turn, name) for name in DOCUMENTS}, num_turns)
            after = _spent_s(pids, cores)
            others = 1 - (after[0] - before[0]) / (after[1] - before[1])
            if others > MAX_OTHERS:
                raise CannotMeasure(f"other work took {others:.0%} of what the cores did")
            yield judged(told["shadow"], told["off"], *(sum(it) for it in zip(*compared, strict=True)))
    finally:
        os.sched_setaffinity(0, cores)


def write(repository: Path) -> None:
    """One net as two versions, whose files differ in an unknown field of protobuf alone."""
    record = record_of(MODEL)
    net = chain(layers_for(EXECUTION_S), SEED, is_fixed=False)
    repository.mkdir(parents=True)
    for version in (1, 2):
        of = replace(record, model_version=version)
        with writing(repository):
            publish(repository, of, {of.model_file: net + b"\xfa\x7f\x02" + version.to_bytes(2, "big")}, num_kept=2)


def _turn(
    url: str, control: Path, asked: Request, rate_rps: float, turn_s: float, compared: list[tuple[int, int]], name: str
) -> float:
    control.write_text(DOCUMENTS[name])
    _followed(url, DOCUMENTS[name])
    load = open_loop([asked], list(schedule(Arrivals("poisson", rate_rps), turn_s, len(compared))))
    for it in read_rollouts(url, None):
        compared.append((it["compared"], it["skipped"]))
    return p99_s(load.shots)


def _followed(url: str, text: str) -> None:
    """Raises CannotMeasure."""
    until_s, digest = time.monotonic() + SEEN_S, f"sha256:{sha256(text.encode()).hexdigest()}"
    while time.monotonic() < until_s:
        revision = ((Gateway(url).status() or {}).get("control") or {}).get("revision") or {}
        if revision.get("digest") == digest:
            return
        time.sleep(0.05)
    raise CannotMeasure("the gateway does not follow its control document")


def _spent_s(pids: Sequence[int], cores: Sequence[int]) -> tuple[float, float]:
    """Of these processes, their children and this one; and of all that ran on the cores."""
    ours_s = sum(cpu_s(process.pid) for pid in pids for process in family(pid)) + cpu_s(os.getpid())
    return ours_s, worked_s(cores)
