"""Draws the bench's table, as the runner prints it and as docs/foreign.md has it.

    python -m scripts.foreign.page write|check

The page is made from published-results/foreign-models.json alone: nothing is measured here. Rule: a model that did not come through has
a row too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.foreign.table import MODELS, Model

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "published-results" / "foreign-models.json"
PAGE = ROOT / "docs" / "foreign.md"
TITLES = (
    *("model", "from", "own framework", "MB", "export: wall s", "CPU s", "peak MB", "kept", "worst difference, served"),
    "not made, or not served: why",
)
LIMIT_S = 180  # what an export on two cores may take
INTRODUCTION = """# Models from other hands

`make models-foreign` exports each of these with one command, has one embedded Triton behind the gateway take it as it is published, and
compares what is served with what the model's own framework answers on the same rows. One of them alone: `ARGS="--only magika"`. What a
package carries is fetched once, with its version and SHA-256 pinned; what is trained here is trained on scikit-learn's data or the
standard library's docstrings; nets with random weights are realistic in form alone, and say so. Sounds are made, photographs are
scikit-learn's two. `python -m scripts.foreign.page write` makes this page from `published-results/foreign-models.json`, which the bench
writes (`ARGS="--json published-results/foreign-models.json"`).
"""
CONDITIONS = """Other work kept the machine
busy (on 2026-11-25 at a load average of 5 to 37), and the bench ran at a low priority: its wall seconds are no measure
of Tandem; CPU seconds are those of all threads, the Triton that tries the model before it is published included.
`peak MB` is the largest process of an export, as the system counts it, and MB is the folder of the FP32 variant. The
framework's own run, making environments and fetching packages are not counted; BF16, which OpenVINO computes, was left
out where its environment was not there. A difference is the largest of any number, beside the largest number of that
output; labels are equal or not. FP32 must be within 0.1 %."""


def columns() -> list[str]:
    return [_joined(TITLES), _joined(["---"] * len(TITLES))]


def row_line(model: Model, row: Mapping[str, Any]) -> str:
    """`row`: of the runner's, as JSON has it."""
    took = row["took"] or {}
    numbers = [f"{took[key]:.0f}" if took else "" for key in ("wall_s", "cpu_s", "peak_mb")]
    whence = ", ".join(f"{one.name} {one.version}" for one in model.packages[:1] or model.packages)
    whence = f"{whence} ({model.weights})" if whence else model.weights
    size = "" if row["size_mb"] is None else f"{row['size_mb']:.1f}"
    differences = "; ".join(f"{name} {_difference(one)}" for name, one in row["differences"].items())
    refused = {
        name: _short(name, why) for name, why in row["refused"].items() if "tandem environment openvino" not in why
    }
    whys = [row["reason"], *(f"{name}: {why}" for name, why in refused.items())]
    cells = [
        f"`{model.name}`: {model.what}", whence, model.framework, size, *numbers, ", ".join(row["kept"]), differences,
        "; ".join(filter(None, whys)),
    ]  # fmt: skip
    return _joined(cells)


def _short(name: str, why: str) -> str:
    """What failed, without the way out and how the variant was made."""
    return (why.partition(" refused: ")[2].partition("; allow it")[0] or why).removeprefix(f"{name}: ")


def _difference(one: Mapping[str, Any]) -> str:
    parts = [f"{one['worst']:.1e} of {one['scale']:.3g}"] if one["scale"] else []
    if one["num_labels"]:
        parts.append(f"{one['num_unequal']} of {one['num_labels']} labels differ")
    return ", ".join(parts)


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |".replace(
        "|  |", "| |"
    ).replace("|  |", "| |")


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    rows = {row["name"]: row for row in results["rows"]}
    served = [row for row in rows.values() if not row["reason"]]
    quick = [row for row in served if row["took"]["wall_s"] <= LIMIT_S]
    cheap = [row for row in served if row["took"]["cpu_s"] <= LIMIT_S]
    large = [row["name"] for row in served if row["took"]["peak_mb"] > 6 * row["size_mb"] + 2000]
    processors = " and ".join(sorted({row["processor"] for row in rows.values()}))
    dates = sorted({row["date"] for row in rows.values()})
    yield INTRODUCTION
    yield (
        f"**{len(served)} of {len(rows)} are served.** Exported within {LIMIT_S // 60} minutes of wall time: {len(quick)};"
        f" within {LIMIT_S // 60} minutes of CPU time, all threads together: {len(cheap)}."
        f" Within 6 × the model and 2 GB of memory: {len(served) - len(large)}"
        f"{f', all but {_named(large)}' if large else ''}."
    )
    yield f"{processors}, 2 cores, {' to '.join(sorted({dates[0], dates[-1]}))}. {CONDITIONS}"
    yield ""
    yield from columns()
    for model in MODELS:
        if model.name in rows:
            yield row_line(model, rows[model.name])
    if missing := [model for model in MODELS if model.name not in rows]:
        yield ""
        yield f"**In the bench, and not measured here yet ({len(missing)})**:"
        yield f"{', '.join(f'`{one.name}` ({one.why_not or one.what})' for one in missing)}."
    yield ""
    yield "## The commands"
    yield ""
    yield "`{…}` is the folder of a package's unpacked files; what `scripts/foreign/prepare.py` makes of data and files lies where the"
    yield "command runs. Each has `--model NAME`, too."
    yield ""
    yield "```sh"
    for model in MODELS:
        if model.name in rows:
            yield rows[model.name]["command"]
    yield "```"


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main(arguments: Sequence[str]) -> int:
    if list(arguments) not in (["write"], ["check"]):
        print((__doc__ or "").split("\n")[2].strip(), file=sys.stderr)
        return 2
    made = "\n".join(lines(json.loads(RESULTS.read_text("utf-8")))) + "\n"
    if arguments[0] == "write":
        PAGE.write_text(made, "utf-8")
        return 0
    is_fresh = PAGE.read_text("utf-8") == made
    print("fresh" if is_fresh else "stale: python -m scripts.foreign.page write")
    return 0 if is_fresh else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
