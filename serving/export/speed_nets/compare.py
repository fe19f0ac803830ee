"""Times every variant in a repository on every engine that is there, and writes the table that says what paid where.

    python -m serving.export.speed_nets.compare REPOSITORY... --python cpu=PYTHON [--python openvino=PYTHON]
        [--python cuda=PYTHON] [--batch-size 1 --batch-size 8] [--seconds 1] [--output table.json]

In process, without a server: what serving could reach at most. Processor and card are timed apart, because a card that waits
for a processor's turn lowers its clock. Rules: a ratio is against FP32 on the same device, in
the same turns; variants that lost stay in; what the numbers depend on stands above them: processor, card, threads, date, command.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self

from serving.cores import usable_cores
from serving.decisions.engines import BASELINE, PLAIN, POOL, EnginePython
from serving.errors import EnvironmentFault, TandemError, UserError, exit_code
from serving.export.exported_model import Arrays
from serving.export.progress import lines
from serving.export.speed import Entrant, Results, contest
from serving.export.speed.contest import MIN_ROUNDS, NUM_ROUNDS
from serving.export.speed_nets import NETS, net
from serving.export.speed_nets.graph import SEED
from serving.measure.machine import processor_key, this_machine
from serving.repository import Repository, Speed, Variant

VERSION = 1
FASTER, SLOWER, NO_GAIN, BASE = "faster", "slower", "no clear gain", "FP32"


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One variant on one engine at one batch size. `ratio`: FP32's time on the same device / this one's; above 1 is faster."""

    model: str
    variant: str
    engine: str
    engine_version: str
    batch_size: int
    size_bytes: int
    ratio: float
    ratio_low: float
    ratio_high: float
    latency_s: float
    rate_per_s: float  # rows: images, texts
    verdict: str

    @classmethod
    def of(cls, model: str, variant: str, size_bytes: int, speed: Speed) -> Self:
        return cls(
            model=model,
            variant=variant,
            engine=speed.engine,
            engine_version=speed.engine_version,
            batch_size=speed.batch_size,
            size_bytes=size_bytes,
            ratio=speed.ratio,
            ratio_low=speed.ratio_low,
            ratio_high=speed.ratio_high,
            latency_s=speed.latency_s,
            rate_per_s=float(f"{speed.batch_size / speed.latency_s:.4g}"),
            verdict=_verdict(variant, speed),
        )


@dataclass(frozen=True, slots=True)
class Omission:
    model: str
    variant: str
    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class Host:
    """`card`: name and driver; None where there is none."""

    processor: str
    processor_key: str
    num_cores: int
    card: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    machine: Host
    measured: str  # ISO date
    command: str
    num_threads: int
    seconds: float  # per batch size and entrant
    num_rounds: int
    rows: tuple[SpeedRow, ...]
    left_out: tuple[Omission, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        machine = self.machine
        lines = [
            f"Processor: {machine.processor} ({machine.processor_key}), {machine.num_cores} cores, {self.num_threads} "
            f"threads. Card: {machine.card or 'none'}. {self.measured}, `{self.command}`.",
            "",
            "In process, without a server. Untrained nets: speed only. The ratio is FP32's time over the variant's on the "
            "same device, with its 95 % interval.",
            "",
            "| model | variant | engine | batch | MB | rows/s | times FP32 | |",
            "| --- | --- | --- | ---: | ---: | ---: | --- | --- |",
            *(_line(row) for row in self.rows),
        ]
        if self.left_out:
            entries = (f"- {out.model} {out.variant} on {out.engine}: {out.reason}" for out in self.left_out)
            lines += ["", "Not timed:", "", *entries]
        if self.warnings:
            lines += ["", "Timed less than wished:", "", *(f"- {warning}" for warning in self.warnings)]
        return "\n".join(lines) + "\n"


def _line(row: SpeedRow) -> str:
    ratio = f"{row.ratio:.2f} ({row.ratio_low:.2f}..{row.ratio_high:.2f})" if row.verdict != BASE else "1"
    return (
        f"| {row.model} | {row.variant} | {row.engine} {row.engine_version} | {row.batch_size} "
        f"| {row.size_bytes / 1e6:.0f} | {row.rate_per_s:.4g} | {ratio} | {row.verdict} |"
    )


def _verdict(variant: str, speed: Speed) -> str:
    if variant == "fp32" and speed.engine == speed.baseline_engine:
        return BASE
    if speed.ratio_low > 1:
        return FASTER
    return SLOWER if speed.ratio_high < 1 else NO_GAIN


def this_host() -> Host:
    machine = this_machine()
    return Host(machine.processor, processor_key(), usable_cores(), machine.cards[0] if machine.cards else None)


BATCH_SIZES = (1, 8, 32)
ENGINES = ("cpu", "openvino", "cuda", "tensorrt")
BF16, TF32 = "bf16", "tf32"  # FP32's file: OpenVINO, and a card, compute it so


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
    rows: list[SpeedRow] = []
    left_out: list[Omission] = []
    warnings: list[str] = []
    measured = ""
    for model, family in _by_model(variants).items():
        largest = max(1, family[0].record.max_batch_size)
        sizes = sorted({min(size, largest) for size in batch_sizes})
        for entrants in by_device(family, engines):
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
            left_out += [Omission(model, *key, reason) for key, reason in found.left_out.items()]
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
    for model, family in models.items():
        names = [variant.record.variant for variant in family]
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
        names = [BASELINE, *sorted(name for name in files if name not in (BASELINE, BF16, TF32))]
        entrants = [Entrant(name, engine, files[name]) for name in names for engine in present]
        if "openvino" in present:
            entrants.append(Entrant(BF16, "openvino", files[BASELINE]))
        if "cuda" in present:
            entrants.append(Entrant(TF32, "cuda", files[BASELINE]))
        if "tensorrt" in present and (quantised := next((v for v in variants if v.record.variant == "int8"), None)):
            entrants.append(Entrant("int8", "tensorrt", quantised.model_path))
        yield entrants


def inputs_of(model: str, count: int) -> Arrays | None:
    """What an untrained net is made for; None for any other model, for which the contest makes numbers up."""
    for name in NETS:
        if (chosen := net(name)).model == model:
            return chosen.examples(count, SEED + 3, chosen.num_tokens)
    return None


def _rows(model: str, entrants: Sequence[Entrant], found: Results) -> Iterator[SpeedRow]:
    for entrant in entrants:
        plain = PLAIN[POOL[entrant.engine]]
        for speed in found.speeds(*entrant.key):
            if speed.baseline_engine == plain:
                yield SpeedRow.of(model, entrant.variant, entrant.model.stat().st_size, speed)


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
        command = shlex.join(["python", "-m", "serving.export.speed_nets.compare", *_shareable(arguments)])
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


def engines_of(values: Sequence[str]) -> dict[str, EnginePython]:
    engines: dict[str, EnginePython] = {}
    for text in values:
        engine, equals, python = text.partition("=")
        if engine not in ENGINES or not equals:
            raise UserError(f"--python is {text!r}, want ENGINE=PYTHON with one of {', '.join(ENGINES)}")
        if not os.access(python, os.X_OK):
            raise UserError(f"--python {text}: there is no program {python}")
        engines[engine] = EnginePython(engine, Path(python), "")
    return engines


def _shareable(arguments: Sequence[str]) -> list[str]:
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
