"""/v1/models lists what can be asked for, as OpenAI's clients read it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.gateway.conftest import Running

MADE = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp())  # the date in the gate record


def entry(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": MADE, "owned_by": "tandem"}


@pytest.mark.protocol("OpenAI", "the list of models that a key may ask, and one of them", "supported")
def test_public_names_are_listed(words: Running) -> None:
    reply = words.ask("/v1/models")
    assert reply.status == 200
    assert reply.json() == {"object": "list", "data": [entry(name) for name in ("fixed", "plain", "tokens", "words")]}


@pytest.mark.parametrize("name", ["words", "words-fp32"])
def test_one_is_told_by_its_name_also_by_a_variants(words: Running, name: str) -> None:
    assert words.ask(f"/v1/models/{name}").json() == entry(name)


@pytest.mark.parametrize("name", ["nothing", "words-int8", "%C3%A4", "w" * 3000])
def test_an_unknown_one_is_404_in_openais_words(words: Running, name: str) -> None:
    reply = words.ask(f"/v1/models/{name}")
    assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")


def test_other_methods_are_405_in_openais_words(words: Running) -> None:
    reply = words.ask("/v1/models", b"{}")
    assert (reply.status, reply.json()["error"]["code"]) == (405, "method_not_supported")


def test_kserve_v1_is_shown_the_path_that_is_served(words: Running) -> None:
    reply = words.ask("/v1/models/words:predict", b"{}")
    assert (reply.status, "/v2/models/words/infer" in reply.json()["error"]["message"]) == (405, True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/nothing"])
def test_a_path_of_openais_that_is_not_served_is_404_in_openais_words(words: Running, path: str) -> None:
    reply = words.ask(path, b"{}")
    error = reply.json()["error"]
    assert (reply.status, error["type"], error["param"], error["code"]) == (404, "invalid_request_error", None, None)
    assert {"/v1/embeddings", "/v1/models"} <= {word.strip(",;") for word in error["message"].split()}


def test_a_misspelt_model_is_answered_with_the_nearest(words: Running) -> None:
    for reply in (words.ask("/v1/models/word"), words.ask("/v1/embeddings", b'{"model": "word", "input": "a"}')):
        assert (reply.status, "'words'?" in reply.json()["error"]["message"]) == (404, True)
