"""Which public methods of a client does a suite ask, and which does it list as refused? Together they must be all that the class has.

A class that grew a method, in a newer version, fails the test that calls `check`, until somebody says what the gateway does with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

LOCAL = frozenset({"close", "plugin", "register_plugin", "unregister_plugin"})  # of the client alone: nothing is sent
SHARED_MEMORY = frozenset(
    f"{verb}_{kind}_shared_memory{ending}"
    for kind in ("cuda", "system")
    for verb, ending in (("register", ""), ("unregister", ""), ("get", "_status"))
)
SETTINGS = frozenset({"get_trace_settings", "update_trace_settings", "get_log_settings", "update_log_settings"})
REFUSED = SHARED_MEMORY | SETTINGS
ASKED = frozenset(
    {
        "is_server_live",
        "is_server_ready",
        "is_model_ready",
        "get_server_metadata",
        "get_model_metadata",
        "get_model_config",
        "get_model_repository_index",
        "get_inference_statistics",
        "infer",
        "load_model",
        "unload_model",
    }
)


def check(client_class: type, more: Collection[str]) -> None:
    public = {name for name in dir(client_class) if not name.startswith("_")}
    known = LOCAL | REFUSED | ASKED | set(more)
    assert public - known == set(), "new methods: does the gateway serve them?"
    assert known - public == set(), "methods that are gone"


def arguments(client_class: type, name: str) -> list[Any]:
    """What a refused method must at least be given; a Triton would take it."""
    given = {
        "model_name": "words-fp32",
        "name": "region",
        "key": "/region",
        "byte_size": 8,
        "raw_handle": b"AAAA",
        "device_id": 0,
        "settings": {},
    }
    parameters = list(inspect.signature(getattr(client_class, name)).parameters.values())[1:]
    return [given[p.name] for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
