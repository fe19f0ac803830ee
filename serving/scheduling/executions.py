"""Which execution on a server will a request be part of, and when does that end?

A server's instance takes what waits when it gets free, up to the largest batch: so one who comes while executions run waits for the end of
one of them and then shares the next with those who came meanwhile, however few they are. Followed here for one variant on one server, as
far as this process sent the work. Rule: an answer is the truth; it ends the execution that it was thought to be part of, and the next
begins then, not when it was predicted to.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import inf

from serving.scheduling.prediction import Service


class Execution:
    """Rows that are computed together. `ends` is a prediction; None: no instance has taken it yet.

    `closed_rows`: that it had when the next did not fit, whichever of them left since; 0 where that has not been. `began`: when an instance
    took it, as far as this process knows.
    """

    __slots__ = ("began", "closed_rows", "ends", "num", "rows")

    def __init__(self, rows: float, ends: float | None, began: float = 0.0) -> None:
        self.began = began
        self.closed_rows = 0.0
        self.num = 1  # requests
        self.rows = rows
        self.ends = ends


class Executions:
    """Of one variant on one server."""

    __slots__ = ("_gathers", "_running", "_waiting")

    def __init__(self) -> None:
        self._gathers: Execution | None = None  # that an idle instance waits to fill, at the moment at which it `began`
        self._running: list[Execution] = []  # one an instance at most
        self._waiting: list[Execution] = []  # in order; only the last takes more rows

    def begins(self, now: float, service: Service, rows: float) -> tuple[float, float]:
        """When an execution would begin that so many more rows are part of, and how many rows it would have then."""
        gathers = self.gathers(now, service, rows)
        if gathers is not None:
            return now, gathers.rows + rows
        if len(self._running) < service.num_instances:
            return now, rows
        waiting = self._waiting
        last = waiting[-1] if waiting else None
        if last is None or last.rows + rows > service.max_batch:
            return self._free(now, service, len(waiting)), rows
        return self._free(now, service, len(waiting) - 1), last.rows + rows

    def gathers(self, now: float, service: Service, rows: float) -> Execution | None:
        """The execution that so many more rows are part of although an instance has taken it, since they come at once."""
        gathers = self._gathers
        if gathers is None or gathers.began != now or gathers.rows + rows > service.max_batch:
            return None
        return gathers

    def least_end(self, now: float, service: Service, rows: float) -> float:
        """The earliest that an execution may end which so many rows or more are part of; with room for the error of predictions."""
        if len(self._running) < service.num_instances:
            return now + service.careful_seconds(rows)
        gathers, waiting = self.gathers(now, service, rows), self._waiting
        gathered = inf if gathers is None else now + service.careful_seconds(gathers.rows + rows)
        if not waiting:
            return min(gathered, self._free(now, service, 0) + service.careful_seconds(rows))
        last = waiting[-1].rows
        alone = max(rows, service.max_batch - last)  # that do not fit into the last
        ends = min(gathered, self._free(now, service, len(waiting)) + service.careful_seconds(alone))
        if last + rows > service.max_batch:
            return ends
        return min(ends, self._free(now, service, len(waiting) - 1) + service.careful_seconds(last + rows))

    def join(self, now: float, service: Service, rows: float) -> tuple[Execution, float]:
        """The execution that they are part of from now on, and when it ends as predicted."""
        begins, together = self.begins(now, service, rows)
        ends = begins + service.seconds(together)
        gathers = self.gathers(now, service, rows)
        if gathers is not None:
            gathers.rows, gathers.ends = together, ends
            gathers.num += 1
            return gathers, ends
        if len(self._running) < service.num_instances:
            execution = Execution(rows, ends, now)
            self._running.append(execution)
            if service.full.gathers:
                self._gathers = execution
        elif together > rows:
            execution = self._waiting[-1]
            execution.rows = together
            execution.num += 1
        else:
            if self._waiting and not self._waiting[-1].closed_rows:
                self._waiting[-1].closed_rows = self._waiting[-1].rows
            execution = Execution(rows, None)
            self._waiting.append(execution)
        return execution, ends

    def left(self, now: float, service: Service, execution: Execution, rows: float) -> None:
        """So many of its rows were answered or lost: it is over, and an instance takes the next."""
        if execution.ends is None:  # computed with those before it, or never
            execution.rows -= rows
            execution.num -= 1
            if execution.num == 0:  # sums of parts of rows may leave a rest
                self._waiting.remove(execution)
        elif execution in self._running:
            self._running.remove(execution)
            if execution is self._gathers:
                self._gathers = None
            if self._waiting:
                following = self._waiting.pop(0)
                following.began = now
                following.ends = now + service.seconds(following.rows)
                self._running.append(following)

    def _free(self, now: float, service: Service, num_before: int) -> float:
        """When an instance is free for what waits behind so many executions. What is late already will be as late again."""
        ends = [e.ends if e.ends > now else now + now - e.ends for e in self._running if e.ends is not None]
        if len(ends) == 1:
            return ends[0] + sum(service.seconds(e.rows) for e in self._waiting[:num_before])
        heapify(ends)
        for execution in self._waiting[:num_before]:
            heapreplace(ends, ends[0] + service.seconds(execution.rows))
        return ends[0]
