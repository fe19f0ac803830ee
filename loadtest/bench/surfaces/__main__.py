"""`python -m loadtest.bench.surfaces [--quick] [--only PART…] [--models DIR] [--json FILE]`: runs the parts and prints what came out.

Exit code 1 only for a value beyond twice its aim, 3 where nothing could be measured at all. A part that lacks something, such as a
model that has not been made, says so, and the others run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.surfaces import classify, embeddings, grpc_port, json_image
from loadtest.bench.surfaces.part import QUICK, Part, Plan, Setting
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY
from serving.environment import reach_loopback_directly

PARTS: Mapping[str, Callable[[Setting], Part]] = {
    "json-image": json_image.measure,
    "grpc": grpc_port.measure,
    "embeddings": embeddings.measure,
    "classify": classify.measure,
}
MODULE = "loadtest.bench.surfaces"


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__, "one short round of each")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    parser.add_argument(
        "--models", type=Path, default=MODEL_REPOSITORY, help="the repository with minilm and efficientnet-lite0"
    )
    options = parser.parse_args(arguments)
    reach_loopback_directly()

    def measure() -> BenchReport:
        parts = run(options.only, QUICK if options.quick else Plan(), options.models)
        return BenchReport(
            ["generators on the same cores; median (min..max)"],
            [part.describe() for part in parts],
            [verdict for part in parts for verdict in part.verdicts],
            {"parts": [part.to_json() for part in parts]},
            is_incomplete=not any(part.values for part in parts),
        )

    return run_bench(MODULE, arguments, options.json, measure, is_quick=options.quick)


def run(names: Sequence[str], plan: Plan, models: Path) -> list[Part]:
    parts = []
    for name in names:
        print(f"measuring {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
            try:
                parts.append(PARTS[name](Setting(plan, Path(folder), models)))
            except CannotMeasure as error:
                parts.append(Part(name, notes=[f"not measured: {error}"]))
    return parts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
