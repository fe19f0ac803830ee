"""What the gateway offers, as an OpenAPI 3.1 document.

FastAPI writes what it knows of; inference, which is raw ASGI, is described here by hand. Nothing in it is read when a request is
served: whoever changes the headers of `infer.py` changes them here (a test compares them with a real answer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from serving import errors
from serving.gateway.classify import described as classify
from serving.gateway.http import described
from serving.gateway.http.described import ref
from serving.gateway.http.guard import OPEN, SCOPE_OF
from serving.gateway.openai import described as openai
from serving.gateway.openai.embeddings import PATH as EMBEDDINGS_PATH
from serving.gateway.responses import OPENAI_PATHS
from serving.scheduling.admission import HIGHEST, LOWEST

Json = dict[str, Any]
HERE = "Tandem's HTTP API. Inference follows the Open Inference Protocol, version 2."
ELSEWHERE = "Answered at the address for clients, not here."
INFER_PATHS = ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer")
INFER_ERRORS: dict[type[errors.RequestError], str] = {
    errors.BadRequest: "The request is wrong, or its pins contradict each other.",
    errors.Forbidden: "The key, or the page that this comes from, may not ask this.",
    errors.NotFound: "There is no such model or version.",
    errors.TooLarge: "The body is larger than is taken here.",
    errors.Internal: "The model failed on this request.",
    errors.Unsupported: "A part of the protocol that is not offered.",
    errors.NotReady: "The model is away, there is too much to do to answer in time, or the server that worked on this was lost: "
    "try again after Retry-After; without one, trying again does not help.",
    errors.DeadlineExpired: "The deadline passed before there was an answer.",
}
# Header -> what it says, and its schema.
REQUEST_HEADERS: dict[str, tuple[str, Json]] = {
    "Tandem-Pool": ("The pool that must answer, such as cpu.", {"type": "string"}),
    "Tandem-Variant": ("The variant that must answer, such as fp32.", {"type": "string"}),
    "Tandem-Deadline-Ms": (
        "After how many milliseconds an answer is worthless; the least of this, parameter timeout and objective counts.",
        {"type": "number", "exclusiveMinimum": 0},
    ),
    "Tandem-Priority": (
        "1, the highest, to 5; 3 where there is none.",
        {"type": "integer", "minimum": HIGHEST, "maximum": LOWEST},
    ),
    "Inference-Header-Content-Length": (
        "How many bytes of the body are JSON, where binary tensors follow it.",
        {"type": "integer", "minimum": 0},
    ),
    "Content-Encoding": (
        "gzip or deflate, where the body is compressed.",
        {"type": "string", "enum": ["gzip", "deflate"]},
    ),
}
PATH_PARAMETERS: Json = {
    "model": {"type": "string", "pattern": "^[A-Za-z0-9._][A-Za-z0-9._-]*$"},
    "name": {"type": "string", "pattern": "^[a-z]+\\.[a-z]+$"},
    "version": {"type": "string", "pattern": "^[0-9]{1,9}$"},
}
PAGE_TYPES = ("text/css", "text/javascript", "image/svg+xml")
KEYS: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of `tandem keys add`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key."},
}
KEY_ERRORS = {"401": "There is no key, or none that is known.", "403": "This key may not ask this."}
RECEIPT_HEADERS = {
    "Tandem-Pool": "The pool that answered.",
    "Tandem-Device": "cpu, gpu, emulated-… or unverified, and the name of the device.",
    "Tandem-Variant": "The precision that computed it.",
    "Tandem-Engine": "What computed it.",
    "Tandem-Model-Digest": "sha256 of the model file.",
    "Tandem-Gate": "What proves it on that pool: passed, not_useful (right, but not faster), ungated, or untrained: speed only.",
    "Tandem-Reason": "Why it went there: only_pool, cheapest_in_time, spill, bridged or pinned.",
    "Server-Timing": "Milliseconds in the queue, at the backend and in all.",
}
ERROR_HEADERS = {
    "Tandem-Error": "The kind of error, one word.",
    "Retry-After": "Whole seconds after which to try again, where that helps.",
    "Retry-After-Ms": "The same in milliseconds, exact.",
}


def document(app: FastAPI, public: FastAPI, *, has_keys: bool = False) -> Json:
    """The document of `app`; where `public` is another app, with what that one answers, which each operation then says.

    `has_keys`: whether requests need an API key, but on open paths.
    """
    made = get_openapi(title=app.title, version=app.version, description=HERE, routes=app.routes)
    paths: Json = made["paths"]
    theirs: Json = get_openapi(title="", version="", routes=public.routes)["paths"] | by_hand()
    for path, item in theirs.items():
        if public is not app and path not in paths:
            item = {method: {**operation, "description": ELSEWHERE} for method, operation in item.items()}
        paths.setdefault(path, item)
    for path, item in paths.items():
        for operation in item.values():
            if path not in by_hand():  # those say it all
                _complete(path, operation)
            if has_keys and SCOPE_OF[path] != OPEN:
                operation["security"] = [{name: []} for name in KEYS]
                operation["responses"] |= {
                    status: _answer(text, _error_at(path), ERROR_HEADERS) for status, text in KEY_ERRORS.items()
                }
    made["components"] = {
        "schemas": described.SCHEMAS | openai.SCHEMAS | classify.SCHEMAS,
        **({"securitySchemes": KEYS} if has_keys else {}),
    }
    return made


def _complete(path: str, operation: Json) -> None:
    """What FastAPI does not know of its own operation."""
    answers = operation["responses"]
    answers.pop("422", None)  # ours are 400, with the protocol's body
    answers["default"] = _answer("An error.", _error_at(path), ERROR_HEADERS)
    if path in described.ANSWERS:
        answers["200"]["content"] = {"application/json": {"schema": described.ANSWERS[path]}}
    if path in described.AWAY:
        answers["503"]["content"] = {"application/json": {"schema": described.AWAY[path]}}
    if path in described.BODIES:
        operation["requestBody"] = {"content": {"application/json": {"schema": ref(described.BODIES[path])}}}
    if path == "/metrics":
        answers["200"]["content"]["application/openmetrics-text"] = {"schema": {"type": "string"}}
    if path == "/ui/{name}":
        answers["200"]["content"] |= {kind: {"schema": {"type": "string"}} for kind in PAGE_TYPES}
    if named := re.findall(r"\{(\w+)\}", path):
        operation["parameters"] = [_in_path(name) for name in named]


def _error_at(path: str) -> str:
    return "OpenAIError" if path.startswith(OPENAI_PATHS) else "Error"


def by_hand() -> Json:
    """Path -> its item, of all that FastAPI knows nothing of."""
    return {path: infer(path) for path in INFER_PATHS} | {
        EMBEDDINGS_PATH: embeddings(),
        classify.PATH: classification(),
    }


def infer(path: str) -> Json:
    """The path item of inference."""
    names = ["model", *(["version"] if "{version}" in path else [])]
    binary = {"schema": {"type": "string", "format": "binary"}}
    body = {"application/json": {"schema": ref("InferRequest")}, "application/octet-stream": binary}
    good = _answer("The outputs, and the receipt in the headers.", "InferResponse", RECEIPT_HEADERS)
    good["content"]["application/octet-stream"] = binary
    bad = {str(errors.HTTP[e][0]): _answer(text, "Error", ERROR_HEADERS) for e, text in INFER_ERRORS.items()}
    operation = {
        "tags": ["v2"],
        "summary": "Ask a model. The receipt in the headers says what really happened.",
        "operationId": "_".join(["infer", *names]),
        "parameters": [_in_path(name) for name in names] + _headers(REQUEST_HEADERS),
        "requestBody": {"required": True, "content": body},
        "responses": {"200": good, **bad},
    }
    return {"post": operation}


def embeddings() -> Json:
    """The path item of embeddings."""
    good = _answer(
        "Vectors in the order of the texts, and the receipt in the headers.", "EmbeddingsResponse", RECEIPT_HEADERS
    )
    bad = {str(errors.HTTP[e][0]): _answer(text, "OpenAIError", ERROR_HEADERS) for e, text in openai.ERRORS.items()}
    operation = {
        "tags": ["openai"],
        "summary": "Vectors of texts, as OpenAI's clients ask for them.",
        "operationId": "embeddings",
        "parameters": _headers(openai.HEADERS),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": ref("EmbeddingsRequest")}},
        },
        "responses": {"200": good, **bad},
    }
    return {"post": operation}


def classification() -> Json:
    """The path item of classification."""
    good = _answer("Labels of each image, and the receipt in the headers.", "ClassifyResponse", RECEIPT_HEADERS)
    bad = {str(errors.HTTP[e][0]): _answer(text, "ClassifyError", ERROR_HEADERS) for e, text in classify.ERRORS.items()}
    operation = {
        "tags": ["classify"],
        "summary": "Labels of images: files in, the model's own preprocessing and names of classes here.",
        "operationId": "classify",
        "parameters": [_in_path("model"), *classify.PARAMETERS, *_headers(classify.HEADERS)],
        "requestBody": {"required": True, "content": classify.BODY},
        "responses": {"200": good, **bad},
    }
    return {"post": operation}


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}


def _headers(names: Iterable[str]) -> list[Json]:
    told = [(name, *REQUEST_HEADERS[name]) for name in names]
    return [{"name": name, "in": "header", "description": text, "schema": schema} for name, text, schema in told]


def _answer(text: str, schema: str, headers: dict[str, str]) -> Json:
    return {
        "description": text,
        "headers": {n: {"description": d, "schema": {"type": "string"}} for n, d in headers.items()},
        "content": {"application/json": {"schema": ref(schema)}},
    }
