"""HTML pages from Jinja2 templates: one file that opens offline, with the one style of all reports.

A room keeps its templates beside its code; they extend `base.html` and import `macros.html` of this room. Rule: a template gets values,
never HTML, and escapes them all; a name that it does not get is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

TEMPLATES = Path(__file__).parent / "templates"


class Pages:
    """The templates of one room. `filters`: functions that write its values, such as an amount of money."""

    def __init__(self, folder: Path, **filters: Callable[..., object]) -> None:
        self._environment = Environment(
            loader=FileSystemLoader([folder, TEMPLATES]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._environment.filters.update(filters, with_code=with_code)

    def render(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(values)


def with_code(text: str) -> Markup:
    """A sentence in which a command stands between backticks, as everywhere but on a page; escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
