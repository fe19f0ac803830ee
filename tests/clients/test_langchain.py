"""LangChain's OpenAIEmbeddings: by default it sends token ids of OpenAI's tokenizer, which a gateway refuses, and says how it sends texts."""

from __future__ import annotations

import json
import re

import numpy as np
import openai
import pytest
import tiktoken
from conftest import ROOT, Gateway, Keys
from langchain_openai import OpenAIEmbeddings

TEXTS = ["red car", "a green tree", "blue"]
# The package would fetch OpenAI's vocabulary from the network; what the client then does with one is the same with this.
BYTES = tiktoken.Encoding(
    "bytes", pat_str="[^ ]+| ", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
)


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _name: BYTES)


def embeddings(gateway: Gateway, key: str = "any", **how: bool) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(model="words", base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, **how)


def test_its_default_is_refused_and_told_the_switch(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        embeddings(gateway).embed_documents(TEXTS)
    assert "check_embedding_ctx_length=False" in raised.value.message
    assert raised.value.param == "input"


def test_with_the_switch_it_has_the_vectors_of_its_texts(gateway: Gateway) -> None:
    made = embeddings(gateway, check_embedding_ctx_length=False)
    vectors = np.array(made.embed_documents(TEXTS))
    plain = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any").embeddings.create(model="words", input=TEXTS)
    np.testing.assert_allclose(vectors, [entry.embedding for entry in plain.data], atol=1e-6)
    np.testing.assert_allclose(made.embed_query(TEXTS[0]), vectors[0], atol=1e-6)


def test_where_ids_are_taken_the_default_gives_other_vectors(keyed: Gateway, keys: Keys) -> None:
    """Which is why they are refused unless somebody says so: ids that happen to exist are other words."""
    right = embeddings(keyed, keys.infer, check_embedding_ctx_length=False).embed_query("\x02\x06")
    wrong = embeddings(keyed, keys.infer).embed_query("\x02\x06")
    red_car = embeddings(keyed, keys.infer, check_embedding_ctx_length=False).embed_query("red car")
    assert not np.allclose(right, wrong)
    np.testing.assert_allclose(wrong, red_car, atol=1e-6)


def test_the_tutorial_says_what_works(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "tutorials" / "embedder.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(block.replace("http://127.0.0.1:8080", gateway.url).replace('"minilm"', '"words"'), {})
    cosines = json.loads(capsys.readouterr().out)
    assert len(cosines) == 3
    assert cosines[0] == 1.0
