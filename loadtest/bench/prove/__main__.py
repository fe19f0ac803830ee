"""What happens when there is too much to do, when things die and when they are cold, and is that what was promised (`make prove`)?

    python -m loadtest.bench.prove [--only PART …] [--json FILE]

Real processes and real load on this machine's cores; twelve minutes for all. Exit code 1 only for a value beyond twice its aim, 3 where
something could not be measured. The judging is pure, where `make test` tries it without a clock.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.generator import rates
from loadtest.bench.prove.cold_gpu import handover
from loadtest.bench.prove.computed import computed
from loadtest.bench.prove.containment import contained
from loadtest.bench.prove.crossover import crossovers
from loadtest.bench.prove.emulated import num_too_busy
from loadtest.bench.prove.overload import DEADLINE_S, one_gateway, two_gateways
from loadtest.bench.prove.planned import plans
from loadtest.bench.prove.pool_death import DEADLINE_S as KILL_DEADLINE_S
from loadtest.bench.prove.pool_death import kills
from loadtest.bench.prove.refusals import refusals
from loadtest.bench.prove.restarts import restarts
from loadtest.bench.prove.simulated import agreements
from loadtest.bench.verdicts import Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sender import NUM_CLIENTS, PAUSE_S

PARTS: Mapping[str, Callable[[Path], Iterator[Verdict]]] = {
    "restarts": restarts,
    "contain": contained,
    "overload": one_gateway,
    "two_gateways": two_gateways,
    "refusals": refusals,
    "computed": computed,
    "pool_death": kills,
    "cold_gpu": handover,
    "crossover": crossovers,
    "simulator": agreements,
    "generator": rates,
    "plan": plans,
}
MODULE = "loadtest.bench.prove"
CONDITIONS = (
    f"restarts: {NUM_CLIENTS} clients in a closed loop with pauses of {PAUSE_S * 1000:g} ms",
    f"the rest: emulated pools, open loop with Poisson arrivals, deadline {DEADLINE_S * 1000:g} ms ({KILL_DEADLINE_S:g} s where a "
    "pool is killed), times from when a request was due",
)


@dataclass(slots=True)
class Asides:
    """Facts beside the verdicts: what could not be measured, and where the machine was too busy."""

    not_measured: list[str] = field(default_factory=list)
    num_too_busy: dict[str, int] = field(default_factory=dict)  # of a pool of a part: lines of its log

    def line(self) -> str:
        counts = ", ".join(f"{where} {count}" for where, count in self.num_too_busy.items())
        return f"answers later than their curve, by lines of Triton's log (one in 10 s at most): {counts or 'none'}"


def prove(parts: Sequence[str], asides: Asides) -> Iterator[Verdict]:
    """Yields verdicts as they become known. A part that cannot be measured is noted, and the next one runs."""
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="tandem-prove-") as folder:
            try:
                yield from PARTS[part](Path(folder))
            except (CannotMeasure, OSError) as error:  # OSError: a gateway that is gone takes no connection
                asides.not_measured.append(f"{part}: {error}")
                print(f"tandem: {asides.not_measured[-1]}", file=sys.stderr)
            asides.num_too_busy |= {f"{part}/{pool}": count for pool, count in num_too_busy(Path(folder)).items()}


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args(arguments)

    def measure() -> BenchReport:
        verdicts, asides = list[Verdict](), Asides()
        for verdict in prove(options.only or list(PARTS), asides):
            verdicts.append(verdict)
            print(" | ".join(verdict.cells()), file=sys.stderr)
        return BenchReport(
            [*CONDITIONS, asides.line()],
            [f"not measured: {failure}" for failure in asides.not_measured],
            verdicts,
            {"not_measured": asides.not_measured, "num_too_busy_lines": asides.num_too_busy},
            is_incomplete=bool(asides.not_measured),
        )

    return run_bench(MODULE, arguments, options.json, measure, is_quick=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
