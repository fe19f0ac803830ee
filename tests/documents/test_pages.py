"""A page escapes all that it gets and lacks nothing in silence; figures and tables carry their values."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import jinja2
import pytest

from serving.documents.figures import DASHES, Drawing, LegendEntry, Plot, Scale, figure
from serving.documents.pages import Pages
from serving.documents.tables import Cell, Table, columns, markdown
from tests.documents.tags import Tags

HOSTILE = "<script>alert('x')</script>\"&"
PAGE = """{% extends "base.html" %}{% import "macros.html" as m %}
{% block title %}{{ title }}{% endblock %}
{% block main %}{{ m.facts([(title, title)]) }}{{ m.bullets(title, [title]) }}{{ m.table(table) }}{{ m.folded(table) }}
{{ m.figure(figure) }}{% endblock %}"""


def curve(width: int) -> Drawing:
    drawing = Drawing(HOSTILE, width, 200)
    plot = Plot(drawing, Scale.around([1, 1000]), Scale(0, 1, is_log=False))
    plot.x_axis(HOSTILE)
    plot.y_axis(HOSTILE, "{:.0%}".format, (0, 0.5, 1))
    plot.curve([(1, 0), (10, 0.5), (1000, 1)], series=1)
    plot.bar(plot.row(0, HOSTILE), 0, 20, series=2, title=HOSTILE)
    return drawing


def render(folder: Path, **values: object) -> str:
    (folder / "page.html").write_text(PAGE)
    table = Table(HOSTILE, ("name", "value"), ((Cell(HOSTILE, (HOSTILE,), HOSTILE), HOSTILE), (HOSTILE, "1")), HOSTILE)
    drawn = figure(HOSTILE, HOSTILE, curve, [LegendEntry(0, HOSTILE), LegendEntry(1, HOSTILE, is_area=True)])
    return Pages(folder).render("page.html", **{"title": HOSTILE, "table": table, "figure": drawn, **values})


def test_nothing_that_a_page_is_given_becomes_markup(tmp_path: Path) -> None:
    page = render(tmp_path)
    assert "<script" not in page
    assert {"html", "main", "dl", "ul", "table", "details", "figure", "svg"} <= set(Tags(page).names)


def test_a_template_that_lacks_a_value_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{ missing }}")
    with pytest.raises(jinja2.UndefinedError):
        Pages(tmp_path).render("page.html")


def test_a_short_row_reaches_to_the_end_of_its_table(tmp_path: Path) -> None:
    page = render(tmp_path, table=Table("t", ("a", "b", "c"), (("x", "not run"), ("y", "1", "2"))))
    assert '<td class="gone" colspan="2">not run</td>' in page
    assert '<td data-head="c">2</td>' in page


def test_a_drawing_is_a_file_of_its_own_that_is_well_formed() -> None:
    root = ElementTree.fromstring(curve(340).file())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("aria-label") == HOSTILE
    names = [part.tag.rpartition("}")[2] for part in root.iter()]
    assert names.count("title") == 1
    assert {"style", "rect", "path", "text"} <= set(names)


def test_steps_hold_their_value_and_break_where_there_is_none() -> None:
    drawing = Drawing("d", 100, 100)
    plot = Plot(drawing, Scale(0, 10, is_log=False), Scale(0, 10, is_log=False), left=0, right=0, top=0, bottom=0)
    plot.steps([(0, 0), (5, 10), (7, None), (8, 5), (10, 5)], series=0)
    plot.steps([(0, 0), (5, 10), (7, None), (8, 5)], series=1, holds_until=True)
    lines = [part.get("d") for part in ElementTree.fromstring(drawing.file()) if part.tag.endswith("path")]
    assert lines == ["M0.0 100.0H50.0V0.0H70.0M80.0 50.0H100.0V50.0", "M0.0 100.0V0.0H50.0M80.0 50.0"]


@pytest.mark.parametrize(("low", "high"), [(0.5, 900), (10, 11), (1e-3, 1e9), (2.1, 2.2)])
def test_ticks_are_round_inside_and_not_too_many(low: float, high: float) -> None:
    scale = Scale(low, high)
    assert len(scale.ticks(6)) <= 6
    assert all(low <= tick <= high and 0 <= scale.at(tick) <= 1 for tick in scale.ticks(6))


def test_series_differ_by_dashes() -> None:
    assert len({*DASHES}) == len(DASHES) == len({LegendEntry(n, "x").sample for n in range(len(DASHES))})


def test_columns_stand_under_each_other() -> None:
    rows = [("what", "n", "why"), ("longer", "1,000", "a"), ("b", "2", "c")]
    assert columns(rows) == "what        n  why\nlonger  1,000  a\nb           2  c"
    assert columns(rows, align="<<>", ruled=True).splitlines()[1] == "------  -----  ---"


def test_markdown_keeps_a_cell_in_its_place() -> None:
    assert markdown(("a", "b"), [(Cell("x|y", ("1", "2")), "z")]) == "| a | b |\n| --- | --- |\n| x/y 1 2 | z |"
