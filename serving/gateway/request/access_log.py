"""Writes one line of JSON for some of the inferences: whose, where, how long and how it ended; never bodies, keys or texts of errors.

Which ones follows from the id of the request, so that all gateways write the same ones. Lines are collected and written by a thread. Rule:
a disk that is slow or full costs lines, which are counted, and no request's time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from time import perf_counter, time
from typing import Any

from serving.gateway.background import forever
from serving.gateway.request.dispatch import InferRequest
from serving.gateway.request.route import Destination
from serving.settings import AccessLogSettings

WRITE_S = 0.5
MAX_LINES = 20_000  # that wait: half a second of what several gateways do; a guess, not measured

log = logging.getLogger("tandem")


def ids_below(ratio: float) -> bytes:
    """Of evenly spread ids in hexadecimal digits that part is less. They are compared as they are written; no digit is as large as g."""
    return b"g" if ratio == 1 else b"%08x" % int(ratio * 2**32)


class AccessLog:
    def __init__(self, settings: AccessLogSettings) -> None:
        self._path = settings.path
        self._cannot_write = settings.cannot_write
        self.below = ids_below(settings.sample_ratio)
        self._lines: list[str] = []
        self._num_lost = 0
        self._is_failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(forever("the access log", self._run))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()

    def takes(self, request_id: bytes) -> bool:
        """32 hexadecimal digits, the first of them evenly spread."""
        return request_id < self.below

    def note(
        self,
        request_id: bytes,
        request: InferRequest,
        outcome: str,
        answered_by: tuple[Destination, bytes, float, float] | None = None,
    ) -> None:
        """`answered_by`: by whom, why there, and when it was sent on and answered (perf_counter)."""
        if len(self._lines) >= MAX_LINES:
            self._num_lost += 1
            return
        arrived = request.arrived
        line: dict[str, Any] = {
            "at": round(time() - perf_counter() + arrived, 6),
            "id": request_id.decode(),
            "tenant": request.tenant,
            "model": request.route.name,
            "rows": request.rows,
            "bytes": sum(map(len, request.chunks)),
            "priority": request.priority,
            "deadline_s": round(request.deadline - arrived, 6),
            "outcome": outcome,
        }
        if answered_by is not None:
            destination, reason, began, answered = answered_by
            line |= {
                "variant": destination.decision.variant.variant,
                "pool": destination.pool,
                "reason": reason.decode(),
                "queue_s": round(began - arrived, 6),
                "backend_s": round(answered - began, 6),
            }
        self._lines.append(json.dumps(line))

    async def _run(self) -> None:
        await self._write(is_first=True)
        while True:
            await asyncio.sleep(WRITE_S)
            await self._write()

    async def _write(self, *, is_first: bool = False) -> None:
        """`is_first`: without lines, too, so that a file that cannot be written is told before a request comes."""
        lines, self._lines = self._lines, []
        if not lines and not is_first:
            return
        try:
            await asyncio.to_thread(self._append, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            self._num_lost += len(lines)
            if not self._is_failing:
                log.error("%s (%s); requests are answered without it", self._cannot_write, error)
            self._is_failing = True
            return
        if self._is_failing or self._num_lost:
            log.warning("the access log %s is written again; %d lines were lost", self._path, self._num_lost)
        self._is_failing, self._num_lost = False, 0

    def _append(self, text: str) -> None:
        """The file is opened each time, so that one that was moved away is made anew."""
        if self._path == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        with Path(self._path).open("a", encoding="utf-8") as file:
            file.write(text)
