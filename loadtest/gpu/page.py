"""Shows a run, whole or cut off: as Markdown, as one HTML file, and the few rows that README.md has of it.

Pure but for `write`. Rule: the card, the machine, the date and the command stand first; what was not reached and what failed is listed
beside what was measured; others' figures stand with their source and date, and never in one column with ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from loadtest.claims.page import interval
from loadtest.claims.values import EngineTime, Findings, median, paired
from loadtest.gpu import bands
from loadtest.gpu.ledger import Entry, Report
from serving.decisions.engines import POOL
from serving.documents import tables as documents
from serving.documents.pages import Pages
from serving.documents.tables import Cell, Table, Value, marked

PAGES = Pages(Path(__file__).parent)
PAGE, RESULTS, TEXT = "report.html", "gpu.json", "report.md"
STAND_IN = "A rehearsal without a card, with short times: not a measurement."
METHOD = (
    "In process: ONNX Runtime alone, without Triton and gateway, copies to the card and back counted; the precisions of a net take turns, "
    "with new sessions in every round. FP32 is FP32 (use_tf32=0), TF32 another arm. Nets have random weights (untrained: speed only).",
    "Behind a value stands its 95 % interval: Student's t over rounds, on logarithms.",
    "Energy is the card's own counter (NVML), or that of the whole processor (RAPL), while one variant computes without a pause.",
    "A rate outside its sanity band fails its unit and is not shown: below, the run is suspect, above, the measurement is.",
)


def write(folder: Path, report: Report) -> None:
    """Each file is whole at any moment: whoever is killed leaves the one before."""
    for name, text in (
        (RESULTS, report.to_json()),
        (TEXT, f"# {title(report)}\n\n{markdown(report)}"),
        (PAGE, render(report)),
    ):
        fresh = folder / f"{name}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(folder / name)


def title(report: Report) -> str:
    return f"CPU against GPU: {_name(report)}"


def _name(report: Report) -> str:
    return report.run.card.partition(", driver ")[0]


def markdown(report: Report) -> str:
    parts = [f"**{STAND_IN}**\n"] if report.run.is_stand_in else []
    parts += [f"- {marked(name)}: {marked(value)}" for name, value in facts(report)]
    for table in tables(report):
        if table.rows:
            parts += ["", f"## {table.title}", "", *([table.lead, ""] if table.lead else [])]
            parts += [documents.markdown(table.heads, table.rows)]
    for heading, lines in lists(report):
        parts += ["", f"## {heading}", "", *(f"- {line}" for line in lines)]
    return "\n".join(parts) + "\n"


def render(report: Report) -> str:
    return PAGES.render(
        "gpu.html",
        title=title(report),
        sentence=sentence(report),
        warning=STAND_IN if report.run.is_stand_in else "",
        facts=facts(report),
        tables=tables(report),
        lists=lists(report),
    )


def sentence(report: Report) -> str:
    counts = Counter[str](entry.outcome for entry in report.entries)
    words = (("done", "done"), ("failed", "failed"), ("not_reached", "not reached"))
    return f"Of {len(report.entries)} units: {', '.join(f'{counts[one]} {word}' for one, word in words if counts[one]) or 'none yet'}."


def facts(report: Report) -> list[tuple[Value, Value]]:
    run = report.run
    sets = f" ({' '.join(run.machine.instruction_sets)})" if run.machine.instruction_sets else ""
    return [
        ("Card", run.card),
        ("Processor", f"{run.machine.processor}{sets}, {run.machine.num_cores:g} cores, {run.machine.system}"),
        ("Begun", run.started[:16].replace("T", " ")),
        ("Command", Cell(run.command, kind="code")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
    ]


def tables(report: Report) -> list[Table]:
    found = report.findings
    return [_rates(found), _energy(found), _served(found), _beside(report), _checks(report)]


def _rates(found: Findings) -> Table:
    """One row for each net, precision and engine, one column for each batch size."""
    sizes = sorted({one.batch_size for one in found.speeds})
    by_key = {(one.model, one.variant, one.engine, one.batch_size): one for one in found.speeds}
    kinds = dict.fromkeys(key[:3] for key in by_key)
    rows = tuple(
        (f"{model} {variant}", engine, *(_rate(by_key.get((model, variant, engine, size))) for size in sizes))
        for model, variant, engine in kinds
    )
    lead = "Rows per second in process, by batch size, and how many times as fast as FP32 on the same device."
    return Table("Speed by batch size", ("Net and precision", "Engine", *map(str, sizes)), rows, lead)


def _rate(one: EngineTime | None) -> str:
    if one is None:
        return "–"
    rate = amount(median([one.batch_size / seconds for seconds in one.rounds_s]).value or 0.0)
    return f"{rate}; {interval(paired(one.ratios), 'times')}" if one.ratios else rate


def _energy(found: Findings) -> Table:
    rows = tuple(
        (
            f"{one.model} {one.variant}",
            one.engine,
            str(one.batch_size),
            _numbers(one.joules),
            _numbers(one.rates),
        )
        for one in found.energies
    )
    heads = ("Net and precision", "Engine", "Batch", "Joules a row", "Rows/s meanwhile")
    return Table("Energy", heads, rows)


def _served(found: Findings) -> Table:
    rows = tuple(
        (
            f"{one.model} {one.variant} on the {one.pool} pool",
            str(one.batch_size),
            _numbers(one.served),
            _numbers(one.in_process),
            interval(paired(np.divide(one.served, one.in_process).tolist()), "share"),
        )
        for one in found.served
        if one.served and len(one.served) == len(one.in_process)
    )
    heads = ("Served", "Batch", "Rows/s through gateway and Triton", "In process", "Share")
    return Table("Served beside in process", heads, rows)


def _numbers(rounds: Sequence[float]) -> str:
    found = median(rounds)
    ends = "" if found.low is None or found.high is None else f" ({amount(found.low)}..{amount(found.high)})"
    return f"{amount(found.value or 0.0)}{ends}"


def amount(value: float) -> str:
    """Three figures at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _beside(report: Report) -> Table:
    """Others' figures, of nets that were measured here on a card."""
    best = best_on_card(report)
    rows = tuple(
        (
            f"{one.model} {one.precision}",
            one.card,
            "–" if one.batch_size is None else str(one.batch_size),
            f"{one.rate:,.0f}",
            best[one.model],
            f"{one.how}; {one.source}, {one.date}",
        )
        for one in bands.published().figures
        if one.model in best and not report.run.is_stand_in
    )
    heads = ("Net", "Card", "Batch", "Rows/s published", "Best here", "How, source and date")
    return Table(
        "What others publish for the same nets",
        heads,
        rows,
        "On other cards and with other software: no comparison of equals.",
    )


def best_on_card(report: Report) -> dict[str, str]:
    """Net -> its best rate on the card, in words."""
    found: dict[str, str] = {}
    on_card = [one for one in report.findings.speeds if POOL[one.engine] == "gpu"]
    for model in dict.fromkeys(one.model for one in on_card):
        own = [one for one in on_card if one.model == model]
        top = max(own, key=lambda one: median([one.batch_size / seconds for seconds in one.rounds_s]).value or 0.0)
        rates = [top.batch_size / seconds for seconds in top.rounds_s]
        found[model] = f"{top.variant}, batch {top.batch_size}: {_numbers(rates)}"
    return found


def _checks(report: Report) -> Table:
    rows = tuple(
        (check.name, Cell("good" if check.is_good else "failed", kind="" if check.is_good else "strong"), check.text)
        for entry in report.entries
        for check in entry.checks
    )
    return Table("Checks", ("Check", "Outcome", "What was seen"), rows, ends_in_words=True)


def lists(report: Report) -> list[tuple[str, list[str]]]:
    by_outcome = {
        heading: [_told(entry) for entry in report.entries if entry.outcome == outcome]
        for heading, outcome in (("Failed", "failed"), ("Not reached", "not_reached"))
    }
    by_outcome["Answers"] = [
        f"{entry.unit}: {entry.note}" for entry in report.entries if entry.outcome == "done" and entry.note
    ]
    left_out = (f"{one.model} {one.variant} on {one.engine}: {one.reason}" for one in report.findings.left_out)
    by_outcome["Left out"] = list(dict.fromkeys(left_out))
    by_outcome["Method"] = list(METHOD)
    return [(heading, lines) for heading, lines in by_outcome.items() if lines]


def _told(entry: Entry) -> str:
    return f"{entry.stage}: {entry.unit}: {entry.note}"


def readme_rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Of README.md's table: what, value, command. ValueError for a rehearsal."""
    if report.run.is_stand_in:
        raise ValueError("a rehearsal is no measurement")
    where = f"{_name(report)}, {report.run.started[:10]}"
    for model, words in best_on_card(report).items():
        yield f"{model} (random weights) in process on {where}", f"{words} rows/s", "`loadtest/gpu/run.sh`"
    for one in report.findings.served:
        if one.pool == "gpu" and one.served and len(one.served) == len(one.in_process):
            share = interval(paired(np.divide(one.served, one.in_process).tolist()), "share")
            what = (
                f"{one.model} {one.variant}, batch {one.batch_size}, through gateway and Triton ÷ in process on {where}"
            )
            yield what, share, "`loadtest/gpu/run.sh served`"
