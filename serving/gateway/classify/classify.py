"""`POST /v1/classify/{model}`, as raw ASGI: from a request's bytes to labels.

What a body may look like is in `serving/protocol/classify.py`, how an image becomes a model's input in `serving/preprocessing/images.py`;
admission, sending and second tries are those of every inference. Rule: nothing that takes longer than a small body's parsing is done on the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving import errors
from serving.gateway.access import Access
from serving.gateway.classify.classifiers import Classifier, Classifiers
from serving.gateway.classify.images import Batch, prepare
from serving.gateway.http.body import read_body
from serving.gateway.http.client import HttpClient, Receive, Scope, Send
from serving.gateway.http.guard import known
from serving.gateway.http.infer import CLOSING
from serving.gateway.metrics import Series
from serving.gateway.request.client import Client, Crowd
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.headers import priority, wait_s
from serving.gateway.request.inference import Inference, Reply
from serving.gateway.request.route import Route
from serving.gateway.responses import Headers, error_response, outcome_of
from serving.gateway.threads import Threads
from serving.protocol import classify
from serving.protocol.classify import best, softmax
from serving.repository.preprocessing import LOGITS
from serving.settings import LimitSettings

PREFIX = "/v1/classify/"
READ_HERE_BYTES = 64 * 1024  # a body of that much is taken apart in 0.1 ms; larger ones on a thread


@dataclass(frozen=True, slots=True)
class Classification:
    """A request that is in order. `wait_s`, `priority`, `arrived`: as `Inference.asked` takes them."""

    route: Route
    classifier: Classifier
    images: Sequence[classify.Image]
    top_k: int
    wait_s: float
    priority: int
    arrived: float


@dataclass(frozen=True, slots=True)
class BatchReply:
    """A batch that is with the model, or has been. `prepared`: when it was ready (perf_counter)."""

    batch: Batch
    prepared: float
    reply: Reply


class Classify:
    def __init__(
        self,
        inference: Inference,
        access: Access,
        classifiers: Classifiers,
        preparing: Threads,
        limits: LimitSettings,
    ) -> None:
        self._inference = inference
        self._access = access
        self._classifiers = classifiers
        self._preparing = preparing
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = perf_counter()
        series: Series | None = self._inference.unresolved  # where it is counted; None once inference counts
        try:
            headers, route, highest = self._route(scope)
            series = route.choices[0].series
            asking = await self._read(scope, headers, route, highest, receive, arrived)
            if asking is None:
                series.outcomes["cancelled"] += 1
                return
            counted, series = series, None
            status, extra, body = await self._classified(asking, HttpClient(receive), counted)
        except ClientLeft:
            return
        except (errors.RequestError, asyncio.CancelledError) as caught:
            await self._refuse(scope, send, self._inference.refusal(caught), series, arrived)
            return
        out = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *extra]
        if self._inference.closing:
            out.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": out})
        await send({"type": "http.response.body", "body": body})

    async def _refuse(
        self, scope: Scope, send: Send, error: errors.RequestError, series: Series | None, arrived: float
    ) -> None:
        if series is not None:
            series.outcomes[outcome_of(error)] += 1
        extra: Headers = list(error.receipt)
        if extra:
            extra.append((b"server-timing", b"total;dur=%.3f" % ((perf_counter() - arrived) * 1000)))
        close = self._inference.closing or isinstance(error, CLOSING)
        await error_response(send, error, extra, path=scope["path"], close=close)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def _route(self, scope: Scope) -> tuple[dict[bytes, bytes], Route, int]:
        """Headers, where it may go, and the highest priority that counts. Raises RequestError."""
        headers, caller = known(scope, self._access)
        name = scope["path"].removeprefix(PREFIX)
        pool, variant = headers.get(b"tandem-pool"), headers.get(b"tandem-variant")
        route = self._inference.routes.of(name, pool=pool, variant=variant, caller=caller)
        return headers, route, caller.highest_priority

    async def _read(
        self, scope: Scope, headers: dict[bytes, bytes], route: Route, highest: int, receive: Receive, arrived: float
    ) -> Classification | None:
        """The whole request, checked; None if the client left."""
        limits = self._limits
        wait, urgency = wait_s(headers.get(b"tandem-deadline-ms")), priority(headers.get(b"tandem-priority"), highest)
        classifier = await self._classifiers.of(route.choices[0].decision.variant, route.name)
        chunks = await read_body(headers, receive, limits.max_body_bytes, self._preparing)
        if chunks is None:
            return None
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        read = partial(
            classify.read, body, headers.get(b"content-type"), scope.get("query_string", b""), limits.max_images
        )
        request = read() if len(body) <= READ_HERE_BYTES else await self._preparing.run(read)
        top_k = request.top_k or min(classify.DEFAULT_TOP_K, classifier.num_classes)
        if top_k > classifier.num_classes:
            raise errors.BadRequest(f"top_k is {top_k}, and '{route.name}' has {classifier.num_classes} classes")
        return Classification(route, classifier, request.images, top_k, wait, urgency, arrived)

    # -- and the answer -----------------------------------------------------------------------------------------------

    async def _classified(self, asking: Classification, client: Client, series: Series) -> tuple[int, Headers, bytes]:
        """Status, headers and body. Raises RequestError, ClientLeft or CancelledError, counted."""
        batches, asked = await self._asked(asking, client, series)
        results: list[dict[str, Any]] = [{}] * len(asking.images)
        for batch in batches:
            for place, problem in batch.problems.items():
                results[place] = {"error": problem}
        for one in asked:
            found = labels_of(one.reply, asking.classifier, len(one.batch.places), asking.top_k)
            for place, result in zip(one.batch.places, found, strict=True):
                results[place] = result
        body = classify.body(asking.route.name, results)
        if not asked:
            series.outcomes[outcome_of(errors.BadRequest(""))] += 1
            status, kind = errors.HTTP[errors.BadRequest]
            return status, [(b"tandem-error", kind.encode())], body
        receipt = receipt_of([one.reply for one in asked])
        return 200, [*receipt, (b"server-timing", _timing(asking, asked))], body

    async def _asked(
        self, asking: Classification, client: Client, series: Series
    ) -> tuple[list[Batch], list[BatchReply]]:
        """Batch after batch is made ready, and each is sent on while the next is made."""
        size = asking.route.max_rows if asking.classifier.has_batch else 1
        if len(asking.images) <= size:
            batch = await self._prepared(asking, 0, size, series)
            return [batch], [await self._infer(asking, batch, client)] if batch.places else []
        crowd, batches, tasks = Crowd(), [], []
        client.listen(crowd.leave)
        try:
            for first in range(0, len(asking.images), size):
                batches.append(batch := await self._prepared(asking, first, size, series))
                if batch.places:
                    tasks.append(asyncio.create_task(self._infer(asking, batch, crowd.member())))
        finally:
            ended = await asyncio.gather(*tasks, return_exceptions=True)  # what began is not cancelled
            client.ignore()
        for end in ended:
            if isinstance(end, BaseException):
                raise end
        return batches, [end for end in ended if isinstance(end, BatchReply)]

    async def _prepared(self, asking: Classification, first: int, size: int, series: Series) -> Batch:
        images, how = asking.images[first : first + size], asking.classifier.preprocessing
        try:
            return await prepare(
                images,
                first,
                how,
                max_pixels=self._limits.max_image_pixels,
                deadline=asking.arrived + min(asking.wait_s, asking.route.objective_s, self._limits.upstream_timeout_s),
                preparing=self._preparing,
            )
        except errors.RequestError as error:
            series.outcomes[outcome_of(error)] += 1
            raise
        except asyncio.CancelledError:
            series.outcomes["cancelled"] += 1
            raise

    async def _infer(self, asking: Classification, batch: Batch, client: Client) -> BatchReply:
        prepared = perf_counter()
        head = request_head(asking.classifier, len(batch.places))
        asked = self._inference.asked(
            asking.route,
            head,
            [head, batch.pixels.data.cast("B")],
            len(head),
            wait_s=asking.wait_s,
            priority=asking.priority,
            arrived=asking.arrived,
        )
        return BatchReply(batch, prepared, await self._inference.infer(asked, client))


def _timing(asking: Classification, asked: Sequence[BatchReply]) -> bytes:
    """Of several batches, each time of the one that took longest."""
    return b"prepare;dur=%.3f, queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
        (max(one.prepared for one in asked) - asking.arrived) * 1000,
        max(one.reply.began - one.prepared for one in asked) * 1000,
        max(one.reply.answered - one.reply.began for one in asked) * 1000,
        (perf_counter() - asking.arrived) * 1000,
    )


def request_head(classifier: Classifier, rows: int) -> bytes:
    """The JSON part of a request whose only binary tensor follows it: float32 [rows, …], or one image as it is taken."""
    how = classifier.preprocessing
    shape = [rows, *how.shape] if classifier.has_batch else list(classifier.input_shape)
    size = 4 * int(np.prod(shape))
    tensor = {"name": how.input, "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": size}}
    wanted = {"name": classifier.output, "parameters": {"binary_data": True}}
    return orjson.dumps({"inputs": [tensor], "outputs": [wanted]})


def labels_of(reply: Reply, classifier: Classifier, rows: int, top_k: int) -> Iterator[dict[str, Any]]:
    """Each image's entry in the answer. Raises Internal for what is not the scores that the record promises."""
    body, begins = reply.answer.body, reply.answer.header_length
    if begins is None or len(body) - begins != 4 * rows * classifier.num_classes:
        raise errors.Internal("the model answered something else than a score for each class")
    scores = np.frombuffer(body, np.float32, offset=begins).reshape(rows, classifier.num_classes)
    is_good: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(scores), axis=1)
    if classifier.preprocessing.scores == LOGITS:
        scores = softmax(np.where(is_good[:, None], scores, 0))
    for row, good in zip(scores, is_good, strict=True):
        if good:
            yield best(row, top_k, classifier.labels)
        else:
            yield {"error": "the model answered no numbers to this image"}


def receipt_of(replies: Sequence[Reply]) -> Headers:
    """Of several batches, what is different stands side by side."""
    values: dict[bytes, dict[bytes, None]] = {}
    for reply in replies:
        for name, value in reply.receipt:
            values.setdefault(name, {})[value] = None
    return [(name, b", ".join(different)) for name, different in values.items()]
