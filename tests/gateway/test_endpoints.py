"""The table of endpoints holds: nothing is served beside it, everything in it is served, guarded and described as it says."""

from __future__ import annotations

import re

import pytest
from starlette.routing import Route

from serving.gateway.http.endpoint import BOTH, CLIENTS, OPEN, OPERATOR, Endpoint
from serving.keys.key import SCOPES
from tests.gateway.offline import ENDPOINTS, PATHS, app_of, built, document_of

Served = set[tuple[str, frozenset[str]]]


def served(rows: list[Endpoint]) -> Served:
    return {(row.path, frozenset(row.methods)) for row in rows}


def routes(guard: object) -> Served:
    found = set()
    for route in app_of(guard).routes:
        assert isinstance(route, Route), route  # nothing is mounted beside them
        found.add((route.path, frozenset(route.methods or ())))
    return found


@pytest.mark.parametrize("admin_here", [True, False])
def test_a_listener_serves_what_the_table_says_and_nothing_else(admin_here: bool) -> None:
    gateway = built(admin_here=admin_here)
    rows = gateway.endpoints.rows
    assert routes(gateway.admin) == served([row for row in rows if row.listener in (OPERATOR, BOTH)])
    assert routes(gateway.public) == served([r for r in rows if admin_here or r.listener in (CLIENTS, BOTH)])


@pytest.mark.parametrize("admin_here", [True, False])
def test_the_documents_describe_every_endpoint_that_does_more_than_refuse_and_no_other(admin_here: bool) -> None:
    gateway = built(admin_here=admin_here)
    described = {row.path for row in gateway.endpoints.rows if row.operation is not None}
    shown = document_of(gateway.public if admin_here else gateway.admin)["paths"]
    assert shown.keys() == described
    clients = {p for p, item in shown.items() if "not here" in str([o.get("description") for o in item.values()])}
    theirs = {row.path for row in gateway.endpoints.rows if row.listener == CLIENTS and row.operation is not None}
    assert clients == (set() if admin_here else theirs)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_finds_its_own_row_and_not_one_that_is_like_it(path: str) -> None:
    asked = re.sub(r"\{[\w:]+\}", "1", path)
    row, model = ENDPOINTS.find(asked)
    assert row is not None
    assert (row.path, row.scope) == (path, next(r.scope for r in ENDPOINTS.rows if r.path == path))
    assert model == ("1" if "{model}" in path else None)


def test_scopes_are_known_and_rows_of_one_path_agree() -> None:
    scopes: dict[str, set[str]] = {}
    for row in ENDPOINTS.rows:
        scopes.setdefault(row.path, set()).add(row.scope)
    assert all(len(of_path) == 1 for of_path in scopes.values())
    assert {row.scope for row in ENDPOINTS.rows} == {OPEN, *SCOPES}
