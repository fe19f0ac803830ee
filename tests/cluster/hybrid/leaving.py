"""How does one Triton leave its node? Watched from the notice to its end: when it was told to go, when the last gateway had let go of it, and
when it ended.

A gateway has let go once no connection of its processes to the Triton's address is left, while the Triton is still there. Rule: it only looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.cluster.hybrid.moments import ENDED, EVICTED, LET_GO
from tests.cluster.hybrid.pod import Pod

TICK_S = 0.1
SERVER = "tritonserver"  # the process that answers; `tandem triton` above it stays a moment longer

Mark = Callable[[str], None]


class Leaving(threading.Thread):
    """Until it has ended. `steps`: more that is looked for meanwhile, in words, and whether it is so now."""

    def __init__(
        self, pod: Pod, gateways: Callable[[], list[Pod]], mark: Mark, steps: dict[str, Callable[[], bool]]
    ) -> None:
        super().__init__(name=f"watching {pod.name} leave", daemon=True)
        self.pod = pod
        self._gateways, self._mark = gateways, mark
        (self._server,) = (it for it in pod.processes() if it.name() == SERVER)
        self._steps = {**steps, EVICTED: self._is_evicted, LET_GO: self._is_let_go}

    def run(self) -> None:
        while not self._has_ended():
            for what in [it for it, is_so in self._steps.items() if is_so()]:
                del self._steps[what]
                self._mark(what)
            time.sleep(TICK_S)
        self._mark(ENDED)

    def has_ended(self, timeout_s: float) -> bool:
        self.join(timeout_s)
        return not self.is_alive()

    def _is_evicted(self) -> bool:
        return "deletionTimestamp" in self.pod.object["metadata"]

    def _is_let_go(self) -> bool:
        return EVICTED not in self._steps and self._held() == 0 and not self._has_ended()

    def _held(self) -> int:
        """Connections of gateways to it."""
        return sum(
            it.status == psutil.CONN_ESTABLISHED and bool(it.raddr) and it.raddr.ip == self.pod.ip
            for process in [one for gateway in self._gateways() for one in gateway.processes()]
            for it in _connections(process)
        )

    def _has_ended(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return self._server.status() == psutil.STATUS_ZOMBIE
        return True


def _connections(process: psutil.Process) -> list[psutil._ntuples.pconn]:
    with suppress(psutil.NoSuchProcess):
        return list(process.net_connections("tcp"))
    return []
