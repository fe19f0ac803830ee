"""What the gateway offers, as an OpenAPI 3.1 document.

FastAPI writes what it knows of; inference, which is raw ASGI, is described here by hand. Nothing in it is read when a request is
served: whoever changes the headers of `infer.py` changes them here (a test compares them with a real answer).
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from serving import errors
from serving.gateway.classify import described as classify
from serving.gateway.openai import described as openai
from serving.gateway.openai.embeddings import PATH as EMBEDDINGS_PATH
from serving.gateway.responses import OPENAI_PATHS

Json = dict[str, Any]
HERE = "Tandem's HTTP API. Inference follows the Open Inference Protocol, version 2."
ELSEWHERE = "Answered at the address for clients, not here."
ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string", "description": "What happened and the way out."}},
    "required": ["error"],
}
INFER_PATHS = ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer")
INFER_ERRORS: dict[type[errors.RequestError], str] = {
    errors.BadRequest: "The request is wrong, or its pins contradict each other.",
    errors.NotFound: "There is no such model or version.",
    errors.TooLarge: "The body is larger than is taken here.",
    errors.Internal: "The model failed on this request.",
    errors.Unsupported: "A part of the protocol that is not offered.",
    errors.NotReady: "The model is away, there is too much to do to answer in time, or the server that worked on this was lost: "
    "try again after Retry-After; without one, trying again does not help.",
    errors.DeadlineExpired: "The deadline passed before there was an answer.",
}
REQUEST_HEADERS = {
    "Tandem-Pool": "The pool that must answer, such as cpu.",
    "Tandem-Variant": "The variant that must answer, such as fp32.",
    "Tandem-Deadline-Ms": "After how many milliseconds an answer is worthless; the least of this, parameter timeout and objective counts.",
    "Tandem-Priority": "1, the highest, to 5; 3 where there is none.",
    "Inference-Header-Content-Length": "How many bytes of the body are JSON, where binary tensors follow it.",
    "Content-Encoding": "gzip or deflate, where the body is compressed.",
}
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


def document(app: FastAPI, public: FastAPI) -> Json:
    """The document of `app`; where `public` is another app, with what that one answers, which each operation then says."""
    made = get_openapi(title=app.title, version=app.version, description=HERE, routes=app.routes)
    paths: Json = made["paths"]
    theirs: Json = get_openapi(title="", version="", routes=public.routes)["paths"] | by_hand()
    for path, item in theirs.items():
        if public is not app and path not in paths:
            item = {method: {**operation, "description": ELSEWHERE} for method, operation in item.items()}
        paths.setdefault(path, item)
    for path, item in paths.items():
        for operation in item.values():
            operation["responses"].pop("422", None)  # ours are 400, with the protocol's body
            if path not in by_hand():  # those list their own
                error = "OpenAIError" if path.startswith(OPENAI_PATHS) else "Error"
                operation["responses"]["default"] = _answer("An error.", error, ERROR_HEADERS)
    made["components"] = {
        "schemas": {"Error": ERROR, "Tensor": TENSOR, "InferRequest": REQUEST, "InferResponse": RESPONSE}
        | openai.SCHEMAS
        | classify.SCHEMAS
    }
    return made


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
    body = {"application/json": {"schema": _ref("InferRequest")}, "application/octet-stream": binary}
    good = _answer("The outputs, and the receipt in the headers.", "InferResponse", RECEIPT_HEADERS)
    good["content"]["application/octet-stream"] = binary
    bad = {str(errors.HTTP[e][0]): _answer(text, "Error", ERROR_HEADERS) for e, text in INFER_ERRORS.items()}
    operation = {
        "tags": ["v2"],
        "summary": "Ask a model. The receipt in the headers says what really happened.",
        "operationId": "_".join(["infer", *names]),
        "parameters": [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
        + [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in REQUEST_HEADERS.items()
        ],
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
        "parameters": [
            {"name": name, "in": "header", "description": REQUEST_HEADERS[name], "schema": {"type": "string"}}
            for name in openai.HEADERS
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("EmbeddingsRequest")}},
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
        "parameters": classify.PARAMETERS
        + [
            {"name": name, "in": "header", "description": REQUEST_HEADERS[name], "schema": {"type": "string"}}
            for name in classify.HEADERS
        ],
        "requestBody": {"required": True, "content": classify.BODY},
        "responses": {"200": good, **bad},
    }
    return {"post": operation}


def _answer(text: str, schema: str, headers: dict[str, str]) -> Json:
    return {
        "description": text,
        "headers": {n: {"description": d, "schema": {"type": "string"}} for n, d in headers.items()},
        "content": {"application/json": {"schema": _ref(schema)}},
    }


def _ref(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string", "examples": ["FP32"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {"type": "array", "description": "Row by row, flat or nested; absent where the tensor is binary."},
        "parameters": {"type": "object"},
    },
    "required": ["name", "datatype", "shape"],
}
REQUEST = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "inputs": {"type": "array", "minItems": 1, "items": _ref("Tensor")},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "parameters": {"type": "object"},
    },
    "required": ["inputs"],
}
RESPONSE = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string", "description": "The name that was asked for."},
        "model_version": {"type": "string"},
        "outputs": {"type": "array", "items": _ref("Tensor")},
    },
    "required": ["model_name", "outputs"],
}
