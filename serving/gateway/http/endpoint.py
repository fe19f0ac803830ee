"""An HTTP endpoint: one row of the table in `gateway/endpoints.py`, and how a path finds its row.

Everything about a path follows from its row: who answers it, on which listener, which scope a key needs, and what the OpenAPI document and
docs/endpoints.md say. Rule: the first row whose path matches counts, so a fixed path stands before one with a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from starlette.routing import compile_path

from serving.errors import RequestError

Json = dict[str, Any]

OPEN = ""  # a scope: no key is needed, because the answer says nothing of models or traffic
GET, POST = ("GET", "HEAD"), ("POST",)  # the server leaves out the body of an answer to HEAD
# Where it is served. The operator's are on the clients' listener, too, where that is on loopback alone.
CLIENTS, OPERATOR, BOTH = "clients", "operator", "both"
REMEMBERED_PATHS = 1024  # of at most 8 KiB each


@dataclass(frozen=True, slots=True)
class Operation:
    """What the OpenAPI document says of an endpoint. `answer` and `body` map media types to schemas."""

    tag: str
    name: str  # the operationId, with `_version` where the path has one
    summary: str
    answer: Json = field(default_factory=dict)
    outcome: str = "Success."
    body: Json | None = None
    needs_body: bool = False
    parameters: Sequence[Json] = ()  # beside the path's
    has_receipt: bool = False
    may_be_unready: bool = False  # then the answer comes with 503
    errors: Mapping[type[RequestError], str] | None = None  # None: any
    error_schema: str = "Error"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`handler` is a function for FastAPI, or with `is_raw` a `Surface`, which looks at the key itself, because it is hot.

    A key needs `scope`, and a `{model}` in the path must be one that the key may ask. `operation` None: it does nothing but refuse.
    """

    methods: tuple[str, ...]
    path: str
    scope: str
    handler: Any
    operation: Operation | None
    listener: str = CLIENTS
    is_raw: bool = False


class Endpoints:
    """Rows, in the order in which they are tried."""

    def __init__(self, rows: Sequence[Endpoint]) -> None:
        self.rows = tuple(rows)
        self._patterns = [(compile_path(row.path)[0], row) for row in rows]
        self.find = lru_cache(REMEMBERED_PATHS)(self._find)

    def _find(self, path: str) -> tuple[Endpoint | None, str | None]:
        """Whose path matches, whatever its methods, and the model that the path names."""
        for pattern, row in self._patterns:
            if match := pattern.match(path):
                return row, match.groupdict().get("model")
        return None, None
