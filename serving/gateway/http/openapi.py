"""The OpenAPI 3.1 document of a listener, made from the table of endpoints.

Here is how it is put together and what operations share: headers, the receipt, errors, keys. What an operation takes and answers stands
beside its surface, in `operations.py`. Nothing of it is read when a request is served: whoever changes what is answered changes it there
(a test compares the document with real answers).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import serving
from serving import errors
from serving.gateway.http.endpoint import OPEN, Endpoint, Json, Operation
from serving.scheduling.admission import HIGHEST, LOWEST

ABOUT = "Tandem's HTTP API. Inference follows the Open Inference Protocol, version 2."
ELSEWHERE = "Answered at the address for clients, not here."
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
    "Tandem-Dtype": "Types that its products computed in there, as a profile showed: INT8 14, FP32 1; or unmeasured.",
    "Tandem-Model-Digest": "sha256 of the model file.",
    "Tandem-Gate": "What proves it on that pool: passed, not_useful (right, but not faster), ungated, or untrained: speed only.",
    "Tandem-Reason": "Why it went there: only_pool, cheapest_in_time, spill, bridged or pinned.",
    "Tandem-Request-Id": "The request's id, of its traceparent or made here: `tandem explain ID` says why it went there.",
    "Server-Timing": "Milliseconds in the queue, at the backend and in all.",
}
ERROR_HEADERS = {
    "Tandem-Error": "The kind of error, one word.",
    "Retry-After": "Whole seconds after which to try again, where that helps.",
    "Retry-After-Ms": "The same in milliseconds, exact.",
}


ERRORS: dict[type[errors.RequestError], str] = {  # of inference, on every surface
    errors.NotFound: "There is no such model.",
    errors.TooLarge: "The body is larger than is taken here.",
    errors.Internal: "The model failed on this request.",
    errors.NotReady: "The model is away, there is too much to do to answer in time, or the server that worked on this was lost: "
    "try again after Retry-After; without one, trying again does not help.",
    errors.DeadlineExpired: "The deadline passed before there was an answer.",
}


def document(
    title: str, here: Sequence[Endpoint], elsewhere: Sequence[Endpoint], schemas: Json, *, has_keys: bool
) -> Json:
    """Of a listener that serves `here`. `elsewhere`: what clients reach at another address, which each operation then says."""
    paths: Json = {}
    for rows, remark in ((here, {}), (elsewhere, {"description": ELSEWHERE})):
        for row in rows:
            if row.operation is not None:
                operation = _operation(row, row.operation, has_keys=has_keys)
                paths.setdefault(row.path, {row.methods[0].lower(): operation | remark})
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": ABOUT, "version": serving.__version__},
        "paths": paths,
        "components": {"schemas": schemas, **({"securitySchemes": KEYS} if has_keys else {})},
    }


def _operation(row: Endpoint, described: Operation, *, has_keys: bool) -> Json:
    named = re.findall(r"\{(\w+)\}", row.path)
    in_path = [{"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]} for name in named]
    operation: Json = {
        "tags": [described.tag],
        "summary": described.summary,
        "operationId": described.name + ("_version" if "version" in named else ""),
        "parameters": [*in_path, *described.parameters],
        "responses": _responses(described, needs_key=has_keys and row.scope != OPEN),
    }
    if described.body is not None:
        operation["requestBody"] = {"content": described.body, "required": described.needs_body}
    if has_keys and row.scope != OPEN:
        operation["security"] = [{name: []} for name in KEYS]
    return operation


def _responses(described: Operation, *, needs_key: bool) -> Json:
    good = _response(described.outcome, described.answer, RECEIPT_HEADERS if described.has_receipt else {})
    bad = {"default": "An error."}
    if described.errors is not None:
        bad = {str(errors.HTTP[kind][0]): text for kind, text in described.errors.items()}
    if needs_key:
        bad |= KEY_ERRORS
    content = as_json(ref(described.error_schema))
    responses = {"200": good} | {status: _response(text, content, ERROR_HEADERS) for status, text in bad.items()}
    if described.may_be_unready:
        responses["503"] = _response("It is not; Retry-After says when to ask again.", described.answer, {})
    return responses


def _response(text: str, content: Json, headers: Mapping[str, str]) -> Json:
    response: Json = {"description": text}
    if headers:
        response["headers"] = {n: {"description": d, "schema": {"type": "string"}} for n, d in headers.items()}
    if content:
        response["content"] = content
    return response


def ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def as_json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def as_text(*media_types: str) -> Json:
    return {kind: {"schema": {"type": "string"}} for kind in media_types}


def headers(names: Iterable[str]) -> list[Json]:
    """Parameters: some of REQUEST_HEADERS."""
    described = [(name, *REQUEST_HEADERS[name]) for name in names]
    return [{"name": name, "in": "header", "description": text, "schema": schema} for name, text, schema in described]
