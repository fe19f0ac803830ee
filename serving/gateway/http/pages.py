"""The web page and the page of the API: the files of `serving/ui/`, read once and then served from memory.

Only names that were read are served, so no path reaches another file. Everything a page loads comes from here: it works offline,
and its Content-Security-Policy forbids anything else. What the pages do is in the files themselves.
"""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath
from typing import Any

from fastapi import Request, Response

from serving import errors

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # another version of the gateway may answer here tomorrow
}


class Pages:
    def __init__(self) -> None:
        self._files = read_files()

    async def openapi(self, request: Request) -> dict[str, Any]:
        """Of the listener that is asked."""
        return dict(request.app.state.document())

    async def home(self) -> Response:
        return await self.file("index.html")

    async def docs(self) -> Response:
        return await self.file("docs.html")

    async def file(self, name: str) -> Response:
        if name not in self._files:
            raise errors.NotFound(f"there is nothing at /ui/{name}")
        return Response(self._files[name], headers=HEADERS, media_type=TYPES[PurePath(name).suffix])


def read_files() -> dict[str, bytes]:
    """Every file of a type that the pages use."""
    folder = resources.files("serving") / "ui"
    return {f.name: f.read_bytes() for f in folder.iterdir() if PurePath(f.name).suffix in TYPES}
