"""The `openai` package, sync and async, with keys on: embeddings, models, and its error classes.

`words` is a model whose vectors are the normalised means of its words' vectors, so what is near what can be told.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from conftest import ROOT, Gateway, Keys

WIDTH = 4
RED_CAR = [2, 6]  # token ids


@pytest.fixture
def client(keyed: Gateway, keys: Keys) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=keys.infer, max_retries=0) as made:
        yield made


def connect(gateway: Gateway, key: str, **how: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, **{"max_retries": 0, **how})


def length(vector: Sequence[float]) -> float:
    return math.sqrt(sum(x * x for x in vector))


def test_a_text_has_a_vector_of_length_one(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="words", input="red car")
    (found,) = answer.data
    assert (answer.object, answer.model, found.object, found.index) == ("list", "words", "embedding", 0)
    assert len(found.embedding) == WIDTH
    assert length(found.embedding) == pytest.approx(1)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (2, 2)


def test_texts_keep_their_order_whatever_their_length(client: openai.OpenAI) -> None:
    texts = ["a green tree a blue car", "red", "green tree", "a"] * 5
    together = client.embeddings.create(model="words", input=texts)
    assert [entry.index for entry in together.data] == list(range(len(texts)))
    for text, entry in zip(texts[:4], together.data[:4], strict=True):
        alone = client.embeddings.create(model="words", input=text).data[0].embedding
        assert entry.embedding == pytest.approx(alone, abs=1e-5)
    assert together.usage.prompt_tokens == sum(len(text.split()) for text in texts)


@pytest.mark.parametrize("tokens", [RED_CAR, [RED_CAR], [RED_CAR, [3, 7]]])
def test_tokens_are_taken_as_they_are(client: openai.OpenAI, tokens: Any) -> None:
    of_text = client.embeddings.create(model="words", input="red car").data[0].embedding
    answer = client.embeddings.create(model="words", input=tokens)
    assert answer.data[0].embedding == pytest.approx(of_text, abs=1e-6)
    assert len(answer.data) == (len(tokens) if isinstance(tokens[0], list) else 1)


def test_base64_and_numbers_are_the_same_vector(client: openai.OpenAI) -> None:
    """The package asks for base64 by default and decodes it; asked for explicitly, it hands the text on."""
    default = client.embeddings.create(model="words", input="red").data[0].embedding
    numbers = client.embeddings.create(model="words", input="red", encoding_format="float").data[0].embedding
    text: Any = client.embeddings.create(model="words", input="red", encoding_format="base64").data[0].embedding
    assert default == pytest.approx(numbers, abs=1e-7)
    if isinstance(text, str):
        assert len(base64.b64decode(text)) == 4 * WIDTH


def test_fewer_dimensions_are_the_first_ones_at_length_one(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model="words", input="red tree").data[0].embedding
    cut = client.embeddings.create(model="words", input="red tree", dimensions=2).data[0].embedding
    assert length(cut) == pytest.approx(1)
    assert cut[0] / cut[1] == pytest.approx(whole[0] / whole[1], rel=1e-4)


def test_the_receipt_is_among_the_raw_answers_headers(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model="words", input="red")
    assert raw.headers["tandem-variant"] == "fp32"
    assert raw.headers["tandem-model-digest"].startswith("sha256:")
    assert len(raw.parse().data) == 1


def test_models_are_listed_and_looked_up(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert {"words", "digits"} <= set(listed)
    found = client.models.retrieve("words")
    assert (found.id, found.object) == ("words", "model")
    assert found.owned_by
    assert found.created >= 0


@pytest.mark.parametrize(
    ("model", "given", "more", "error", "words"),
    [
        ("nobody", "red", {}, openai.NotFoundError, "nobody"),
        ("digits", "red", {}, openai.BadRequestError, "digits"),
        ("words", "", {}, openai.BadRequestError, "input"),
        ("words", [], {}, openai.BadRequestError, "input"),
        ("words", [[]], {}, openai.BadRequestError, "input"),
        ("words", ["red", ""], {}, openai.BadRequestError, "input"),
        ("words", ["red", 3], {}, openai.BadRequestError, "input"),
        ("words", [999], {}, openai.BadRequestError, "999"),
        ("words", "red " * 100, {}, openai.BadRequestError, "16"),
        ("words", "red", {"dimensions": 5}, openai.BadRequestError, "dimensions"),
        ("words", "red", {"dimensions": 0}, openai.BadRequestError, "dimensions"),
        ("words", "red", {"encoding_format": "hex"}, openai.BadRequestError, "encoding_format"),
    ],
)
def test_a_mistake_is_the_packages_own_error_class(
    client: openai.OpenAI, model: str, given: Any, more: dict[str, Any], error: type[openai.APIStatusError], words: str
) -> None:
    with pytest.raises(error) as raised:
        client.embeddings.create(model=model, input=given, **more)
    assert words in raised.value.message
    body: Any = raised.value.body
    assert set(body) == {"message", "type", "param", "code"}


def test_a_model_that_is_not_there_has_openais_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("nobody")
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize("wrong", ["tdm_none", "sk-of-somebody-else", "revoked"])
def test_a_wrong_key_is_an_authentication_error(keyed: Gateway, keys: Keys, wrong: str) -> None:
    key = keys.revoked if wrong == "revoked" else wrong
    with connect(keyed, key) as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            client.embeddings.create(model="words", input="red")
        assert raised.value.code == "invalid_api_key"
        assert key not in raised.value.message
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_a_key_without_the_right_may_not(keyed: Gateway, keys: Keys) -> None:
    with connect(keyed, keys.metrics) as client, pytest.raises(openai.PermissionDeniedError):
        client.embeddings.create(model="words", input="red")
    with connect(keyed, keys.of_digits) as client:
        with pytest.raises((openai.PermissionDeniedError, openai.NotFoundError)):
            client.embeddings.create(model="words", input="red")
        assert [model.id for model in client.models.list() if model.id == "words"] == []


def test_the_async_client_asks_many_at_once(keyed: Gateway, keys: Keys) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{keyed.url}/v1", api_key=keys.infer, max_retries=0) as client:
            models = [model.id async for model in client.models.list()]
            assert "words" in models
            return await asyncio.gather(*(client.embeddings.create(model="words", input="red car") for _ in range(20)))

    answers = asyncio.run(ask())
    assert len({tuple(answer.data[0].embedding) for answer in answers}) == 1


def test_the_async_client_has_the_same_errors(keyed: Gateway, keys: Keys) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{keyed.url}/v1", api_key=keys.infer, max_retries=0) as client:
            await client.embeddings.create(model="nobody", input="red")

    with pytest.raises(openai.NotFoundError):
        asyncio.run(ask())


def test_while_triton_is_away_the_package_waits_as_the_gateway_says_and_then_has_its_answer(gateway: Gateway) -> None:
    told: list[tuple[float, int, float]] = []  # when, status, how long the client should wait

    def note(response: Any) -> None:
        wait_s = float(response.headers.get("retry-after-ms", 0)) / 1000
        told.append((time.monotonic(), response.status_code, wait_s))

    http = openai.DefaultHttpxClient(event_hooks={"response": [note]})
    with connect(gateway, "any", max_retries=60, http_client=http) as client:
        client.embeddings.create(model="words", input="red")
        os.kill(tritonserver_below(gateway.pid), signal.SIGKILL)
        answer = client.embeddings.create(model="words", input="red")
    assert len(answer.data[0].embedding) == WIDTH
    assert [status for _, status, _ in told][:: len(told) - 1] == [200, 200]
    refusals = [(at, wait_s, then) for (at, status, wait_s), (then, *_) in pairwise(told) if status == 503]
    assert refusals
    assert all(0 < wait_s <= then - at for at, wait_s, then in refusals)


def tritonserver_below(pid: int) -> int:
    """The server's process among the children of `tandem up` and theirs."""
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        name = Path(f"/proc/{child}/comm").read_text().strip()
        if found := child if name == "tritonserver" else tritonserver_below(child):
            return found
    return 0


def test_the_example_finds_the_text_that_is_nearest(gateway: Gateway) -> None:
    command = [sys.executable, str(ROOT / "examples" / "similar_texts.py"), "--url", gateway.url, "--model", "words"]
    done = subprocess.run([*command, "red car", "green tree", "car red"], capture_output=True, text=True, check=True)
    assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()] == ["car red", "green tree"]
