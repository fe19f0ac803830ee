"""Shows a simulation as one HTML file, from the template `simulation.html` beside this file: the answer first, then its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import serving
from serving.decisions.simulate.answer import answer
from serving.decisions.simulate.outcome import Outcome, head_and_rows
from serving.decisions.simulate.picture import drawing
from serving.decisions.simulate.scenario import POLICIES
from serving.decisions.wording import times
from serving.documents.figures import Figure
from serving.documents.pages import Pages
from serving.documents.tables import Table

PAGES = Pages(Path(__file__).parent)


def render(outcomes: Sequence[Outcome], scenario: Path, traffic: str, objective_s: float, command: str) -> str:
    svg = drawing(outcomes, "requests, servers and what was not in time").svg()
    caption = (
        "Over time: requests a second, then of each policy its servers and, from above, the share that was not in time."
    )
    ran = {it.policy for it in outcomes}
    head, rows = head_and_rows(outcomes)
    return PAGES.render(
        "simulation.html",
        scenario=scenario.name,
        answer=answer(outcomes, objective_s),
        policies=Table("Policies", head, tuple(rows)),
        picture=Figure("Over time", caption, svg, svg),
        traffic=traffic[:1].upper() + traffic[1:],
        objective=times(objective_s),
        meanings=[(it.name, it.says) for it in POLICIES if it.name in ran],
        command=command,
        version=serving.__version__,
    )
