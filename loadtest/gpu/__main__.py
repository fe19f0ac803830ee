"""What `loadtest/gpu/run.sh` runs once it has made an environment: `python -m loadtest.gpu [STAGE …] [--minutes N] [--stand-in]`.

Exit code: 0 all of the stages is done; 1 something failed or was not reached (report.html says what), and the same command goes on;
2 wrong use.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from loadtest.claims.claims_file import read_suite
from loadtest.claims.command import quick
from loadtest.errors import CannotMeasure
from loadtest.gpu import page, served
from loadtest.gpu.card import this_card
from loadtest.gpu.conclusions import CLAIMS
from loadtest.gpu.ledger import Ledger, Run
from loadtest.gpu.stages import NAMES, STAGES, run_stages
from loadtest.gpu.unit import Setup
from loadtest.processes import MODEL_REPOSITORY
from loadtest.progress import INTERRUPTED, Progress, sigterm_as_interrupt
from serving.errors import TandemError, exit_code
from serving.measure.machine import this_machine, versions

WORK = Path("build/gpu")
RESULTS = Path("loadtest/gpu/results")
NOT_COMPILED = "The gateway's scheduling ran as Python, not compiled (make compiled does that)."


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="loadtest/gpu/run.sh", description="CPU against GPU, in stages that continue each other."
    )
    parser.add_argument("stage", nargs="*", metavar="STAGE", help=f"of {', '.join(NAMES)}; default: all, in this order")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="for all of them; the next run goes on (default: %(default)g)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="of these stages, the units whose names have these words; as often as needed",
    )
    parser.add_argument("--output", type=Path, help=f"a folder, which is continued (default: {RESULTS}/CARD)")
    parser.add_argument(
        "--files", type=Path, default=WORK / "files", help="what unpack.sh joined (default: %(default)s)"
    )
    parser.add_argument(
        "--stand-in", action="store_true", help="rehearse without a card, with short times: no measurement"
    )
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        help="what a reader of the results must know of this machine; as often as needed",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.stage if name not in NAMES]:
        parser.error(f"there is no stage {unknown[0]}; there are {', '.join(NAMES)}")
    if not options.minutes > 0:
        parser.error("--minutes is more than 0")
    work = WORK.absolute()
    work.mkdir(parents=True, exist_ok=True)
    try:
        card = this_card(work, is_stand_in=options.stand_in)
        output = options.output or RESULTS / "-".join(card.name.split()).replace("/", "-")
        output.mkdir(parents=True, exist_ok=True)
        command = shlex.join(["loadtest/gpu/run.sh", *options.stage, *(["--stand-in"] if options.stand_in else [])])
        machine = this_machine()
        known = versions() | {"onnxruntime": card.engines["cuda"].version}
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        carried = options.files / "notes.txt"  # by pack.sh
        of_files = carried.read_text(encoding="utf-8").splitlines() if carried.exists() else []
        notes = (*of_files, *options.note, *([] if served.is_compiled() else [NOT_COMPILED]))
        ledger = Ledger(output, Run(card.facts, machine, known, command, now, card.is_stand_in, notes))
        with Progress() as progress, sigterm_as_interrupt():
            suite = read_suite(CLAIMS)
            setup = Setup(
                card=card,
                machine=machine,
                suite=quick(suite) if card.is_stand_in else suite,
                work=work,
                files=options.files,
                output=output,
                trained=MODEL_REPOSITORY,
                report=ledger.report,
                say=progress.say,
                is_quick=card.is_stand_in,
            )
            chosen = [stage for stage in STAGES if stage.name in (options.stage or NAMES)]
            is_done = run_stages(
                chosen, setup, ledger, lambda: page.write(output, ledger.report()), options.minutes * 60, options.only
            )
    except CannotMeasure as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 2
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        print("tandem: interrupted; what was measured is kept, and the same command goes on", file=sys.stderr)
        return INTERRUPTED
    page.write(output, ledger.report())
    print(page.markdown(ledger.report()))
    print(f"report: {output / page.PAGE}")
    return 0 if is_done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
