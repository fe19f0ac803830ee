"""Refuses requests by their heads while more comes than can be done, so that a refusal costs a fraction of an answer.

A head names model, version, pins, key, priority and deadline, and of binary tensors the fewest rows. The body can only make things worse:
`timeout` in it shortens the time, more rows take longer. So who would be too late by the head is too late. Rules: nothing is refused here
whose head is wrong in another way (the endpoint says in which), nor where nobody was refused before, nor by a guess at what the body holds.
"""

from __future__ import annotations

from serving import errors
from serving.gateway.http.framing import Head
from serving.gateway.http.responses import error_head, retry_after
from serving.gateway.request.dispatch import Refusal
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import CLASSIFY, Body, Headers, declared_size, v2_body

IMAGES = "/v1/classify/"
V2 = "/v2/"


class _Memo:
    """What was found out about a head. `lines` but for when to come again, and `text`: what is answered to `refusal`, the last one."""

    __slots__ = ("body", "images", "lines", "path", "refusal", "text")

    def __init__(self, head: Head) -> None:
        path = head.target.decode("latin-1")
        self.images = path.startswith(IMAGES)
        self.path = f"/v2/models/{path[len(IMAGES) :]}/infer" if self.images else path
        self.body = Body(CLASSIFY, declared_size(head.by_name)) if self.images else v2_body(head.by_name)
        self.refusal: Refusal | None = None
        self.lines = self.text = b""


class Door:
    """Of all endpoints whose path names the model. `congestion`: while that lasts it is to be asked.

    `more`: headers of every answer of this listener.
    """

    def __init__(self, inference: Inference, max_body_bytes: int, more: Headers) -> None:
        self._inference = inference
        self._max_body_bytes = max_body_bytes
        self._more = more
        self.congestion = inference.congestion

    @property
    def is_closing(self) -> bool:
        """Whether every answer closes its connection."""
        return self._inference.closing

    def refusal(self, head: Head) -> tuple[bytes, bytes] | None:
        """The answer, head and body, to a POST that is refused whatever its body holds; it is counted. None: it has to be looked at.

        The head has no header twice.
        """
        inference = self._inference
        memo = head.memo
        if not isinstance(memo, _Memo):
            if (
                head.target.startswith(IMAGES.encode()) and b"/" in head.target[len(IMAGES) :]
            ):  # of which no route is told
                return None
            memo = head.memo = _Memo(head)
        headers, images, body = head.by_name, memo.images, memo.body
        route = inference.routes.known(memo.path, headers)
        if route is None or inference.closing:
            return None
        exchange = Exchange(inference)
        exchange.route = route
        if exchange.arrived >= route.congestion.until or (images and not route.congestion.classifies):
            return None
        if body.size > (self._max_body_bytes if images else min(self._max_body_bytes, route.max_body_bytes)):
            return None
        try:
            exchange.authenticate(headers)
            exchange.caller.require_model(route.model, route.name)
            refusal = exchange.refusal(route, body)
        except errors.RequestError:
            return None
        if refusal is None:
            return None
        exchange.refused(refusal.error)
        if memo.refusal is not refusal:
            memo.refusal = refusal
            memo.lines, memo.text = self._answer(refusal.error, IMAGES if images else memo.path)
        lines = b"%btandem-request-id: %b\r\n" % (memo.lines, exchange.request_id)
        wait_s = refusal.error.retry_after_s
        if wait_s is None:
            return lines, memo.text
        wait_s = max(0.0, refusal.opens - exchange.arrived)
        return lines + b"".join(b"%b: %b\r\n" % line for line in retry_after(wait_s)), memo.text

    def _answer(self, error: errors.Overloaded, path: str) -> tuple[bytes, bytes]:
        """But for when to come again."""
        worded = self._inference.worded(error) if path.startswith(V2) else error
        return error_head(type(error)(str(worded)), self._more, path)
