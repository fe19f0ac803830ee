"""Refuses requests by their heads while more comes than can be done, so that a refusal costs a fraction of an answer.

A head names model, version, pins, key, priority and deadline, and of binary tensors the fewest rows. The body can only make things worse:
`timeout` in it shortens the time, more rows take longer. So who would be too late by the head is too late. Rules: nothing is refused here
whose head is wrong in another way (the endpoint says in which), nor where nobody was refused before, nor by a guess at what the body holds.

Clients repeat their heads: one that comes again byte for byte is not read again.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving import errors
from serving.gateway.http.responses import error_head, retry_after
from serving.gateway.request.dispatch import Refusal
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import CLASSIFY, Body, Headers, declared_size, v2_body

IMAGES = "/v1/classify/"
V2 = "/v2/"
HEAD_END = b"\r\n\r\n"
# Heads that were refused, and their lengths: clients have a few each. At most 2 MB of them; guesses, not measured.
MAX_KNOWN, MAX_KNOWN_BYTES = 512, 2048


@dataclass(slots=True)
class _Known:
    """A head that was read and refused. `lines` but for when to come again, and `text`: what is answered to `refusal`, the last one."""

    target: bytes
    headers: dict[bytes, bytes]
    body_bytes: int
    refusal: Refusal | None = None
    lines: bytes = b""
    text: bytes = b""


class Door:
    """Of all endpoints whose path names the model. `congestion`: while that lasts it is to be asked.

    `more`: headers of every answer of this listener.
    """

    def __init__(self, inference: Inference, max_body_bytes: int, more: Headers) -> None:
        self._inference = inference
        self._max_body_bytes = max_body_bytes
        self._more = more
        self._known: dict[tuple[str, bytes], _Known] = {}
        self.congestion = inference.congestion

    @property
    def is_closing(self) -> bool:
        """Whether every answer closes its connection."""
        return self._inference.closing

    def remember(self, host: str, request: bytes, target: bytes, headers: dict[bytes, bytes]) -> None:
        """A whole request that was refused, whose head means this at the address `host`, so that `again` knows it."""
        begins = request.find(HEAD_END) + len(HEAD_END)
        size = declared_size(headers)
        if begins > MAX_KNOWN_BYTES or len(request) - begins != size:
            return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[host, request[:begins]] = _Known(target, headers, size)

    def again(self, host: str, read: bytes) -> tuple[bytes, bytes] | None:
        """`refusal` of a read that is one whole request, with a head that is known."""
        begins = read.find(HEAD_END) + len(HEAD_END)
        known = self._known.get((host, read[:begins]))
        if known is None or len(read) - begins != known.body_bytes:
            return None
        return self.refusal(known.target, known.headers, known)

    def refusal(
        self, target: bytes, headers: dict[bytes, bytes], known: _Known | None = None
    ) -> tuple[bytes, bytes] | None:
        """The answer, head and body, to a POST that is refused whatever its body holds; it is counted. None: it has to be looked at.

        `headers`: by name, none twice.
        """
        inference, path = self._inference, target.decode("latin-1")
        images = path.startswith(IMAGES)
        if images and "/" in path[len(IMAGES) :]:  # of which no route is told
            return None
        route = inference.routes.known(f"/v2/models/{path[len(IMAGES) :]}/infer" if images else path, headers)
        if route is None or inference.closing:
            return None
        exchange = Exchange(inference)
        exchange.route = route
        if exchange.arrived >= route.congestion.until or (images and not route.congestion.classifies):
            return None
        body = Body(CLASSIFY, declared_size(headers)) if images else v2_body(headers)
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
        known = known or _Known(target, headers, body.size)
        if known.refusal is not refusal:
            known.refusal = refusal
            known.lines, known.text = self._answer(refusal.error, path)
        wait_s = refusal.error.retry_after_s
        if wait_s is None:
            return known.lines, known.text
        wait_s = max(0.0, refusal.opens - exchange.arrived)
        return known.lines + b"".join(b"%b: %b\r\n" % line for line in retry_after(wait_s)), known.text

    def _answer(self, error: errors.Overloaded, path: str) -> tuple[bytes, bytes]:
        """But for when to come again."""
        worded = self._inference.worded(error) if path.startswith(V2) else error
        return error_head(type(error)(str(worded)), self._more, path)
