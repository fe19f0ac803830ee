"""Errors have the body of the protocol that is spoken at their path."""

from __future__ import annotations

import orjson
import pytest

from serving import errors
from serving.gateway.http.responses import error_parts


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/v1/models/minilm"])
def test_openais_paths_have_openais_errors(path: str) -> None:
    _, headers, body = error_parts(errors.Overloaded("full", retry_after_s=0.25), path)
    assert orjson.loads(body)["error"] == {
        "message": "full",
        "type": "server_error",
        "param": None,
        "code": "overloaded",
    }
    assert dict(headers)[b"retry-after-ms"] == b"250"
    assert b"x-should-retry" not in dict(headers)


@pytest.mark.parametrize("path", ["", "/v2/models/digits/infer", "/v1/classify/digits", "/health/ready"])
def test_all_others_have_a_sentence(path: str) -> None:
    assert orjson.loads(error_parts(errors.BadRequest("wrong", param="input"), path)[2]) == {"error": "wrong"}


@pytest.mark.parametrize("error", [errors.Unsupported("x"), errors.Internal("x")])
def test_openais_clients_are_told_where_trying_again_is_no_use(error: errors.RequestError) -> None:
    assert dict(error_parts(error, "/v1/embeddings")[1])[b"x-should-retry"] == b"false"
    assert b"x-should-retry" not in dict(error_parts(error, "/v2/models/digits/infer")[1])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/classify/digits", "/v2/models/digits/infer"])
def test_who_is_refused_for_load_is_told_when_to_come_again_or_that_it_is_no_use(path: str) -> None:
    later = dict(error_parts(errors.Overloaded("full"), path)[1])
    never = dict(error_parts(errors.NeverInTime("never"), path)[1])
    assert (later[b"retry-after"], b"x-should-retry" in later) == (b"1", False)
    assert (b"retry-after" in never, never[b"x-should-retry"]) == (False, b"false")
