"""The servers of one simulated pool: asked for, on their way, ready, leaving; and what they cost meanwhile.

A server is paid for from the moment it is asked for to the moment it is gone, as clouds do. Rule: one that is told to go takes nothing
new but finishes what it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from serving.decisions.simulate.scenario import PoolSetting
from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket


class Server:
    """A simulated Triton: its instances take what waits, as much as fits into one execution, for as long as the curve says."""

    __slots__ = ("born", "num_answered", "num_running", "replica", "service", "waiting")

    def __init__(self, name: str, service: Service, born: float) -> None:
        self.replica = Replica(name)
        self.service = service
        self.born = born
        self.num_running = 0
        self.num_answered = 0  # requests
        self.waiting: deque[Ticket] = deque()

    @property
    def is_idle(self) -> bool:
        return self.num_running == 0 and not self.waiting

    def begin(self) -> tuple[float, list[Ticket]] | None:
        """An instance takes what fits; how long that runs by the curve. None: no instance, or no work."""
        if not self.waiting or self.num_running >= self.service.num_instances:
            return None
        batch = [self.waiting.popleft()]
        rows = batch[0].rows
        while self.waiting and rows + self.waiting[0].rows <= self.service.max_batch:
            rows += self.waiting[0].rows
            batch.append(self.waiting.popleft())
        self.num_running += 1
        return self.service.curve.seconds(rows), batch

    def end(self, num_answered: int) -> None:
        self.num_running -= 1
        self.num_answered += num_answered


class SimulatedPool:
    def __init__(self, setting: PoolSetting) -> None:
        self.setting = setting
        self.queue = PoolQueue(setting.name)
        self.candidate = Candidate(self.queue, setting.service, setting.price_per_hour)
        self.ready: list[Server] = []
        self.leaving: list[Server] = []
        self.coming: list[Server] = []
        self.by_name: dict[str, Server] = {}
        self.paid_s = 0.0
        self.num_starts = 0

    def begin_with(self, number: int) -> None:
        """Servers that are there when time begins."""
        for _ in range(number):
            self.ready.append(self._new(0.0))
        self._tell()

    @property
    def num_asked(self) -> int:
        """Ready or on their way."""
        return len(self.ready) + len(self.coming)

    def scale(self, now: float, wanted: int, cold_start_s: Callable[[], float]) -> list[tuple[float, Server]]:
        """So many from now on; returns when servers that are new will be ready."""
        started = []
        while self.num_asked < wanted:
            server = self._new(now)
            self.coming.append(server)
            self.num_starts += 1
            started.append((now + cold_start_s(), server))
        while self.num_asked > wanted:
            self._let_go(now)
        return started

    def came(self, server: Server) -> bool:
        """It is ready, unless it was told to go before."""
        if server not in self.coming:
            return False
        self.coming.remove(server)
        self.ready.append(server)
        self._tell()
        return True

    def went_idle(self, now: float, server: Server) -> None:
        if server in self.leaving and server.is_idle:
            self.leaving.remove(server)
            self.paid_s += now - server.born

    def close(self, now: float) -> None:
        """The end: all are paid for until here."""
        for server in (*self.ready, *self.leaving, *self.coming):
            self.paid_s += now - server.born

    def _new(self, now: float) -> Server:
        server = Server(f"{self.setting.name}-{len(self.by_name)}", self.setting.service, now)
        self.by_name[server.replica.name] = server
        return server

    def _let_go(self, now: float) -> None:
        """The one that came last; rather one that is not there yet."""
        if self.coming:
            server = self.coming.pop()
            self.paid_s += now - server.born
            return
        server = min(reversed(self.ready), key=lambda s: s.replica.num_in_flight)
        self.ready.remove(server)
        self.leaving.append(server)
        self.went_idle(now, server)
        self._tell()

    def _tell(self) -> None:
        self.queue.serve_with([server.replica for server in self.ready])
