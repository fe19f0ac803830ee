"""Shows a report of the claims suite, as Markdown and as one HTML file from the template `claims.html` beside this file.

Pure. Rule: the answer, the hardware, the date and the command stand first, and what was not measured is in the same tables as what was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from loadtest.claims.judge import show
from loadtest.claims.values import (
    DEPENDS,
    DOES_NOT_HOLD,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED_HERE,
    NOT_RUN,
    TREES,
    Bandwidth,
    Cell,
    EngineTime,
    Price,
    Reading,
    Report,
    Result,
    median,
    paired,
)
from serving.documents import tables as documents
from serving.documents.pages import Pages
from serving.documents.tables import Table, Value, marked

PAGES = Pages(Path(__file__).parent)
ORDER = (HOLDS, DEPENDS, DOES_NOT_HOLD, INCONCLUSIVE, NOT_MEASURED_HERE, NOT_RUN)
BUSY = 0.1  # of the cores: above, other work is told on the first screen (guess, not measured)
METHOD = (
    "In process: ONNX Runtime alone, without Triton and gateway; all variants and engines of a net take turns, with new sessions in every "
    "round. A ratio against FP32 on the same device is of pairs from the same turns, a median for each round; other ratios are of rounds.",
    "Behind a median stands its 95 % interval: Student's t over rounds, on logarithms, as in all reports. With three rounds it is wide; "
    "with fewer there is none, and then the number has no part in an answer.",
    "Where the best batch size is taken, it is the best of the same rounds, which flatters it a little.",
    "An answer counts a number for one side only if its whole interval lies there. “depends”: some lie on one side, some on the other. "
    "“inconclusive”: an interval lies on both. “not measured here”: the device is not there; “not run”: it could not be, with the reason.",
    "The CPU's bandwidth is that of a copy or a triad in NumPy on all cores, read and written bytes counted, whichever is higher. It is "
    "measured before the nets and after them; a share's interval reaches as far as either of the two makes it.",
)


def markdown(report: Report) -> str:
    parts = [*(f"- {marked(name)}: {marked(value)}" for name, value in facts(report)), ""]
    for table in (answers(report.results), *tables(report)):
        if table.rows:
            lead = [table.lead, ""] if table.lead else []
            parts += [f"## {table.title}", "", *lead, documents.markdown(table.heads, table.rows), ""]
    for title, lines in lists(report):
        parts += [f"## {title}", "", *(f"- {line}" for line in lines), ""]
    return "\n".join(parts)


def render(report: Report) -> str:
    """As HTML."""
    counts = Counter(result.answer for result in report.results)
    return PAGES.render(
        "claims.html",
        report=report,
        flags=[word for word, is_so in (("partial", report.is_partial), ("quick", report.is_quick)) if is_so],
        counts=", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word]),
        facts=facts(report),
        tables=tables(report),
        lists=lists(report),
    )


def facts(report: Report) -> list[tuple[Value, Value]]:
    machine = report.machine
    sets = f" ({' '.join(machine.instruction_sets)})" if machine.instruction_sets else ""
    share = f"{report.others_ratio:.0%} of the cores meanwhile"
    busy = f"other work took {share}: ratios in turns suffer least, rates most; run it again"
    rows: list[tuple[Value, Value] | None] = [
        ("Processor", f"{machine.processor}{sets}, {machine.num_cores:g} cores, {report.num_threads} threads"),
        ("GPU", "; ".join(machine.cards) or "none on this machine"),
        (
            "Measured",
            f"{datetime.fromisoformat(report.date):%Y-%m-%d %H:%M (UTC%z)}, in {report.seconds / 60:.1f} minutes",
        ),
        ("Command", documents.Cell(report.command, kind="code")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("Know first", report.note) if report.note else None,
        (_strong("Partial"), "it was interrupted; what had been measured is kept") if report.is_partial else None,
        (_strong("Quick"), "short times and few sizes, to try the suite; not a measurement")
        if report.is_quick
        else None,
        (_strong("Busy machine"), busy) if report.others_ratio > BUSY else ("Other work", share),
    ]
    return [row for row in rows if row is not None]


def _strong(text: str) -> documents.Cell:
    return documents.Cell(text, kind="strong")


def tables(report: Report) -> list[Table]:
    """All tables but that of the answers; a page leaves out empty ones."""
    return [_speeds(report), _bandwidths(report.findings.bandwidths), _others(report.results)]


def lists(report: Report) -> list[tuple[str, list[str]]]:
    findings = report.findings
    left_out = [
        f"{one.model}{_who(one.variant, one.engine, one.batch_size)}: {one.reason}" for one in findings.left_out
    ]
    left_out += [f"{name}: {reason}" for name, reason in findings.not_run.items()]
    notes = [f"{result.name}: {result.note}" for result in report.results if result.note]
    titles = ("How the claims were taken", "Left out", "Prices", "Method")
    lines = (notes, list(dict.fromkeys(left_out)), prices(findings.prices), list(METHOD))
    return [(title, some) for title, some in zip(titles, lines, strict=True) if some]


def prices(found: Sequence[Price]) -> list[str]:
    return [
        f"{one.device.upper()}: {one.offer}, {one.currency} {one.per_hour:.4g} an hour for what was used; {one.source}, {one.date}"
        for one in found
    ]


def _who(variant: str, engine: str, batch_size: int | None) -> str:
    return f" {variant} on {engine}" if batch_size is None else ""


def answers(results: Sequence[Result]) -> Table:
    rows = tuple(
        (
            result.says,
            _strong(result.answer),
            result.numbers,
            f"{result.experiment}; {result.threshold}",
            f"[{result.source}]({result.url})" if result.url else result.source,
        )
        for result in results
    )
    return Table("The claims", ("Claim", "Answer here", "Numbers", "Number asked for", "Source"), rows)


def _speeds(report: Report) -> Table:
    """One row for each net, variant and engine, one column for each batch size."""
    speeds = [one for one in report.findings.speeds if one.model != TREES]  # which stand among the other numbers
    sizes = sorted({one.batch_size for one in speeds})
    kinds = dict.fromkeys((one.model, one.variant, one.engine) for one in speeds)
    by_key = {(one.model, one.variant, one.engine, one.batch_size): one for one in speeds}
    rows = tuple(
        (" ".join((key[0], key[1])), key[2], *(_timed(by_key.get((*key, size))) for size in sizes)) for key in kinds
    )
    lead = "Rows per second in process, by batch size, and how many times as fast as FP32 on the same device's plain engine."
    return Table("Speed by batch size", ("Net and variant", "Engine", *map(str, sizes)), rows, lead)


def _timed(one: EngineTime | None) -> str:
    if one is None:
        return "–"
    rate = median([one.batch_size / seconds for seconds in one.rounds_s]).value
    return f"{rate:.4g}; {interval(paired(one.ratios), 'times')}" if one.ratios else f"{rate:.4g}"


def _bandwidths(found: Sequence[Bandwidth]) -> Table:
    rows = []
    for one in found:
        kinds = [interval(_gigabytes(rounds), "GB/s") if rounds else "–" for rounds in (one.copy, one.triad)]
        method = f"{one.how}, arrays of {one.array_bytes / 2**20:.0f} MiB" if one.copy else one.reason or ""
        rows.append((f"{one.device.upper()}, {one.when} the nets", *kinds, method))
    return Table("Memory bandwidth", ("Device", "Copy", "Triad", "How"), tuple(rows))


def _gigabytes(rounds: Sequence[float]) -> Reading:
    return median([rate / 1e9 for rate in rounds])


def _others(results: Sequence[Result]) -> Table:
    """All numbers but ratios of two variants, which are in the table of speeds."""
    rows = [
        (f"{result.name}: {cell.model} {cell.at}".strip(), told(cell), cell.side or "")
        for result in results
        for cell in result.cells
        if not _is_in_speeds(result, cell)
    ]
    return Table(
        "The numbers behind the other answers", ("Claim and what of", "Value", "Side of its threshold"), tuple(rows)
    )


def _is_in_speeds(result: Result, cell: Cell) -> bool:
    return cell.reading.value is None or result.number == "speed_up"


def told(cell: Cell) -> str:
    if cell.reading.value is None:
        return f"{cell.reading.absent}: {cell.reading.reason}"
    return interval(cell.reading, cell.unit)


def interval(reading: Reading, unit: str) -> str:
    if reading.value is None:
        return reading.absent or ""
    if reading.low is None or reading.high is None:
        return f"{show(reading.value, unit)} (no interval)"
    low, high = (
        show(value, unit).split(" ")[0].removesuffix("×").removesuffix("%") for value in (reading.low, reading.high)
    )
    if unit == "s":
        low, high = show(reading.low, unit), show(reading.high, unit)
    return f"{show(reading.value, unit)} ({low}..{high})"
