"""What the model is sent and what it answered, between arrays and the v2 protocol's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving import errors
from serving.gateway.asking.inference import Reply
from serving.gateway.classify.models import Classifier
from serving.gateway.responses import Headers
from serving.protocol.classify import best, softmax
from serving.repository.preprocessing import LOGITS


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
