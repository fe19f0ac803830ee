"""The suite with what a machine with a card brings itself: `python -m loadtest.claims FILE --nets DIR --python cuda=PYTHON`.

`tandem campaign run FILE` is the same with the engines that Tandem has installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.claims.command import ClaimsOptions, run
from serving.decisions.engines import EnginePython
from serving.errors import TandemError, exit_code
from serving.export.speed_nets.compare import engines_of


def _with_version(engine: EnginePython) -> EnginePython:
    """Adds the version of its ONNX Runtime; empty where it cannot be asked."""
    command = [str(engine.python), "-I", "-c", "import onnxruntime; print(onnxruntime.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return replace(engine, version=done.stdout.strip())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.claims", allow_abbrev=False)
    parser.add_argument("file", type=Path)
    parser.add_argument("--output", type=Path, help="a new folder for the results")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this claim alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="short times and few sizes, to try it")
    parser.add_argument("--nets", type=Path, help="a repository of untrained nets; what it lacks is made into it")
    parser.add_argument("--python", action="append", metavar="ENGINE=PYTHON", help="default: the engines installed")
    options = parser.parse_args(arguments)
    try:
        engines = {name: _with_version(engine) for name, engine in engines_of(options.python or []).items()} or None
        return run(
            ClaimsOptions(options.file, options.output, tuple(options.only), options.quick, options.nets, engines)
        )
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return exit_code(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
