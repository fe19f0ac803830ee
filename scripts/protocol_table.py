#!/usr/bin/env python3
"""docs/protocol.md: what of each protocol is supported, what is refused and why, read from the marks of the tests that show it.

    scripts/protocol_table.py write      makes it anew
    scripts/protocol_table.py check      exits 1 where it is stale; writes nothing

A mark is `@pytest.mark.protocol(SURFACE, FEATURE, "supported" | "refused: WHY" | "partly: WHAT", item=NUMBER)`, all literals, on a test or
in `pytest.param(..., marks=...)` of one of its rows. `item` may be left out. Several tests of one feature share a row. Nothing is imported
or run. Rule: nobody edits what this writes; a feature without a test has no row.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/protocol.md"
SURFACES = ("v2 HTTP", "v2 gRPC", "OpenAI", "classify", "keys", "hostile input")  # in the page's order
OUTCOME = re.compile(r"supported|refused: \S.*|partly: \S.*")
INTRO = """<!-- Made by scripts/protocol_table.py from the marks of the tests; edit those instead. -->
# What of each protocol is served

Each row names the tests that show it, most of them against a real Triton behind the gateway. What has no row is not known to work.
How to use what is here: [http.md](http.md).
"""


class BadMark(Exception):
    """A mark that does not say what the table needs."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark. `test` is `path::name`, `item` None where it has none."""

    surface: str
    feature: str
    outcome: str
    item: int | None
    test: str


def marks_in(source: str, path: str) -> Iterator[Mark]:
    """Every mark in a test file's text. Raises BadMark."""
    if "mark.protocol" not in source:  # most files: parsing all takes seconds
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for decorator in node.decorator_list:
                for call in ast.walk(decorator):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.protocol":
                        yield _mark(call, f"{path}::{node.name}")


def _mark(call: ast.Call, test: str) -> Mark:
    try:
        given = [ast.literal_eval(value) for value in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except ValueError:
        raise BadMark(f"{test}: a protocol mark takes literals only") from None
    if len(given) != 3 or not all(isinstance(text, str) for text in given) or named.keys() - {"item"}:
        raise BadMark(f"{test}: a protocol mark is protocol(SURFACE, FEATURE, OUTCOME, item=NUMBER)")
    surface, feature, outcome = given
    if surface not in SURFACES:
        raise BadMark(f"{test}: there is no surface {surface!r}; there are: {', '.join(SURFACES)}")
    if not OUTCOME.fullmatch(outcome):
        raise BadMark(f"{test}: {outcome!r} is not 'supported', 'refused: WHY' or 'partly: WHAT'")
    return Mark(surface, feature, outcome, named.get("item"), test)


def page(marks: list[Mark]) -> str:
    """The whole page. Raises BadMark where two tests say different things of one feature."""
    lines = [INTRO]
    for surface in SURFACES:
        rows: dict[str, list[Mark]] = {}
        for mark in marks:
            if mark.surface == surface:
                rows.setdefault(mark.feature, []).append(mark)
        if rows:
            lines += [f"## {surface}", "", "| feature | | shown by |", "| --- | --- | --- |"]
            lines += [_row(feature, found) for feature, found in rows.items()]
            lines.append("")
    return "\n".join(lines)


def _row(feature: str, marks: list[Mark]) -> str:
    outcomes = {mark.outcome for mark in marks}
    if len(outcomes) > 1:
        raise BadMark(
            f"'{feature}' is told in several ways: {'; '.join(sorted(f'{m.test}: {m.outcome}' for m in marks))}"
        )
    word, _, why = outcomes.pop().partition(": ")
    shown = "<br>".join(dict.fromkeys(_link(mark.test) for mark in marks))
    return f"| {_cell(feature)} | {f'**{word}**: {_cell(why)}' if why else word} | {shown} |"


def _link(test: str) -> str:
    path, name = test.split("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{path})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def made() -> str:
    marks: list[Mark] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        marks += marks_in(file.read_text("utf-8"), str(file.relative_to(ROOT)))
    return page(sorted(marks, key=lambda mark: mark.item or 10_000))  # by the items they show, else in the files' order


def main() -> int:
    try:
        text = made()
    except BadMark as error:
        print(error, file=sys.stderr)
        return 2
    if sys.argv[1:] == ["write"]:
        (ROOT / PAGE).write_text(text, "utf-8")
        return 0
    if sys.argv[1:] == ["check"]:
        fresh = (ROOT / PAGE).exists() and (ROOT / PAGE).read_text("utf-8") == text
        print("fresh" if fresh else f"{PAGE} is stale: run `make reference`")
        return 0 if fresh else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
