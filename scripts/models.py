"""Builds the models that Tandem can build by itself: what `make models` runs.

    scripts/models.py [--speed] [--only NAME]… [--model-repository DIR]

`--speed` adds the nets with random weights. A variant that does not pass its gate is a result: it is told, and stands in
FP32's record. An FP32 that does not pass ends this with exit code 1, after the others were built.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from serving.errors import GateRefused, TandemError, exit_code
from serving.export import command, speed_nets
from serving.export.command import ExportOptions
from serving.export.recipes import SPEED, TRAINED
from serving.local import trial_server
from serving.local.devices import installed

# `digits` is committed and served by `make up`, which has ONNX Runtime's own provider alone: no engine or precision beyond it.
COMMITTED = "digits"
COMMITTED_PRECISIONS = ("fp32", "fp16", "int8")
PAYLOAD = Path("loadtest/payloads/digits.npz")


def main(arguments: Sequence[str]) -> int:
    names = [*TRAINED, *(f"{SPEED}:{name}" for name in speed_nets.NETS)]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--speed", action="store_true", help="also the nets with random weights")
    parser.add_argument("--only", action="append", choices=names, help="this one alone; may be given several times")
    parser.add_argument("--model-repository", type=Path, default=Path("model_repo"))
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing, per batch size")
    asked = parser.parse_args(arguments)
    chosen = asked.only or [name for name in names if asked.speed or name in TRAINED]
    worst = 0
    for name in chosen:
        print(f"== {name}")
        try:
            options, engines = ExportOptions(name, asked.model_repository, seconds=asked.seconds), installed()
            if name == COMMITTED:
                options = replace(options, precisions=COMMITTED_PRECISIONS, payload=PAYLOAD)
                engines = {engine: python for engine, python in engines.items() if engine != "openvino"}
            command.run(options, engines, partial(trial_server.load, say=print))
        except GateRefused as refusal:
            print(f"tandem: {refusal}", file=sys.stderr)
            worst = max(worst, 1)
        except TandemError as error:
            print(f"tandem: {error}", file=sys.stderr)
            return exit_code(error)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
