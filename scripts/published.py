"""Shows the results that were published: docs/reports.md, the pages in docs/reports/, the run in docs/claims.md, what README.md says of
cards, and a table of digests.

    python -m scripts.published                    writes all of them anew from published-results/
    python -m scripts.published results/FOLDER …   takes in the results of a campaign, a verdict, the claims or a card first

A result is taken in under its folder's name, without its raw rows. Rule: no number on a page that is not in a result, and no place of the
machine that made it.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from loadtest.claims import page as claims_page
from loadtest.claims.claims_file import read_suite
from loadtest.claims.values import NOT_MEASURED_HERE
from loadtest.claims.values import Report as ClaimsReport
from loadtest.claims.values import Result as ClaimResult
from loadtest.compare import FILE, read
from loadtest.errors import ResultsError
from loadtest.gpu import bands
from loadtest.gpu import page as gpu_page
from loadtest.gpu.ledger import Report as GpuReport
from loadtest.report import page as campaign_page
from loadtest.report.summaries import Report, milliseconds, number
from loadtest.report.wording import caveats, sentence
from loadtest.verdict import page as verdict_page
from loadtest.verdict.report import VerdictReport
from serving.documents.reader import parse_document
from serving.documents.tables import markdown
from serving.measure.intervals import Estimate

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ("digits", "minilm", "minilm-verdict")  # whose pages are in docs/reports/
CLAIMS = "claims"
SUITE = ROOT / "loadtest" / "campaigns" / "claims.yaml"
PLACE = re.compile(r"(?<![\w/:.])[/~][\w.-]+/")  # the beginning of an absolute path; no URL's
BEGIN, END = "<!-- on a card: made by `python -m scripts.published` -->", "<!-- end -->"  # in README.md
NOT_MEASURED = (
    "**Nothing has been measured on a GPU yet**: `loadtest/gpu/run.sh` is for that ([how](loadtest/gpu/README.md))."
)
Result = Report | VerdictReport | ClaimsReport | GpuReport


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    results, docs = root / "published-results", root / "docs"
    try:
        for folder in arguments:
            take(Path(folder), results)
    except (ResultsError, OSError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 2
    reports = {file.name.removesuffix(".json.gz"): load(file) for file in results.glob("*.json.gz")}
    for file, text in pages(dict(sorted(reports.items())), docs, results).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return 0


def take(folder: Path, results: Path) -> None:
    """Raises ResultsError for what is no result of this Tandem, for a rehearsal, and for one that names places of its machine."""
    file = next(
        (folder / name for name in ("claims.json", gpu_page.RESULTS) if (folder / name).exists()), folder / FILE
    )
    if file.name == FILE:
        read(file)
    text = file.read_bytes()
    result = _parsed(text, str(file))
    if isinstance(result, GpuReport) and result.run.is_stand_in:
        raise ResultsError(f"{folder}: a rehearsal without a card is no measurement")
    if place := PLACE.search(_command(result)):
        raise ResultsError(f"{folder}: its command names {place[0]}…; run it with paths that count from the checkout")
    results.mkdir(exist_ok=True)
    (results / f"{folder.resolve().name}.json.gz").write_bytes(gzip.compress(text, mtime=0))


def load(file: Path) -> Result:
    """The numbers of that day in the words, and by the sanity bands, of today."""
    result = _parsed(gzip.decompress(file.read_bytes()), str(file))
    if isinstance(result, GpuReport):
        return bands.judged_anew(result)
    if isinstance(result, ClaimsReport):
        return replace(result, results=tuple(map(_as_claimed_now, result.results)))
    if not isinstance(result, Report):
        return result
    manifest, arms = result.manifest, result.arms
    return replace(result, sentence=sentence(arms, manifest.load), caveats=caveats(manifest, arms, result.runs))


@cache
def _notes() -> dict[str, str | None]:
    """Claim -> what the suite says of it; read once, as a result has twenty."""
    return {claim.name: claim.note for claim in read_suite(SUITE).claims}


def _as_claimed_now(result: ClaimResult) -> ClaimResult:
    """How a claim is taken that was not measured then is what the suite says of it now; what was measured keeps its own words."""
    now = _notes()
    is_open = result.answer == NOT_MEASURED_HERE and result.name in now
    return replace(result, note=now[result.name]) if is_open else result


def _parsed(text: bytes, file: str) -> Result:
    document = parse_document(text.decode(), file, is_json=True, error=ResultsError)
    keys = set(document.data)
    if "entries" in keys:
        return document.values(GpuReport)
    return document.values(Report if "manifest" in keys else VerdictReport if "kind" in keys else ClaimsReport)


def _command(result: Result) -> str:
    if isinstance(result, GpuReport):
        return result.command
    return result.manifest.command if isinstance(result, Report) else result.command


def _date(result: Result) -> str:
    if isinstance(result, GpuReport):
        return result.run.started[:10]
    return (result.manifest.started if isinstance(result, Report) else result.date)[:10]


def pages(reports: dict[str, Result], docs: Path, results: Path) -> dict[Path, str]:
    """Every file that is made of the results, with its text. What stands before a page's results in docs/ is kept."""
    shown = {name: one for name, one in reports.items() if not isinstance(one, ClaimsReport | GpuReport)}
    cards = {name: one for name, one in reports.items() if isinstance(one, GpuReport)}
    cards = dict(
        sorted(cards.items(), key=lambda item: -len(gpu_page.claims(item[1])[0]))
    )  # what tells most comes first
    sections = "".join((*_sections(shown), *_of_cards(cards)))
    made = {docs / "reports.md": _kept(docs / "reports.md", "\n## ") + sections}
    made |= {docs / "reports" / f"{name}.html": gpu_page.render(one) for name, one in cards.items()}
    if (readme := docs.parent / "README.md").exists():
        made[readme] = with_cards(readme.read_text(encoding="utf-8"), cards)
    made[results / "README.md"] = _kept(results / "README.md", "\n| ") + "\n" + _digests(reports, results)
    for name in EXAMPLES:
        if isinstance(result := shown.get(name), Report):
            made[docs / "reports" / f"{name}.html"] = campaign_page.render(result)
        elif isinstance(result, VerdictReport):
            made[docs / "reports" / f"{name}.html"] = verdict_page.render(result)
    if isinstance(claims := reports.get(CLAIMS), ClaimsReport):
        start = "\n## On a card\n"
        text = start + "".join(_claims_of_cards(cards)) + "\n## This run\n\n" + claims_page.markdown(claims)
        made[docs / "claims.md"] = _kept(docs / "claims.md", start) + text
    return made


def _kept(page: Path, start: str) -> str:
    return page.read_text(encoding="utf-8").partition(start)[0].rstrip() + "\n" if page.exists() else ""


def _digests(reports: dict[str, Result], results: Path) -> str:
    rows = []
    for name, result in reports.items():
        file = results / f"{name}.json.gz"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        rows.append((file.name, _date(result), f"`{_command(result)}`", f"`{digest}`"))
    return markdown(("file", "made", "command", "SHA-256"), rows) + "\n"


def _sections(reports: dict[str, Report | VerdictReport]) -> Iterator[str]:
    for name, report in reports.items():
        facts = [f"Made: {_date(report)}, by `{_command(report)}`"]
        whole = f"[The whole report](reports/{name}.html) · " if name in EXAMPLES else ""
        yield f"\n## {name}\n\n{report.sentence if isinstance(report, Report) else report.paragraph}\n\n"
        yield f"{whole}[Its numbers](../published-results/{name}.json.gz)\n\n"
        if isinstance(report, Report):
            yield f"{_table(report)}\n\n"
            facts += _circumstances(report)
        yield from (f"- {fact}\n" for fact in dict.fromkeys((*facts, *report.caveats)))


def with_cards(readme: str, cards: dict[str, GpuReport]) -> str:
    """README.md with what was measured on cards between its marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"README.md has no {BEGIN} with its {END}")
    rows = [
        (*row, f"[all of it](docs/reports/{name}.html)")
        for name, one in cards.items()
        for row in gpu_page.readme_rows(one)
    ]
    text = markdown(("on a card", "value", "command", "report"), rows) if rows else NOT_MEASURED
    return f"{before}{begin}\n{text}\n{end}{after}"


def _of_cards(cards: dict[str, GpuReport]) -> Iterator[str]:
    for name, report in cards.items():
        yield f"\n## {name}\n\n{gpu_page.sentence(report)}\n\n"
        yield f"[The whole report](reports/{name}.html) · [Its numbers](../published-results/{name}.json.gz)\n\n"
        best = gpu_page.best_on_card(report).items()
        yield markdown(("net, in process on the card", "best rate, rows/s"), list(best)) + "\n\n" if best else ""
        yield f"- Made: {_date(report)}, by `{_command(report)}`\n- Machine: {report.run.machine.processor}, {report.run.card}\n"
        yield "".join(f"- {note}\n" for note in report.run.notes)


def _claims_of_cards(cards: dict[str, GpuReport]) -> Iterator[str]:
    yield "" if cards else "\nNone has been measured yet.\n"
    left = list[set[str]]()
    reasons = dict[str, str]()
    for name, report in cards.items():
        answered, others = gpu_page.claims(report)
        facts = [f"{report.run.card}, {report.run.machine.processor}", f"{_date(report)}", f"`{_command(report)}`"]
        yield f"\n{', '.join(facts)}: [the whole report](reports/{name}.html).\n\n"
        rows = [(one.says, f"**{one.answer}**", one.numbers, f"{one.experiment}; {one.threshold}") for one in answered]
        yield markdown(("Claim", "Answer there", "Numbers", "Number asked for"), rows) + "\n"
        of_card = dict(one.split(": ", 1) for one in others)
        reasons = of_card | reasons
        left.append(set(of_card))
    nowhere = [name for name in reasons if left and name in set.intersection(*left)]
    yield "\nNot reached on any:\n\n" + "".join(f"- {one}: {reasons[one]}\n" for one in nowhere) if nowhere else ""


def _circumstances(report: Report) -> list[str]:
    machine, payload = report.manifest.machine, report.manifest.payload
    cards = ", ".join(machine.cards) or "no GPU"
    return [
        f"Machine: {machine.processor}, {machine.num_cores:g} cores, {cards}",
        f"Sent: {payload.what or payload.data}, {payload.encoding}, {payload.batch_size} to a request",
        *([report.manifest.note] if report.manifest.note else []),
    ]


def _table(report: Report) -> str:
    load = report.manifest.load
    in_time = "in time" if load.objective_s is None else f"within {milliseconds(load.objective_s)} ms"
    unit = "requests/s due" if load.kind == "open" else "users"
    rows = []
    for arm in sorted(report.arms, key=lambda arm: arm.point):
        row = [f"{arm.point:,g}", arm.name]
        if arm.not_run:
            rows.append([*row, f"not run: {arm.not_run}", "", "", "", ""])
            continue
        row += [_median(value, milliseconds) for value in (arm.latency_p50_s, arm.latency_p99_s)]
        row += [_median(arm.within_objective_ratio, "{:.2%}".format), _median(arm.throughput_rps, number)]
        rows.append([*row, f"{arm.num_runs}, {arm.num_void}"])
    return markdown((unit, "arm", "p50 ms", "p99 ms", in_time, "good answers/s", "valid runs, void"), rows)


def _median(value: Estimate | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value.median)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
