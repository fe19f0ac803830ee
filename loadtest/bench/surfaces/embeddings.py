"""What does `/v1/embeddings` cost over the tokenizer and ONNX Runtime in one process? MiniLM, real sentences of mixed length.

In process: the same tokenizer, the same division into groups of like length, the same file and threads, and as many requests at once.
Requests are base64, as the `openai` package asks, and say their key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from loadtest.bench.surfaces import items
from loadtest.bench.surfaces.items import Session
from loadtest.bench.surfaces.part import NUM_THREADS, KeyedStack, Part, Setting, served
from loadtest.processes import ROOT
from serving.http_client import request_bytes
from serving.preprocessing.texts import TextTokenizer, padded
from serving.repository import Repository, Variant
from serving.repository.preprocessing import TextPreprocessing, from_json
from serving.scheduling.grouping import grouped, padded_length

MODEL = "minilm"
NUM_TEXTS = 16  # in a request: what people send who have documents to embed; a guess, not measured
NUM_CLIENTS = 2  # one computes, one waits
# What a request costs beside its tokens, as tokens: what grouping.py measured for this model on two cores, in the middle
REQUEST_TOKENS = 15.0


def measure(setting: Setting) -> Part:
    """Raises CannotMeasure."""
    repository = items.repository_of(setting.models, MODEL, setting.folder)
    texts = [line for line in (ROOT / "loadtest/payloads/sentences.txt").read_text().splitlines() if line]
    requests = [texts[i : i + NUM_TEXTS] for i in range(0, len(texts), NUM_TEXTS)]
    with served(repository, setting.folder) as running:
        bodies = [items.Items(_body(running, some), len(some)) for some in requests]
        run_alone = _in_process(Repository(repository).variant(f"{MODEL}-fp32"), requests)
        comparison = items.compare(setting.plan, running, bodies, run_alone, num_clients=NUM_CLIENTS)
    note = (
        f"{MODEL}-fp32, {len(texts)} sentences, {NUM_TEXTS} in a request, {NUM_CLIENTS} clients, keys on, "
        f"1 instance × {NUM_THREADS} threads on both sides"
    )
    return items.part("embeddings", "texts", comparison, [note])


def _body(running: KeyedStack, texts: Sequence[str]) -> bytes:
    body = orjson.dumps({"model": MODEL, "input": list(texts), "encoding_format": "base64"})
    headers = {"Content-Type": "application/json", **running.key_header}
    return request_bytes("POST", running.stack.gateway.url, "/v1/embeddings", headers, body)


def _in_process(variant: Variant, requests: Sequence[Sequence[str]]) -> Callable[[int], int]:
    preprocessing = from_json((variant.directory / "preprocessing.json").read_text())
    assert isinstance(preprocessing, TextPreprocessing)
    tokenizer = TextTokenizer((variant.directory / preprocessing.tokenizer).read_bytes(), preprocessing)
    session, max_rows = Session(variant.model_path), variant.record.max_batch_size

    def run(number: int) -> int:
        ids = tokenizer.ids(requests[number], cut=True)
        lengths = [padded_length(len(row), preprocessing.max_length) for row in ids]
        for group in grouped(lengths, max_rows, REQUEST_TOKENS):
            rows = [ids[i] for i in group]
            session(padded(preprocessing, rows, tokenizer.types(rows), lengths[group[-1]]))
        return len(ids)

    return run
