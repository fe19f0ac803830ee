"""docs/reports.md: campaigns and verdicts whose reports are committed, each with its sentence, its numbers, machine and command.

    python -m loadtest.report.docs                    writes docs/reports.md anew
    python -m loadtest.report.docs results/FOLDER …   takes these reports first, as docs/reports/NAME.html and NAME.json

NAME is the folder's. Raw rows stay where they are. Rule: no number in the page that is not in a report, and no place of this machine.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.errors import ResultsError
from loadtest.report.page import PAGE
from loadtest.report.stored import FILE, read
from loadtest.report.summaries import milliseconds, number

DOCS = Path(__file__).resolve().parents[2] / "docs"
INTRO = """# Reports: real campaigns and verdicts

What [`tandem campaign run`](campaigns.md) and [`tandem verdict`](verdict.md) said of real models on a real machine: the reports as they
were written, without raw rows. A page opens in any browser, offline. Numbers are medians over valid runs; in an open loop latency counts
from when a request was due. `python -m loadtest.report.docs results/FOLDER` takes a report in and writes this page anew.
"""
PLACE = re.compile(r"(?<![\w/:.])[/~][\w.-]+/")  # the beginning of an absolute path; no URL's


def take(results: Path, folder: Path) -> None:
    """Raises ResultsError for what is no report of this Tandem, and for one that names places of this machine."""
    read(results)
    raw = json.loads((results / FILE).read_text(encoding="utf-8"))
    if found := PLACE.search((raw if "command" in raw else raw["manifest"])["command"]):
        raise ResultsError(f"{results}: its command names {found[0]}…; run it with paths that count from the checkout")
    if not (results / PAGE).exists():
        raise ResultsError(f"{results} has no {PAGE}")
    folder.mkdir(exist_ok=True)
    for file in (FILE, PAGE):
        shutil.copyfile(results / file, folder / f"{results.resolve().name}{Path(file).suffix}")


def render(reports: Mapping[str, Any]) -> str:
    """Pure. By name, each as its file says it."""
    return INTRO + "".join(f"\n{part}\n" for name in sorted(reports) for part in _one(name, reports[name]))


def _one(name: str, raw: Any) -> Iterator[str]:
    is_verdict = raw.get("kind") == "verdict"
    yield f"## {name}"
    yield raw["paragraph"] if is_verdict else raw["sentence"]
    yield f"[The whole report](reports/{name}.html) · [as JSON](reports/{name}.json)"
    if not is_verdict:
        yield "\n".join(_table(raw))
    told = raw if is_verdict else raw["manifest"]
    facts = [f"Made: {(raw['date'] if is_verdict else told['started'])[:10]}, by `{told['command']}`"]
    if not is_verdict:
        machine, payload = told["machine"], told["payload"]
        cards = ", ".join(machine["cards"]) or "no GPU"
        facts.append(f"Machine: {machine['processor']}, {machine['num_cores']:g} cores, {cards}")
        facts.append(
            f"Sent: {payload['what'] or payload['data']}, {payload['encoding']}, {payload['batch_size']} to a request"
        )
    remarks = [told["note"]] if told.get("note") else []
    yield "\n".join(f"- {fact}" for fact in dict.fromkeys((*facts, *remarks, *raw["caveats"])))


def _table(raw: Any) -> Iterator[str]:
    load = raw["manifest"]["load"]
    is_open = load["kind"] == "open"
    objective_s = load["objective_s"]
    in_time = "in time" if objective_s is None else f"within {milliseconds(objective_s)} ms"
    yield f"| {'requests/s due' if is_open else 'users'} | arm | p50 ms | p99 ms | {in_time} | good answers/s | valid runs, void |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for arm in sorted(raw["arms"], key=lambda one: one["point"]):
        if arm["not_run"]:
            yield f"| {arm['point']:,g} | {arm['name']} | not run: {arm['not_run']} | | | | |"
            continue
        cells = [f"{arm['point']:,g}", arm["name"]]
        cells += [_median(arm[key], milliseconds) for key in ("latency_p50_s", "latency_p99_s")]
        cells.append(_median(arm["within_objective_ratio"], "{:.2%}".format))
        cells.append(_median(arm["throughput_rps"], number))
        yield "| " + " | ".join([*cells, f"{arm['num_runs']}, {arm['num_void']}"]) + " |"


def _median(told: Any, shown: Any) -> str:
    return "–" if told is None else str(shown(told["median"]))


def committed(folder: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def main(arguments: Sequence[str], docs: Path = DOCS) -> int:
    try:
        for results in arguments:
            take(Path(results), docs / "reports")
    except (ResultsError, OSError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 2
    (docs / "reports.md").write_text(render(committed(docs / "reports")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
