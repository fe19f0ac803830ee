"""What happens when there is too much to do, when things die and when they are cold, and is that what was promised (`make prove`)?

    python -m loadtest.bench.prove [--only PART …] [--all] [--json FILE]

Real processes and real load on this machine's cores; each part says how long it takes. Exit code 1 only for a value beyond twice its aim,
3 where something could not be measured. The judging is pure, where `make test` tries it without a clock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.generator import rates
from loadtest.bench.prove.cold_gpu import handover
from loadtest.bench.prove.computed import ALL, FEW, allotted_s, computed
from loadtest.bench.prove.containment import contained
from loadtest.bench.prove.crossover import crossovers
from loadtest.bench.prove.emulated import num_too_busy
from loadtest.bench.prove.features import features
from loadtest.bench.prove.models import models
from loadtest.bench.prove.overload import DEADLINE_S, gateway_counts, one_gateway
from loadtest.bench.prove.planned import plans
from loadtest.bench.prove.pool_death import DEADLINE_S as KILL_DEADLINE_S
from loadtest.bench.prove.pool_death import kills
from loadtest.bench.prove.refusals import refusals
from loadtest.bench.prove.restarts import restarts
from loadtest.bench.prove.shadow import NUM_TURNS, TURN_S, shadow
from loadtest.bench.prove.simulated import agreements
from loadtest.bench.prove.swaps import swaps
from loadtest.bench.prove.tenants import tenants
from loadtest.bench.verdicts import Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sender import NUM_CLIENTS, PAUSE_S


@dataclass(frozen=True, slots=True)
class Part:
    """`allotted_s`: about as long as it takes on an idle machine."""

    measure: Callable[[Path], Iterator[Verdict]]
    allotted_s: float


COMPUTED, ALL_COMPUTED = Part(computed, allotted_s(FEW)), Part(partial(computed, cells=ALL), allotted_s(ALL))
# By what each sends and starts; the report says how long each took.
PARTS: Mapping[str, Part] = {
    "restarts": Part(restarts, 60),
    "swaps": Part(swaps, 200),
    "contain": Part(contained, 60),
    "overload": Part(one_gateway, 90),
    "gateways": Part(gateway_counts, 180),
    "tenants": Part(tenants, 150),
    "refusals": Part(refusals, 150),
    "features": Part(features, 160),
    "models": Part(models, 150),
    "computed": COMPUTED,
    "shadow": Part(shadow, 15 + 2 * NUM_TURNS * (TURN_S + 1)),
    "pool_death": Part(kills, 40),
    "cold_gpu": Part(handover, 40),
    "crossover": Part(crossovers, 40),
    "simulator": Part(agreements, 90),
    "generator": Part(rates, 90),
    "plan": Part(plans, 240),
}
MODULE = "loadtest.bench.prove"
CONDITIONS = (
    f"restarts: {NUM_CLIENTS} clients in a closed loop with pauses of {PAUSE_S * 1000:g} ms",
    "swaps: an open loop at a fixed rate; contain, computed, models, shadow, plan: real nets; generator: none",
    f"the rest: emulated pools, open loop with Poisson arrivals, deadline {DEADLINE_S * 1000:g} ms ({KILL_DEADLINE_S:g} s where a "
    "pool is killed), times from when a request was due",
)


@dataclass(slots=True)
class Asides:
    """Facts beside the verdicts: what could not be measured, where the machine was too busy, and how long each part took."""

    not_measured: list[str] = field(default_factory=list)
    num_too_busy: dict[str, int] = field(default_factory=dict)  # of a pool of a part: lines of its log
    took_s: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        counts = ", ".join(f"{where} {count}" for where, count in self.num_too_busy.items())
        return [
            f"answers later than their curve, by lines of Triton's log (one in 10 s at most): {counts or 'none'}",
            f"took: {', '.join(f'{part} {seconds:.0f} s' for part, seconds in self.took_s.items())}",
        ]


def prove(parts: Mapping[str, Part], asides: Asides) -> Iterator[Verdict]:
    """Yields verdicts as they become known. A part that cannot be measured is noted, and the next one runs."""
    for name, part in parts.items():
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tandem-prove-") as folder:
            try:
                yield from part.measure(Path(folder))
            except (CannotMeasure, OSError) as error:  # OSError: a gateway that is gone takes no connection
                asides.not_measured.append(f"{name}: {error}")
                print(f"tandem: {asides.not_measured[-1]}", file=sys.stderr)
            asides.num_too_busy |= {f"{name}/{pool}": count for pool, count in num_too_busy(Path(folder)).items()}
        asides.took_s[name] = time.monotonic() - began_s


def in_minutes(parts: Iterable[Part]) -> str:
    minutes = round(sum(part.allotted_s for part in parts) / 60)
    return f"{minutes} minute{'' if minutes == 1 else 's'}"


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    more = f"every row of the part computed, {in_minutes([ALL_COMPUTED])} instead of {in_minutes([COMPUTED])}"
    parser.add_argument("--all", action="store_true", help=more)
    options = parser.parse_args(arguments)
    parts = {name: PARTS[name] for name in options.only or PARTS}
    if options.all and "computed" in parts:
        parts["computed"] = ALL_COMPUTED

    def measure() -> BenchReport:
        print(f"about {in_minutes(parts.values())} on an idle machine", file=sys.stderr)
        verdicts, asides = list[Verdict](), Asides()
        for verdict in prove(parts, asides):
            verdicts.append(verdict)
            print(" | ".join(verdict.cells()), file=sys.stderr)
        return BenchReport(
            [*CONDITIONS, *asides.lines()],
            [f"not measured: {failure}" for failure in asides.not_measured],
            verdicts,
            {"not_measured": asides.not_measured, "num_too_busy_lines": asides.num_too_busy, "took_s": asides.took_s},
            is_incomplete=bool(asides.not_measured),
        )

    return run_bench(MODULE, arguments, options.json, measure, is_quick=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
