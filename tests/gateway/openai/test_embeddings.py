"""/v1/embeddings on a real Triton: vectors are those of the model, whatever a text's company, and mistakes are told as OpenAI tells them."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from loadtest.bench.made_models import MAX_LENGTH, MAX_ROWS, SENTENCES, SIZE, TOKENIZER, WORDS
from serving.gateway.openai.tokenizing import pieces
from tests.gateway.conftest import Reply, Running, gateway_before

LONG = "the harbour was quiet " * (MAX_LENGTH // 2)
MIXED = [text for text in SENTENCES if len(TOKENIZER.encode(text).ids) <= MAX_LENGTH][: 4 * MAX_ROWS]


def ask(gateway: Running, given: Any, headers: Mapping[str, str] | None = None, **more: Any) -> Reply:
    body = json.dumps({"model": "words", "input": given} | more).encode()
    return gateway.ask("/v1/embeddings", body, headers)


def vectors(reply: Reply) -> NDArray[np.float32]:
    assert reply.status == 200, reply.body
    entries = reply.json()["data"]
    assert [entry["index"] for entry in entries] == list(range(len(entries)))
    assert {entry["object"] for entry in entries} == {"embedding"}
    return np.array([entry["embedding"] for entry in entries], np.float32)


def error(reply: Reply) -> dict[str, Any]:
    body = reply.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    return dict(body["error"])


@pytest.mark.protocol("OpenAI", "a text; the usage counts the tokens that the model saw", "supported")
def test_a_text_has_the_vector_that_the_model_gives_it(words: Running) -> None:
    reply = ask(words, "The harbour was quiet.")
    np.testing.assert_allclose(vectors(reply), [WORDS.of_text("The harbour was quiet.")], atol=1e-6)
    body = reply.json()
    num_tokens = len(TOKENIZER.encode("The harbour was quiet.").ids)
    assert body["object"] == "list"
    assert body["model"] == "words"
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


@pytest.mark.protocol("OpenAI", "texts of any length, in groups of like length, answered in their order", "supported")
def test_many_texts_of_any_length_have_the_vectors_that_each_has_alone_in_the_order_of_the_request(
    words: Running,
) -> None:
    lengths = [len(TOKENIZER.encode(text).ids) for text in MIXED]
    assert len(MIXED) > 2 * MAX_ROWS
    assert max(lengths) > 2 * min(lengths)
    reply = ask(words, MIXED)
    np.testing.assert_allclose(vectors(reply), [WORDS.of_text(text) for text in MIXED], atol=1e-6)
    assert reply.json()["usage"]["prompt_tokens"] == sum(lengths)  # padding is not counted


def test_more_text_than_a_thread_gets_at_once_is_answered_all_the_same(words: Running) -> None:
    many = MIXED * 24
    assert len(pieces(many)) > 2
    np.testing.assert_allclose(vectors(ask(words, many)), [WORDS.of_text(text) for text in MIXED] * 24, atol=1e-6)
    reply = ask(words, [*many, LONG])
    assert f"number {len(many)} has" in error(reply)["message"]


def test_clients_at_the_same_time_get_their_own_vectors(words: Running) -> None:
    right = np.array([WORDS.of_text(text) for text in MIXED])
    given = [np.random.default_rng(client).integers(0, len(MIXED), 1 + client % 9) for client in range(64)]
    with ThreadPoolExecutor(64) as threads:
        got = list(threads.map(lambda places: vectors(ask(words, [MIXED[place] for place in places])), given))
    for places, rows in zip(given, got, strict=True):
        np.testing.assert_allclose(rows, right[places], atol=1e-6)


def test_a_model_of_one_length_and_small_integers_gets_what_it_takes(words: Running) -> None:
    reply = ask(words, MIXED, model="fixed")
    np.testing.assert_allclose(vectors(reply), [WORDS.of_text(text) for text in MIXED], atol=1e-6)


@pytest.mark.protocol("OpenAI", "encoding_format: float, base64", "supported")
def test_base64_holds_the_same_numbers(words: Running) -> None:
    entries = ask(words, MIXED[:3], encoding_format="base64").json()["data"]
    numbers = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in entries]
    np.testing.assert_array_equal(numbers, vectors(ask(words, MIXED[:3], encoding_format="float")))


@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.protocol("OpenAI", "token ids of the model's own tokenizer, one array or several", "supported")
def test_tokens_stand_for_their_text_with_and_without_the_models_marks(
    words: Running, add_special_tokens: bool
) -> None:
    ids = [TOKENIZER.encode(text, add_special_tokens=add_special_tokens).ids for text in MIXED[:3]]
    right = [WORDS.of_text(text) for text in MIXED[:3]]
    np.testing.assert_allclose(vectors(ask(words, ids)), right, atol=1e-6)
    np.testing.assert_allclose(vectors(ask(words, ids[0])), right[:1], atol=1e-6)


@pytest.mark.protocol(
    "OpenAI",
    "token ids where `models.<name>.token_ids` is not set",
    "refused: ids of another tokenizer give wrong vectors",
)
@pytest.mark.parametrize("model", ["fixed", "fixed-fp32"])
@pytest.mark.parametrize("ids", [[1, 2], [[1], [2, 3]]])
def test_token_ids_are_refused_unless_the_model_is_told_to_take_them(words: Running, model: str, ids: Any) -> None:
    """`words` is told so, by its public name."""
    reply = ask(words, ids, model=model)
    assert (reply.status, reply.headers["Tandem-Error"], error(reply)["param"]) == (400, "bad_request", "input")
    assert "check_embedding_ctx_length=False" in error(reply)["message"]
    assert "models.fixed.token_ids" in error(reply)["message"]
    assert ask(words, ids, model="words-fp32").status == 200


@pytest.mark.protocol("OpenAI", "dimensions", "supported")
def test_dimensions_cut_vectors_and_make_their_length_one_again(words: Running) -> None:
    whole, cut = vectors(ask(words, MIXED[:3])), vectors(ask(words, MIXED[:3], dimensions=3))
    right = whole[:, :3] / np.linalg.norm(whole[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, right, atol=1e-6)


@pytest.mark.protocol(
    "OpenAI",
    "texts longer than the model takes, unless truncate: true",
    "refused: what is cut in silence is answered wrongly",
)
def test_a_text_that_is_too_long_is_cut_only_when_the_client_says_so(words: Running) -> None:
    reply = ask(words, [MIXED[0], LONG])
    assert reply.status == 400
    num_tokens = len(TOKENIZER.encode(LONG).ids)
    told = error(reply)
    assert f"{num_tokens} tokens; 'words' takes {MAX_LENGTH}" in told["message"]
    assert told["param"] == "input"
    cut = [*TOKENIZER.encode(LONG).ids[: MAX_LENGTH - 1], 3]
    reply = ask(words, [MIXED[0], LONG], truncate=True)
    np.testing.assert_allclose(vectors(reply), [WORDS.of_text(MIXED[0]), WORDS.vector(cut)], atol=1e-6)
    assert reply.json()["usage"]["prompt_tokens"] == len(TOKENIZER.encode(MIXED[0]).ids) + MAX_LENGTH


@pytest.mark.parametrize(
    "text", ["\x00", "\u202e", "\ufffe", "e\u0301" * 3, "\U0001f600", "\u0645\u0631\u062d\u0628\u0627", " ", "\r\n\t"]
)
def test_any_text_of_unicode_has_a_vector(words: Running, text: str) -> None:
    np.testing.assert_allclose(vectors(ask(words, text)), [WORDS.of_text(text)], atol=1e-6)


def test_fields_that_are_null_are_not_there_and_user_does_nothing(words: Running) -> None:
    reply = ask(words, MIXED[0], encoding_format=None, dimensions=None, truncate=None, user="u-1")
    np.testing.assert_allclose(vectors(reply), [WORDS.of_text(MIXED[0])], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b'{"model":"words","input":"\\ud800"}', None, "not valid JSON"),
        (b'{"model":"words","input":"\xff"}', None, "not valid JSON"),
        (b'{"model":"words","input":NaN}', None, "not valid JSON"),
        (b'{"model":"words","input":' + b"[" * 2000 + b"]" * 2000 + b"}", None, "not valid JSON"),
        (b'{"input":"a"}', "model", "'model' must be"),
        (b'{"model":3,"input":"a"}', "model", "'model' must be"),
        (b'{"model":"words"}', "input", "'input' must be a text"),
        (b'{"model":"words","input":null}', "input", "'input' must be a text"),
        (b'{"model":"words","input":{"text":"a"}}', "input", "'input' must be a text"),
        (b'{"model":"words","input":""}', "input", "empty text, number 0"),
        (b'{"model":"words","input":[]}', "input", "is empty"),
        (b'{"model":"words","input":["a",""]}', "input", "empty text, number 1"),
        (b'{"model":"words","input":["a",1]}', "input", "not mixed"),
        (b'{"model":"words","input":["a",null]}', "input", "not mixed"),
        (b'{"model":"words","input":[1.5]}', "input", "not mixed"),
        (b'{"model":"words","input":[true]}', "input", "not mixed"),
        (b'{"model":"words","input":[[1],2]}', "input", "not mixed"),
        (b'{"model":"words","input":[[1],[]]}', "input", "number 1 is empty"),
        (b'{"model":"words","input":[[1],[1,"a"]]}', "input", "number 1 has something else than token ids"),
        (b'{"model":"words","input":[[[1]]]}', "input", "something else than token ids"),
        (b'{"model":"words","input":[-1]}', "input", "has the token -1; ids of 'words' are 0 to"),
        (b'{"model":"words","input":[99999]}', "input", "has the token 99999"),
        (b'{"model":"words","input":[18446744073709551615]}', "input", "has the token 18446744073709551615"),
        (b'{"model":"words","input":[18446744073709551616]}', "input", "not mixed"),
        (b'{"model":"words","input":"a","dimensions":0}', "dimensions", "1 or more"),
        (b'{"model":"words","input":"a","dimensions":true}', "dimensions", "1 or more"),
        (b'{"model":"words","input":"a","dimensions":9}', "dimensions", "vectors of 'words' have 8"),
        (b'{"model":"words","input":"a","encoding_format":"hex"}', "encoding_format", "'float' or 'base64'"),
        (b'{"model":"words","input":"a","encoding_format":""}', "encoding_format", "'float' or 'base64'"),
        (b'{"model":"words","input":"a","encoding_format":[]}', "encoding_format", "'float' or 'base64'"),
        (b'{"model":"words","input":[' + b"[1]," * 400_000 + b"[1]]}", None, "more values than any right request has"),
        (b'{"model":"words","input":"a","encoding_format":["float"]}', "encoding_format", "'float' or 'base64'"),
        (b'{"model":"words","input":"a","truncate":"yes"}', "truncate", "true or false"),
        (b'{"model":"words","input":"a","user":7}', "user", "must be a text"),
        (b'{"model":"words","input":"a","dimension":3}', "dimension", "did you mean 'dimensions'?"),
    ],
)  # fmt: skip
@pytest.mark.protocol("OpenAI", "mistakes: 400 with OpenAI's body, whose param names the field", "supported")
def test_mistakes_are_400_and_name_the_field(words: Running, body: bytes, param: str | None, says: str) -> None:
    reply = words.ask("/v1/embeddings", body)
    assert reply.status == 400, reply.body
    told = error(reply)
    assert (told["type"], told["param"]) == ("invalid_request_error", param)
    assert says in told["message"]
    assert reply.headers["Tandem-Error"] == "bad_request"


@pytest.mark.parametrize("model", ["nothing", "words/versions/1", "words\n", "../words", "w" * 5000, "wörter"])
@pytest.mark.protocol("OpenAI", "an unknown model: 404, model_not_found", "supported")
def test_an_unknown_model_is_404_in_openais_words(words: Running, model: str) -> None:
    reply = ask(words, "a", model=model)
    assert reply.status == 404
    told = error(reply)
    assert (told["type"], told["param"], told["code"]) == ("invalid_request_error", "model", "model_not_found")
    assert "GET /v1/models" in told["message"]
    assert len(told["message"]) < 300


@pytest.mark.parametrize(
    ("model", "why"),
    [("tokens", "a vector for each token"), ("plain", "its task is other"), ("tokens-fp32", "each token")],
)
@pytest.mark.protocol(
    "OpenAI", "models that make no vectors of texts, or one for each token", "refused: they are asked over /v2"
)
def test_a_model_that_makes_no_vectors_of_texts_is_400_with_the_way_out(words: Running, model: str, why: str) -> None:
    reply = ask(words, "a", model=model)
    assert reply.status == 400
    assert why in error(reply)["message"]
    assert f"/v2/models/{model}/infer" in error(reply)["message"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_405_in_openais_words(words: Running, method: str) -> None:
    reply = words.ask("/v1/embeddings", method=method)
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    assert error(reply)["code"] == "method_not_supported"


@pytest.mark.parametrize("path", ["/v1/embeddings/", "/v1/embeddings/words", "/v1/models/"])
def test_paths_beside_them_are_404_in_openais_words(words: Running, path: str) -> None:
    reply = words.ask(path, b"{}")
    assert reply.status == 404
    assert error(reply)["code"] is None


@pytest.mark.protocol("OpenAI", "receipt, pins, deadline and priority, as on v2", "supported")
def test_the_receipt_says_what_answered(words: Running) -> None:
    reply = ask(words, MIXED)
    assert reply.headers["Tandem-Pool"] == "cpu"
    assert reply.headers["Tandem-Variant"] == "fp32"
    assert reply.headers["Tandem-Engine"] == "cpu"
    assert reply.headers["Tandem-Gate"] == "untrained: speed only"
    assert reply.headers["Tandem-Reason"] == "only_pool"
    assert reply.headers["Tandem-Model-Digest"].startswith("sha256:")
    timing = reply.headers["Server-Timing"]
    assert [entry.split(";")[0] for entry in timing.split(", ")] == ["prepare", "queue", "backend", "total"]


def test_pins_hold_and_contradictions_are_400(words: Running) -> None:
    reply = ask(words, "a", {"Tandem-Variant": "fp32", "Tandem-Pool": "cpu"}, model="words-fp32")
    assert (reply.status, reply.headers["Tandem-Reason"]) == (200, "pinned")
    assert reply.json()["model"] == "words-fp32"
    assert ask(words, "a", {"Tandem-Variant": "int8"}).status == 400
    assert ask(words, "a", {"Tandem-Pool": "gpu"}).status == 400


@pytest.mark.parametrize("given", ["a", MIXED])
def test_a_deadline_that_has_passed_is_504_in_openais_words(words: Running, given: Any) -> None:
    reply = ask(words, given, {"Tandem-Deadline-Ms": "0.001"})
    assert reply.status in (503, 504)
    assert error(reply)["type"] == "server_error"
    assert reply.headers["Tandem-Error"] in ("deadline_expired", "overloaded")


@pytest.mark.parametrize("header", ["Tandem-Deadline-Ms", "Tandem-Priority"])
def test_headers_of_ours_that_are_wrong_are_400(words: Running, header: str) -> None:
    assert ask(words, "a", {header: "soon"}).status == 400


@pytest.mark.protocol("OpenAI", "without --model-repository", "refused: the tokenizer is read from there")
def test_a_gateway_without_the_repository_says_501_and_why(gateway: Running) -> None:
    reply = ask(gateway, "a", model="digits")
    assert reply.status == 501
    assert "--model-repository" in error(reply)["message"]
    assert reply.headers["X-Should-Retry"] == "false"
    assert gateway.ask("/v1/models").json()["data"][0]["created"] == 0


@pytest.mark.protocol("OpenAI", "limits of texts, tokens, characters and bytes", "supported")
def test_what_a_request_may_hold_is_limited_and_a_tokenizer_that_changed_after_the_gate_is_not_used(
    words_triton: str, words_repository: Path, tmp_path: Path
) -> None:
    limits = {"max_texts": 3, "max_tokens": 40, "max_body_bytes": 4096}
    shutil.copytree(words_repository, tmp_path / "repository")
    with (tmp_path / "repository" / "fixed-fp32" / "tokenizer.json").open("a") as file:
        file.write(" ")
    options = ("--model-repository", str(tmp_path / "repository"))
    with gateway_before(tmp_path, {"cpu": [words_triton]}, *options, limits=limits) as small:
        for given, says in [
            (["a"] * 4, "3 texts"),
            ([[1]] * 4, "3 texts"),
            ([LONG[:60]] * 3, "tokens; at most 40"),
            (["a" + " " * 150] * 3, "has 453 characters; at most 320"),
        ]:
            reply = ask(small, given)
            assert reply.status == 400
            assert says in error(reply)["message"]
            assert error(reply)["param"] == "input"
        reply = ask(small, "a" * 5000)
        assert (reply.status, error(reply)["code"]) == (413, "too_large")
        assert vectors(ask(small, ["a"] * 3)).shape == (3, SIZE)
        reply = ask(small, "a", model="fixed")
        assert reply.status == 500
        assert "tokenizer.json of 'fixed-fp32'" in error(reply)["message"]


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ("a", {}),
        (["a", "b"], {"encoding_format": "base64"}),
        ([4], {"dimensions": 2}),
        ([[4], [5]], {"truncate": True}),
    ],
)
def test_what_is_taken_and_answered_is_as_the_document_says(words: Running, given: Any, more: Any) -> None:
    api = words.ask("/openapi.json").json()
    schemas = {"components": api["components"]}
    request = {"model": "words", "input": given} | more
    jsonschema.validate(request, {"$ref": "#/components/schemas/EmbeddingsRequest", **schemas})
    reply = ask(words, given, **more)
    jsonschema.validate(reply.json(), {"$ref": "#/components/schemas/EmbeddingsResponse", **schemas})
    described = api["paths"]["/v1/embeddings"]["post"]["responses"]
    sent = {name.lower() for name in reply.headers if name.lower().startswith(("tandem-", "server-timing"))}
    assert sent == {name.lower() for name in described["200"]["headers"]}
    wrong = ask(words, given, **more, unknown=1)
    jsonschema.validate(wrong.json(), {"$ref": "#/components/schemas/OpenAIError", **schemas})
    assert str(wrong.status) in described
