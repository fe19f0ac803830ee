"""`POST /v1/embeddings`, as raw ASGI: texts in, vectors out, by whatever pool answers best.

Texts become tokens on a thread, go to the model in groups of like length, and their vectors come back in the client's order. What a body
may hold is in `protocol/openai.py`, what goes together in `scheduling/grouping.py`. All vectors of a public name are of one space,
because routing leaves variants of other spaces out (DESIGN §5.7); pins are the way round it. Rule: what grows with the number of
texts happens on a thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from serving import errors
from serving.gateway.access import Access, Caller
from serving.gateway.assets import Assets
from serving.gateway.http.body import Chunks, read_body
from serving.gateway.http.client import HttpClient, Receive, Scope, Send
from serving.gateway.http.connection import respond
from serving.gateway.http.guard import known
from serving.gateway.openai.embedders import Embedder, Embedders
from serving.gateway.openai.tokenizing import Tokenizing
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.headers import priority, wait_s
from serving.gateway.request.inference import Inference, Reply, infer_all
from serving.gateway.request.route import Route
from serving.gateway.responses import Headers, error_response, outcome_of
from serving.gateway.threads import Threads
from serving.protocol.openai import EmbeddingsRequest, embeddings_body, read_embeddings
from serving.protocol.tensors import float_output
from serving.scheduling.grouping import grouped, tokens_of_a_request
from serving.settings import GatewaySettings

PATH = "/v1/embeddings"
# What is made on the event loop rather than handed to a thread, which takes some 60 µs: bytes of JSON that are parsed in as long, and
# numbers of an answer that are written in as long (as text; base64 is ten times as fast).
SMALL_BODY_BYTES = 32 * 1024
SMALL_ANSWER_NUMBERS = 2048


@dataclass(frozen=True, slots=True)
class _Texts:
    """A request as the model will see it. `groups` are positions of texts; `requests` what is sent for each of them."""

    groups: list[list[int]]
    requests: list[tuple[bytes, list[bytes]]]
    num_tokens: int


class Embeddings:
    def __init__(
        self,
        inference: Inference,
        access: Access,
        assets: Assets,
        preparing: Threads,
        settings: GatewaySettings,
    ) -> None:
        self._inference = inference
        self._access = access
        self._preparing = preparing
        self._limits = settings.limits
        self._takes_ids = frozenset(name for name, model in settings.models.items() if model.token_ids)
        self._embedders = Embedders(assets, preparing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = perf_counter()
        inference = self._inference
        series = inference.unresolved
        is_counted = False  # every inference is, by itself
        try:
            headers, caller = known(scope, self._access)
            chunks = await read_body(headers, receive, self._limits.max_body_bytes, self._preparing)
            if chunks is None:
                series.outcomes["cancelled"] += 1
                return
            request = await self._request(chunks)
            route = self._route(request, headers, caller)
            series = route.choices[0].series
            if request.ids is not None and route.model not in self._takes_ids:
                raise _no_ids(route)
            embedder = await self._embedders.of(route.choices[0].decision.variant, request.model)
            wait = wait_s(headers.get(b"tandem-deadline-ms"))
            urgency = priority(headers.get(b"tandem-priority"), caller.highest_priority)
            client = HttpClient(receive)
            reading = Tokenizing(request, embedder, self._limits)
            if reading.is_short:
                texts = await self._preparing.run(lambda: _grouped(reading.all(), embedder, route))
            else:
                rows = await reading.in_parts(self._preparing, client, arrived + wait)
                texts = await self._preparing.run(lambda: _grouped(rows, embedder, route))
            asks = [
                inference.asked(route, head, body, len(head), wait_s=wait, priority=urgency, arrived=arrived)
                for head, body in texts.requests
            ]
            prepared = perf_counter()
            is_counted = True
            replies = await infer_all(inference, asks, client)
            body = await self._body(request, embedder, texts, replies)
        except ClientLeft:
            if not is_counted:
                series.outcomes["cancelled"] += 1
            return
        except (errors.RequestError, asyncio.CancelledError) as caught:
            error = inference.refusal(caught)
            if not is_counted:
                series.outcomes[outcome_of(error)] += 1
            receipt = error.receipt
            if receipt:
                receipt = [*receipt, (b"server-timing", b"total;dur=%.3f" % ((perf_counter() - arrived) * 1000))]
            is_strange = isinstance(error, errors.TooLarge | errors.Unauthenticated)
            await error_response(send, error, receipt, path=PATH, close=inference.closing or is_strange)
            return
        await self._respond(send, body, _receipt(replies, arrived, prepared))

    # -- before the model ---------------------------------------------------------------------------------------------

    async def _request(self, chunks: Chunks) -> EmbeddingsRequest:
        body = b"".join(chunks)
        read = partial(read_embeddings, body, self._limits.max_texts, self._limits.max_tokens)
        return read() if len(body) <= SMALL_BODY_BYTES else await self._preparing.run(read)

    def _route(self, request: EmbeddingsRequest, headers: dict[bytes, bytes], caller: Caller) -> Route:
        name, pool, variant = request.model, headers.get(b"tandem-pool"), headers.get(b"tandem-variant")
        try:
            if "/" in name:  # it would be taken for a path
                raise errors.NotFound(name)
            return self._inference.routes.of(name, "", pool, variant, caller=caller)
        except errors.NotFound:
            raise errors.NotFound(
                f"there is no model '{name[:100]}' here; GET /v1/models lists them", param="model"
            ) from None

    # -- after it -----------------------------------------------------------------------------------------------------

    async def _body(self, request: EmbeddingsRequest, embedder: Embedder, texts: _Texts, replies: list[Reply]) -> bytes:
        def work() -> bytes:
            vectors = _vectors(embedder, texts.groups, replies)
            if request.dimensions is not None:
                vectors = _shortened(vectors, request.dimensions)
            return embeddings_body(request.model, vectors, texts.num_tokens, is_base64=request.is_base64)

        numbers = sum(map(len, texts.groups)) * embedder.size
        if numbers <= SMALL_ANSWER_NUMBERS * (10 if request.is_base64 else 1):
            return work()
        return await self._preparing.run(work)

    async def _respond(self, send: Send, body: bytes, receipt: Headers) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *receipt,
        ]
        head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % header for header in headers)
        if respond(send, head, body, close=self._inference.closing):
            return
        if self._inference.closing:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _no_ids(route: Route) -> errors.BadRequest:
    """With the way out for who sent them: in nearly all cases a client whose own tokenizer is OpenAI's."""
    return errors.BadRequest(
        f"'input' holds token ids, and '{route.name}' takes texts: ids of another tokenizer would give wrong vectors in silence. Send "
        "texts (LangChain's OpenAIEmbeddings does with check_embedding_ctx_length=False); whoever runs this gateway may set "
        f"models.{route.model}.token_ids for clients that use the model's own tokenizer",
        param="input",
    )


def _grouped(rows: list[list[int]], embedder: Embedder, route: Route) -> _Texts:
    """What is sent for texts of these tokens. The long ones go first, so that what is left at the end is short."""
    lengths = [embedder.length(len(row)) for row in rows]
    groups = grouped(lengths, route.max_rows, _request_tokens(route, sum(lengths)))[::-1]
    return _Texts(groups, [embedder.request([rows[i] for i in group]) for group in groups], sum(map(len, rows)))


def _request_tokens(route: Route, num_tokens: int) -> float:
    """What a request costs beside its tokens, where this one would be done first."""
    quickest = min(route.candidates, key=lambda candidate: candidate.service.cost_s(num_tokens))
    return tokens_of_a_request(quickest.service.curve, route.max_rows, route.usual_length)


def _vectors(embedder: Embedder, groups: list[list[int]], replies: list[Reply]) -> NDArray[np.float32]:
    """float32 [n, size], in the order of the request. Raises Internal for an answer that is none."""
    vectors = np.empty((sum(map(len, groups)), embedder.size), np.float32)
    for group, reply in zip(groups, replies, strict=True):
        got = float_output(reply.answer.body, reply.answer.header_length, embedder.output)
        if got.shape != (len(group), embedder.size):
            raise errors.Internal(f"the model gave vectors of shape {got.shape} for {len(group)} texts")
        vectors[group] = got
    if not np.isfinite(vectors).all():
        raise errors.Internal("the model gave a vector that holds no numbers (NaN or infinity)")
    return vectors


def _shortened(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """The first so many numbers of each, of length 1 again."""
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.asarray(cut / np.where(lengths == 0, 1, lengths), np.float32)


def _receipt(replies: list[Reply], arrived: float, prepared: float) -> Headers:
    """The response headers that say what really happened; where groups differ, each thing once, in their order."""
    first, last = min(reply.began for reply in replies), max(reply.answered for reply in replies)
    timing = b"prepare;dur=%.3f, queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
        (prepared - arrived) * 1000,
        (first - prepared) * 1000,
        (last - first) * 1000,
        (perf_counter() - arrived) * 1000,
    )
    values: dict[bytes, dict[bytes, None]] = {}
    for reply in replies:
        for name, value in reply.receipt:
            values.setdefault(name, {})[value] = None
    return [*((name, b", ".join(told)) for name, told in values.items()), (b"server-timing", timing)]
