"""Why did a request go where it went? The last decisions of this gateway, found by the id of their request.

On the inference path a decision is a few references and numbers in a ring; what is said of them is worked out when somebody asks. What
every candidate would have taken is forecast for the requests whose `traceparent` has the sampled flag, and of all others for
`1 / FORECAST_EVERY_S` a second at most, so that its cost is bounded. Rule: nothing in the ring holds a body or a client's name.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from time import perf_counter, time
from typing import Any, NamedTuple

from serving.gateway.request.access_log import AccessLog
from serving.gateway.request.dispatch import InferRequest
from serving.gateway.request.route import Destination, Route
from serving.scheduling.choice import Candidate, Forecast, verdicts

MAX_DECISIONS = 8192  # that are kept: 4.4 MB, as tracemalloc counts with two pools
OUTCOME_OK = "ok"


class Decision(NamedTuple):
    """One inference: what was decided of it, and what came of that. Times: perf_counter.

    `forecasts` are of all candidates, or empty. `destination` None: nothing answered, and `text` says why.
    """

    request_id: bytes
    route: Route
    rows: float  # of the usual length
    priority: int
    arrived: float
    deadline: float
    decided: float  # the last time; 0 where it was refused before
    turn: float
    candidate: Candidate | None  # that was chosen; None: none would be in time
    reason: str
    finish: float  # as predicted of the chosen one
    forecasts: Sequence[Forecast]
    num_lost: int  # servers that lost it before
    destination: Destination | None
    began: float
    answered: float
    outcome: str
    text: str


class Decisions:
    """The ring, the newest last."""

    def __init__(self, size: int = MAX_DECISIONS, log: AccessLog | None = None) -> None:
        self._ring: deque[Decision] = deque(maxlen=size)
        self.log = log

    def note(
        self,
        request_id: bytes,
        request: InferRequest,
        destination: Destination | None,
        began: float,
        answered: float,
        outcome: str = OUTCOME_OK,
        text: str = "",
        *,
        is_kept: bool = True,
    ) -> Decision:
        chosen, rows = request.chosen, request.rows
        candidate, reason, finish = (None, "", 0.0) if chosen is None else chosen
        decision = Decision(
            request_id,
            request.route,
            rows,
            request.priority,
            request.arrived,
            request.deadline,
            request.decided,
            request.turn,
            candidate,
            reason,
            finish,
            request.forecasts,
            len(request.tried),
            destination,
            began,
            answered,
            outcome,
            text,
        )
        if is_kept:
            self._ring.append(decision)
        return decision

    def of(self, request_id: str) -> list[Decision]:
        """All inferences of a request, or of a trace, in their order; by the beginning of an id, too."""
        begin = request_id.encode()
        return [decision for decision in self._ring if decision.request_id.startswith(begin)]

    def last(self, number: int) -> list[Decision]:
        """The newest first."""
        return list(itertools.islice(reversed(self._ring), number))


def told(decision: Decision, *, has_prices: bool) -> dict[str, Any]:
    """As JSON says it: seconds, and prices per million such requests, null without `has_prices`: then all servers cost the same."""
    d, destination = decision, decision.destination
    is_answered = destination is not None
    return {
        "id": d.request_id.decode(),
        "at": round(time() - perf_counter() + d.arrived, 6),
        "model": d.route.name,
        "rows": d.rows,
        "priority": d.priority,
        "deadline_s": _seconds(d.deadline - d.arrived),
        "pool": None if d.candidate is None else d.candidate.name,
        "variant": _variant(d.route, d.candidate),
        "reason": d.reason or None,
        "predicted_s": None if d.candidate is None else _seconds(d.finish - d.decided),
        "actual_s": _seconds(d.answered - d.decided) if is_answered else None,
        "queue_s": _seconds(d.began - d.arrived) if is_answered else None,
        "backend_s": _seconds(d.answered - d.began) if is_answered else None,
        "price_per_million": d.candidate.price(d.rows) * 1e6 if has_prices and d.candidate is not None else None,
        "servers_lost": d.num_lost,
        "outcome": d.outcome,
        "error": d.text or None,
        "candidates": [
            {
                "pool": forecast.candidate.name,
                "variant": _variant(d.route, forecast.candidate),
                "predicted_s": None if forecast.finish is None else _seconds(forecast.finish - d.decided),
                "price_per_million": forecast.price * 1e6 if has_prices else None,
                "share": round(forecast.share, 3),
                "verdict": verdict,
            }
            for forecast, verdict in verdicts(d.forecasts, d.candidate, d.deadline, d.turn)
        ],
    }


def _seconds(value: float) -> float:
    return round(value, 6)


def _variant(route: Route, candidate: Candidate | None) -> str | None:
    return None if candidate is None else route.by_candidate[candidate].decision.variant.variant
