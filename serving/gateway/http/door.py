"""Refuses requests by their heads while more comes than can be done, so that a refusal costs a fraction of an answer.

A head names model, version, pins, key, priority and deadline; the length of the body tells about how many rows it has, by those before it.
The body can only make things worse: `timeout` in it shortens the time, more rows take longer. So who would be too late by the head is too
late. Rules: nothing is refused here that is wrong in another way (the endpoint says in which), nor what nobody was refused before.
"""

from __future__ import annotations

from serving import errors
from serving.gateway.http.responses import error_head
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import declared_size

CLASSIFY = "/v1/classify/"
V2 = "/v2/"


class Door:
    """Of all endpoints whose path names the model. `congestion`: while that lasts it is to be asked."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.congestion = inference.congestion

    def refusal(self, target: bytes, headers: dict[bytes, bytes]) -> tuple[bytes, bytes] | None:
        """The answer, head and body, to a POST that is refused whatever its body holds; it is counted. None: it has to be looked at.

        `headers`: by name, none twice.
        """
        inference, path, size = self._inference, target.decode("latin-1"), declared_size(headers)
        of_route = path
        if path.startswith(CLASSIFY):
            of_route, size = f"/v2/models/{path.removeprefix(CLASSIFY)}/infer", 0
        route = inference.routes.known(of_route, headers)
        if route is None or size > route.max_body_bytes or inference.closing:
            return None
        exchange = Exchange(inference)
        exchange.route = route
        if exchange.arrived >= route.congestion.until:
            return None
        try:
            exchange.authenticate(headers)
            exchange.caller.require_model(route.model, route.name)
            error = exchange.refusal(route, size)
        except errors.RequestError:
            return None
        if error is None:
            return None
        exchange.refused(error)
        return error_head(inference.worded(error) if path.startswith(V2) else error, [], path)
