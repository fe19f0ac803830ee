"""One inference, from a request that is known to be in order until the model's answer: shared by all protocols.

Where it goes is decided in `dispatch.py` and below; here it is sent, tried once more where its server was lost, and counted. Each await
and each object here is paid for by every request: measure with `make bench` before adding one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf
from time import perf_counter
from typing import NamedTuple

from serving import errors
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.upstream import Answer, Lost
from serving.gateway.metrics import Metrics
from serving.gateway.request.client import Client, Crowd
from serving.gateway.request.dispatch import RETRY_AFTER_S, ClientLeft, Dispatch, InferRequest, Lease
from serving.gateway.request.query_of_death import QueriesOfDeath
from serving.gateway.request.route import Choice, Route, Routes, as_on
from serving.gateway.request.triton_response import error_of, has_died
from serving.gateway.responses import Headers, outcome_of
from serving.gateway.triton_words import worded
from serving.scheduling.admission import DEFAULT
from serving.settings import LimitSettings

MAX_PLACES = 4  # that are looked at for one request: two may lose it, the others may have gone without having seen it


class Reply(NamedTuple):
    """What Triton answered with 200, who did (`choice` has the receipt of the very server), and when (perf_counter)."""

    choice: Choice
    reason: bytes
    answer: Answer
    began: float  # sent to Triton
    answered: float

    @property
    def receipt(self) -> Headers:
        """Response headers, but for the times."""
        return [*self.choice.receipt, (b"tandem-reason", self.reason)]


class Inference:
    """Rule: whoever calls `ask` counts how it ended; `infer` does both."""

    def __init__(
        self,
        catalogue: Catalogue,
        candidates: Candidates,
        dispatch: Dispatch,
        metrics: Metrics,
        limits: LimitSettings,
    ) -> None:
        self._catalogue = catalogue
        self._limits = limits
        self._dispatch = dispatch
        self._suspects = QueriesOfDeath()
        self.routes = Routes(catalogue, candidates, metrics)
        self.unresolved = metrics.unresolved  # counts requests that never got so far as to have a model
        self.closing = False  # told to stop: every answer closes its connection

    def asked(
        self,
        route: Route,
        head: bytes,
        chunks: Sequence[bytes | memoryview],
        header_length: int | None,
        *,
        wait_s: float = inf,
        priority: int = DEFAULT,
        arrived: float,
    ) -> InferRequest:
        """A v2 request as Triton will get it: `chunks` begin with its JSON part `head`, whose length is `header_length`, None where
        the whole body is JSON. `wait_s`: how long the client waits at most, from `arrived` (perf_counter).
        """
        longest_s = self._limits.upstream_timeout_s
        give_up_at = deadline = arrived + longest_s
        if wait_s < longest_s or route.objective_s < longest_s:
            deadline = arrived + min(wait_s, route.objective_s)
        size, series = sum(map(len, chunks)), route.choices[0].series
        rows = route.rows_of(head)
        return InferRequest(
            route, head, chunks, size, header_length, rows, priority, give_up_at, deadline, arrived, series
        )

    async def infer(self, asked: InferRequest, client: Client) -> Reply:
        """`ask`, counted. Raises ClientLeft, RequestError, or CancelledError as it came."""
        try:
            reply = await self.ask(asked, client)
        except ClientLeft:
            asked.series.outcomes["cancelled"] += 1
            raise
        except errors.RequestError as error:
            asked.series.outcomes[outcome_of(error)] += 1
            raise
        except asyncio.CancelledError:
            asked.series.outcomes["cancelled"] += 1
            raise
        asked.series.answered(reply.began - asked.arrived, reply.answered - reply.began, reply.answered - asked.arrived)
        return reply

    async def ask(self, asked: InferRequest, client: Client) -> Reply:
        """Raises ClientLeft, or a RequestError, whose `receipt` says what worked on it where something did."""
        sent, answer = await self._tried(asked, client)
        answered = perf_counter()
        wrong = self._answered(answered, asked, sent, answer)
        choice = sent.choice
        if sent.server.differing:
            choice = as_on(choice, sent.server)
        asked.series = choice.series
        reply = Reply(choice, sent.reason.encode(), answer, sent.ticket.sent, answered)
        if wrong is not None:
            wrong.receipt = reply.receipt
            raise wrong
        return reply

    def refusal(self, caught: errors.RequestError | asyncio.CancelledError) -> errors.RequestError:
        """What to tell the client. Servers cancel what is in flight when the time to stop is over, and would answer a bare error."""
        if isinstance(caught, errors.RequestError):
            return caught
        if not self.closing:
            raise caught
        return errors.NotReady("the gateway is stopping; try again", retry_after_s=RETRY_AFTER_S)

    def worded(self, error: errors.RequestError) -> errors.RequestError:
        """As clients of v2 are told it."""
        return worded(error) if self._catalogue.has_triton_words else error

    # -- at Triton ----------------------------------------------------------------------------------------------------

    async def _tried(self, asked: InferRequest, client: Client) -> tuple[Lease, Answer]:
        """The first answer that a living process gave; a second try, elsewhere if there is an elsewhere, where one died.

        Inference has no side effect here (sequences are refused), so a second try is safe. A third is not made: what kills
        two servers is likely the request. One that found nobody, or a server that has unloaded the model, was no try.
        """
        self._suspects.require_innocent(asked)
        self._dispatch.note(asked)
        died = ""
        num_tries = num_places = 0
        while num_tries < 2 and num_places < MAX_PLACES:
            try:
                sent = await self._dispatch.place(asked, client)
            except (errors.NotReady, errors.Overloaded):
                if not died:
                    raise
                break
            num_places += 1
            try:
                answer = await self._send(asked, sent, fresh=num_places > 1)
            except asyncio.CancelledError:
                self._dispatch.unsent(sent.ticket, sent.choice.candidate.queue)
                raise
            except Lost as lost:
                asked.tried.append(sent.server)
                self._dispatch.lost(perf_counter(), sent)
                if lost.timed_out:
                    raise errors.UpstreamLost("Triton did not answer in time", retry_after_s=RETRY_AFTER_S) from None
                if lost.refused:
                    self._catalogue.lost(sent.server)
                else:
                    num_tries += 1
                    if not lost.silent:
                        self._suspects.died(asked, sent)
                died = str(lost)
                continue
            if answer.status != 200 and self._is_away(asked, sent, answer):
                if answer.status == 500:
                    num_tries += 1
                    died = "the model's process died"
                continue
            self._suspects.answered(asked)
            return sent, answer
        if not died:
            raise errors.NotReady(f"'{asked.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
        raise errors.UpstreamLost(f"the server that worked on this was lost ({died})", retry_after_s=RETRY_AFTER_S)

    async def _send(self, asked: InferRequest, sent: Lease, *, fresh: bool) -> Answer:
        target = sent.server.target
        if asked.header_length is None:
            rest = b"Content-Length: %d\r\n\r\n" % asked.size
        else:
            rest = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (
                asked.size,
                asked.header_length,
            )
        head = sent.choice.start + target.host_header + rest
        if asked.deadline == asked.give_up_at:  # the sweep looks after it
            connection = target.idle.pop() if target.idle and not fresh else await target.connect()
            return await connection.ask(head, asked.chunks, asked.give_up_at)
        try:
            left_s = asked.deadline - perf_counter()
            if left_s <= 0:  # it was woken late
                raise TimeoutError
            async with asyncio.timeout(left_s):
                connection = target.idle.pop() if target.idle and not fresh else await target.connect()
        except TimeoutError:
            self._dispatch.unsent(sent.ticket, sent.choice.candidate.queue)
            raise errors.DeadlineExpired("the deadline passed before the request was sent on") from None
        answer = connection.ask(head, asked.chunks, asked.give_up_at)
        await asyncio.wait((answer,), timeout=asked.deadline - perf_counter())
        if answer.done():
            return answer.result()
        answer.add_done_callback(partial(self._ended_late, asked, sent))
        raise errors.DeadlineExpired("the deadline passed before there was an answer")

    def _ended_late(self, asked: InferRequest, sent: Lease, answer: asyncio.Future[Answer]) -> None:
        """Its client has its 504; the server was busy with it until now, and tells by its end what `_tried` would have been told."""
        if answer.cancelled():
            self._dispatch.lost(perf_counter(), sent)
        elif (error := answer.exception()) is not None:
            self._dispatch.lost(perf_counter(), sent)
            if isinstance(error, Lost) and not error.timed_out and not error.silent:
                self._suspects.died(asked, sent)
        elif has_died(answer.result()):
            self._died(asked, sent)
        else:
            self._suspects.answered(asked)
            self._answered(perf_counter(), asked, sent, answer.result())

    def _answered(self, now: float, asked: InferRequest, sent: Lease, answer: Answer) -> errors.RequestError | None:
        """What is wrong with an answer. Only what is no mistake of the client's counts against the server."""
        wrong = None if answer.status == 200 else error_of(answer, asked, sent.choice)
        self._dispatch.answered(now, sent, is_good=wrong is None, is_failure=isinstance(wrong, errors.Internal))
        return wrong

    def _is_away(self, asked: InferRequest, sent: Lease, answer: Answer) -> bool:
        """Whether this answer is none, because the model is not there any more; then this server is left alone with it for a moment."""
        if has_died(answer):
            self._died(asked, sent)
        elif answer.status == 503 or (answer.status == 404 and not asked.route.versioned):
            self._catalogue.suspend(sent.server, sent.choice.name, sent.ticket.sent)
            self._dispatch.unsent(sent.ticket, sent.choice.candidate.queue)
        else:
            return False
        asked.tried.append(sent.server)
        return True

    def _died(self, asked: InferRequest, sent: Lease) -> None:
        """The server lives and the model's process in it does not."""
        self._catalogue.suspend(sent.server, sent.choice.name, sent.ticket.sent)
        self._dispatch.lost(perf_counter(), sent)
        self._suspects.died(asked, sent)


# Of one request, so that a long one does not fill the queue that others wait in: enough that a server of two instances has its next
# ones there while it works. A guess, not measured.
MAX_IN_FLIGHT = 4

_ending: set[asyncio.Task[None]] = set()  # of requests that have their answer; asyncio itself keeps no task alive


async def infer_all(inference: Inference, asks: Sequence[InferRequest], client: Client) -> list[Reply]:
    """The reply to each, in their order. Raises ClientLeft, CancelledError, or the RequestError of the first that failed."""
    if len(asks) == 1:
        return [await inference.infer(asks[0], client)]
    crowd = Crowd()
    replies: dict[int, Reply] = {}
    waiting = list(range(len(asks)))[::-1]

    async def work() -> None:
        while waiting and not crowd.has_left:
            index = waiting.pop()
            replies[index] = await inference.infer(asks[index], crowd.member())

    tasks = [asyncio.create_task(work()) for _ in range(min(MAX_IN_FLIGHT, len(asks)))]
    client.listen(crowd.leave)
    try:
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        client.ignore()
    failures = [task.exception() for task in done]
    crowd.leave()
    for task in pending:
        _ending.add(task)
        task.add_done_callback(_ended)
    for failure in failures:
        if isinstance(failure, errors.RequestError):
            raise failure
    if len(replies) < len(asks):
        raise next((failure for failure in failures if failure is not None), ClientLeft())
    return [replies[index] for index in range(len(asks))]


def _ended(task: asyncio.Task[None]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # nobody waits for it any more
