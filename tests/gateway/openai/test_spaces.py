"""Vectors of one public name can be compared: they are of one space, however many pools and variants there are (DESIGN §5.7)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.made_models import OTHER_SPACE, WORDS
from serving.ports import free_ports
from tests.gateway.conftest import gateway_before
from tests.gateway.openai.test_embeddings import MIXED, ask, vectors


@pytest.fixture
def both(words_repository: Path, other_space_triton: tuple[str, Path], tmp_path: Path) -> Path:
    """A repository with the FP32 of one space and the INT8 of another."""
    both = tmp_path / "both"
    both.mkdir()
    for variant in [*words_repository.iterdir(), *other_space_triton[1].iterdir()]:
        if variant.is_dir() and not variant.name.startswith("."):
            (both / variant.name).symlink_to(variant)
    return both


@pytest.mark.thorough
def test_while_nobody_serves_fp32_a_public_name_gives_no_vectors_of_another_space(
    other_space_triton: tuple[str, Path], both: Path, tmp_path: Path
) -> None:
    pools = {"first": [f"http://127.0.0.1:{free_ports(1)[0]}"], "second": [other_space_triton[0]]}
    with gateway_before(tmp_path, pools, "--model-repository", str(both)) as gateway:
        reply = ask(gateway, MIXED)
        assert (reply.status, reply.headers["Tandem-Error"]) == (503, "not_ready")
        pinned = ask(gateway, MIXED, model="words-int8")
        np.testing.assert_allclose(vectors(pinned), [OTHER_SPACE.of_text(text) for text in MIXED], atol=1e-6)


@pytest.mark.thorough
@pytest.mark.protocol("OpenAI", "all vectors of a public name are of one space", "supported")
def test_a_public_name_stays_in_one_space_and_pins_are_the_way_round(
    words_triton: str, other_space_triton: tuple[str, Path], both: Path, tmp_path: Path
) -> None:
    """The other pool is far cheaper: without the rule, answers would come from there."""
    pools = {"first": [words_triton], "second": [other_space_triton[0]]}
    prices = {"first": 9.0, "second": 0.1}
    options = ("--model-repository", str(both))
    with gateway_before(tmp_path, pools, *options, prices=prices) as gateway:
        right = np.array([WORDS.of_text(text) for text in MIXED])
        with ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(lambda _: ask(gateway, MIXED), range(24)))
        for reply in replies:
            np.testing.assert_allclose(vectors(reply), right, atol=1e-6)
            assert reply.headers["Tandem-Pool"] == "first"
            assert reply.headers["Tandem-Variant"] == "fp32"
        pinned = [
            ask(gateway, MIXED, {"Tandem-Variant": "int8"}),
            ask(gateway, MIXED, model="words-int8"),
            gateway.ask(
                "/v1/embeddings",
                json.dumps({"model": "words-int8", "input": MIXED}).encode(),
                {"Tandem-Pool": "second"},
            ),
        ]
        for reply in pinned:
            np.testing.assert_allclose(vectors(reply), [OTHER_SPACE.of_text(text) for text in MIXED], atol=1e-6)
            assert reply.headers["Tandem-Variant"] == "int8"
