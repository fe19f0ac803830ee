"""`POST /v1/classify/{model}`: images in, labels out.

`serving/protocol/classify.py` reads the bodies, `serving/preprocessing/images.py` makes an image a model's input. Rule: nothing that takes
longer than a small body's parsing is done on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving import errors
from serving.gateway.classify.classifiers import Classifier, Classifiers
from serving.gateway.classify.images import Batch, prepare
from serving.gateway.http.body import read_body
from serving.gateway.http.exchange import HttpExchange, Response, Surface
from serving.gateway.request.exchange import Part
from serving.gateway.request.inference import Inference, Reply
from serving.gateway.request.request_headers import CLASSIFY, Body, declared_size
from serving.gateway.request.route import Route
from serving.gateway.threads import Threads
from serving.protocol import classify
from serving.protocol.classify import best, softmax
from serving.protocol.memory import joined
from serving.repository.preprocessing import LOGITS
from serving.settings import LimitSettings

PREFIX = "/v1/classify/"
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\n"
NO_IMAGE = b"tandem-error: %b\r\n" % errors.HTTP[errors.BadRequest][1].encode()
READ_HERE_BYTES = 64 * 1024  # a body of that much is taken apart in 0.1 ms; larger ones on a thread


class Classify(Surface):
    def __init__(self, inference: Inference, classifiers: Classifiers, threads: Threads, limits: LimitSettings) -> None:
        super().__init__(inference)
        self._classifiers = classifiers
        self._threads = threads
        self._limits = limits

    async def handle(self, exchange: HttpExchange) -> Response:
        name = exchange.request.head.path.removeprefix(PREFIX)
        route = exchange.route = self.inference.routes.of(name, "", exchange.headers, exchange.caller)
        exchange.check_headers()
        classifier = await self._classifiers.of(route.destinations[0].decision.variant, route.name)
        route.congestion.classifies = True
        size = declared_size(exchange.headers)
        exchange.require_quota(size)
        if size <= self._limits.max_body_bytes:
            exchange.require_room(route, Body(CLASSIFY, size))
        request = await self._read(exchange, classifier, route.name)
        batches: list[Batch] = []
        size = route.max_rows if classifier.has_batch else 1
        parts = self._parts(exchange, route, classifier, request.images, size, batches)
        replies = await exchange.infer_all(route, parts, is_one=len(request.images) <= size)
        results: list[dict[str, Any]] = [{}] * len(request.images)
        for batch in batches:
            for place, problem in batch.problems.items():
                results[place] = {"error": problem}
        sent = [batch for batch in batches if batch.places]
        top_k = request.top_k or min(classify.DEFAULT_TOP_K, classifier.num_classes)
        for batch, reply in zip(sent, replies, strict=True):
            found = labels_of(reply, classifier, len(batch.places), top_k)
            for place, result in zip(batch.places, found, strict=True):
                results[place] = result
        body = classify.body(route.name, results)
        return Response(body) if replies else Response(body, more=NO_IMAGE, status_line=BAD_REQUEST)

    async def _read(self, exchange: HttpExchange, classifier: Classifier, name: str) -> classify.Request:
        limits, headers = self._limits, exchange.headers
        chunks = await read_body(exchange.request, limits.max_body_bytes, self._threads, exchange.claim)
        query = exchange.request.head.query

        def read() -> classify.Request:
            return classify.read(joined(chunks), headers.get(b"content-type"), query, limits.max_images)

        size = sum(map(len, chunks))
        if size <= READ_HERE_BYTES:
            request = read()
        else:
            if headers.get(b"content-type", b"").startswith(b"multipart/"):
                exchange.claim().take(size)  # once more: files are taken out of the form
            request = await self._threads.run(read)
        if long := sum(len(image) for image in request.images if isinstance(image, memoryview)):
            exchange.claim().take(long * 3 // 4)  # once more, out of base64
        if request.top_k is not None and request.top_k > classifier.num_classes:
            raise errors.BadRequest(f"top_k is {request.top_k}, and '{name}' has {classifier.num_classes} classes")
        return request

    async def _parts(
        self,
        exchange: HttpExchange,
        route: Route,
        classifier: Classifier,
        images: Sequence[classify.Image],
        size: int,
        batches: list[Batch],
    ) -> AsyncIterator[Part]:
        """Batch after batch is made ready, and each is sent on while the next is made. All of them are added to `batches`."""
        wait_s = min(exchange.wait_s, route.objective_s, self._limits.upstream_timeout_s)
        for first in range(0, len(images), size):
            batch = await prepare(
                images[first : first + size],
                first,
                classifier.preprocessing,
                max_pixels=self._limits.max_image_pixels,
                deadline=exchange.arrived + wait_s,
                threads=self._threads,
            )
            exchange.prepared()
            batches.append(batch)
            if batch.places:
                head = request_head(classifier, len(batch.places))
                yield head, [head, batch.pixels.data.cast("B")]


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
