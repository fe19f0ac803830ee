"""The document of the API: valid, whole, and true where it can be compared with what the gateway does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi.openapi.models import OpenAPI

from serving import errors
from serving.gateway.http.endpoint import OPEN
from serving.gateway.http.openapi import RECEIPT_HEADERS
from serving.gateway.http.pages import read_files
from serving.gateway.key_watch import KeyWatch
from serving.keys import changes
from serving.keys.key import SCOPES
from tests.gateway.conftest import SAMPLE, Running
from tests.gateway.offline import ENDPOINTS, built, document_of

Document = dict[str, Any]


@pytest.fixture(scope="module", params=[True, False], ids=["loopback", "admin"])
def api(request: pytest.FixtureRequest) -> Document:
    gateway = built(admin_here=request.param)
    return document_of(gateway.public if request.param else gateway.admin)


def operations(api: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in api["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(child)


def test_the_document_is_openapi_3_1(api: Document) -> None:
    assert api["openapi"].startswith("3.1.")
    OpenAPI.model_validate(api)
    for part in walk(api):
        if "$ref" in part:
            assert part["$ref"].removeprefix("#/components/schemas/") in api["components"]["schemas"]
        if "schema" in part and isinstance(part["schema"], dict):
            jsonschema.Draft202012Validator.check_schema(part["schema"])
    for schema in api["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for _, _, operation in operations(api)]
    assert len(names) == len(set(names))
    for path, _, operation in operations(api):
        declared = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path)), path
        assert operation["responses"], path


def test_arrays_say_what_is_in_them_or_no_client_can_be_generated(api: Document) -> None:
    for part in walk(api):
        assert part.get("type") != "array" or "items" in part, part


def test_with_keys_the_document_says_which_operations_need_one(api: Document, tmp_path: Path) -> None:
    assert "securitySchemes" not in api["components"]
    changes.add(tmp_path / "keys.json", "test", frozenset(SCOPES), datetime.now(UTC))
    keyed = document_of(built(keys=KeyWatch(tmp_path / "keys.json")).public)
    assert set(keyed["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    for path, _, operation in operations(keyed):
        needs_key = path in {row.path for row in ENDPOINTS.rows if row.scope != OPEN}
        assert ("security" in operation) == needs_key, path
        assert {"401", "403"} <= set(operation["responses"]) or not needs_key, path


@pytest.mark.triton
@pytest.mark.parametrize(
    "path",
    [
        "/health/live",
        "/v2/health/ready",
        "/v2",
        "/v2/models/digits",
        "/v2/models/digits/config",
        "/v2/models/digits/versions/1/stats",
        "/v2/models/digits/ready",
        "/v2/models/stats",
        "/v2/repository/index",
    ],
)
def test_what_is_told_of_server_and_models_is_as_the_document_says(gateway: Running, path: str) -> None:
    api = gateway.ask("/openapi.json").json()
    reply = gateway.ask(path, b"" if path.endswith("index") else None)
    (operation,) = api["paths"][re.sub("digits/versions/1|digits", _template, path)].values()
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema
    jsonschema.validate(reply.json(), {**schema, "components": api["components"]})


def _template(match: re.Match[str]) -> str:
    return "{model}/versions/{version}" if "versions" in match[0] else "{model}"


@pytest.mark.triton
def test_a_version_counts_in_the_path_alone(gateway: Running) -> None:
    assert gateway.ask("/v2/models/digits?version=9").status == 200


def test_every_operation_has_a_sentence_and_a_place_on_the_page(api: Document) -> None:
    for path, _, operation in operations(api):
        assert operation["summary"].endswith("."), path
        assert operation["tags"] in (["v2"], ["openai"], ["classify"], ["health"], ["admin"], ["pages"]), path


def test_every_group_of_operations_has_a_title_on_the_page() -> None:
    script = read_files()["docs.js"].decode()
    titles = set(re.findall(r"(\w+): \"", script.partition("TITLES = {")[2].partition("}")[0]))
    assert {operation["tags"][0] for _, _, operation in operations(document_of(built().public))} == titles


@pytest.mark.triton
def test_a_real_answer_is_as_the_document_says(gateway: Running) -> None:
    api = gateway.ask("/openapi.json").json()
    described = api["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
    reply = gateway.infer(SAMPLE)
    assert set(RECEIPT_HEADERS) == set(described["200"]["headers"])
    sent = {name.lower() for name in reply.headers if name.lower().startswith(("tandem-", "server-timing"))}
    assert sent == {name.lower() for name in RECEIPT_HEADERS}
    schemas = {"components": api["components"]}
    jsonschema.validate(reply.json(), {"$ref": "#/components/schemas/InferResponse", **schemas})
    wrong = gateway.infer(b"not json")
    assert str(wrong.status) in described
    jsonschema.validate(wrong.json(), {"$ref": "#/components/schemas/Error", **schemas})


@pytest.mark.triton
@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("digits", b"{}", {}),
        ("digits", SAMPLE, {"Tandem-Variant": "nothing"}),
        ("digits", SAMPLE, {"Tandem-Deadline-Ms": "0.001"}),
        ("digits", SAMPLE, {"Content-Encoding": "br"}),
        ("digits/versions/9", SAMPLE, {}),
        ("nobody", SAMPLE, {}),
    ],
)
def test_every_refusal_has_a_status_that_the_document_lists(
    gateway: Running, path: str, body: bytes, headers: dict[str, str]
) -> None:
    described = gateway.ask("/openapi.json").json()["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
    reply = gateway.infer(body, path, headers)
    assert str(reply.status) in described
    assert reply.headers["Tandem-Error"] in {word for _, word in errors.HTTP.values()}


@pytest.mark.parametrize("action", ["load", "unload"])
def test_an_answer_without_a_body_is_documented_as_one(api: Document, action: str) -> None:
    answers = api["paths"][f"/v2/repository/models/{{model}}/{action}"]["post"]["responses"]
    assert "content" not in answers["200"]
    assert "content" in answers["default"]
