"""Shows a run, whole or cut off: as Markdown, as one HTML file, and the few rows that README.md has of it.

Pure but for `write`. Rule: the card, the machine, the date and the command stand first; what was not reached and what failed is listed
beside what was measured; others' figures stand with their source and date, and never in one column with ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadtest.claims.page import answers as claims_table
from loadtest.claims.page import interval, prices
from loadtest.claims.values import (
    NOT_MEASURED_HERE,
    NOT_RUN,
    EngineTime,
    Findings,
    OptionTime,
    Result,
    median,
    paired,
)
from loadtest.gpu import aims, bands, conclusions, served_parts
from loadtest.gpu.ledger import Entry, Report
from loadtest.gpu.stages import NAMES
from serving.decisions.engines import POOL
from serving.documents import tables as documents
from serving.documents.pages import Pages
from serving.documents.tables import Cell, Table, Value, marked

PAGES = Pages(Path(__file__).parent)
PAGE, RESULTS, TEXT = "report.html", "gpu.json", "report.md"
MOST_SPREAD = 2.0  # upper end of an interval ÷ its lower end, of a figure to rely on; a choice, not measured
MOST_ALIKE = 2  # checks of one name that are all shown
STAND_IN = "A rehearsal without a card, with short times: not a measurement."
METHOD = (
    "In process: ONNX Runtime alone, without Triton and gateway, copies to the card and back counted; the precisions of a net take turns, "
    "with new sessions in every round. FP32 is FP32 (use_tf32=0), TF32 another arm. Nets have random weights (untrained: speed only).",
    "Behind a value stands its 95 % interval: Student's t over rounds, on logarithms. One round of three to five that is far off makes it "
    "wider than sense: such a value is no figure to rely on.",
    "How many times as fast is of pairs from the same turns, a median for each round: not quite the quotient of what is shown. FP16 on "
    "a processor has turns of its own with FP32, whose rate there is not shown. A share is of rounds.",
    "Energy is the card's own counter (NVML), or that of the whole processor (RAPL), while one variant computes without a pause.",
    "A rate outside its sanity band fails its unit and is not shown: below, the run is suspect, above, the measurement is. To bands of "
    "computing alone the time of the copies is added; published results are judged by the bands of the day that their page was made.",
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
        sentence=answer(report) or sentence(report),
        figures_at_once=figures_at_once(report),
        warning=STAND_IN if report.run.is_stand_in else "",
        facts=facts(report),
        tables=tables(report),
        lists=lists(report),
    )


def sentence(report: Report) -> str:
    counts = Counter[str](entry.outcome for entry in report.entries)
    words = (("done", "done"), ("failed", "failed"), ("not_reached", "not reached"))
    return f"Of {len(report.entries)} units: {', '.join(f'{counts[one]} {word}' for one, word in words if counts[one]) or 'none yet'}."


def answer(report: Report) -> str:
    """For whoever reads one sentence; "" where the card or the processor was not timed."""
    found = _against_processor(report.findings)
    if not found or report.run.is_stand_in:
        return ""
    (least, lowest), (most, highest) = found[0], found[-1]
    name, cores = _name(report), f"{report.run.machine.num_cores:g} cores"
    if least == most:
        return f"In process, {least} does {lowest:.1f} times the rows per second on the {name} that it does on the {cores} beside it."
    return (
        f"In process the {name} does from {lowest:.1f} ({least}) to {highest:.1f} times ({most}) the rows per second that the {cores} "
        "beside it do, each at the best precision and batch size that was timed."
    )


def _against_processor(found: Findings) -> list[tuple[str, float]]:
    """(net, best rate on the card ÷ best rate on the processor), ascending."""
    best: dict[tuple[str, str], float] = {}
    for one in found.speeds:
        rate = median([one.batch_size / seconds for seconds in one.rounds_s]).value or 0.0
        key = one.model, POOL[one.engine]
        best[key] = max(best.get(key, 0.0), rate)
    models = dict.fromkeys(model for model, _ in best)
    ratios = [
        (of, best[of, "gpu"] / best[of, "cpu"]) for of in models if best.get((of, "gpu")) and best.get((of, "cpu"))
    ]
    return sorted(ratios, key=lambda one: one[1])


def figures_at_once(report: Report) -> list[tuple[str, Value, str]]:
    """Best rate, best option, share that serving keeps; under each what it is."""
    if report.run.is_stand_in:
        return []
    unmeasured = ("–", "not measured")
    rates = [(model, words) for model, (words, is_reliable) in _best_on_card(report).items() if is_reliable]
    model, words = rates[0] if rates else ("", "")
    at, _, rate = words.partition(": ")
    option = max(best_options(report.findings), key=lambda one: float(np.median(one.ratios)), default=None)
    served = max(aims.best_served(report.findings), key=lambda one: one.model == model, default=None)
    return [
        ("Rows per second", *((rate.partition(" ")[0], f"{model} {at}, in process") if rates else unmeasured)),
        (
            "Best option",
            *(
                unmeasured
                if option is None
                else (
                    f"{float(np.median(option.ratios)):.2f}×",
                    f"{option.model} {option.variant}, batch {option.batch_size}: {option.arm}, beside plain runs",
                )
            ),
        ),
        (
            "Served",
            *(
                unmeasured
                if served is None
                else (
                    f"{float(np.median(np.divide(served.served, served.in_process))):.0%}",
                    f"of in process, aim {aims.SERVED_RATIO:.0%}: {served.model} {served.variant}, batch {served.batch_size}",
                )
            ),
        ),
    ]


def facts(report: Report) -> list[tuple[Value, Value]]:
    run = report.run
    sets = f" ({' '.join(run.machine.instruction_sets)})" if run.machine.instruction_sets else ""
    return [
        ("Card", run.card),
        ("Processor", f"{run.machine.processor}{sets}, {run.machine.num_cores:g} cores, {run.machine.system}"),
        ("Begun", run.started[:16].replace("T", " ")),
        ("Command", Cell(report.command, kind="code")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        *(("Know first", note) for note in run.notes),
    ]


def tables(report: Report) -> list[Table]:
    found = report.findings
    return [
        _aims(report),
        _rates(found),
        _options(found),
        _energy(found),
        _served(found),
        _ways(found),
        _claims(report),
        _beside(report),
        _checks(report),
    ]


def claims(report: Report) -> tuple[list[Result], list[str]]:
    """Those that its measurements answer; and why the others have no answer. A rehearsal answers none."""
    if report.run.is_stand_in:
        return [], []
    every = conclusions.answers(report)
    answered = [one for one in every if one.answer not in (NOT_MEASURED_HERE, NOT_RUN)]
    return answered, [f"{one.name}: {one.numbers}" for one in every if one not in answered]


def _aims(report: Report) -> Table:
    """A rehearsal has none."""
    rows = tuple(
        (
            one.name,
            interval(one.found, one.unit),
            f"{one.least:.0%}" if one.unit == "share" else f"{one.least:g}×",
            Cell(one.outcome, kind="strong" if one.outcome == "missed" else ""),
            one.note,
        )
        for one in (() if report.run.is_stand_in else aims.results(report.findings))
    )
    heads = ("Aim", "Measured", "At least", "Outcome", "At what, and where the rest goes")
    return Table("What is aimed at", heads, rows, "Met, or missed, by the whole interval.", ends_in_words=True)


def _claims(report: Report) -> Table:
    lead = "By these measurements and the price list, with the thresholds of loadtest/campaigns/claims.yaml. The others are listed below."
    table = claims_table(claims(report)[0])
    return replace(
        table, heads=table.heads[:-1], rows=tuple(row[:-1] for row in table.rows), lead=lead
    )  # sources: docs/claims.md


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


def _options(found: Findings) -> Table:
    sizes = sorted({one.batch_size for one in found.options})
    by_key = {(one.model, one.variant, one.arm, one.batch_size): one for one in found.options}
    rows = tuple(
        (f"{model} {variant}", arm, *(_option(by_key.get((model, variant, arm, size))) for size in sizes))
        for model, variant, arm in dict.fromkeys(key[:3] for key in by_key)
    )
    lead = "Milliseconds for a batch, by its size, and how many times as fast as a plain run of the provider in the same turns."
    return Table("Options of the card's provider", ("Net and precision", "How it runs", *map(str, sizes)), rows, lead)


def _option(one: OptionTime | None) -> str:
    if one is None:
        return "–"
    took = f"{one.median_s * 1e3:.3g} ms"
    return f"{took}; {interval(paired(one.ratios), 'times')}" if one.ratios else took


def best_options(found: Findings) -> list[OptionTime]:
    """Of each net what beats plain runs by most, if its whole interval does."""
    best: dict[str, OptionTime] = {}
    for one in found.options:
        if one.ratios and (paired(one.ratios).low or 0.0) > 1:
            best[one.model] = max(best.get(one.model, one), one, key=lambda of: float(np.median(of.ratios)))
    return list(best.values())


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
    lead = "All rounds count" + (
        "." if found.rounds else ", also the first ones through a server that has just started."
    )
    return Table("Served beside in process", heads, rows, lead)


def _ways(found: Findings) -> Table:
    """Every way to a net, each turn of a round."""
    rows = []
    for (model, variant, pool, size), rounds in served_parts.by_case(found.rounds).items():
        for arm in (arm for arm in served_parts.ARMS if served_parts.rates(rounds, arm)):
            own = [one for one in rounds if one.arm == arm]
            rate = float(np.median([one.rate for one in own]))
            at_work = [one.instance_ratio for one in own if one.instance_ratio is not None]
            num_rows = [one.run_rows for one in own if one.run_rows is not None]
            names = dict.fromkeys(name for one in own for name in one.cores)
            cores = (f"{name} {np.median([one.cores.get(name, 0.0) for one in own]):.2g}" for name in names)
            row = (
                f"{model} {variant} on the {pool} pool",
                str(size),
                arm,
                _numbers([one.rate for one in own]),
                f"{1e3 * size / rate:.3g}",
            )
            shown = (f"{np.median(at_work):.0%}" if at_work else "–", f"{np.median(num_rows):.3g}" if num_rows else "–")
            rows.append((*row, *shown, ", ".join(cores) or "–"))
    heads = ("Served", "Batch", "Way", "Rows/s", "ms a batch", "Instance at work", "Rows a run", "Cores used")
    lead = (
        "All ways in turns, four requests outstanding. Triton without the gateway gets its requests over a socket. Rows a run: what Triton "
        "made one batch of."
    )
    return Table("Where serving's time goes", heads, tuple(rows), lead, ends_in_words=True)


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
    """Net -> its best rate on the card, in words, which say so where its rounds lie too far apart to rely on it."""
    return {
        model: words if is_reliable else f"{words}; rounds far apart"
        for model, (words, is_reliable) in _best_on_card(report).items()
    }


def _best_on_card(report: Report) -> dict[str, tuple[str, bool]]:
    """Net -> its best rate on the card, in words, and whether its interval is narrow enough for a headline."""
    found: dict[str, tuple[str, bool]] = {}
    on_card = [one for one in report.findings.speeds if POOL[one.engine] == "gpu"]
    for model in dict.fromkeys(one.model for one in on_card):
        own = [one for one in on_card if one.model == model]
        top = max(own, key=lambda one: median([one.batch_size / seconds for seconds in one.rounds_s]).value or 0.0)
        rates = [top.batch_size / seconds for seconds in top.rounds_s]
        ends = median(rates)
        is_reliable = ends.low is None or ends.high is None or ends.high <= MOST_SPREAD * ends.low
        found[model] = f"{top.variant}, batch {top.batch_size}: {_numbers(rates)}", is_reliable
    return found


def _checks(report: Report) -> Table:
    """Of one that each of many rounds has made, the last."""
    seen: dict[tuple[str, bool], list[str]] = {}
    for check in (check for entry in report.entries for check in entry.checks):
        seen.setdefault((_renamed(check.name), check.is_good), []).append(check.text)
    rows = tuple(
        (name, Cell("good" if is_good else "failed", kind="" if is_good else "strong"), text)
        for (name, is_good), texts in seen.items()
        for text in (texts if len(texts) <= MOST_ALIKE else [f"{texts[-1]}; the last of {len(texts)}"])
    )
    return Table("Checks", ("Check", "Outcome", "What was seen"), rows, ends_in_words=True)


def _renamed(name: str) -> str:
    """Until 2026-11-26 a check by 5 % to 130 % of in process had the name of the aim."""
    return f"{name.removesuffix(' is served')}: the rates are possible" if name.endswith(" is served") else name


def lists(report: Report) -> list[tuple[str, list[str]]]:
    by_outcome = {
        heading: [_told(entry) for entry in report.entries if entry.outcome == outcome]
        for heading, outcome in (("Failed", "failed"), ("Not reached", "not_reached"))
    }
    there = {entry.stage for entry in report.entries}
    by_outcome["Not reached"] += [f"{stage}: not begun" for stage in NAMES if stage not in there]
    units: dict[str, list[str]] = {}
    for entry in report.entries:
        if entry.outcome == "done" and entry.note:
            units.setdefault(entry.note, []).append(entry.unit)
    by_outcome["Answers"] = [f"{', '.join(names)}: {note}" for note, names in units.items()]
    by_outcome["Claims not reached"] = claims(report)[1]
    by_outcome["Prices of the claims"] = [] if report.run.is_stand_in else prices(conclusions.prices_of(report))
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
    found = (
        (
            "best rows/s in process, random weights",
            "run.sh",
            [f"{model} {words}" for model, (words, is_reliable) in _best_on_card(report).items() if is_reliable],
        ),
        (
            "times as fast as plain runs of ONNX Runtime's CUDA provider",
            "run.sh table",
            [
                f"{one.model} {one.variant}, batch {one.batch_size}, {one.arm}: {interval(paired(one.ratios), 'times')}"
                for one in best_options(report.findings)
            ],
        ),
        (
            "through gateway and Triton ÷ in process, at the batch size that is best in process",
            "run.sh served",
            [
                f"{one.model} {one.variant}, batch {one.batch_size}: "
                + interval(paired(np.divide(one.served, one.in_process).tolist()), "share")
                for one in aims.best_served(report.findings)
            ],
        ),
    )
    for what, command, values in found:
        if values:
            yield f"{what}, {where}", "; ".join(values), f"`loadtest/gpu/{command}`"
