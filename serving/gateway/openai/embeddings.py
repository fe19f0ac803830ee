"""`POST /v1/embeddings`: texts in, vectors out, by whatever pool answers best.

Texts become tokens on a thread, go to the model in groups of like length, and their vectors come back in the client's order.
`protocol/openai.py` reads the body, `scheduling/grouping.py` groups. All vectors of a public name are of one space, because routing leaves
variants of other spaces out (DESIGN §5.7); pins are the way round it. Rule: what grows with the number of texts happens on a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving import errors
from serving.gateway.http.body import Chunks, read_body
from serving.gateway.http.exchange import HttpExchange, Response, Surface
from serving.gateway.model_files import Assets
from serving.gateway.openai.embedders import Embedder, Embedders
from serving.gateway.openai.tokenizing import Tokenizing
from serving.gateway.request.exchange import Part
from serving.gateway.request.inference import Inference, Reply
from serving.gateway.request.request_headers import Body, declared_size
from serving.gateway.request.route import Route
from serving.gateway.threads import Threads
from serving.protocol.memory import joined
from serving.protocol.openai import EmbeddingsRequest, embeddings_body, read_embeddings
from serving.protocol.tensors import float_output
from serving.scheduling.grouping import grouped, tokens_of_a_request
from serving.settings import GatewaySettings

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


class Embeddings(Surface):
    def __init__(self, inference: Inference, assets: Assets, threads: Threads, settings: GatewaySettings) -> None:
        super().__init__(inference)
        self._threads = threads
        self._limits = settings.limits
        self._takes_ids = frozenset(name for name, model in settings.models.items() if model.token_ids)
        self._embedders = Embedders(assets, threads)

    async def handle(self, exchange: HttpExchange) -> Response:
        limits = self._limits
        exchange.require_quota(declared_size(exchange.headers))
        chunks = await read_body(exchange.request, limits.max_body_bytes, self._threads, exchange.claim)
        size = sum(map(len, chunks))
        request = await self._request(chunks)
        route = exchange.route = self._route(request, exchange)
        exchange.check_headers()
        if request.ids is not None and route.model not in self._takes_ids:
            raise _no_ids(route)
        embedder = await self._embedders.of(route.destinations[0].decision.variant, request.model)
        # Tokens cost more than all the rest of a request.
        exchange.require_room(route, Body("embeddings", size))
        tokenizing = Tokenizing(request, embedder, limits)
        if tokenizing.is_short:
            texts = await self._threads.run(lambda: _grouped(tokenizing.all(), embedder, route))
        else:
            rows = await tokenizing.in_parts(self._threads, exchange)
            texts = await self._threads.run(lambda: _grouped(rows, embedder, route))
        exchange.prepared()
        replies = await exchange.infer_all(route, _each(texts.requests), is_one=len(texts.requests) == 1)
        if exchange.trace is not None:
            exchange.trace.about = {
                "gen_ai.response.model": route.model,
                "gen_ai.usage.input_tokens": texts.num_tokens,
                "gen_ai.request.encoding_formats": ["base64" if request.is_base64 else "float"],
                "gen_ai.embeddings.dimension.count": request.dimensions or embedder.size,
            }
        return Response(await self._body(request, embedder, texts, replies))

    # -- before the model ---------------------------------------------------------------------------------------------

    async def _request(self, chunks: Chunks) -> EmbeddingsRequest:
        def read() -> EmbeddingsRequest:
            return read_embeddings(joined(chunks), self._limits.max_texts, self._limits.max_tokens)

        return read() if sum(map(len, chunks)) <= SMALL_BODY_BYTES else await self._threads.run(read)

    def _route(self, request: EmbeddingsRequest, exchange: HttpExchange) -> Route:
        name = request.model
        try:
            if "/" in name:  # it would be taken for a path
                raise errors.NotFound(name)
            return self.inference.routes.of(name, "", exchange.headers, exchange.caller)
        except errors.NotFound:
            raise errors.NotFound(
                f"there is no model '{name[:100]}' here; GET /v1/models lists them"
                + self.inference.routes.meant(name, exchange.caller),
                param="model",
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
        return await self._threads.run(work)


async def _each(requests: Sequence[Part]) -> AsyncIterator[Part]:
    for request in requests:
        yield request


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
