"""Describes the server, its models and what can be asked, for every protocol.

A model's description comes from a Triton that serves it, under the name that was asked for. How it is written down is the protocols'. Rule:
nothing internal shows here: no variant's name under a public one, and of Triton's reasons only why a model could not be loaded, in one line
(`protocol/triton_reason.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import orjson

import serving
from serving import errors
from serving.gateway.access import ANYBODY, Caller, is_allowed
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Lost
from serving.gateway.models import account, statistics
from serving.gateway.models.account import State as ModelState
from serving.gateway.triton_words import SERVER_NAME
from serving.scheduling.routing import Decision, reason_for

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
    """What health answers depend on. `was_ready` latches: it drops only for shutdown (`closing`).

    `is_informed`: whether the control document, where there is one, was read once, and from which revision to start is decided.
    `unanswered`: models that are served, and not as that document wants it.
    """

    def __init__(self) -> None:
        self.is_informed: Callable[[], bool] = lambda: True
        self.unanswered: Callable[[], Collection[str]] = tuple
        self.was_ready = False
        self.closing = False


def server_metadata(catalogue: Catalogue) -> dict[str, Any]:
    name = SERVER_NAME if catalogue.has_triton_words else "tandem"
    return {"name": name, "version": serving.__version__, "extensions": EXTENSIONS}


def all_routable(catalogue: Catalogue, required: list[str], *, may_sleep: bool = False) -> bool:
    """Whether every one of these names can be asked at this moment; empty: every name that there is.

    But for what was unloaded, for variants that could not be loaded of models that others serve, and for models that could not be
    loaded where the settings say to go on without them, and what waits for a server of a pool that comes and goes: with `may_sleep` also
    of those that are required, because requests are what wakes it.
    """
    routable = catalogue.fleet.routable
    sleepers = catalogue.sleepers() if may_sleep else frozenset()
    is_any = bool(routable) or (bool(sleepers) and catalogue.may_all_sleep)
    if required:
        return is_any and frozenset(required) <= routable | sleepers
    lacking = account.lacking(account.entries(catalogue))
    may_lack = catalogue.may_lack_models
    return is_any and all(may_lack and entry.state is ModelState.NOT_LOADED for entry in lacking)


def not_served(catalogue: Catalogue) -> dict[str, str]:
    """Public name -> why no Triton could load it."""
    entries = account.entries(catalogue)
    models = {entry.model for entry in account.lacking(entries) if entry.state is ModelState.NOT_LOADED}
    reasons = {model: _why(entries, model) for model in sorted(models)}
    return {model: reason for model, reason in reasons.items() if reason}


def why_not_loaded(catalogue: Catalogue, name: str) -> str:
    """Why a name, public or a variant's, is not served; empty where nobody said."""
    return _why(account.entries(catalogue), name)


def _why(entries: list[account.Entry], name: str) -> str:
    failure = account.first_failure(entries, name)
    return "" if failure is None else reason_for(name, failure)


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
    described: dict[str, Any] = _rename(orjson.loads(body), decision.variant.name, model)
    return described


async def fetch(catalogue: Catalogue, model: str, version: str, what: str) -> tuple[int, bytes, Decision]:
    """Triton's answer about a model, from the first place that would serve it."""
    _require_version(version)
    for decision in catalogue.decide(model):
        server: Server | None = catalogue.pick(decision.pool, decision.variant.name)
        if server is None:
            continue
        if version and not decision.variant.has(version):
            raise errors.NoSuchVersion(f"'{model}' has no version {version}", model=model, version=version)
        path = f"/v2/models/{decision.variant.name}" + (f"/versions/{version}" if version else "") + what
        try:
            answer = await server.read(b"GET", path)
        except Lost:
            continue
        if answer.status in (400, 404) and version:  # Triton 2.51 says 400 for a version that is not there
            raise errors.NoSuchVersion(f"'{model}' has no version {version}", model=model, version=version)
        return answer.status, answer.body, decision
    raise errors.NotReady(f"'{model}' is not ready; try again", retry_after_s=1.0)


def _require_version(version: str) -> None:
    if version and re.fullmatch(r"[0-9]{1,9}", version) is None:
        raise errors.NotFound(f"'{version}' is not a version number")


def index(catalogue: Catalogue, caller: Caller = ANYBODY, *, is_ready: bool = False) -> list[dict[str, str]]:
    """Of what the caller may ask, public names first, then the names that pin a variant; with `is_ready` those alone that are.

    A name has a row for each version that is served, and one where a newer could not be loaded, as in Triton's own index.
    """
    entries, ready = account.entries(catalogue), catalogue.fleet.routable
    public = {model for pool in catalogue.fleet.pools for model, _ in pool.names}
    rows = []
    names = (name for name in catalogue.fleet.known if is_allowed(caller, name, catalogue.fleet))
    for name in sorted(names, key=lambda n: (n not in public, n)):
        own = [entry for entry in entries if entry.is_of(name)]
        version = account.newest(own, name)
        if name in ready:
            for each in (*sorted(_earlier(catalogue, name), key=int), version):
                rows.append({"name": name, "version": each, "state": "READY"})
            own = [entry for entry in own if int(entry.version) > int(version)]
        waiting = next((entry for entry in own if entry.state is ModelState.WAITING), None)
        if told := account.first_failure(own, name) or waiting:
            reason = reason_for(name, told)
            rows.append({"name": name, "version": told.version, "state": "UNAVAILABLE", "reason": reason})
        elif name not in ready:
            reason = "unloaded" if all(entry.state is ModelState.UNLOADED for entry in own) else "no pool serves it now"
            rows.append({"name": name, "version": version, "state": "UNAVAILABLE", "reason": reason})
    return [row for row in rows if row["state"] == "READY" or not is_ready]


def _earlier(catalogue: Catalogue, name: str) -> set[str]:
    """Versions that are served beside the newest under a name, public or a variant's."""
    variants = (v for pool in catalogue.fleet.pools for v in pool.variants if name in (v.model, v.name))
    return {version for variant in variants for version, _ in variant.earlier}


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
