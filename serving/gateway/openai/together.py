"""Several inferences for one client: a few of them at a time, all of them or none.

Where one fails, those that wait leave their queue and the client hears why; what has been sent is not waited for, and ends by itself. The
same where the client leaves. Rule: one inference alone costs no task and no object here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from serving import errors
from serving.gateway.asking.client import Client, Crowd
from serving.gateway.asking.dispatch import Asked, ClientGone
from serving.gateway.asking.inference import Inference, Reply

# Of one request, so that a long one does not fill the queue that others wait in: enough that a server of two instances has its next
# ones there while it works. A guess, not measured.
MAX_IN_FLIGHT = 4

_ending: set[asyncio.Task[None]] = set()  # of requests that have their answer; asyncio itself keeps no task alive


async def infer_all(inference: Inference, asks: Sequence[Asked], client: Client) -> list[Reply]:
    """The reply to each, in their order. Raises ClientGone, CancelledError, or the RequestError of the first that failed."""
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
        raise next((failure for failure in failures if failure is not None), ClientGone())
    return [replies[index] for index in range(len(asks))]


def _ended(task: asyncio.Task[None]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # nobody waits for it any more
