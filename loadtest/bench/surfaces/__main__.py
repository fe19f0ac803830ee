"""`python -m loadtest.bench.surfaces [--quick] [--only PART…] [--models DIR] [--json FILE]`: runs the parts and prints what came out.

Exit code 1 only for a value beyond twice its aim, 3 where nothing could be measured at all. A part that lacks something, such as a model
that nobody made, says so and leaves the others alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.bench.surfaces import classify, embeddings, grpc_port, json_image, peer
from loadtest.bench.surfaces.part import QUICK, Part, Plan, Setting
from loadtest.bench.verdicts import exit_code, result_file, table
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, Moment
from serving.environment import reach_loopback_directly
from serving.measure.machine import head, this_machine

PARTS: Mapping[str, Callable[[Setting], Part]] = {
    "json-image": json_image.measure,
    "grpc": grpc_port.measure,
    "embeddings": embeddings.measure,
    "classify": classify.measure,
    "peer": peer.measure,
}
COMMAND = "loadtest.bench.surfaces"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {COMMAND}", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round of each, no verdict: shows that it works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    parser.add_argument(
        "--models", type=Path, default=MODEL_REPOSITORY, help="the repository with minilm and efficientnet-lite0"
    )
    parser.add_argument("--json", type=result_file, metavar="FILE", help="also write every round to this file")
    options = parser.parse_args(arguments)
    reach_loopback_directly()
    machine, began = this_machine(), Moment.now()
    try:
        parts = run(options.only, QUICK if options.quick else Plan(), options.models)
    except KeyboardInterrupt:
        return 130
    others_ratio = began.others_ratio(Moment.now(), machine.num_cores)
    date, command = datetime.date.today().isoformat(), shlex.join(["python", "-m", COMMAND, *arguments])
    verdicts = [verdict for part in parts for verdict in part.verdicts]
    print(head(machine, date, command, "generators on the same cores; median (min..max)", others_ratio=others_ratio))
    for part in parts:
        print(f"\n{part.describe()}")
    if verdicts:
        print("\n" + table([("verdicts", "value", "aim", "outcome"), *(verdict.cells() for verdict in verdicts)]))
    if options.json:
        facts = {
            "version": 1,
            "machine": asdict(machine),
            "date": date,
            "command": command,
            "others_ratio": others_ratio,
        }
        text = json.dumps({**facts, "parts": [part.to_json() for part in parts]}, indent=1)
        options.json.write_text(text + "\n")
    if not any(part.values for part in parts):
        return 3
    return 0 if options.quick else exit_code(verdicts)


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
