"""An embeddings request as OpenTelemetry's conventions for generative AI have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai

from loadtest.bench.made_models import SIZE
from tests.gateway.collector import collecting
from tests.gateway.conftest import gateway_before

pytestmark = [pytest.mark.slow, pytest.mark.triton]


def test_a_request_for_embeddings_has_a_span_by_the_conventions(
    words_triton: str, words_repository: Path, tmp_path: Path
) -> None:
    body = json.dumps({"model": "words", "input": ["one two", "three"], "encoding_format": "float"}).encode()
    with collecting() as collector:
        otel = {"endpoint": collector.endpoint, "sample_ratio": 1.0}
        options = "--model-repository", str(words_repository)
        with gateway_before(tmp_path, {"cpu": [words_triton]}, *options, otel=otel) as gateway:
            answered = gateway.ask("/v1/embeddings", body, {"Content-Type": "application/json"})
            assert answered.status == 200
            spans = collector.of(answered.headers["Tandem-Request-Id"], 5)
    by_name = {span.name: span for span in spans}
    root, embeddings = by_name["POST /v1/embeddings"], by_name["embeddings words"]
    parents = {span.name: span.parent for span in spans}
    assert parents == {
        root.name: "",
        embeddings.name: root.id,
        **dict.fromkeys(("prepare", "queue", "triton"), embeddings.id),
    }
    assert embeddings.attributes == {
        gen_ai.GEN_AI_OPERATION_NAME: "embeddings",
        gen_ai.GEN_AI_PROVIDER_NAME: "tandem",
        gen_ai.GEN_AI_REQUEST_MODEL: "words",
        gen_ai.GEN_AI_RESPONSE_MODEL: "words",
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: answered.json()["usage"]["prompt_tokens"],
        gen_ai.GEN_AI_REQUEST_ENCODING_FORMATS: ["float"],
        gen_ai.GEN_AI_EMBEDDINGS_DIMENSION_COUNT: SIZE,
    }
    assert by_name["prepare"].end_ns <= by_name["queue"].end_ns <= by_name["triton"].end_ns <= root.end_ns
