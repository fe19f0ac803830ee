"""Sums the statistics of a model over all Tritons that serve it, because each counts for itself alone.

Counts and nanoseconds are added, never averages; the last inference is the latest. A public name sums its variants, a pinned name is one.
A server that starts again counts from 0, so a sum may fall: readers of rates must expect that.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from serving import errors
from serving.gateway.access import ANYBODY, Caller, is_allowed
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Lost

Row = dict[str, Any]
LATEST = {"last_inference"}  # milliseconds of 1970
NAMED = {"name", "version", "batch_size"}  # what a row is of


async def of_model(catalogue: Catalogue, name: str, version: str) -> dict[str, list[Row]]:
    """v2's JSON of one name, a row per version. Raises NotFound, NotReady or Unsupported."""
    variants = [decision.variant for decision in catalogue.decide(name)]
    wanted = {name} if name in {v.name for v in variants} else _variants_of(catalogue, variants[0].model)
    rows = [row for row in await _all_rows(catalogue) if row["name"] in wanted]
    if not rows:
        raise errors.NotReady(f"'{name}' is not ready; try again", retry_after_s=1.0)
    rows = [row for row in rows if version in ("", row["version"])]
    if not rows:
        raise errors.NoSuchVersion(f"'{name}' has no version {version}", model=name, version=version)
    return {"model_stats": _by_version(name, rows)}


async def of_all(catalogue: Catalogue, caller: Caller = ANYBODY) -> dict[str, list[Row]]:
    """Of every public name that the caller may ask, so that no inference counts twice."""
    rows = await _all_rows(catalogue)
    names = sorted({v.model for pool in catalogue.fleet.pools for v in pool.variants})
    rows_of_all: list[Row] = []
    for name in names:
        if is_allowed(caller, name, catalogue.fleet):
            own = _variants_of(catalogue, name)
            rows_of_all += _by_version(name, [row for row in rows if row["name"] in own])
    return {"model_stats": rows_of_all}


def _variants_of(catalogue: Catalogue, model: str) -> set[str]:
    return {v.name for pool in catalogue.fleet.pools for v in pool.variants if v.model == model}


async def _all_rows(catalogue: Catalogue) -> list[Row]:
    """Of all servers, of what each may serve: another model of the same name is none of ours."""
    servers = [server for servers in catalogue.pools.values() for server in servers if server.alive]
    return [row for rows in await asyncio.gather(*(_rows(s) for s in servers)) for row in rows]


async def _rows(server: Server) -> list[Row]:
    try:
        answer = await server.read(b"GET", "/v2/models/stats")
    except Lost:
        return []
    rows = orjson.loads(answer.body)["model_stats"] if answer.status == 200 else []
    return [row for row in rows if row["name"] in server.snapshot.served]


def _by_version(name: str, rows: list[Row]) -> list[Row]:
    versions: dict[str, Row] = {}
    for row in rows:
        own = {"name": name} | {key: value for key, value in row.items() if key != "name"}
        versions[row["version"]] = added(versions[row["version"]], own) if row["version"] in versions else own
    return [versions[version] for version in sorted(versions, key=int)]


def added(one: Any, other: Any) -> Any:
    """Two of Triton's statistics as one: numbers are added at every depth, batches of one size are one row."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = {key: _of_key(key, one[key], other[key]) for key in one.keys() & other.keys()}
        return {key: both.get(key, one.get(key, other.get(key))) for key in one | other}
    if isinstance(one, list) and isinstance(other, list):
        return _rows_added(one, other)
    return one + other if isinstance(one, int) and isinstance(other, int) else one


def _of_key(key: str, one: Any, other: Any) -> Any:
    if key in NAMED:
        return one
    return max(one, other) if key in LATEST else added(one, other)


def _rows_added(one: list[Any], other: list[Any]) -> list[Any]:
    if not all(isinstance(row, dict) and "batch_size" in row for row in (*one, *other)):
        return one + other
    sizes = {row["batch_size"]: row for row in one}
    for row in other:
        sizes[row["batch_size"]] = added(sizes[row["batch_size"]], row) if row["batch_size"] in sizes else row
    return [sizes[size] for size in sorted(sizes)]
