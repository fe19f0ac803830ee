"""Reads a page as a browser does: is each element closed in its turn, and does anything lead outside of the file?"""

from __future__ import annotations

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Raises AssertionError for a page that is not well-formed or not self-contained. `names`: of its elements."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []
        assert not {"script", "link", "img", "iframe"} & set(self.names)
        assert "url(" not in page
        assert "@import" not in page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not [name for name, _ in attrs if name in ("src", "href", "xlink:href") or name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
