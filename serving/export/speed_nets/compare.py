"""Times every variant in a repository on every engine that is there, and writes the table that says what paid where.

    python -m serving.export.speed_nets.compare REPOSITORY... --python cpu=PYTHON [--python openvino=PYTHON]
        [--python cuda=PYTHON] [--batch-size 1 --batch-size 8] [--seconds 1] [--output table.json]

In process, without a server: what serving could reach at most. Processor and card are timed apart, because a card that waits
for a processor's turn lowers its clock. Rule: a ratio is against FP32 on the same device, in the same turns; losers stay in.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from serving.decisions.engines import BASELINE, PLAIN, POOL, EnginePython
from serving.errors import EnvironmentFault, TandemError, UserError, exit_code
from serving.export.exported_model import Arrays
from serving.export.progress import lines
from serving.export.speed import Entrant, Results, contest
from serving.export.speed.contest import MIN_ROUNDS, NUM_ROUNDS
from serving.export.speed_nets import NETS, net
from serving.export.speed_nets.comparison import Comparison, LeftOut, Row, this_host
from serving.export.speed_nets.graph import SEED
from serving.repository import Repository, Variant

BATCH_SIZES = (1, 8, 32)
ENGINES = ("cpu", "openvino", "cuda")
BF16 = "bf16"  # FP32's file: OpenVINO computes it so


def compare(
    variants: Sequence[Variant],
    engines: Mapping[str, EnginePython],
    *,
    batch_sizes: Sequence[int],
    num_threads: int,
    seconds: float,
    num_rounds: int = NUM_ROUNDS,
    command: str = "",
) -> Comparison:
    """Model by model and device by device. What did not run is among `left_out`, with the reason."""
    rows: list[Row] = []
    left_out: list[LeftOut] = []
    warnings: list[str] = []
    measured = ""
    for model, its in _by_model(variants).items():
        largest = max(1, its[0].record.max_batch_size)
        sizes = sorted({min(size, largest) for size in batch_sizes})
        for entrants in by_device(its, engines):
            found = contest(
                entrants,
                engines=engines,
                batch_sizes=sizes,
                inputs=inputs_of(model, largest),
                num_threads=num_threads,
                seconds=seconds,
                num_rounds=num_rounds,
                progress=partial(_step, model),
            )
            rows += _rows(model, entrants, found)
            left_out += [LeftOut(model, *key, reason) for key, reason in found.left_out.items()]
            warnings += [f"{model}: {warning}" for warning in found.warnings]
            measured = found.measured
    return Comparison(
        machine=this_host(),
        measured=measured,
        command=command,
        num_threads=num_threads,
        seconds=seconds,
        num_rounds=num_rounds,
        rows=tuple(rows),
        left_out=tuple(left_out),
        warnings=tuple(warnings),
    )


def _step(model: str, step: str, done: int, total: int) -> None:
    lines(f"{model}: {step}", done, total)


def _by_model(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    models: dict[str, list[Variant]] = {}
    for variant in variants:
        models.setdefault(variant.record.model, []).append(variant)
    for model, its in models.items():
        names = [variant.record.variant for variant in its]
        if len(set(names)) < len(names):
            raise UserError(f"{model} is in two of the repositories; name one of them")
        if BASELINE not in names:
            raise UserError(f"{model} has no FP32 to be compared with; export it with --variant {BASELINE}, too")
    return models


def by_device(variants: Sequence[Variant], engines: Mapping[str, EnginePython]) -> Iterator[list[Entrant]]:
    """The contests of one model. FP32 on the device's plain engine comes first."""
    for pool, plain in PLAIN.items():
        if plain not in engines:
            continue
        present = [plain, *(engine for engine in engines if POOL[engine] == pool and engine != plain)]
        files = {v.record.variant: v.model_path for v in variants if v.record.pools[pool].is_loadable}
        if BASELINE not in files:
            continue
        names = [BASELINE, *sorted(name for name in files if name not in (BASELINE, BF16))]
        entrants = [Entrant(name, engine, files[name]) for name in names for engine in present]
        if "openvino" in present:
            entrants.append(Entrant(BF16, "openvino", files[BASELINE]))
        yield entrants


def inputs_of(model: str, count: int) -> Arrays | None:
    """What an untrained net is made for; None for any other model, for which the contest makes numbers up."""
    for name in NETS:
        if (chosen := net(name)).model == model:
            return chosen.examples(count, SEED + 3, chosen.num_tokens)
    return None


def _rows(model: str, entrants: Sequence[Entrant], found: Results) -> Iterator[Row]:
    for entrant in entrants:
        plain = PLAIN[POOL[entrant.engine]]
        for speed in found.speeds(*entrant.key):
            if speed.baseline_engine == plain:
                yield Row.of(model, entrant.variant, entrant.model.stat().st_size, speed)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m serving.export.speed_nets.compare",
        description=(__doc__ or "").split("\n")[0],
        allow_abbrev=False,
    )
    parser.add_argument("repository", type=Path, nargs="+")
    parser.add_argument("--python", action="append", metavar="ENGINE=PYTHON", default=[], help="default: cpu, this one")
    parser.add_argument("--batch-size", type=int, action="append", help="default: 1, 8, 32; at most what a model takes")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--seconds", type=float, default=1.0, help="per batch size and entrant")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="of new sessions (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="a .json; the table goes beside it as .md")
    options = parser.parse_args(arguments)
    try:
        engines = engines_of(options.python or [f"cpu={sys.executable}"])
        sizes = options.batch_size or BATCH_SIZES
        if min(*sizes, options.threads) < 1 or options.rounds < MIN_ROUNDS or not options.seconds > 0:
            raise UserError(f"batch sizes and threads are 1 or more, rounds {MIN_ROUNDS} or more, seconds more than 0")
        variants = [variant for path in options.repository for variant in Repository(path).variants()]
        command = shlex.join(["python", "-m", "serving.export.speed_nets.compare", *_told(arguments)])
        found = compare(
            variants,
            engines,
            batch_sizes=sizes,
            num_threads=options.threads,
            seconds=options.seconds,
            num_rounds=options.rounds,
            command=command,
        )
        if options.output:
            _write(options.output, found)
        print(found.to_markdown())
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return exit_code(error)
    return 0 if found.rows else 1


def engines_of(asked: Sequence[str]) -> dict[str, EnginePython]:
    engines: dict[str, EnginePython] = {}
    for text in asked:
        engine, equals, python = text.partition("=")
        if engine not in ENGINES or not equals:
            raise UserError(f"--python is {text!r}, want ENGINE=PYTHON with one of {', '.join(ENGINES)}")
        if not os.access(python, os.X_OK):
            raise UserError(f"--python {text}: there is no program {python}")
        engines[engine] = EnginePython(engine, Path(python), "")
    return engines


def _told(arguments: Sequence[str]) -> list[str]:
    """The command for a table that others read: places on this machine say nothing to them."""
    return [_without_place(text) if "/" in text else text for text in arguments]


def _without_place(text: str) -> str:
    """--python=cpu=/a/b -> --python=cpu=PYTHON, /a/table.json -> table.json"""
    name, equals, path = text.rpartition("=")
    return f"{name}=PYTHON" if equals else Path(path).name


def _write(path: Path, found: Comparison) -> None:
    try:
        path.write_text(found.to_json(), encoding="utf-8")
        path.with_suffix(".md").write_text(found.to_markdown(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
