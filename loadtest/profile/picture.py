"""The ladder as stacked bars: where the time of a request goes, for each server and batch size. Only drawing; parts come from `parts.py`.

Parts differ by their order, their gaps and their words as well as by colour; colours are the reports'.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from loadtest.profile.parts import Laddered, PartName, Split, batch_sizes, split
from loadtest.profile.wording import ms, rows
from loadtest.report.plots import NARROW, WIDE, figure, svg
from loadtest.report.summaries import milliseconds

COLOURS: dict[PartName, int] = {"compute": 0, "queue": 4, "transfer": 1, "json": 2, "gateway": 3}
WORDS: dict[PartName, str] = {
    "compute": "net",
    "queue": "waiting in Triton",
    "transfer": "HTTP, copies, Triton",
    "json": "JSON",
    "gateway": "gateway",
}
ROW, BAR, TOP = 56, 22, 6
LETTER = 7.2  # pixels of a figure at 13 px, with room
GAP = 1.5  # between parts, so that they stay apart in grey


def ladder_bars(servers: Sequence[Laddered]) -> str:
    """A figure as HTML; empty where no ladder can be split."""
    bars = [
        (server.label, found)
        for server in servers
        for size in batch_sizes(server)
        if (found := split(server.ladder, size))
    ]
    if not bars:
        return ""
    used = [name for name in COLOURS if any(part.name == name for _, found in bars for part in found.parts)]
    keys = "".join(_key(name) for name in used)
    caption = (
        f'<span class="keys">{keys}</span>Milliseconds of one request alone, medians, from the net to what a client of the gateway sees. '
        "Parts are differences between ways of asking; one without a number is too short to write into, or within noise."
    )
    return figure("Where the time goes", caption, _draw(bars, WIDE), _draw(bars, NARROW))


def _key(name: PartName) -> str:
    box = f'<svg width="14" height="14" aria-hidden="true"><rect width="14" height="14" rx="2" class="fill c{COLOURS[name]}"/></svg>'
    return f'<span class="key">{box} {html.escape(WORDS[name])}</span>'


def _draw(bars: Sequence[tuple[str, Split]], width: int) -> str:
    most_s = max(max(found.total_s, sum(part.seconds for part in found.parts)) for _, found in bars)
    scale = (width - 84) / most_s if most_s else 0.0
    drawn = []
    for index, (label, found) in enumerate(bars):
        y = TOP + index * ROW
        drawn.append(f'<text x="0" y="{y + 13}" class="name">{html.escape(label)}, {rows(found.batch_size)}</text>')
        drawn += _bar(found, y + 20, scale)
    return svg(width, TOP + ROW * len(bars), "Where the time of a request goes", drawn)


def _bar(found: Split, y: int, scale: float) -> list[str]:
    at, drawn = 0.0, []
    for part in found.parts:
        long = part.seconds * scale
        if long <= 0:
            continue
        title = f"{WORDS[part.name]}: {ms(part.seconds)}{', within noise' if part.is_noise else ''}"
        drawn.append(
            f'<rect x="{at:.1f}" y="{y}" width="{max(0.5, long - GAP):.1f}" height="{BAR}" class="fill c{COLOURS[part.name]}">'
            f"<title>{html.escape(title)}</title></rect>"
        )
        written = milliseconds(part.seconds)
        if not part.is_noise and long > LETTER * len(written) + 6:
            drawn.append(
                f'<text x="{at + (long - GAP) / 2:.1f}" y="{y + 16}" class="middle" style="fill:var(--page)">{written}</text>'
            )
        at += long
    drawn.append(f'<text x="{at + 8:.1f}" y="{y + 16}">{ms(found.total_s)}</text>')
    return drawn
