"""A real Triton with small embeddings models, and a gateway before it that has their repository."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto

from loadtest.bench import made_models
from loadtest.bench.made_models import BASE, BESIDE, INPUTS, MAX_LENGTH, OTHER_SPACE, PREPROCESSING, SIZE, WORDS
from serving.local.environments import Environment
from serving.repository import OTHER, Tensor
from serving.repository.preprocessing import to_json
from tests.gateway.conftest import Running, gateway_before, triton_of_its_own

TAKES_IDS = {"words": {"token_ids": True}}


@pytest.fixture(scope="session")
def words_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`words`, `fixed` (texts of one length, as INT32), and two without vectors of texts: `tokens` (for each token) and `plain` (another task)."""
    of_one_length = tuple(Tensor(name, "INT32", (MAX_LENGTH,)) for name in INPUTS)
    fixed = replace(BASE, model="fixed", space="fixed@1", inputs=of_one_length)
    unpooled = replace(BASE, model="tokens", space=None, outputs=(Tensor("token_vectors", "FP32", (-1, SIZE)),))
    without_pooling = to_json(replace(PREPROCESSING, pooling="none", is_normalised=False)).encode()
    plain = replace(BASE, model="plain", space=None, task=OTHER, preprocessing=None)
    return made_models.write(
        tmp_path_factory.mktemp("words") / "repository",
        (BASE, WORDS.onnx(), BESIDE),
        (fixed, WORDS.onnx(integer=TensorProto.INT32), BESIDE),
        (unpooled, WORDS.onnx(output="token_vectors"), BESIDE | {"preprocessing.json": without_pooling}),
        (plain, WORDS.onnx(), {}),
    )


@pytest.fixture(scope="session")
def words_triton(
    environment: Environment, words_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("words_triton")
    with triton_of_its_own(folder, "--no-measure", "--model-repository", str(words_repository)) as (_, url):
        yield url


@pytest.fixture(scope="session")
def words(words_triton: str, words_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("words_gateway")
    with gateway_before(
        folder, {"cpu": [words_triton]}, "--model-repository", str(words_repository), models=TAKES_IDS
    ) as running:
        yield running


@pytest.fixture(scope="session")
def other_space_triton(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A server that has `words` as int8 only, whose vectors lie in another space; its address and its repository."""
    folder = tmp_path_factory.mktemp("other_space")
    record = replace(BASE, variant="int8", space="words-int8@2")
    repository = made_models.write(folder / "repository", (record, OTHER_SPACE.onnx(), BESIDE))
    with triton_of_its_own(folder, "--no-measure", "--model-repository", str(repository)) as (_, url):
        yield url, repository
