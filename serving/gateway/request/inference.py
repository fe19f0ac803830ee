"""One inference: sent to the server that was leased for it, and once more, elsewhere, where that server was lost.

Where it goes is decided in `dispatch.py` and below; it is counted in `exchange.py`. Each await and each object here is paid for by every
request: measure with `make bench` before adding one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from serving import errors
from serving.gateway.access import Access
from serving.gateway.eager import in_time, own_task
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import HANG_UP_S
from serving.gateway.fleet.shared_memory import FROM_BYTES, Placed
from serving.gateway.fleet.upstream import Answer, Lost
from serving.gateway.metrics import Metrics
from serving.gateway.request.access_log import AccessLog
from serving.gateway.request.decisions import Decisions
from serving.gateway.request.dispatch import RETRY_AFTER_S, Client, Dispatcher, InferRequest, Lease, Refusal
from serving.gateway.request.parity import Parity
from serving.gateway.request.query_of_death import QueriesOfDeath
from serving.gateway.request.request_headers import Headers
from serving.gateway.request.route import Congestion, Destination, Routes, as_on
from serving.gateway.request.traces import Traces
from serving.gateway.request.triton_response import error_of, has_died
from serving.gateway.request.usage import Usage
from serving.gateway.triton_words import worded
from serving.protocol.memory import Memory
from serving.settings import LimitSettings

MAX_PLACES = 4  # that are looked at for one request: two may lose it, the others may have gone without having seen it


class Reply(NamedTuple):
    """What Triton answered with 200, who did (`destination` has the receipt of the very server), and when (perf_counter)."""

    destination: Destination
    reason: bytes
    answer: Answer
    began: float  # sent to Triton
    answered: float
    server: str  # its url

    @property
    def receipt(self) -> Headers:
        """Response headers, but for the times."""
        return [*self.destination.receipt, (b"tandem-reason", self.reason)]


class Inference:
    """What all exchanges share: who may ask, how much they may hold, where requests may go, how they are sent."""

    def __init__(
        self,
        catalogue: Catalogue,
        candidates: Candidates,
        dispatcher: Dispatcher,
        metrics: Metrics,
        access: Access,
        limits: LimitSettings,
        memory: Memory,
        parity: Parity | None = None,
        usage: Usage | None = None,
        access_log: AccessLog | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._dispatcher = dispatcher
        self._queries_of_death = QueriesOfDeath()
        self.decisions = Decisions(log=access_log)
        self.parity = parity
        self.traces = traces
        # Ids of requests that are less are some of the sampled ones: one comparison for the others.
        self.sampled_below = max((it.below for it in (access_log, traces) if it is not None), default=b"")
        self.access = access
        self.usage = usage
        self.memory = memory  # for what all requests hold
        self.longest_s = limits.upstream_timeout_s  # that any inference may take
        self.routes = Routes(catalogue, candidates, metrics)
        self.unresolved = metrics.unresolved  # counts requests that never got so far as to have a model
        self.congestion = Congestion()  # of any route
        self.closing = False  # told to stop: every answer closes its connection

    def worded(self, error: errors.RequestError) -> errors.RequestError:
        """As clients of v2 are told it."""
        return worded(error) if self._catalogue.has_triton_words else error

    def refusal(self, request: InferRequest, usual_rows: float, *, keep: bool) -> Refusal | None:
        """`Dispatcher.refusal`."""
        return self._dispatcher.refusal(request, usual_rows, keep=keep)

    def is_refused_again(self, refusal: Refusal, arrived: float) -> bool:
        """`Dispatcher.is_refused_again`."""
        return self._dispatcher.is_refused_again(refusal, arrived)

    async def infer(self, request: InferRequest, client: Client) -> Reply:
        """The first answer that a living process gave.

        Inference has no side effect here (sequences are refused), so a second try is safe. A third is not made: what kills
        two servers is likely the request. One that found nobody, or a server that has unloaded the model, was no try.
        Raises ClientLeft, or a RequestError, whose `receipt` says what worked on it where something did.
        """
        if self._queries_of_death.are_known:
            await self._queries_of_death.require_innocent(request)
        died = ""
        num_tries = num_places = 0
        while num_tries < 2 and num_places < MAX_PLACES:
            with Lease() as lease:
                try:
                    await self._dispatcher.place(request, lease, client)
                except (errors.NotReady, errors.Overloaded):
                    if not died:
                        raise
                    break
                num_places += 1
                server = lease.server
                target = server.target
                framing, chunks, placed = request.framing, request.chunks, None
                if request.header_length is not None and sum(map(len, chunks)) >= FROM_BYTES:
                    placed = await server.shared_memory.place(request.head, chunks, request.deadline)
                    if placed is not None:
                        framing, chunks = placed.framing, (placed.body,)
                head = b"%b%b%b" % (lease.destination.start, target.host_header, framing)
                try:
                    if request.deadline == request.give_up_at:  # the sweep looks after it
                        is_idle = target.idle and num_places == 1
                        connection = target.idle.pop() if is_idle else await target.connect()
                        answer = await connection.ask(head, chunks, request.give_up_at, placed)
                    else:
                        fresh = num_places > 1
                        answer = await self._ask_by_deadline(head, chunks, placed, request, lease, fresh=fresh)
                except Lost as lost:
                    errors.without_frames(lost)
                    lease.lost()
                    request.tried.append(server)
                    if lost.timed_out:
                        self._gave_up(request, lease)
                        raise errors.UpstreamLost(
                            "Triton did not answer in time", retry_after_s=RETRY_AFTER_S
                        ) from None
                    if lost.refused:
                        self._catalogue.lost(server)
                    else:
                        num_tries, died = num_tries + 1, str(lost)
                        if not lost.silent:
                            self._queries_of_death.died(request, lease)
                    continue
                if placed is not None and placed.is_unknown(answer):
                    server.shared_memory.forget()
                    continue
                if answer.status != 200 and self._is_away(request, lease, answer):
                    request.tried.append(server)
                    if answer.status == 500:
                        num_tries += 1
                        died = "the model's process died"
                    continue
                answered = server.answered[lease.destination.name] = perf_counter()
                wrong = None if answer.status == 200 else error_of(answer, request, lease.destination)
                lease.answered_at, lease.wrong = answered, wrong
                if self._queries_of_death.are_known:
                    self._queries_of_death.answered(request)
                destination = as_on(lease.destination, server) if server.differing else lease.destination
                request.series = destination.series
                reply = Reply(destination, lease.reason.encode(), answer, lease.ticket.sent, answered, target.url)
                if wrong is not None:
                    wrong.receipt = reply.receipt
                    raise wrong
                if self.parity is not None and not request.route.versioned and self.parity.takes():
                    variant = server.variants.get(destination.name, destination.decision.variant)
                    if (
                        variant.version == destination.decision.variant.version
                    ):  # no older one, which a document may pin
                        self.parity.saw(request, destination.pool, variant, server, answer)
                return reply
        if not died:
            raise errors.NotReady(f"'{request.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
        raise errors.UpstreamLost(f"the server that worked on this was lost ({died})", retry_after_s=RETRY_AFTER_S)

    async def _ask_by_deadline(
        self,
        head: bytes,
        chunks: Sequence[bytes | memoryview],
        placed: Placed | None,
        request: InferRequest,
        lease: Lease,
        *,
        fresh: bool,
    ) -> Answer:
        """Raises DeadlineExpired when the client's time is over; the server works on, and holds its lease until it is done."""
        target = lease.server.target
        left_s = request.deadline - perf_counter()
        try:
            if left_s <= 0:  # it was woken late
                raise TimeoutError
            if target.idle and not fresh:
                connection = target.idle.pop()
            else:
                await own_task()
                async with asyncio.timeout(left_s):
                    connection = await target.connect()
        except TimeoutError:
            raise errors.DeadlineExpired("the deadline passed before the request was sent on") from None
        answer = connection.ask(head, chunks, request.give_up_at, placed)
        if await in_time(answer, request.deadline - perf_counter()):
            return answer.result()
        connection.give_up_at = min(request.give_up_at, request.deadline + HANG_UP_S)
        lease.outlive(answer, self._learn_late)
        raise errors.DeadlineExpired("the deadline passed before there was an answer")

    def _learn_late(self, lease: Lease, late: asyncio.Future[Answer]) -> None:
        """Its client has its 504, and the server tells by its end what it would have told `infer`."""
        request = lease.ticket.request
        if late.cancelled():
            lease.lost()
        elif (error := late.exception()) is not None:
            lease.lost()
            if isinstance(error, Lost) and error.timed_out:
                self._gave_up(request, lease)
            elif isinstance(error, Lost) and not error.silent:
                self._queries_of_death.died(request, lease)
        elif has_died(answer := late.result()):
            self._died(request, lease)
        else:
            self._queries_of_death.answered(request)
            lease.answered_at = lease.server.answered[lease.destination.name] = perf_counter()
            lease.wrong = None if answer.status == 200 else error_of(answer, request, lease.destination)
            if self.usage is not None and lease.wrong is None:
                self.usage.late(request.tenant, request.route, lease.destination, request.rows)

    def _gave_up(self, request: InferRequest, lease: Lease) -> None:
        """It has expired, and its server works on, perhaps without an end."""
        self._queries_of_death.unanswered(request, lease)
        ticket = lease.ticket
        self._catalogue.hold(lease.server, lease.destination.name, ticket.service.full, ticket.sent)

    def _is_away(self, request: InferRequest, lease: Lease, answer: Answer) -> bool:
        """Whether this answer is none, because the model is not there any more; then this server is left alone with it for a moment."""
        if has_died(answer):
            self._died(request, lease)
            return True
        if answer.status == 503 or (answer.status == 404 and not request.route.versioned):
            self._catalogue.suspend(lease.server, lease.destination.name, lease.ticket.sent)
            return True
        return False

    def _died(self, request: InferRequest, lease: Lease) -> None:
        """The server lives and the model's process in it does not."""
        self._catalogue.suspend(lease.server, lease.destination.name, lease.ticket.sent)
        lease.lost()
        self._queries_of_death.died(request, lease)
