"""What the OpenAPI document says of health, the v2 protocol, the operator's endpoints and the pages: operations and their schemas.

Nothing of it is read when a request is served: whoever changes what is answered changes it here (a test compares it with real answers).
Rule: an array says what its items are, or clients cannot be generated.
"""

from __future__ import annotations

from typing import Any

from serving import errors
from serving.gateway.http.endpoint import Json, Operation
from serving.gateway.http.openapi import ERRORS, REQUEST_HEADERS, as_json, as_text, headers, ref
from serving.gateway.request.decisions import MAX_DECISIONS
from serving.protocol.v2 import DATATYPES


def _object(required: list[str] | None = None, /, **properties: Json) -> Json:
    """All properties are required where nothing is said."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


TEXT: Json = {"type": "string"}
SWITCH: Json = {"type": "boolean"}
DATATYPE: Json = {"type": "string", "enum": sorted(DATATYPES)}
SHAPE: Json = _list({"type": "integer", "minimum": 0})
PARAMETERS: Json = {"type": "object", "additionalProperties": True}
NO_PARAMETERS: Json = {"type": "object", "additionalProperties": False}
DATA: Json = _list({}, description="Row by row, flat or nested; absent where the tensor is binary.")
TENSOR = _object(
    ["name", "datatype", "shape"], name=TEXT, datatype=DATATYPE, shape=SHAPE, data=DATA, parameters=PARAMETERS
)
METADATA_TENSOR = _object(
    name=TEXT,
    datatype=DATATYPE,
    shape=_list({"type": "integer"}, description="-1 is any size; the batch is the first."),
)
SCHEMAS: Json = {
    "Error": _object(error=TEXT | {"description": "What happened and the way out."}),
    "Tensor": TENSOR,
    "RequestedOutput": _object(["name"], name=TEXT, parameters=PARAMETERS),
    "InferRequest": _object(
        ["inputs"],
        id=TEXT,
        inputs=_list(ref("Tensor"), minItems=1),
        outputs=_list(ref("RequestedOutput")),
        parameters=PARAMETERS,
    ),
    "InferResponse": _object(
        ["model_name", "outputs"],
        id=TEXT,
        model_name=TEXT | {"description": "The name that was asked for."},
        model_version=TEXT,
        outputs=_list(ref("Tensor")),
        parameters=PARAMETERS,
    ),
    "Live": _object(live=SWITCH),
    "Ready": _object(ready=SWITCH),
    "ModelReady": _object(name=TEXT, ready=SWITCH),
    "ServerMetadata": _object(name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "ModelMetadata": _object(
        name=TEXT,
        versions=_list(TEXT),
        platform=TEXT,
        inputs=_list(ref("MetadataTensor")),
        outputs=_list(ref("MetadataTensor")),
    ),
    "MetadataTensor": METADATA_TENSOR,
    "ModelConfig": _object(["name"], name=TEXT) | {"description": "Triton's ModelConfig, as JSON."},
    "Statistics": _object(model_stats=_list(PARAMETERS))
    | {"description": "As Triton writes them: counts, and nanoseconds."},
    "IndexRequest": _object([], ready=SWITCH | {"description": "Only what is ready."}),
    "IndexEntry": _object(["name", "version", "state"], name=TEXT, version=TEXT, state=TEXT, reason=TEXT),
    "LoadRequest": _object([], parameters=NO_PARAMETERS),
    "ControlChange": _object(
        ["model", "revision"],
        model=TEXT,
        revision=TEXT | {"description": "That was before somebody's eyes, as 7-4f1d2c3b9a0e."},
        pin=_object([], version={"type": "integer", "minimum": 1}, variant=TEXT),
        step=TEXT | {"enum": ["shadow", "canary", "promote", "rollback"]},
        is_rollback=SWITCH,
    )
    | {"description": "One of pin, step and is_rollback."},
    "UnloadRequest": _object([], parameters=NO_PARAMETERS | {"properties": {"unload_dependents": SWITCH}}),
}


def _v2(name: str, summary: str, answer: Json, **more: Any) -> Operation:
    return Operation("v2", name, summary, as_json(answer), **more)


_LIVE = "Whether this process answers."
LIVE = Operation("health", "live", _LIVE, as_json(ref("Live")))
LIVE_NOW = _v2("live_now", _LIVE, ref("Live"))
READY = Operation(
    "health",
    "ready",
    "Whether traffic may come: stays so until shutdown.",
    as_json(ref("Ready")),
    may_be_unready=True,
)
READY_NOW = _v2("ready_now", "Whether every model can be asked at this moment.", ref("Ready"), may_be_unready=True)

SERVER = _v2("server", "Name, version and extensions of the server.", ref("ServerMetadata"))
INDEX = _v2(
    "index",
    "All names that can be asked for, and whether they can be now.",
    _list(ref("IndexEntry")),
    body=as_json(ref("IndexRequest")),
)
ALL_STATISTICS = _v2("all_statistics", "The statistics of every public name.", ref("Statistics"))
METADATA = _v2("metadata_model", "The inputs and outputs of a model.", ref("ModelMetadata"))
CONFIG = _v2("config_model", "The configuration of the variant that a name means now.", ref("ModelConfig"))
STATISTICS = _v2(
    "statistics_of_model", "What Tritons counted for a name, summed over variants and servers.", ref("Statistics")
)
MODEL_READY = _v2("ready_model", "Whether a model can be asked at this moment.", ref("ModelReady"), may_be_unready=True)
BINARY: Json = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
INFER = Operation(
    "v2",
    "infer_model",
    "Ask a model. The receipt in the headers says what really happened.",
    as_json(ref("InferResponse")) | BINARY,
    outcome="The outputs, and the receipt in the headers.",
    body=as_json(ref("InferRequest")) | BINARY,
    needs_body=True,
    parameters=headers(REQUEST_HEADERS),
    has_receipt=True,
    errors=ERRORS
    | {
        errors.BadRequest: "The request is wrong, or its pins contradict each other.",
        errors.Forbidden: "The key, or the page that this comes from, may not ask this.",
        errors.NotFound: "There is no such model or version.",
        errors.Unsupported: "A part of the protocol that is not offered.",
    },
)

LOAD = Operation("admin", "load_model", "Load a model's variants, or one, anew.", body=as_json(ref("LoadRequest")))
UNLOAD = Operation("admin", "unload_model", "Unload a model's variants, or one.", body=as_json(ref("UnloadRequest")))
METRICS = Operation(
    "admin", "scrape", "What was counted and measured.", as_text("text/plain", "application/openmetrics-text")
)
DEMAND = Operation("admin", "demand", "What the scaler reads of that.", as_text("text/plain"))
STATUS = Operation("admin", "status", "Pools and models as they are now, and what a name means.", as_json(PARAMETERS))
CATALOGUE = Operation(
    "admin", "catalogue", "What the repository has of each model: proofs, speed, size, refusals.", as_json(PARAMETERS)
)
LIVE_COUNTS = Operation(
    "admin",
    "live_counts",
    "Requests, times and pools of the last 15 minutes; as events, those that come, too.",
    as_json(PARAMETERS) | as_text("text/event-stream"),
)
CHANGE = Operation(
    "admin",
    "change_control",
    "Pin a model, go a step of its rollout, or take it back, in the control document.",
    as_json(PARAMETERS),
    body=as_json(ref("ControlChange")),
)
ROLLOUTS = Operation(
    "admin", "rollouts", "What candidates are judged to be, and on what evidence.", as_json(PARAMETERS)
)
COST = Operation(
    "admin",
    "cost",
    "What servers cost and who used them: the lines and what nobody used add up to price times hours.",
    as_json(PARAMETERS) | as_text("text/csv"),
    parameters=[
        {"name": "by", "in": "query", "description": "A line for each of tenant,model,pool.", "schema": TEXT},
        {
            "name": "since",
            "in": "query",
            "description": "30d, 12h or 2026-11-01: from the hour of this moment on, in UTC.",
            "schema": TEXT,
        },
    ],
)
DECISIONS = Operation(
    "admin",
    "decisions",
    "Why requests went where they went: of one, or of the last.",
    as_json(PARAMETERS),
    parameters=[
        {"name": "id", "in": "query", "description": "A Tandem-Request-Id, or its beginning.", "schema": TEXT},
        {
            "name": "limit",
            "in": "query",
            "description": "How many, 50 if nobody says.",
            "schema": {"type": "integer", "minimum": 1, "maximum": MAX_DECISIONS},
        },
    ],
)

HOME = Operation("pages", "home", "What is served and why, and a place to try it.", as_text("text/html"))
DOCS = Operation("pages", "docs", "This API as a page.", as_text("text/html"))
FILE = Operation(
    "pages",
    "file_name",
    "A file of these pages.",
    as_text("text/html", "text/css", "text/javascript", "image/svg+xml"),
)
OPENAPI = Operation("pages", "openapi", "This API in OpenAPI 3.1.", as_json(PARAMETERS))
