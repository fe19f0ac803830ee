"""What every bench does around its measuring: options, the machine and the command first, verdicts last, `--json FILE` and the exit code.

Exit code 1 for a value beyond twice its aim, 3 where something could not be measured, 130 interrupted. A bench returns a `BenchReport`;
how it measures is its own module's. Rule: where a result could not be written is known before anything is measured.
"""

from __future__ import annotations

import datetime
import json
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtest.bench.verdicts import Verdict, exit_code, verdict_table
from loadtest.errors import CannotMeasure
from loadtest.processes import Moment
from serving.measure.machine import head, this_machine


@dataclass(frozen=True, slots=True)
class BenchReport:
    """`conditions`: lines below the machine; `parts`: tables and sentences before the verdicts; `facts`: for --json, beside them.

    `is_incomplete`: something could not be measured, which one of the parts says.
    """

    conditions: Sequence[str]
    parts: Sequence[str] = ()
    verdicts: Sequence[Verdict] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    is_incomplete: bool = False


def bench_parser(module: str, doc: str | None, quick: str | None = None) -> ArgumentParser:
    """`quick`: what the option of that name does, where there is one."""
    parser = ArgumentParser(prog=f"python -m {module}", description=(doc or "").split("\n")[0])
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=f"{quick}, no verdict: shows that it works")
    parser.add_argument("--json", type=result_file, metavar="FILE", help="also write every value to this file")
    return parser


def result_file(text: str) -> Path:
    """For argparse. Raises ArgumentTypeError."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder")
    return path


def run_bench(
    module: str, arguments: Sequence[str], json_file: Path | None, measure: Callable[[], BenchReport], *, is_quick: bool
) -> int:
    """The exit code. `module`: as `python -m` takes it."""
    machine, began = this_machine(), Moment.now()
    try:
        found = measure()
    except CannotMeasure as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    others_ratio = began.others_ratio(Moment.now(), machine.num_cores)
    date, command = datetime.date.today().isoformat(), shlex.join(["python", "-m", module, *arguments])
    verdicts = [verdict_table(found.verdicts)] if found.verdicts else []
    first = head(machine, date, command, *found.conditions, others_ratio=others_ratio)
    print("\n\n".join([first, *found.parts, *verdicts]))
    if json_file:
        content = {"version": 1, "machine": asdict(machine), "date": date, "command": command}
        content |= {"others_ratio": others_ratio, **found.facts}
        content["verdicts"] = [verdict.to_json() for verdict in found.verdicts]
        json_file.write_text(json.dumps(content, indent=1) + "\n")
    failed = 0 if is_quick else exit_code(found.verdicts)
    return failed or (3 if found.is_incomplete else 0)
