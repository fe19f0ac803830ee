"""OpenAI's bodies: what clients read out of an error."""

from __future__ import annotations

import orjson
import pytest

from serving import errors
from serving.protocol import openai


@pytest.mark.parametrize("cls", errors.HTTP)
def test_every_error_has_a_body(cls: type[errors.RequestError]) -> None:
    body = orjson.loads(openai.error_body(cls("x")))["error"]
    assert body["message"] == "x"
    assert body["type"] == ("server_error" if errors.HTTP[cls][0] >= 500 else body["type"])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errors.BadRequest("x", param="input"), ("invalid_request_error", "input", None)),
        (errors.Unauthenticated("x"), ("invalid_request_error", None, "invalid_api_key")),
        (errors.Forbidden("x"), ("invalid_request_error", None, "insufficient_permissions")),
        (errors.NotFound("x"), ("invalid_request_error", None, "model_not_found")),
        (errors.NoSuchPath("x"), ("invalid_request_error", None, None)),
        (errors.MethodNotAllowed("x"), ("invalid_request_error", None, "method_not_supported")),
        (errors.RateLimited("x"), ("rate_limit_error", None, "rate_limit_exceeded")),
        (errors.Overloaded("x"), ("server_error", None, "overloaded")),
    ],
)
def test_an_error_is_told_in_openais_words(
    error: errors.RequestError, told: tuple[str, str | None, str | None]
) -> None:
    body = orjson.loads(openai.error_body(error))
    kind, param, code = told
    assert body == {"error": {"message": "x", "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize("again", [b'"input"', b'"inp\\u0075t"'])
def test_a_field_that_stands_twice_is_an_error(again: bytes) -> None:
    with pytest.raises(errors.BadRequest, match=r"'input'.*object"):
        openai.read_embeddings(b'{"model":"m","input":"a: b",%b:"c"}' % again, 8, 100)
    assert openai.read_embeddings(b'{"model":"m","input":"\\"input\\": b"}', 8, 100).texts == ['"input": b']
