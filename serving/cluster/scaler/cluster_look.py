"""What does the cluster run, as far as this process may see it? On a thread of its own that nobody waits for.

Asked twice: at the beginning, what the Deployments were last told, because a scaler that starts again must not cancel a pod that waits
for its node; and while a cold start goes on, how far its pods and their nodes are. Without an API, without leave or without the
package, pools are scaled by metrics alone and that is said once. Rule: it only reads, and whatever goes wrong here stays here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping

from serving.cluster.scaler import api
from serving.cluster.scaler.reads import NotForUs, Reads
from serving.decisions.cold_start import Server
from serving.errors import TandemError
from serving.installation import how_to_add

EVERY_S = 2.0  # while it has something to learn; a list of a few pods
GIVE_UP_S = 30.0  # for an API server that is not there when the scaler starts: two tries and their timeouts; a guess
BY_METRICS = "pools are scaled by what gateways publish alone, and cold starts have no phases of pods"


class ClusterLook:
    """`there`: what pools were last told to run, None where that is not known; `servers`: pods of the pools that are watched."""

    def __init__(
        self,
        pools: Collection[str],
        say: Callable[[str], None],
        context: str | None = None,
        namespace: str | None = None,
        release: str | None = None,
    ) -> None:
        self._pools, self._say = tuple(pools), say
        self._context, self._namespace, self._release = context, namespace, release
        self.there: Mapping[str, int] | None = None
        self.servers: Mapping[str, tuple[Server, ...]] = {}
        self.is_readable: bool | None = None
        self._is_over = False
        self._watched: frozenset[str] = frozenset()
        self._has_work, self._is_stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem = ""
        self._began = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float = 0.0) -> None:
        """Asks nothing more; what is being asked has its own end."""
        self._is_stopped.set()
        self._has_work.set()
        self._thread.join(wait_s)

    def watch(self, pools: Collection[str]) -> None:
        """The pools of which a cold start goes on; of others nothing is asked."""
        self._watched = frozenset(pools)
        if pools:
            self._has_work.set()

    def is_settled(self) -> bool:
        """Whether `there` is worth no more waiting: a sign-in program may hang for ever."""
        return self.there is not None or self._is_over or self._waited_s() > 2 * GIVE_UP_S

    def _waited_s(self) -> float:
        return time.monotonic() - self._began

    def _run(self) -> None:
        try:
            reads = api.reach(self._context, self._namespace)
            try:
                self._begin(reads)
            except NotForUs as error:
                self._end(str(error))  # leave may be given later, and a token renewed: cold starts ask anew
            while not self._is_stopped.is_set():
                self._has_work.wait()
                self._has_work.clear()
                while self._watched and not self._is_stopped.is_set():
                    self._look(reads)
                    self._is_stopped.wait(EVERY_S)
        except ModuleNotFoundError as error:
            self._end(f"the package '{error.name}' is not installed ({how_to_add('cluster')})")
        except TandemError as error:
            self._end(str(error))
        except Exception as error:  # an object of another shape, say: the scaling goes on without
            self._end(f"what Kubernetes answers cannot be read ({type(error).__name__}: {error})")

    def _begin(self, reads: Reads) -> None:
        """Raises TandemError where asking again will not help, later on either."""
        while self.there is None and not self._is_over and not self._is_stopped.is_set():
            try:
                there = api.replicas(reads, self._pools, self._release)
            except NotForUs:
                raise
            except TandemError as error:
                self.is_readable = False
                self._tell(str(error))
                self._is_over = self._waited_s() > GIVE_UP_S
                self._is_stopped.wait(EVERY_S)
                continue
            self.there, self.is_readable = there, True
            if missing := [pool for pool in self._pools if pool not in there]:
                self._say(f"no Deployment in namespace {reads.namespace} is labelled tandem-pool={missing[0]}")

    def _look(self, reads: Reads) -> None:
        try:
            self.servers = {pool: api.servers(reads, pool, self._release) for pool in self._watched}
            self.is_readable, self._problem = True, ""
        except TandemError as error:
            self.is_readable = False
            self._tell(f"{error}; phases of cold starts may be missing")

    def _end(self, why: str) -> None:
        self.is_readable, self._is_over = False, True
        self._tell(f"{why}; {BY_METRICS}")

    def _tell(self, problem: str) -> None:
        """Once for each problem."""
        if problem != self._problem:
            self._problem = problem
            self._say(problem)
