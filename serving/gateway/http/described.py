"""The bodies of the v2 protocol and of health in the OpenAPI document, and which path answers which of them.

Nothing in it is read when a request is served: whoever changes what is answered changes it here (a test compares them with real answers).
Rule: an array says what its items are, or clients cannot be generated.
"""

from __future__ import annotations

from typing import Any

from serving.protocol.v2 import DATATYPES

Json = dict[str, Any]


def ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


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
    "UnloadRequest": _object([], parameters=NO_PARAMETERS | {"properties": {"unload_dependents": SWITCH}}),
}
INDEX = _list(ref("IndexEntry"))
ANSWERS: dict[str, Json] = {
    "/health/live": ref("Live"),
    "/v2/health/live": ref("Live"),
    "/health/ready": ref("Ready"),
    "/v2/health/ready": ref("Ready"),
    "/v2": ref("ServerMetadata"),
    "/v2/repository/index": INDEX,
    "/v2/models/stats": ref("Statistics"),
    **{
        f"/v2/models/{{model}}{version}{what}": ref(schema)
        for version in ("", "/versions/{version}")
        for what, schema in {
            "": "ModelMetadata",
            "/config": "ModelConfig",
            "/stats": "Statistics",
            "/ready": "ModelReady",
        }.items()
    },
}
AWAY = {path: ANSWERS[path] for path in ANSWERS if path.endswith("/ready")}  # the body of their 503
BODIES: dict[str, str] = {
    "/v2/repository/index": "IndexRequest",
    "/v2/repository/models/{model}/load": "LoadRequest",
    "/v2/repository/models/{model}/unload": "UnloadRequest",
}
