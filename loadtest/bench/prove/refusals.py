"""What does a refusal cost the gateway beside an answer?

Two emulated pools behind one gateway: one is so quick that all are answered, the other works for seconds on what clients of a higher
priority keep sending, so that whoever is in a hurry is refused. The same body at the same rate to either, in turns, both with a deadline,
which the gateway has to look after, and which the quick one keeps however slow the machine is; the processor time of the gateway's process
for each, less what it takes meanwhile anyway. The same of two tenants, of whom one is over its quota. Judging is pure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import MODEL, LocalGateway, Pool, digits, gateway, gateway_before, triton
from loadtest.bench.verdicts import AtMost, Verdict, ends_text
from loadtest.errors import CannotMeasure
from loadtest.processes import cpu_s
from loadtest.sending.link import Request
from loadtest.sending.sender import infer, open_loop, paused_clients
from serving.keys.changes import add
from serving.measure.rounds import ratio, spread

COST = AtMost(1 / 3)
COST_US = AtMost(40.0, "µs")
QUICK = Pool("emulated-quick", ((1, 0.005), (32, 0.008)))
BUSY = Pool("emulated-busy", ((1, 1.0), (8, 1.0)))
NUM_WAITING = 32  # clients of the busy pool: two executions in flight, two more to come
DEADLINE_S = 1.5  # of those in a hurry: an execution alone would be in time
PATIENCE_S = 30.0  # of those that are answered
RATE_RPS, TURN_S = 700.0, 1.5
NUM_TURNS = 7
ROWS = 1, 4


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of processor time a request."""

    admitted_s: float
    refused_s: float


def verdict(name: str, turns: Sequence[Turn]) -> Verdict:
    """Raises CannotMeasure where so little was sent that nothing shows."""
    if min(turn.admitted_s for turn in turns) <= 0:
        raise CannotMeasure("the gateway's processor time does not show what it was sent")
    spread = ratio([turn.refused_s for turn in turns], [turn.admitted_s for turn in turns])
    costs = [f"{median(one) * 1e6:.0f} µs" for one in zip(*((t.refused_s, t.admitted_s) for t in turns), strict=True)]
    return Verdict(name, spread.median, COST, f"{ends_text(spread)}; {costs[0]} and {costs[1]}")


def refusals(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    with gateway_before([QUICK, BUSY], folder) as here:
        urgent = infer(here.url, MODEL, digits(), {"Tandem-Pool": BUSY.name, "Tandem-Priority": "1"})
        with paused_clients(urgent, NUM_WAITING):
            time.sleep(1.0)  # until they wait
            for rows in ROWS:
                answered, refused = (
                    infer(
                        here.url, MODEL, digits(rows), {"Tandem-Pool": pool.name, "Tandem-Deadline-Ms": f"{s * 1000:g}"}
                    )
                    for pool, s in ((QUICK, PATIENCE_S), (BUSY, DEADLINE_S))
                )
                yield from _verdicts(here, f"a refusal's CPU{{}}, {rows} rows in JSON", answered, refused)
    yield from over_quota(folder)


def over_quota(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    keys, control = folder / "keys.json", folder / "control.json"
    good, over = (add(keys, name, frozenset({"infer"}), datetime.now(UTC)).text for name in ("good", "over"))
    quotas = {"over": {"quotas": {"requests": {"per": "month", "limit": 0}}}}
    control.write_text(json.dumps({"version": 1, "tenants": quotas}))
    options = "--keys", str(keys), "--control", str(control)
    with (
        triton(QUICK, folder / "quotas") as server,
        gateway({QUICK: server.url}, folder, "quotas", options=options) as here,
    ):
        for rows in ROWS:
            answered, refused = (
                infer(
                    here.url,
                    MODEL,
                    digits(rows),
                    {"Authorization": f"Bearer {key}", "Tandem-Deadline-Ms": f"{PATIENCE_S * 1000:g}"},
                )
                for key in (good, over)
            )
            yield from _verdicts(here, f"a refusal's CPU{{}} by a quota, {rows} rows in JSON", answered, refused)


def _verdicts(here: LocalGateway, name: str, answered: Request, refused: Request) -> Iterator[Verdict]:
    turns = [_turn(here, answered, refused, seed) for seed in range(NUM_TURNS)]
    yield verdict(name.format(" ÷ an answer's"), turns)
    costs = spread([turn.refused_s * 1e6 for turn in turns])
    yield Verdict(name.format(""), costs.median, COST_US, ends_text(costs))


def _turn(here: LocalGateway, answered: Request, refused: Request, seed: int) -> Turn:
    before_s = cpu_s(here.pid)
    time.sleep(TURN_S)
    idle_s = cpu_s(here.pid) - before_s
    return Turn(*(_cost_s(here, one, idle_s, seed, is_refused=one is refused) for one in (answered, refused)))


def answers_cost_s(here: LocalGateway, request: Request, idle_ratio: float, lasting_s: float, rest_s: float) -> float:
    """Seconds of the gateway's processor for each, until `rest_s` after the last, less what it takes of a core when nobody asks.

    Raises CannotMeasure where some were not answered.
    """
    idle_s = idle_ratio * (lasting_s + rest_s)
    return _cost_s(here, request, idle_s, 0, is_refused=False, lasting_s=lasting_s, rest_s=rest_s)


def _cost_s(
    here: LocalGateway,
    request: Request,
    idle_s: float,
    seed: int,
    *,
    is_refused: bool,
    lasting_s: float = TURN_S,
    rest_s: float = 0.0,
) -> float:
    """Raises CannotMeasure where others were answered than should be."""
    arrivals = list(schedule(Arrivals("constant", RATE_RPS), lasting_s, seed))
    before_s = cpu_s(here.pid)
    shots = open_loop([request], arrivals).shots
    time.sleep(rest_s)
    spent_s = cpu_s(here.pid) - before_s - idle_s
    right = sum(shot.is_refused or shot.status == 429 if is_refused else shot.is_answered for shot in shots)
    if right < 0.95 * len(shots):
        raise CannotMeasure(f"{right} of {len(shots)} requests were {'refused' if is_refused else 'answered'}")
    return spent_s / len(shots)
