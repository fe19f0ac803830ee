"""The servers of one simulated pool: asked for, on their way, ready, leaving; and what they cost meanwhile.

A server is paid for from the moment it is asked for to the moment it is gone, as clouds do, and its card with it; after that for as long
as the pool's billing says. Rule: one that is told to go takes nothing
new but finishes what it has.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable

from serving.decisions.fleet import cards
from serving.decisions.simulate.scenario import PoolSetting
from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket
from serving.scheduling.turns import is_queue, use_of


class Device:
    """Computes one execution after another, whichever model's."""

    __slots__ = ("free_at",)

    def __init__(self) -> None:
        self.free_at = 0.0

    def end(self, now: float, seconds: float) -> float:
        """Of an execution that is asked for now."""
        self.free_at = max(self.free_at, now) + seconds
        return self.free_at


class Server:
    """A simulated Triton: its instances take what waits, as much as fits into one execution, for as long as the curve says.

    `replicas`: what each gateway knows of it. `device`: that it shares with other models; None: its instances have one each.
    """

    __slots__ = (
        "born",
        "device",
        "executions",
        "num_answered",
        "num_running",
        "queued_s",
        "replicas",
        "service",
        "took_s",
        "waiting",
    )

    def __init__(self, name: str, service: Service, born: float, num_gateways: int = 1) -> None:
        self.replicas = [Replica(name) for _ in range(num_gateways)]
        self.device: Device | None = None
        self.service = service
        self.born = born
        self.num_running = 0
        self.num_answered = 0  # requests
        # Since somebody looked: executions by their rows, seconds that they took, and for which rows had waited here, together.
        self.executions: dict[float, int] = {}
        self.took_s = self.queued_s = 0.0
        self.waiting: deque[Ticket] = deque()

    @property
    def replica(self) -> Replica:
        """As the first gateway knows it."""
        return self.replicas[0]

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
        self.executions[rows] = self.executions.get(rows, 0) + 1
        return self.service.curve.seconds(rows), batch

    def forget(self) -> None:
        """Somebody looked."""
        self.executions = {}
        self.took_s = self.queued_s = 0.0

    def end(self, num_answered: int) -> None:
        self.num_running -= 1
        self.num_answered += num_answered


class SimulatedPool:
    """`candidates`: of each gateway, with a queue of its own; all scaling is by the first.

    `beside`: another model of the same pool, the first one, whose queues and servers these are, too.
    """

    def __init__(self, setting: PoolSetting, num_gateways: int = 1, beside: SimulatedPool | None = None) -> None:
        self.setting = setting
        self._beside = beside
        self._models = [self] if beside is None else []
        if beside is not None:
            beside._models.append(self)
        queues = [c.queue for c in beside.candidates] if beside else []
        queues = queues or [PoolQueue(setting.name) for _ in range(num_gateways)]
        self.candidates: list[Candidate] = [
            Candidate(queue, setting.service, setting.price_per_hour) for queue in queues
        ]
        self.candidate, self.queue = self.candidates[0], queues[0]
        self.ready: list[Server] = []
        self.leaving: list[Server] = []
        self.coming: list[Server] = []
        self.by_name: dict[str, Server] = {}
        self.paid_s = 0.0  # seconds of cards, or of servers that have none to share
        self.num_starts = 0
        self._tails: list[float] = []  # until when servers are paid for that have gone, rising
        self._paid_until = 0.0

    def begin_with(self, number: int) -> None:
        """Servers that are there when time begins; beside another model as many as that has."""
        for _ in range(number):
            self.ready.append(self._new(0.0))
        self._tell()

    @property
    def num_asked(self) -> int:
        """Ready or on their way."""
        return len(self.ready) + len(self.coming)

    def scale(self, now: float, wanted: int, cold_start_s: Callable[[], float]) -> list[tuple[float, Server]]:
        """So many from now on; returns when servers that are new will be ready."""
        self._pay(now)
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
            self._pay(now)
            self.leaving.remove(server)
            self._gone(now, server)

    def look(self, lasting_s: float) -> None:
        """What gateways see of each other: what servers did since the last look, of all models; so the first one looks."""
        for each in zip(*(model.ready for model in self._models), strict=True):
            uses = {it.service.full.model: use_of(it.service, it.executions, it.took_s) for it in each}
            took_s, curve_s = sum(use.took_s for use in uses.values()), sum(use.curve_s for use in uses.values())
            num_answered = sum(it.num_answered for it in each)
            queued = frozenset(it.service.full.model for it in each if is_queue(it.service, it.queued_s / lasting_s))
            for number, replica in enumerate(each[0].replicas):
                if replica.compare(num_answered, replica.num_answered, took_s / curve_s if curve_s else 1.0):
                    for model, it in zip(self._models, each, strict=True):
                        use, rows = uses[it.service.full.model], sum(rows * num for rows, num in it.executions.items())
                        others_rows_per_s = replica.others_ratio * rows / lasting_s
                        model.candidates[number].share_with(
                            others_rows_per_s, use.took_s / use.curve_s if use.curve_s else 1.0
                        )
                replica.queued = queued
                self.candidates[number].queue.did(replica, uses, lasting_s)
            for it in each:
                it.forget()

    def close(self, now: float) -> None:
        """The end: all are paid for until here."""
        self._pay(now)

    def _gone(self, now: float, server: Server) -> None:
        until = max(now + self.setting.consolidation_s, server.born + self.setting.min_billing_s)
        if until > now:
            insort(self._tails, until)

    def _pay(self, now: float) -> None:
        """For what there was until now; to be called before that changes."""
        num_servers = len(self.ready) + len(self.leaving) + len(self.coming)
        while self._paid_until < now:
            until = min(now, self._tails[0]) if self._tails else now
            num_cards = cards(num_servers + len(self._tails), self.setting.supply)
            self.paid_s += num_cards * max(0.0, until - self._paid_until)
            self._paid_until = max(self._paid_until, until)
            while self._tails and self._tails[0] <= self._paid_until:
                self._tails.pop(0)

    def _new(self, now: float) -> Server:
        number = len(self.by_name)
        server = Server(f"{self.setting.name}-{number}", self.setting.service, now, len(self.candidates))
        if self._beside is not None:
            same = self._beside.ready[number]
            server.replicas, server.device = same.replicas, same.device
        self.by_name[server.replica.name] = server
        return server

    def _let_go(self, now: float) -> None:
        """The one that came last; rather one that is not there yet."""
        if self.coming:
            self._gone(now, self.coming.pop())
            return
        server = min(reversed(self.ready), key=lambda s: s.replica.num_in_flight)
        self.ready.remove(server)
        self.leaving.append(server)
        self.went_idle(now, server)
        self._tell()

    def _tell(self) -> None:
        for number, candidate in enumerate(self.candidates):
            candidate.queue.serve_with([server.replicas[number] for server in self.ready])
