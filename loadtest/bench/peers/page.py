"""Writes docs/peers.md and its figure from the bench's results: `python -m loadtest.bench.peers.page write|check`.

Rule: every number on the page comes from published-results/peers.json; whoever could not be measured has a row that says why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.verdicts import spread_text
from serving.documents.figures import ROW, Drawing, Plot, Scale
from serving.documents.tables import markdown
from serving.measure.rounds import ratio, spread

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "published-results" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"
FIGURE = ROOT / "docs" / "peers.svg"


CLOSED = ("requests/s, 32 connections", "p50 ms, one connection", "CPU µs a request")


def text(results: Mapping[str, Any]) -> str:
    peers: Mapping[str, Any] = results["peers"]
    machine = results["machine"]
    in_time = f"requests/s within {results['objective_s'] * 1000:.0f} ms"
    rows = [[name, one["version"], *_cells(one)] for name, one in peers.items()]
    packed = [[name, *_closed(one["binary"])] for name, one in peers.items() if one["binary"]["rate_rps"]]
    return f"""# Among its peers

One small model (`digits-fp32`, 64 numbers in, ten out), one request a digit: what is measured is the server, not the
net. The same file, the same JSON, one instance and one thread everywhere, each server in turn in rotating rounds of one
run, the generator on the same cores. {machine["processor"]} ({", ".join(machine["instruction_sets"])}),
{machine["num_cores"]:g} cores, {results["date"]}, `{results["command"]}`; other work took
{results["others_ratio"]:.0%} of the cores meanwhile. Median (min..max) of the rounds.

{markdown(["server", "version", *CLOSED, in_time, "MB", "start s"], rows)}

Requests within the objective: the highest Poisson rate at which 99 of 100 answers came in time, by an open loop. CPU:
of all processes that serve, Triton's included. MB: of all of them, what they share counted once. Start: until the first
good answer.

![requests a second of each server](peers.svg)

The same digit as a binary tensor of the v2 protocol, where it is spoken:

{markdown(["server", *CLOSED], packed)}

{chr(10).join(_sentences(peers))}

How each was run:

{chr(10).join(f"* **{name}**: {how}." for name, how in results["settings"].items())}

A peer that is run badly here is our mistake: its program is in `loadtest/bench/peers/servers/`, its wheels in `pins/`.
Send a change of either with the figures of `python -m loadtest.bench.peers --only NAME Tandem`, and the page is made
again.
"""


def _cells(one: Mapping[str, Any]) -> list[str]:
    if one["missing"]:
        return [f"not measured: {one['missing']}", "", "", "", "", ""]
    more = [(one["goodput_rps"], 0), (one["memory_mb"], 0), (one["start_s"], 1)]
    return [*_closed(one["json"]), *(spread_text(spread(values), digits) if values else "" for values, digits in more)]


def _closed(series: Mapping[str, Sequence[float]]) -> list[str]:
    return [
        spread_text(spread(series["rate_rps"]), 0),
        spread_text(spread(series["latency_p50_s"]), 3, 1000),
        spread_text(spread(series["cpu_us_per_request"]), 0),
    ]


def _sentences(peers: Mapping[str, Any]) -> list[str]:
    """Where Tandem wins and where it loses, by requests for each second of CPU time."""
    ours = peers.get("Tandem")
    if ours is None or ours["missing"]:
        return []
    said = []
    for name, one in peers.items():
        if name == "Tandem" or one["missing"]:
            continue
        cpu = ratio(one["json"]["cpu_us_per_request"], ours["json"]["cpu_us_per_request"])
        rate = ratio(ours["json"]["rate_rps"], one["json"]["rate_rps"])
        said.append(
            f"* Beside **{name}**: {spread_text(rate, 2)} times its requests/s, "
            f"{spread_text(cpu, 2)} times its requests for a second of CPU."
        )
    return said


def svg(results: Mapping[str, Any]) -> str:
    """Bars of requests a second, the most first."""
    found = [(name, spread(one["json"]["rate_rps"])) for name, one in results["peers"].items() if not one["missing"]]
    found.sort(key=lambda it: -it[1].median)
    drawing = Drawing("Requests a second of each server, 32 connections, JSON", 720, 70 + ROW * len(found))
    most = max(it.median for _, it in found) * 1.05
    x = Scale(0, most, is_log=False)
    plot = Plot(drawing, x, left=10, right=30, top=10, bottom=50)
    plot.x_axis("requests/s, 32 connections, JSON: median of the rounds", range(0, int(most) + 1, 2000))
    for index, (name, it) in enumerate(found):
        top = plot.row(index, name)
        plot.bar(top, plot.x(0), plot.x(it.median), 0 if name == "Tandem" else 1, f"{it.median:,.0f}")
    return drawing.file()


def main(arguments: Sequence[str]) -> int:
    results = json.loads(RESULTS.read_text())
    if list(arguments) == ["write"]:
        PAGE.write_text(text(results))
        FIGURE.write_text(svg(results))
        return 0
    return 0 if PAGE.read_text() == text(results) and FIGURE.read_text() == svg(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
