"""The web page, the page of the API and the JSON behind it: the files of `serving/ui/`, read once and then served from memory.

Only names that were read are served, so no path reaches another file. Everything a page loads comes from here: it works offline,
and its Content-Security-Policy forbids anything else. What the pages do is in the files themselves.
"""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from serving import errors
from serving.gateway.http.openapi import document

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


def add_pages(app: FastAPI, public: FastAPI, *, has_keys: bool) -> None:
    """`/`, `/ui/…`, `/docs` and `/openapi.json`, which describes `app` and what clients reach at `public` (it may be the same)."""
    files = read_files()

    def page(name: str) -> Response:
        if name not in files:
            raise errors.NotFound(f"there is nothing at /ui/{name}")
        return Response(files[name], headers=HEADERS, media_type=TYPES[PurePath(name).suffix])

    @app.get("/", tags=["pages"], summary="What is served and why, and a place to try it.", response_class=HTMLResponse)
    async def home() -> Response:
        return page("index.html")

    @app.get("/docs", tags=["pages"], summary="This API as a page.", response_class=HTMLResponse)
    async def docs() -> Response:
        return page("docs.html")

    @app.get("/ui/{name}", tags=["pages"], summary="A file of these pages.", response_class=HTMLResponse)
    async def file(name: str) -> Response:
        return page(name)

    @app.get("/openapi.json", tags=["pages"], summary="This API in OpenAPI 3.1.")
    async def openapi() -> dict[str, object]:
        return document(app, public, has_keys=has_keys)


def read_files() -> dict[str, bytes]:
    """Every file of a type that the pages use."""
    folder = resources.files("serving") / "ui"
    return {f.name: f.read_bytes() for f in folder.iterdir() if PurePath(f.name).suffix in TYPES}
