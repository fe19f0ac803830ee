"""Prints a repository's variants as a Markdown table: model × variant × engine, losers included.

    scripts/variants_table.py [--model-repository DIR]

Speed is what was measured on this kind of processor, and on cards: FP32's latency on the pool's plain engine (`cpu` or `cuda`)
over this one's, with its interval, above 1 is faster. Nothing is measured here. Rule: a tie is called one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from serving.decisions.engines import PLAIN, POOL
from serving.export.inventory import Models, VariantRow, models
from serving.export.inventory_tables import measured_on, proof, size
from serving.repository import Speed

COLUMNS = ("model", "variant", "size", "proof", "engine", "÷ FP32, by batch size", "on the CPU pool", "on the GPU pool")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model-repository", type=Path, default=Path("model_repo"))
    found = models(parser.parse_args(arguments).model_repository)
    print("\n".join(lines(found)))
    return 0


def lines(found: Models) -> Iterator[str]:
    yield f"Speed as measured on {measured_on(found)}."
    yield ""
    yield _joined(COLUMNS)
    yield _joined(["---"] * len(COLUMNS))
    for row in found.variants:
        for engine in _engines(row):
            yield _joined(_cells(row, engine))
    for row in found.variants:
        for variant, reason in row.not_made.items():
            yield _joined((row.model, variant, "", "", "", f"not made: {reason}", "", ""))


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _engines(row: VariantRow) -> list[str]:
    """Those that it was measured on, else the one that would compute it."""
    measured = list(dict.fromkeys(speed.engine for speed in row.speed))
    loadable = [given.engine for given in row.pools.values() if given.is_loadable]
    return measured or loadable[:1] or [row.pools["cpu"].engine]


def _cells(row: VariantRow, engine: str) -> list[str]:
    text = proof(row).replace("\n", ", ")
    pools = [_on_pool(row, engine, pool) for pool in ("cpu", "gpu")]
    return [row.model, row.variant, size(row.size_bytes), text, engine, _speeds(row, engine), *pools]


def _speeds(row: VariantRow, engine: str) -> str:
    if row.variant == "fp32" and engine in PLAIN.values():
        return "1"
    found = _beside_plain(row, engine)
    has_cards = len({card for card, _ in found}) > 1
    told = (
        f"{f'{card}, ' if has_cards else ''}{size}: {speed.ratio:.2f} ({speed.ratio_low:.2f}..{speed.ratio_high:.2f})"
        for (card, size), speed in found.items()
    )
    return "; ".join(told) or "not measured"


def _beside_plain(row: VariantRow, engine: str) -> Mapping[tuple[str, int], Speed]:
    """Processor or card, and batch size -> FP32's time on the pool's plain engine over this one's."""
    plain = PLAIN[POOL[engine]]
    found = (speed for speed in row.speed if speed.engine == engine and speed.baseline_engine == plain)
    return {(speed.processor, speed.batch_size): speed for speed in found}


def _on_pool(row: VariantRow, engine: str, pool: str) -> str:
    """What this engine is to this pool; of the other pool's engines, what the variant is there, if no row of its own says it."""
    if (given := row.pools.get(pool)) is None:
        return ""
    if not given.is_loadable:
        return given.status
    is_timed = any(POOL[speed.engine] == pool for speed in row.speed)
    if POOL[engine] != pool:
        return "" if is_timed else f"{given.status}, not timed"
    if engine == given.engine:
        status = "the baseline" if row.variant == "fp32" else given.status
        return f"**{status}**" if is_timed else f"{status}, not timed"
    return _beside(_ends(row, engine), _ends(row, given.engine))


Ends = Mapping[tuple[str, int], tuple[float, float]]  # the ends of intervals


def _ends(row: VariantRow, engine: str) -> Ends:
    return {where: (speed.ratio_low, speed.ratio_high) for where, speed in _beside_plain(row, engine).items()}


def _beside(mine: Ends, theirs: Ends) -> str:
    """An engine beside the one that serves, as that was chosen: means over the batch sizes, lower ends against upper ends."""
    both = [where for where in mine if where in theirs]
    if not both:
        return "another engine serves it"
    is_beaten = geometric_mean(theirs[where][0] for where in both) > geometric_mean(mine[where][1] for where in both)
    return "another engine is faster" if is_beaten else "not clearly faster"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
