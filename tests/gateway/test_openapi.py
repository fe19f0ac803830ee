"""The document of the API: valid, whole, and true where it can be compared with what the gateway does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from fastapi.routing import APIRoute

from serving import errors
from serving.gateway.assets import Assets
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.http.control import add_admin, build_admin, build_public
from serving.gateway.http.guard import OPEN, SCOPE_OF
from serving.gateway.http.openapi import INFER_PATHS, RECEIPT_HEADERS, by_hand, document
from serving.gateway.http.pages import read_files
from serving.gateway.metrics import Metrics
from serving.gateway.models.loading import Loading
from serving.gateway.models.metadata import State
from serving.gateway.openai.models import add_openai
from serving.gateway.threads import Threads
from serving.settings import GatewaySettings
from tests.gateway.conftest import SAMPLE, Running

SAME_AS = {"/v2/": "/v2"}
REFUSING = ("infer_by_other_method", "embeddings_by_other_method", "answer", "load")


def build(*, loopback: bool) -> tuple[FastAPI, FastAPI]:
    """The app that shows the documents, and the public one."""

    async def make() -> tuple[FastAPI, FastAPI]:
        settings = GatewaySettings.model_validate(
            {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:1"], "device": "cpu"}}}
        )
        catalogue, metrics, state = Catalogue(settings, lambda: None), Metrics(list), State()
        loading = Loading(catalogue, Assets(None), Threads())
        public = build_public(catalogue, state, [])
        add_openai(public, lambda: catalogue.fleet, Assets(None), Threads())
        if loopback:
            add_admin(public, public, catalogue, metrics, state, loading)
            return public, public
        return build_admin(public, catalogue, metrics, state, loading, []), public

    return asyncio.run(make())


@pytest.fixture(params=[True, False], ids=["loopback", "admin"])
def apps(request: pytest.FixtureRequest) -> tuple[FastAPI, FastAPI]:
    return build(loopback=request.param)


def operations(api: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in api["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(child)


def test_the_document_is_openapi_3_1(apps: tuple[FastAPI, FastAPI]) -> None:
    api = document(*apps)
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


def test_arrays_say_what_is_in_them_or_no_client_can_be_generated(apps: tuple[FastAPI, FastAPI]) -> None:
    for part in walk(document(*apps)):
        assert part.get("type") != "array" or "items" in part, part


def test_with_keys_the_document_says_which_operations_need_one(apps: tuple[FastAPI, FastAPI]) -> None:
    assert "securitySchemes" not in document(*apps)["components"]
    api = document(*apps, has_keys=True)
    assert set(api["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    for path, _, operation in operations(api):
        assert ("security" in operation) == (SCOPE_OF[path] != OPEN), path
        assert {"401", "403"} <= set(operation["responses"]) or SCOPE_OF[path] == OPEN, path


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


def test_every_operation_has_a_sentence_and_a_place_on_the_page(apps: tuple[FastAPI, FastAPI]) -> None:
    for path, _, operation in operations(document(*apps)):
        assert operation["summary"].endswith("."), path
        assert operation["tags"] in (["v2"], ["openai"], ["classify"], ["health"], ["admin"], ["pages"]), path


def test_every_group_of_operations_has_a_title_on_the_page() -> None:
    script = read_files()["docs.js"].decode()
    titles = set(re.findall(r"(\w+): \"", script.partition("TITLES = {")[2].partition("}")[0]))
    assert {operation["tags"][0] for _, _, operation in operations(document(*build(loopback=True)))} == titles


def test_every_route_is_listed_unless_all_it_does_is_refuse(apps: tuple[FastAPI, FastAPI]) -> None:
    listed = {(path, method.upper()) for path, method, _ in operations(document(*apps))}
    for app in apps:
        for route in app.routes:
            assert isinstance(route, APIRoute), route  # nothing is mounted beside them
            for method in route.methods:
                known = (SAME_AS.get(route.path, route.path), method) in listed
                assert known or route.endpoint.__name__ in REFUSING, route.path
    assert {(path, "POST") for path in by_hand()} <= listed


def test_nothing_is_listed_that_does_not_exist(apps: tuple[FastAPI, FastAPI]) -> None:
    routed = {
        (r.path, method) for app in apps for r in app.routes if isinstance(r, APIRoute) for method in r.methods
    } | {(path, "POST") for path in by_hand()}
    assert {(path, method.upper()) for path, method, _ in operations(document(*apps))} <= routed


def test_the_admin_listener_says_what_is_answered_elsewhere() -> None:
    api = document(*build(loopback=False))
    there = {path for path, _, o in operations(api) if "not here" in o.get("description", "")}
    assert set(INFER_PATHS) <= there
    assert not {"/", "/docs", "/metrics", "/admin/status", "/health/ready"} & there
    assert not [path for path, _, o in operations(document(*build(loopback=True))) if "description" in o]


def test_a_validation_error_of_fastapis_own_is_never_promised(apps: tuple[FastAPI, FastAPI]) -> None:
    assert all("422" not in operation["responses"] for _, _, operation in operations(document(*apps)))


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
def test_an_answer_without_a_body_is_documented_as_one(apps: tuple[FastAPI, FastAPI], action: str) -> None:
    answers = document(*apps)["paths"][f"/v2/repository/models/{{model}}/{action}"]["post"]["responses"]
    assert "content" not in answers["200"]
    assert "content" in answers["default"]
