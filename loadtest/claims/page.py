"""The same report as one HTML file that opens anywhere: answers first, then every number, what was left out and how it was measured."""

from __future__ import annotations

import re
from collections import Counter

from loadtest.claims import written
from loadtest.claims.values import (
    DEPENDS,
    DOES_NOT_HOLD,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED_HERE,
    NOT_RUN,
    Report,
    Result,
)
from loadtest.report import style

ORDER = (HOLDS, DEPENDS, DOES_NOT_HOLD, INCONCLUSIVE, NOT_MEASURED_HERE, NOT_RUN)
CSS = "main{max-width:1100px}td,th{text-align:left!important}.scroll{overflow-x:auto}h3{margin:22px 0 4px;font-size:16px}p{margin:4px 0}"


def render(report: Report) -> str:
    counted = Counter(result.answer for result in report.results)
    summary = ", ".join(f"{counted[word]} {word}" for word in ORDER if counted[word])
    flags = [word for word, is_so in (("partial", report.is_partial), ("quick", report.is_quick)) if is_so]
    tags = "".join(f' <span class="flag">{flag}</span>' for flag in flags)
    facts = "".join(
        f"<div><dt>{_plain(name)}</dt><dd>{_inline(value)}</dd></div>" for name, value in written.facts(report)
    )
    head = (
        f'<header><p class="kind">Claims put to the test{tags}</p><h1>{style.text(report.name)}</h1>'
        f'<p class="result">Of {len(report.results)} claims: {style.text(summary)}.</p><dl>{facts}</dl></header>'
    )
    body = [head, "<h2>The claims</h2>", *map(_claim, report.results)]
    for table in written.tables(report)[1:]:
        rows = [style.row(table.heads, _inline(row[0]), [_inline(cell) for cell in row[1:]]) for row in table.rows]
        lead = f"<p>{_inline(table.lead)}</p>" if table.lead else ""
        grid = style.grid([style.text(head) for head in table.heads], rows)
        body.append(f'<h2>{style.text(table.title)}</h2>{lead}<div class="scroll">{grid}</div>')
    for title, lines in written.lists(report):
        body.append(f"<h2>{style.text(title)}</h2><ul>{''.join(f'<li>{_inline(line)}</li>' for line in lines)}</ul>")
    return style.document(f"{report.name}: claims put to the test", body, CSS)


def _claim(result: Result) -> str:
    source = style.text(result.source)
    if result.url:
        source += f" <code>{style.text(result.url)}</code>"
    return (
        f'<h3>{style.text(result.says)} <span class="flag">{style.text(result.answer)}</span></h3>'
        f"<p>{style.text(result.numbers)}</p>"
        f'<p class="kind">Asked for: {style.text(result.experiment)}, {style.text(result.threshold)}. Source: {source}</p>'
    )


def _plain(value: str) -> str:
    return style.text(value.replace("*", ""))


def _inline(value: str) -> str:
    """The little Markdown that `written` uses."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", style.text(value))
    marked = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", marked)
