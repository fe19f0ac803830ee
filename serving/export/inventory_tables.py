"""Draws what is in a repository on a terminal, or prints it as JSON: `tandem models`, and `show` and `history` of one.

A line for each model first, what a reader has to do something about below it. Rule: no number without what it is of; what is not measured
here says so.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from serving.decisions.engines import PLAIN, POOL
from serving.export.inventory import Models, VariantRow, Version
from serving.repository import PRECISIONS, STAND_IN, UNTRAINED, Speed

COLUMNS = ("model", "version", "task", "variants", "accuracy", "speed here", "size", "age", "state")
WIDE_COLUMNS = (
    "variant",
    "version",
    "task",
    "proof (FP32)",
    "speed against FP32",
    "size",
    "created",
    "pools",
    "digest",
    "source",
)
VARIANT_COLUMNS = ("variant", "proof (FP32)", "size", "pools", "speed against FP32", "digest")
HISTORY_COLUMNS = ("variant", "version", "created", "accuracy", "digest", "state", "source")
MAX_CHECKS = 3  # of a gate: the headline first, all of them are in the JSON
WIDTH = 180  # holds a row of every model that Tandem can build; a narrower terminal wraps


def show(models: Models, *, as_json: bool, is_wide: bool = False) -> None:
    """A row for each model; `is_wide`: for each variant, with all that is known of it."""
    if as_json:
        _print_json(models)
        return
    if is_wide:
        _show_wide(models)
        return
    console, table = _console(models), _table(COLUMNS)
    of_model: dict[str, list[VariantRow]] = {}
    for row in models.variants:
        of_model.setdefault(row.model, []).append(row)
    today = datetime.now(UTC).date()
    for model, rows in of_model.items():
        fp32 = next((row for row in rows if row.variant == "fp32"), rows[0])
        table.add_row(
            model,
            str(max(row.model_version for row in rows)),
            fp32.task,
            " ".join(sorted((row.variant for row in rows), key=PRECISIONS.index)),
            proof(fp32).splitlines()[0],
            fastest(rows, models.processor),
            size(sum(row.size_bytes for row in rows)),
            age(max(row.created for row in rows), today),
            state(models, rows),
        )
    console.print(table)
    _print_below(console, models)


def _show_wide(models: Models) -> None:
    console, table = _console(models), _table(WIDE_COLUMNS)
    for row in models.variants:
        said = (row.name, str(row.model_version), row.task, proof(row, None))
        speed = _speed(row, has_cards=len(models.cards) > 1)
        table.add_row(*said, speed, size(row.size_bytes), row.created, _pools(row), row.digest, row.source)
    _print_whole(console, table)
    _print_below(console, models)


def _print_whole(console: Console, table: Table) -> None:
    """Every cell whole: lines may be longer than the terminal."""
    console.width = console.measure(table, options=console.options.update(width=100_000)).maximum
    console.print(table)


def _pools(row: VariantRow) -> str:
    return "\n".join(
        f"{pool} {given.status}{f' ({given.engine})' if given.is_loadable else ''}" for pool, given in row.pools.items()
    )


def fastest(rows: Iterable[VariantRow], processor: str) -> str:
    """Of the variants that were timed on this processor, the fastest, at the smallest batch that all were timed at, and FP32 beside it."""
    timed = [(row.variant, speed) for row in rows for speed in row.speed if speed.processor == processor]
    if not timed:
        return "unmeasured"
    batch_size = min(speed.batch_size for _, speed in timed)
    of_batch = [(variant, speed) for variant, speed in timed if speed.batch_size == batch_size]
    fp32_s = min(speed.latency_s if variant == "fp32" else speed.fp32_latency_s for variant, speed in of_batch)
    variant, best = min(of_batch, key=lambda one: one[1].latency_s)
    if fp32_s <= best.latency_s:
        return f"fp32 {duration(fp32_s)}"
    return f"{variant} {duration(best.latency_s)}, {fp32_s / best.latency_s:.1f}× fp32"


def duration(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.3g} ms"
        if seconds < 1
        else f"{seconds:.3g} s"
    )


def age(created: str, today: date) -> str:
    """Of a record's ISO date."""
    days = (today - date.fromisoformat(created[:10])).days
    return "today" if days <= 0 else f"{days} d" if days < 100 else f"{days // 30} months"


def state(models: Models, rows: Iterable[VariantRow]) -> str:
    """Of a model: as the gateways that serve this repository say, else what its gate left it."""
    rows = list(rows)
    told = [entry for entry in models.account if entry["model"] == rows[0].model]
    served = {entry["name"]: entry["version"] for entry in told if entry["state"] == "served"}
    others = {f"{entry['variant']} {_words(entry)}" for entry in told if entry["name"] not in served}
    newer = (entry for entry in told if int(entry["version"]) > int(served.get(entry["name"], entry["version"])))
    others |= {f"{entry['variant']} version {entry['version']} {_words(entry)}" for entry in newer}
    if told:
        by_document = [it for it in models.answers if it["model"] == rows[0].model and it["arm"] != "newest"]
        arms = sorted({_arm(it) for it in by_document})
        return ", ".join((["served"] if served else ["not served"]) + arms + sorted(others))
    if models.gateways:
        return "not served"
    return UNTRAINED if rows[0].is_untrained else "ungated" if rows[0].is_ungated else "proven"


def _arm(answer: Mapping[str, Any]) -> str:
    """`pinned to version 2 as int8`, or `canary 5 %: version 3`."""
    version = [] if answer["version"] is None else [f"version {answer['version']}"]
    target = " as ".join([*version, *([answer["variant"]] if answer["variant"] else [])]) or "newest version"
    return (
        f"pinned to {target}"
        if answer["arm"] == "pinned"
        else f"{answer['arm']} {100 * answer['ratio']:.3g} %: {target}"
    )


def _words(entry: Mapping[str, Any]) -> str:
    return str(entry["state"]).replace("_", " ")


def show_one(models: Models, *, as_json: bool, is_wide: bool = False) -> None:
    """A row for each variant of what `Models.of` found; `is_wide`: with all checks of the gate and the whole digest."""
    if as_json:
        _print_json(models)
        return
    console, table = _console(models), _table(VARIANT_COLUMNS)
    for row in models.variants:
        speed = _speed(row, has_cards=len(models.cards) > 1)
        digest = row.digest if is_wide else row.digest[:12]
        table.add_row(
            row.name, proof(row, None if is_wide else MAX_CHECKS), size(row.size_bytes), _pools(row), speed, digest
        )
    _print_whole(console, table) if is_wide else console.print(table)
    for row in models.variants:
        served = "in batches of one" if row.max_batch_size < 2 else f"in batches of up to {row.max_batch_size}"
        kept = "" if row.is_data_kept else "; what it was judged on was not kept"
        unseen = [pool for pool, given in row.pools.items() if STAND_IN in given.reason]
        stand_in = f"; for pool {' and '.join(unseen)} {STAND_IN}" if unseen else ""
        console.print(
            f"{row.name}: version {row.model_version} of {row.created}, {row.task}, {served}, from {row.source}{kept}{stand_in}",
            markup=False,
        )
    for answer in models.answers:
        console.print(f"{answer['model']}: {_arm(answer)} at {answer['gateway']}", markup=False)
    for name, versions in models.kept.items():
        listed = ", ".join(map(str, versions))
        console.print(f"{name}: the files of version {listed} are kept beside the newest", markup=False)
    for entry in models.account:
        reason = f": {entry['reason']}" if entry["reason"] else ""
        reason += f", products in {entry['dtype']}" if entry.get("dtype") else ""
        console.print(
            f"{entry['name']}: version {entry['version']} {_words(entry)} on pool {entry['pool']} at {entry['gateway']}{reason}",
            markup=False,
        )
    _print_below(console, models, with_account=False)


def show_history(model: str, versions: Iterable[Version], *, as_json: bool, is_wide: bool = False) -> None:
    """Of a model's FP32, or of one variant, the newest first; `is_wide`: with all checks and whole digests."""
    versions = list(versions)
    if as_json:
        print(
            json.dumps(
                {"version": 1, "name": model, "versions": [dataclasses.asdict(each) for each in versions]}, indent=2
            )
        )
        return
    console, table = Console(highlight=False, soft_wrap=True, width=WIDTH), _table(HISTORY_COLUMNS)
    for each in versions:
        checks = [f"{check.metric} {check.value:.4g}" for check in each.gate.checks[: None if is_wide else 1]]
        table.add_row(
            each.name,
            str(each.model_version),
            each.created,
            "\n".join(checks) or each.gate.basis,
            each.digest if is_wide else each.digest[:12],
            each.state,
            each.source,
        )
    _print_whole(console, table) if is_wide else console.print(table)


def _print_json(models: Models) -> None:
    print(json.dumps(dataclasses.asdict(models), indent=2))


def _console(models: Models) -> Console:
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    of_gateways = f"; state as {' and '.join(models.gateways)} says" if models.gateways else ""
    console.print(f"{models.repository}, speed as measured on {measured_on(models)}{of_gateways}", markup=False)
    return console


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _print_below(console: Console, models: Models, *, with_account: bool = True) -> None:
    for row in models.variants:
        for variant, reason in row.not_made.items():
            console.print(f"{row.model}-{variant}: not made: {reason}", markup=False)
    told = {entry["name"]: entry for entry in models.account if with_account and entry["reason"]}
    for name, reason in models.left_out.items():
        if name not in told or told[name]["reason"] != reason:
            console.print(f"{name}: left out by a CPU pool of this machine: {reason}", markup=False)
    for name, reason in models.unreadable.items():
        console.print(f"{name}: cannot be read: {reason}", markup=False)
    for name, entry in told.items():
        console.print(f"{name}: {_words(entry)}: {entry['reason']}", markup=False)
    for name in models.ungated:
        console.print(f"{name}: has no tandem.json, so nothing proves it and it is not served", markup=False)


def measured_on(models: Models) -> str:
    return " and ".join((models.processor, *models.cards))


def proof(row: VariantRow, max_checks: int | None = MAX_CHECKS) -> str:
    """Renders what every reader has to see first: a number with FP32's beside it, or that there is none."""
    if row.is_untrained:
        return UNTRAINED
    if row.is_ungated:
        return "ungated: no proof"
    lines = []
    for check in row.gate.checks[:max_checks]:
        beside = "" if check.reference is None else f" ({check.reference:.4f})"
        lines.append(f"{check.metric} {check.value:.4g}{beside}")
    return "\n".join(lines)


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**10:.0f} KiB" if num_bytes < 2**20 else f"{num_bytes / 2**20:.0f} MiB"


def _speed(row: VariantRow, *, has_cards: bool) -> str:
    """Renders the speed beside FP32 on its best engine, and on the plain one where that is another. `has_cards`: several were measured."""
    if not row.speed:
        return "the baseline" if row.variant == "fp32" else "unmeasured here"
    lines = [_one(row, speed, has_cards=has_cards) for speed in row.speed if not _is_itself(row, speed)]
    return "\n".join(lines) or "the baseline"


def _is_itself(row: VariantRow, speed: Speed) -> bool:
    return row.variant == "fp32" and speed.engine == speed.baseline_engine


def _one(row: VariantRow, speed: Speed, *, has_cards: bool) -> str:
    plain = PLAIN[POOL[speed.engine]]
    engine = f" on {speed.engine}" if len({s.engine for s in row.speed}) > 1 or speed.engine != "cpu" else ""
    card = f" of {speed.processor}" if has_cards and POOL[speed.engine] == "gpu" else ""
    beside = f" beside {speed.baseline_engine}" if speed.baseline_engine != plain else ""
    interval = f"{speed.ratio:.2f} ({speed.ratio_low:.2f} to {speed.ratio_high:.2f})"
    return f"batch {speed.batch_size}{engine}{card}{beside}: {interval}"
