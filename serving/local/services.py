"""Keeps the children of `tandem up` running: its gateways, and for each pool a `tandem triton` that looks after its Triton.

What dies is started again, by the rule of `watch.py`; the others go on and notice nothing. It is given up, with the cause, where
starting it again is pointless: it is refused, or dies at every start, and nothing else serves in its place. Keep: before a pool is
started again, what its dead supervisor left behind has finished its requests and has ended, and its shared memory is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import EnvironmentFault, GateRefused, TandemError, UserError
from serving.gateway.ready_file import cannot_write
from serving.local.causes import how_ended, why_ended
from serving.local.launch import region_prefix_of, remove_shared_memory
from serving.local.logs import Output
from serving.local.processes import Child, Nursery, stubs_of
from serving.local.venvs import Say
from serving.local.watch import POLL_S, Failures, after_failure

MAX_FIRST_STARTS = 3  # of what never served: somebody sits there and waits for the reason
MAX_STARTS = (
    8  # of what has served: half a minute, in which a port that somebody took may be free again (guess, not measured)
)
ORPHANS_S = 5.0  # for requests that a Triton without its supervisor still works on
REFUSED: Mapping[int, type[TandemError]] = {
    1: GateRefused,
    2: UserError,
}  # by exit code: starting it again would not help


@dataclass(slots=True)
class Service:
    """A child that is kept running. It makes `ready_file` when it serves: whatever else answers on its port is not it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    output: Output
    ready_file: Path
    is_pool: bool
    child: Child | None = None
    is_up: bool = False
    has_served: bool = False
    failures: Failures | None = None
    num_failed: int = 0  # starts in a row after which it never served

    @property
    def serves(self) -> bool:
        is_running = self.child is not None and self.child.exit_code is None
        return is_running and os.access(self.ready_file, os.R_OK)

    @property
    def why_untold(self) -> str | None:
        """What it said where it serves and cannot make its file, for which nobody waits but at its first start."""
        begin = cannot_write(self.ready_file)
        return next((line[line.index(begin) :] for line in self.output.last() if begin in line), None)

    async def wait(self) -> int:
        assert self.child is not None
        return await self.child.wait()


class Services:
    """Of one run. `is_served_elsewhere`: by Tritons that this run did not start."""

    def __init__(self, nursery: Nursery, folder: Path, say: Say, *, is_served_elsewhere: bool) -> None:
        self._nursery = nursery
        self._folder = folder
        self._say = say
        self._is_served_elsewhere = is_served_elsewhere
        self._services: list[Service] = []

    def __iter__(self) -> Iterator[Service]:
        return iter(self._services)

    def start(self, service: Service) -> None:
        """Raises EnvironmentFault where this machine starts nothing any more."""
        self._services.append(service)
        try:
            self._start(service)
        except OSError as error:
            raise EnvironmentFault(f"{service.name}: {_not_started(error)}") from None

    def _start(self, service: Service) -> None:
        service.output.forget()
        service.ready_file.unlink(missing_ok=True)
        service.child = self._nursery.start(
            service.command, service.environment, folder=self._folder, output=service.output.end
        )

    async def keep(self) -> None:
        """Starts again what dies, until it is cancelled. Raises TandemError where one of them is given up."""
        keeping = [asyncio.ensure_future(self._keep(service)) for service in self._services]
        try:
            await asyncio.gather(*keeping)
        finally:
            for task in keeping:
                task.cancel()

    async def _keep(self, service: Service) -> None:
        while True:
            ended = asyncio.ensure_future(service.wait())
            began_s = time.monotonic()
            while not ended.done():
                if not service.is_up and service.serves:
                    self._found_up(service, time.monotonic() - began_s)
                elif not service.has_served and (why := service.why_untold):
                    raise EnvironmentFault(f"{service.name}: {why} (log: {service.log})")
                await asyncio.wait({ended}, timeout=None if service.is_up else POLL_S)
            assert service.child is not None
            await asyncio.sleep(self._found_dead(service, service.child))
            if service.is_pool:
                await self._clear_away(service)
            await self._start_again(service)

    async def _start_again(self, service: Service) -> None:
        while True:
            try:
                return self._start(service)
            except OSError as error:
                why = _not_started(error)
            service.num_failed += 1
            await asyncio.sleep(self._failed(service, None, why, why))

    def _found_up(self, service: Service, took_s: float) -> None:
        if service.has_served:
            self._say(f"the {service.name} is up again after {took_s:.1f} s")
        service.is_up = service.has_served = True
        service.num_failed = 0

    def _found_dead(self, service: Service, child: Child) -> float:
        """Seconds until it is to be started again. Raises TandemError where it is given up."""
        lines = service.output.last()
        service.num_failed = 0 if service.is_up else service.num_failed + 1
        service.is_up = False
        return self._failed(service, child.exit_code, why_ended(child, lines), f"died ({how_ended(child, lines)})")

    def _failed(self, service: Service, status: int | None, why: str, what: str) -> float:
        """`status`: its exit code, None where it could not even be started."""
        is_refused = status in REFUSED and not service.has_served
        is_hopeless = service.num_failed >= (MAX_STARTS if service.has_served else MAX_FIRST_STARTS)
        if is_refused or (is_hopeless and not self._has_stand_in(service)):
            times = "" if is_refused else f" (it died at {service.num_failed} starts in a row)"
            kind = EnvironmentFault if status is None else REFUSED.get(status, EnvironmentFault)
            raise kind(f"{service.name}: {why}{times} (log: {service.log})")
        now_s = time.monotonic()
        service.failures = after_failure(service.failures, now_s)
        delay_s = (service.failures.due_s or now_s) - now_s
        again = f"starting it again in {delay_s:.1f} s" if delay_s else "starting it again"
        self._say(f"the {service.name} {what}; {again}")
        return delay_s

    def _has_stand_in(self, service: Service) -> bool:
        """Whether requests are answered without it."""
        others = [other for other in self._services if other.is_pool == service.is_pool and other is not service]
        is_elsewhere = service.is_pool and self._is_served_elsewhere
        return service.has_served and (is_elsewhere or any(o.is_up for o in others))

    async def _clear_away(self, service: Service) -> None:
        """What a dead supervisor left: a Triton that has been told to stop (`leash.py`), its stubs, its shared memory."""
        assert service.child is not None
        for _ in range(round(ORPHANS_S / POLL_S)):
            if not any(stubs_of(orphan.pid) for orphan in self._nursery.orphans()):
                break
            await asyncio.sleep(POLL_S)
        await self._nursery.end_orphans()
        remove_shared_memory(region_prefix_of(service.child.pid))

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self, timeout_s: float, hurry: asyncio.Event) -> None:
        """The gateways first, with their drain; then the Tritons, together; and what the dead among them left."""
        for are_pools in (False, True):
            await asyncio.gather(*(self._end(s, timeout_s, hurry) for s in self._services if s.is_pool == are_pools))
        await self._nursery.end_orphans()
        for service in self._services:
            if service.child is not None and service.is_pool:
                remove_shared_memory(region_prefix_of(service.child.pid))
            service.output.close()

    async def _end(self, service: Service, timeout_s: float, hurry: asyncio.Event) -> None:
        """SIGTERM, a second one when there is a hurry, and SIGKILL for one that does not leave in time."""
        child = service.child
        if child is None:
            return
        child.send(signal.SIGTERM)
        hurrying = asyncio.ensure_future(hurry.wait())
        ending = asyncio.ensure_future(child.wait())
        await asyncio.wait({hurrying, ending}, return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        if not ending.done() and hurry.is_set():
            child.send(signal.SIGTERM)
            await asyncio.wait({ending}, timeout=timeout_s)
        hurrying.cancel()
        if not ending.done():
            child.send(signal.SIGKILL)
            await ending


def _not_started(error: OSError) -> str:
    return f"cannot be started ({error.strerror})"
