"""Reports as a phone and a printer show them, in a real browser."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pypdf import PdfReader

from serving.cli import cli
from tests.ui.conftest import BROWSER, Page

pytestmark = BROWSER
ROOT = Path(__file__).resolve().parents[2]
REPORTS = (*sorted(file.stem for file in (ROOT / "docs" / "reports").glob("*.html")), "simulation")


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("simulation") / "simulation.html"
    scenario = str(ROOT / "docs" / "scenarios" / "bert-large.yaml")
    words = ["simulate", scenario, "--rate", "100", "--duration", "300", "--report", str(file)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    return file


def open_report(page: Page, name: str, simulation: Path) -> None:
    file = simulation if name == "simulation" else ROOT / "docs" / "reports" / f"{name}.html"
    page.open(file.as_uri())
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")


@pytest.mark.parametrize("name", REPORTS)
def test_the_answer_and_three_figures_are_the_first_screen(page: Page, simulation: Path, name: str) -> None:
    page.look(1240, 800)
    open_report(page, name, simulation)
    ends = page.js(
        "[...document.querySelectorAll('.result, .figures > div')].map(e => e.getBoundingClientRect().bottom)"
    )
    assert len(ends) == 4
    assert max(ends) < 800


@pytest.mark.parametrize("name", REPORTS)
def test_a_phone_shows_all_of_it_without_scrolling_aside(page: Page, simulation: Path, name: str) -> None:
    page.look(390, 800)
    open_report(page, name, simulation)
    too_wide = """[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && !e.closest('svg'))
      .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    assert page.js(too_wide) == []
    assert page.js("document.documentElement.scrollWidth") <= 390


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", REPORTS)
def test_on_paper_no_heading_stands_alone_no_number_is_broken_and_every_page_of_a_table_has_its_head(
    page: Page, simulation: Path, name: str
) -> None:
    page.look(1240, 800)
    open_report(page, name, simulation)
    heads = page.js("[...document.querySelectorAll('h1, h2, h3, summary')].map(e => e.textContent)")
    numbers = page.js("[...document.querySelectorAll('td')].map(e => e.innerText).filter(t => /^[\\\\d,.]+$/.test(t))")
    pages = [it.extract_text() for it in PdfReader(io.BytesIO(page.printed())).pages]
    whole = "\n".join(pages)
    for text in pages:
        last = text.strip().splitlines()[-1]
        assert squeezed(last) not in {squeezed(head) for head in heads}, "a heading at the foot of a page"
    for number in numbers:
        assert re.search(rf"(?<!\d){re.escape(number)}(?!\d)", whole), f"{number} is broken"
    tables = page.js(
        """[...document.querySelectorAll('table')].map(t => [
            t.tHead.rows[0].cells[0].innerText + t.tHead.rows[0].cells[1].innerText,
            [...t.tBodies[0].rows].map(r => r.cells[0].innerText + (r.cells[1]?.innerText ?? ""))])"""
    )
    for head, rows in tables:
        for text in map(squeezed, pages):
            if any(squeezed(row) in text for row in rows if len(squeezed(row)) > 9):
                assert squeezed(head) in text, f"a page with rows of {head} without its head"
