"""Prints a repository's variants as a Markdown table: model × variant × engine, losers included.

    scripts/variants_table.py [--model-repository DIR]

Speed is what was measured on this kind of processor: FP32's latency on ONNX Runtime's own provider over this one's, with its
interval, above 1 is faster. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from serving.export.inventory import Models, Row, models
from serving.export.table import proof, size

PLAIN = "cpu"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model-repository", type=Path, default=Path("model_repo"))
    found = models(parser.parse_args(arguments).model_repository)
    print("\n".join(lines(found)))
    return 0


def lines(found: Models) -> Iterator[str]:
    yield "| model | variant | size | proof | engine | ÷ FP32 on `cpu`, by batch size | on the CPU pool |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in found.variants:
        for engine in dict.fromkeys((*(speed.engine for speed in row.speed), *_unmeasured(row))):
            yield _line(row, engine)
    for row in found.variants:
        for variant, reason in row.not_made.items():
            yield f"| {row.model} | {variant} | | | | | not made: {reason} |"


def _unmeasured(row: Row) -> list[str]:
    return [] if row.speed else [row.pools["cpu"].engine]


def _line(row: Row, engine: str) -> str:
    told = [
        f"{speed.batch_size}: {speed.ratio:.2f} ({speed.ratio_low:.2f}..{speed.ratio_high:.2f})"
        for speed in row.speed
        if speed.engine == engine and speed.baseline_engine == PLAIN
    ]
    pool = row.pools["cpu"]
    is_it = pool.is_loadable and pool.engine == engine
    verdict = f"**{pool.status}**" if is_it else "another engine is faster" if pool.is_loadable else pool.status
    if is_it and row.variant == "fp32":
        verdict = "**the baseline**"
    is_plain = row.variant == "fp32" and engine == PLAIN
    speeds = "1" if is_plain else "; ".join(told) or "not measured"
    text = proof(row).replace("\n", ", ")
    return f"| {row.model} | {row.variant} | {size(row.size_bytes)} | {text} | {engine} | {speeds} | {verdict} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
