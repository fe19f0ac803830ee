"""The files of the pages: nothing from elsewhere, nothing inline, no text set as markup, and every name they use is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serving.gateway.http.pages import TYPES, read_files

ROOT = Path(__file__).parents[2]
FILES = {name: text.decode() for name, text in read_files().items()}
PAGES = {
    "index.html": [name for name in FILES if name.endswith(".js") and name != "docs.js"],
    "docs.html": ["docs.js", "dom.js", "key.js", "words.js"],
}


def test_every_file_of_the_folder_is_read_and_none_is_large() -> None:
    assert sorted(FILES) == sorted(p.name for p in (ROOT / "serving" / "ui").iterdir())
    assert {Path(name).suffix for name in FILES} == set(TYPES)
    assert sum(map(len, FILES.values())) < 300_000


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_loaded_from_another_host(name: str) -> None:
    text = FILES[name].replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|[\"'(]//|@import|url\(", text)


@pytest.mark.parametrize("name", [n for n in FILES if n.endswith(".js")])
def test_no_text_becomes_markup_or_code(name: str) -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function", FILES[name]
    )


@pytest.mark.parametrize("name", PAGES)
def test_pages_hold_nothing_that_their_security_policy_forbids(name: str) -> None:
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|data:", FILES[name])
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", FILES[name]))


@pytest.mark.parametrize("name", PAGES)
def test_every_name_that_a_page_uses_is_there(name: str) -> None:
    scripts = "".join(FILES[script] for script in PAGES[name])
    used = set(re.findall(r"/ui/([\w.-]+)", FILES[name] + scripts))
    assert used
    assert used <= set(FILES)
    ids = re.findall(r'\bid="([\w-]+)"', FILES[name])
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\$\("([\w-]+)"\)', scripts)) <= set(ids)
    pointed = re.findall(r'\b(?:for|aria-labelledby|aria-describedby)="([\w-]+)"', FILES[name])
    assert set(pointed) <= set(ids)


@pytest.mark.parametrize("name", PAGES)
def test_pages_say_their_language_and_fit_a_phone(name: str) -> None:
    assert '<html lang="en">' in FILES[name]
    assert 'name="viewport" content="width=device-width' in FILES[name]
    assert FILES[name].count("<h1>") == FILES[name].count("<main") == 1


@pytest.mark.thorough
def test_both_colour_schemes_set_the_same_colours_and_these_can_be_read() -> None:
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", FILES["style.css"])
    )
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for ground in ("paper", "card", "well", "wash"):
            for front in ("text", "soft", "blue", "orange", "teal", "violet", "rose"):
                assert contrast(colours[front], colours[ground]) >= 4.5, (front, ground)  # WCAG 2, AA, text


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2, 1..21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
