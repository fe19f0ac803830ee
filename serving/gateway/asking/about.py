"""What clients may know besides answers: of the server, of a model, of all that can be asked. Shared by all protocols.

What is told of a model comes from a Triton that serves it, with the name that was asked for in the place of the variant's. How it is
written down is the protocols'. Rule: nothing internal shows here, no variant's name under a public one, no reason of Triton's.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

import serving
from serving import errors
from serving.gateway.access import ANYBODY, Caller, is_allowed
from serving.gateway.asking import statistics
from serving.gateway.fleet.catalogue import Catalogue, Server
from serving.gateway.fleet.upstream import Lost
from serving.scheduling.routing import Decision

METADATA, CONFIG, STATISTICS = "", "/config", "/stats"  # how Triton's paths of a model end
# Only what the gateway really carries; Triton's names for it.
EXTENSIONS = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
]
NOT_OFFERED = {
    "trace": "tracing is set on Triton itself",
    "logging": "logging is set on Triton itself",
    "systemsharedmemory": "shared memory is not offered here; send tensors in the request",
    "cudasharedmemory": "shared memory is not offered here; send tensors in the request",
}


class State:
    """What health answers depend on. `was_ready` latches: it drops only for shutdown (`closing`)."""

    def __init__(self) -> None:
        self.was_ready = False
        self.closing = False


def server_metadata() -> dict[str, Any]:
    return {"name": "tandem", "version": serving.__version__, "extensions": EXTENSIONS}


def all_routable(catalogue: Catalogue, required: list[str]) -> bool:
    """Whether every one of these names can be asked at this moment; empty: every name that there is, but for what was unloaded."""
    routable = {n for pool in catalogue.fleet.pools if pool.ready for v in pool.variants for n in (v.model, v.name)}
    wanted = frozenset(required) or frozenset(
        n for n in catalogue.fleet.known - routable if not catalogue.is_unloaded(n)
    )
    return bool(routable) and wanted <= routable


async def is_model_ready(catalogue: Catalogue, model: str, version: str) -> bool:
    """Raises NotFound for one that nobody knows."""
    try:
        status, _, _ = await fetch(catalogue, model, version, "/ready")
    except errors.NotReady:
        return False
    return status == 200


async def of_model(catalogue: Catalogue, model: str, version: str, what: str) -> dict[str, Any]:
    """METADATA, CONFIG or STATISTICS of a model as v2's JSON has it. Raises NotFound or NotReady."""
    if what == STATISTICS:
        _require_version(version)
        return await statistics.of_model(catalogue, model, version)
    status, body, decision = await fetch(catalogue, model, version, what)
    if status != 200:
        raise errors.NotReady(f"'{model}' is not ready; try again", retry_after_s=1.0)
    told: dict[str, Any] = _rename(orjson.loads(body), decision.variant.name, model)
    return told


async def fetch(catalogue: Catalogue, model: str, version: str, what: str) -> tuple[int, bytes, Decision]:
    """Triton's answer about a model, from the first place that would serve it."""
    _require_version(version)
    for decision in catalogue.decide(model):
        server: Server | None = catalogue.pick(decision.pool, decision.variant.name)
        if server is None:
            continue
        path = f"/v2/models/{decision.variant.name}" + (f"/versions/{version}" if version else "") + what
        try:
            answer = await catalogue.fetch(server, b"GET", path)
        except Lost:
            continue
        if answer.status in (400, 404) and version:  # Triton 2.51 says 400 for a version that is not there
            raise errors.NotFound(f"'{model}' has no version {version}")
        return answer.status, answer.body, decision
    raise errors.NotReady(f"'{model}' is not ready; try again", retry_after_s=1.0)


def _require_version(version: str) -> None:
    if version and re.fullmatch(r"[0-9]{1,9}", version) is None:
        raise errors.NotFound(f"'{version}' is not a version number")


def index(catalogue: Catalogue, caller: Caller = ANYBODY) -> list[dict[str, str]]:
    """Of what the caller may ask, public names first, then the names that pin a variant."""
    versions: dict[str, str] = {}
    for variant in (v for pool in catalogue.fleet.pools for v in pool.variants):
        for name in (variant.model, variant.name):
            versions[name] = max(versions.get(name, "0"), variant.version, key=int)
    ready = {n for pool in catalogue.fleet.pools if pool.ready for v in pool.variants for n in (v.model, v.name)}
    public = {v.model for pool in catalogue.fleet.pools for v in pool.variants}
    rows = []
    names = (name for name in catalogue.fleet.known if is_allowed(caller, name, catalogue.fleet))
    for name in sorted(names, key=lambda n: (n not in public, n)):
        reason = "unloaded" if name not in ready and catalogue.is_unloaded(name) else "no pool serves it now"
        state = {"state": "READY"} if name in ready else {"state": "UNAVAILABLE", "reason": reason}
        rows.append({"name": name, "version": versions.get(name, "1"), **state})
    return rows


def refuse_load(model: str) -> None:
    """Raises Forbidden."""
    raise errors.Forbidden(
        f"'{model}' is not loaded or unloaded here: POST /v2/repository/models/{model}/load and …/unload are HTTP paths for "
        "whoever runs the gateway, on its --admin-port, or on the same port where it listens on loopback"
    )


def _rename(value: Any, old: str, new: str) -> Any:
    """The name in Triton's metadata, configuration (instances are `<name>_<number>`) or statistics as the client asked for it."""
    if isinstance(value, dict):
        return {k: _renamed(v, old, new) if k == "name" else _rename(v, old, new) for k, v in value.items()}
    return [_rename(item, old, new) for item in value] if isinstance(value, list) else value


def _renamed(name: Any, old: str, new: str) -> Any:
    if isinstance(name, str) and (name == old or name.startswith(f"{old}_")):
        return new + name[len(old) :]
    return name
