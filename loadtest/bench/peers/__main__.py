"""How does Tandem stand among its peers? The same file and the same bodies, each server in turn, in rotating rounds of one run.

    python -m loadtest.bench.peers [--rounds N] [--only NAME…] [--json FILE]

Of each: requests a second of 32 connections that ask without a pause, the CPU time of all that serves, the median of one connection
alone, the highest Poisson rate whose p99 is within the objective, memory, and seconds until it answers. Each is started for its turn, so
that nobody pays for another's idling. There are no aims; rows where Tandem loses are on the page (`page.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench import wrk
from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.gateway import NUM_CONNECTIONS
from loadtest.bench.peers.contenders import CONTENDERS, VARIANT, Contender, Server, serving
from loadtest.bench.verdicts import spread_text, table
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY
from loadtest.sending.bodies import Signature, Tensor, encode_binary
from loadtest.sending.link import Request
from loadtest.sending.sender import open_load
from loadtest.sending.sent_request import Shot
from serving.http_client import address, request_bytes
from serving.measure import search
from serving.measure.percentiles import percentile
from serving.measure.rounds import rounds, spread

MODULE = "loadtest.bench.peers"
OBJECTIVE_S = 0.02  # of the p99 that a rate must keep
MAX_LAG_S = 0.25 * OBJECTIVE_S  # of the generator's p99: else a run that missed says nothing
MAX_IN_FLIGHT = 512
RUN_S, BURST_S, WARMUP_S = 1.0, 2, 1
HEADERS = {"Content-Type": "application/json"}


@dataclass(slots=True)
class Standing:
    """What one contender gave, round by round."""

    json: wrk.Series = field(default_factory=wrk.Series)
    binary: wrk.Series = field(default_factory=wrk.Series)
    goodput_rps: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    missing: str = ""
    version: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "json": self.json.to_json(),
            "binary": self.binary.to_json(),
            "goodput_rps": self.goodput_rps,
            "start_s": self.start_s,
            "memory_mb": self.memory_mb,
            "missing": self.missing,
        }


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__, "one short round of each")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds in which each has a turn")
    names = [one.name for one in CONTENDERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    options = parser.parse_args(arguments)
    chosen = [one for one in CONTENDERS if one.name in options.only]
    num_rounds = 1 if options.quick else options.rounds
    return run_bench(
        MODULE, arguments, options.json, lambda: run(chosen, num_rounds, is_quick=options.quick), is_quick=options.quick
    )


def run(chosen: Sequence[Contender], num_rounds: int, *, is_quick: bool) -> BenchReport:
    """Raises CannotMeasure where the generator is not here."""
    generator = wrk.find()
    standings = {one.name: Standing() for one in chosen}
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as name:
        folder = Path(name)
        for number, order in enumerate(rounds(list(chosen), num_rounds)):
            for contender in order:
                standing = standings[contender.name]
                if standing.missing:
                    continue
                print(f"round {number + 1} of {num_rounds}: {contender.name}", file=sys.stderr)
                try:
                    with serving(contender, folder / f"{number}-{CONTENDERS.index(contender)}") as server:
                        standing.version = contender.version()
                        _take_turn(generator, contender, server, standing, folder, is_quick=is_quick)
                except CannotMeasure as error:
                    standing.missing = str(error)
    conditions = (
        f"{VARIANT}, one real digit per request, one instance and one thread everywhere; {num_rounds} rotating rounds, each server "
        "started for its turn; generator on the same cores; in time: the highest Poisson rate with p99 within "
        f"{OBJECTIVE_S * 1000:.0f} ms; median (min..max)"
    )
    facts = {"peers": {name: one.to_json() for name, one in standings.items()}, "objective_s": OBJECTIVE_S}
    facts["settings"] = {one.name: one.settings for one in chosen}
    return BenchReport([conditions], _tables(standings), (), facts)


def _take_turn(
    generator: str, contender: Contender, server: Server, standing: Standing, folder: Path, *, is_quick: bool
) -> None:
    sample = (MODEL_REPOSITORY / VARIANT / "sample.json").read_bytes()
    script = wrk.write_script(folder / "json.lua", sample, HEADERS)
    wrk.fire(generator, script, server.url, num_connections=NUM_CONNECTIONS, duration_s=WARMUP_S)
    standing.start_s.append(server.start_s)
    fire = wrk.firing(generator, script, server.url, busy_s=1 if is_quick else BURST_S, lone_s=1)
    standing.json.take_turn(fire, NUM_CONNECTIONS, server.cpu_s)
    if contender.takes_binary:
        body, headers = _binary()
        packed = wrk.write_script(folder / "binary.lua", body, headers)
        fire = wrk.firing(generator, packed, server.url, busy_s=1 if is_quick else BURST_S, lone_s=1)
        standing.binary.take_turn(fire, NUM_CONNECTIONS, server.cpu_s)
    if not is_quick:
        standing.goodput_rps.append(_goodput_rps(server, sample, standing.json.rate_rps[-1]))
    standing.memory_mb.append(server.memory_bytes() / 1e6)


def _binary() -> tuple[bytes, dict[str, str]]:
    """The same digit."""
    (tensor,) = json.loads((MODEL_REPOSITORY / VARIANT / "sample.json").read_bytes())["inputs"]
    digit = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
    body = encode_binary(Signature((Tensor("image", "FP32", digit.shape[1:]),), "probabilities"), {"image": digit}, ())
    return body.data, body.headers


def _goodput_rps(server: Server, sample: bytes, closed_rps: float) -> float:
    """The highest rate that was met, 0.0 where none was."""
    base = f"http://{server.authority}"
    request = Request(address(base), request_bytes("POST", base, server.path, HEADERS, sample), 0)
    seeds = iter(range(1, 1000))

    def met(rate_rps: float) -> search.RunOutcome:
        arrivals = schedule(Arrivals("poisson", rate_rps), RUN_S, next(seeds))
        with open_load([request], arrivals, MAX_IN_FLIGHT) as load:
            pass
        return judged(load.shots, load.num_dropped)

    aim = search.Search(
        start_rps=0.5 * closed_rps, floor_rps=closed_rps / 64, precision_ratio=1.1, num_repeats=1, max_runs=6
    )
    return search.find(aim, met).rate_rps


def judged(shots: Sequence[Shot], num_dropped: int) -> search.RunOutcome:
    """One run: late or lost is one in a hundred at most. Pure."""
    due = len(shots) + num_dropped
    good = sum(1 for shot in shots if shot.is_answered and shot.took_s <= OBJECTIVE_S)
    if due and due - good <= 0.01 * due:
        return "met"
    lag_s = percentile(np.array([shot.lag_s for shot in shots]), 0.99) if shots else 0.0
    return "void" if lag_s is not None and lag_s > MAX_LAG_S else "missed"


def _tables(standings: dict[str, Standing]) -> list[str]:
    closed = (f"req/s at {NUM_CONNECTIONS}", "p50 ms at 1", "CPU µs/request")
    rows: list[tuple[str, ...]] = [("server", *closed, "req/s in time", "MB", "start s")]
    packed: list[tuple[str, ...]] = [("binary", *closed)]
    for name, one in standings.items():
        if one.missing:
            rows.append((name, one.missing, "", "", "", "", ""))
            continue
        rest = ((one.goodput_rps, 0), (one.memory_mb, 0), (one.start_s, 1))
        rows.append((name, *one.json.cells(), *(spread_text(spread(it), digits) if it else "" for it, digits in rest)))
        if one.binary.rate_rps:
            packed.append((name, *one.binary.cells()))
    return [table(rows), table(packed)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
