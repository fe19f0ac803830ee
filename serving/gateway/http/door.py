"""Refuses requests by their heads while more comes than can be done, so that a refusal costs a fraction of an answer.

A head names model, version, pins, key, priority and deadline, and of binary tensors the fewest rows. The body can only make things worse:
`timeout` in it shortens the time, more rows take longer. So who would be too late by the head is too late. Rules: nothing is refused here
whose head is wrong in another way (the endpoint says in which), nor where nobody was refused before, nor by a guess at what the body holds.
"""

from __future__ import annotations

from serving import errors
from serving.gateway.http.responses import error_head
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import CLASSIFY, Body, Headers, declared_size, v2_body

IMAGES = "/v1/classify/"
V2 = "/v2/"


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

    def refusal(self, target: bytes, headers: dict[bytes, bytes]) -> tuple[bytes, bytes] | None:
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
            error = exchange.refusal(route, body)
        except errors.RequestError:
            return None
        if error is None:
            return None
        exchange.refused(error)
        return error_head(inference.worded(error) if path.startswith(V2) else error, self._more, path)
