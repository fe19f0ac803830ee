"""Times one ONNX file beside another, for whoever wants to know:

    python -m serving.export.speed BASE.onnx CANDIDATE.onnx [--engine openvino --python PATH] [--batch-sizes 1,8,32] [--json]

Both run with the ONNX Runtime of this Python, or the candidate on another engine with that engine's Python. Not here: gates.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from serving.cuda_options import cuda_options
from serving.decisions.engines import BASELINE, PLAIN, POOL
from serving.errors import UserError, exit_code
from serving.export.speed import EnginePython, Entrant, Results, contest
from serving.export.speed.worker import PROVIDERS

CANDIDATE = "candidate"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for path in (options.base, options.candidate):
        if not path.is_file():
            print(f"there is no file {path}", file=sys.stderr)
            return 2
    try:
        cuda = cuda_options(options.cuda_option)
    except UserError as error:
        print(error, file=sys.stderr)
        return exit_code(error)
    plain = PLAIN[POOL[options.engine]]
    entrants = [
        Entrant(BASELINE, plain, options.base),
        Entrant(options.precision or CANDIDATE, options.engine, options.candidate, cuda, options.buffers),
    ]
    engines = {plain: EnginePython(plain, options.base_python, "")}
    engines[options.engine] = EnginePython(options.engine, options.python or options.base_python, "")
    found = contest(
        entrants,
        engines=engines,
        batch_sizes=options.batch_sizes,
        inputs=options.inputs,
        num_threads=options.threads,
        seconds=options.seconds,
        allow_spinning=options.allow_spinning,
    )
    return _show(found, entrants[1], as_json=options.json)


def _show(found: Results, candidate: Entrant, *, as_json: bool) -> int:
    for (variant, engine), reason in found.left_out.items():
        print(f"{variant} on {engine} did not run: {reason}", file=sys.stderr)
    for warning in found.warnings:
        print(warning, file=sys.stderr)
    speeds = found.speeds(*candidate.key)
    if as_json:
        print(json.dumps([asdict(speed) for speed in speeds]))
    for s in speeds if not as_json else ():
        times = f"{s.latency_s * 1e6:.1f} µs beside {s.fp32_latency_s * 1e6:.1f} µs"
        print(f"batch {s.batch_size}: ratio {s.ratio:.3f} ({s.ratio_low:.3f}..{s.ratio_high:.3f}), {times}")
    return 0 if speeds else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving.export.speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--engine", choices=sorted(PROVIDERS), default="cpu", help="of the candidate")
    parser.add_argument(
        "--precision", choices=("fp16", "bf16", "tf32", "int8"), help="where it is the engine's to choose"
    )
    parser.add_argument("--buffers", action="store_true", help="the candidate runs in buffers that stay where they are")
    parser.add_argument(
        "--cuda-option", action="append", default=[], metavar="NAME=VALUE", help="of the candidate's provider"
    )
    parser.add_argument("--python", type=Path, help="of the candidate's engine; default: the base's")
    parser.add_argument("--base-python", type=Path, default=Path(sys.executable), help="default: this one")
    parser.add_argument("--batch-sizes", default="1,8,32", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--inputs", type=Path, help=".npz with arrays by input name; default: made-up numbers")
    parser.add_argument("--threads", default=1, type=int)
    parser.add_argument("--seconds", default=1.0, type=float, help="per batch size")
    parser.add_argument("--allow-spinning", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
