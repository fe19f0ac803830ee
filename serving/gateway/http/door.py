"""Refuses requests by their heads while more comes than can be done or may be asked, so that a refusal costs a fraction of an answer.

A head names model, version, pins, key, priority and deadline, and of binary tensors the fewest rows. The body can only make things worse:
`timeout` in it shortens the time, more rows take longer. So who would be too late by the head is too late; and who is over a quota is,
whatever follows. Rules: nothing is refused here
whose head is wrong in another way (the endpoint says in which), nor where nobody was refused before, nor by a guess at what the body holds.
"""

from __future__ import annotations

from serving import errors
from serving.gateway.access import Caller
from serving.gateway.http.framing import Head
from serving.gateway.http.responses import error_head
from serving.gateway.request.dispatch import Refusal
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import CLASSIFY, Body, Headers, declared_size, v2_body
from serving.gateway.request.route import Route
from serving.gateway.request.usage import again_s, error_of
from serving.usage.ledger import Excess

IMAGES = "/v1/classify/"
V2 = "/v2/"


class _Memo:
    """What was found out about a head. `lines` but for when to come again, and `text`: what is answered to `refusal`, the last one, that
    was of this `caller` and on this `route`; where there is none, with `error` to who is over the quota that `excess` tells.
    """

    __slots__ = ("body", "caller", "error", "excess", "images", "lines", "path", "refusal", "route", "target", "text")

    def __init__(self, head: Head) -> None:
        path = self.target = head.target.decode("latin-1")
        self.images = path.startswith(IMAGES)
        self.path = f"/v2/models/{path[len(IMAGES) :]}/infer" if self.images else path
        self.body = Body(CLASSIFY, declared_size(head.by_name)) if self.images else v2_body(head.by_name)
        self.refusal: Refusal | None = None
        self.route: Route | None = None
        self.caller: Caller | None = None
        self.error: errors.RequestError | None = None
        self.excess: Excess | None = None
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

    def tenant_of(self, head: Head) -> str:
        """Whose request begins so; empty where no good key says that."""
        access = self._inference.access
        if access.table is None:
            return ""
        try:
            return access.caller_of(head.by_name).tenant
        except errors.RequestError:
            return ""

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
        if route is None or inference.closing or route.split is not None:
            return None
        exchange = Exchange(inference)
        exchange.route = route
        is_congested, usage = exchange.arrived < route.congestion.until, inference.usage
        if not is_congested and (usage is None or not usage.ledger.quotas):
            return None
        if images and not route.congestion.classifies:
            return None
        if body.size > (self._max_body_bytes if images else min(self._max_body_bytes, route.max_body_bytes)):
            return None
        try:
            exchange.authenticate(headers)
            exchange.caller.require_model(route.model, route.name)
            if usage is not None and (excess := usage.excess(exchange.caller.tenant, body.size)) is not None:
                return self._over_quota(exchange, memo, excess)
            if not is_congested:
                return None
            refusal = memo.refusal
            is_same = memo.route is route and memo.caller is exchange.caller
            if refusal is None or not is_same or not exchange.is_refused_again(route, refusal):
                refusal = exchange.refusal(route, body)
        except errors.RequestError:
            return None
        if refusal is None:
            return None
        if memo.refusal is not refusal:
            memo.refusal, memo.route, memo.caller, memo.excess = refusal, route, exchange.caller, None
            memo.lines, memo.text = self._answer(refusal.error, IMAGES if images else memo.path)
        wait_s = None if refusal.error.retry_after_s is None else max(0.0, refusal.opens - exchange.arrived)
        return _refused(exchange, memo, refusal.error, wait_s)

    def _over_quota(self, exchange: Exchange, memo: _Memo, excess: Excess) -> tuple[bytes, bytes] | None:
        if excess.is_too_large:
            return None
        error = memo.error
        if error is None or not excess.is_like(memo.excess):
            error = memo.error = error_of(excess)
            memo.refusal, memo.excess = None, excess
            memo.lines, memo.text = self._answer(error, IMAGES if memo.images else memo.path)
        self._inference.congestion.refused(exchange.arrived)
        return _refused(exchange, memo, error, again_s(excess))

    def _answer(self, error: errors.RequestError, path: str) -> tuple[bytes, bytes]:
        """But for when to come again."""
        worded = self._inference.worded(error) if path.startswith(V2) else error
        return error_head(type(error)(str(worded)), self._more, path)


def _refused(exchange: Exchange, memo: _Memo, error: errors.RequestError, wait_s: float | None) -> tuple[bytes, bytes]:
    """It is counted."""
    exchange.refused(error, memo.target)
    if wait_s is None:
        return b"%btandem-request-id: %b\r\n" % (memo.lines, exchange.request_id), memo.text
    again = errors.retry_after(wait_s)
    lines = b"%btandem-request-id: %b\r\nretry-after: %d\r\nretry-after-ms: %d\r\n"
    return lines % (memo.lines, exchange.request_id, *again), memo.text
