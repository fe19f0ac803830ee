"""Keeps one tritonserver and its models up: starts, watches, mends, stops.

The thin shell around `watch.py`, which decides when: this looks at processes, starts them, and talks gRPC to the server.
A model that somebody unloads is left alone until somebody loads it, or the server starts again.
Keep: after `stop` no process of ours and no segment in /dev/shm is left, whatever happened before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import EnvironmentFault, UserError
from serving.local import launch as launching
from serving.local.environments import Say
from serving.local.launch import Launch
from serving.local.pool import PoolPlan
from serving.local.processes import Child, Nursery, Stub, exit_text, is_alive, stubs_of
from serving.local.watch import POLL_S, Recovery, Seen, what_happened

if TYPE_CHECKING:
    from serving.local.control import Control

START_TIMEOUT_S = 60.0  # 0.4 s is usual; a machine that needs a minute has another trouble (guess, not measured)
KILL_MARGIN_S = 5.0  # what tritonserver may take beyond its own exit timeout before it is killed (guess, not measured)
DRAIN_POLL_S = 0.1  # Triton itself looks once a second
LOAD = "tandem_load"  # the parameter that only our configurations have
SERVER = ""  # the server's name in a Recovery: no model has it


class Supervisor:
    """Serves a plan: each model with its configuration, now and after every mend, as long as its files are what was proven."""

    def __init__(self, launch: Launch, plan: PoolPlan, nursery: Nursery, say: Say) -> None:
        self._launch = launch
        self._configs = dict(plan.configs)
        self._prove = plan.prove
        self._nursery = nursery
        self._say = say
        self._server: Child | None = None
        self._control: Control | None = None
        self._stubs: dict[str, frozenset[Stub]] = {}
        self._unloaded: set[str] = set()  # models, by somebody else
        self._withheld: set[str] = set()  # models that are not loaded because their files changed
        self._recovery = Recovery()
        self._num_loads = 0
        self._has_served = False

    def summary(self) -> str:
        ports = self._launch.ports
        where = f"HTTP {self._launch.host}:{ports.http}, gRPC {ports.grpc}, metrics {ports.metrics}"
        return f"the {self._launch.pool} pool serves {', '.join(self.models())} ({where})"

    def models(self) -> list[str]:
        """The models that it serves."""
        return sorted(self._stubs)

    # -- starting -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the server and loads every model. One that cannot be loaded is left out; none at all is an error."""
        await self._start_server()
        failures = [failure for failure in await self._load_all(self._configs) if failure is not None]
        if failures and len(failures) == len(self._configs):
            raise failures[0]
        for failure in failures:
            self._say(f"not served: {failure}")
        self._configs = {model: config for model, config in self._configs.items() if model in self._stubs}
        self._has_served = True

    async def _start_server(self) -> None:
        variables = launching.variables(self._launch, os.environ)
        self._server = self._nursery.start(launching.command(self._launch), variables, folder=Path("/"), log=None)
        from serving.local.control import Control  # gRPC takes 0.5 s to import; tritonserver starts meanwhile

        self._control = Control(f"{self._launch.host}:{self._launch.ports.grpc}")
        live = asyncio.ensure_future(self._control.wait_live(START_TIMEOUT_S))
        ended = asyncio.ensure_future(self._server.wait())
        try:
            await asyncio.wait({live, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise EnvironmentFault(
                    f"tritonserver ended while it started ({exit_text(ended.result())}); see its log"
                )
            live.result()
        finally:
            live.cancel()
            ended.cancel()

    async def _load_all(self, models: Iterable[str]) -> list[EnvironmentFault | None]:
        async def load(model: str) -> EnvironmentFault | None:
            try:
                await self._load(model)
            except EnvironmentFault as failure:
                return failure
            return None

        return await asyncio.gather(*(load(model) for model in models))

    async def _load(self, model: str) -> None:
        """Loads, or loads again, and remembers the stubs that came up with it: those before them are on their way out."""
        assert self._server is not None
        assert self._control is not None
        try:
            self._prove(model)
        except UserError as error:
            self._withheld.add(model)
            with contextlib.suppress(EnvironmentFault):
                await self._control.unload(model)  # else Triton calls it ready, whatever became of its stub
            raise EnvironmentFault(f"not loaded: {error}") from None
        before = stubs_of(self._server.pid)
        await self._control.load(model, self._next_config(model))
        after = stubs_of(self._server.pid) - before
        self._stubs[model] = frozenset(stub for stub in after if stub.model == model)
        self._unloaded.discard(model)
        self._withheld.discard(model)

    def _next_config(self, model: str) -> str:
        """The model's configuration with a number that was never used: Triton ignores a load that changes nothing."""
        self._num_loads += 1
        config = json.loads(self._configs[model])
        config.setdefault("parameters", {})[LOAD] = {"string_value": str(self._num_loads)}
        return json.dumps(config)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(self, stop: asyncio.Event) -> None:
        """Mends what dies until told to stop."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)
                return
            await self._look()
            for name in self._due():
                mending = asyncio.ensure_future(self._mend(name))
                stopping = asyncio.ensure_future(stop.wait())
                await asyncio.wait({mending, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if not mending.done():
                    mending.cancel()
                    await asyncio.wait({mending})
                    return

    def _due(self) -> tuple[str, ...]:
        """While the server is down nothing else can be mended; its models come up with it."""
        due = self._recovery.due(time.monotonic())
        if self._server is not None and self._server.exit_code is None:
            return due
        return tuple(name for name in due if name == SERVER)

    async def _look(self) -> None:
        now_s = time.monotonic()
        if self._server is None or self._server.exit_code is not None:
            if self._recovery.found_dead(SERVER, now_s):
                how = exit_text(self._server.exit_code or 0) if self._server else "it never started"
                self._say(f"tritonserver died ({how}); starting it again")
                await self._clear_away()
            return
        for model, stubs in self._stubs.items():
            is_whole = bool(stubs) and all(is_alive(stub) for stub in stubs)
            if not is_whole and not self._recovery.is_down(model) and not await self._is_explained(model):
                self._recovery.found_dead(model, now_s)
                self._say(f"a stub of {model} died; loading the model again")

    async def _is_explained(self, model: str) -> bool:
        """Whether its processes are gone because somebody unloaded or loaded it, so that nothing is to be mended."""
        assert self._server is not None
        assert self._control is not None
        others = frozenset(s for s in stubs_of(self._server.pid) if s.model == model) - self._stubs[model]
        was_unloaded = model in self._unloaded
        try:
            rows = await self._control.states(model)
            seen = what_happened(rows, has_others=bool(others), was_unloaded=was_unloaded)
            if seen is None:
                return await self._take_over(model, others)
        except EnvironmentFault:
            return False
        if seen is Seen.UNLOADED and not was_unloaded:
            self._unloaded.add(model)
            self._say(f"{model} was unloaded; it stays so until it is loaded again")
        return seen is not Seen.DEAD

    async def _take_over(self, model: str, stubs: frozenset[Stub]) -> bool:
        """Watches what somebody else loaded, if it is what we would have loaded."""
        assert self._control is not None
        self._unloaded.discard(model)
        try:
            self._prove(model)
        except UserError:
            return False  # loading it ourselves tells why, and unloads it
        if LOAD not in await self._control.parameters(model):
            return False
        self._stubs[model] = stubs
        self._say(f"{model} was loaded again")
        return True

    async def _mend(self, name: str) -> None:
        began_s = time.monotonic()
        try:
            if name == SERVER:
                await self._mend_server()
            elif name in self._withheld or not await self._is_unloaded(name):
                await self._load(name)
        except EnvironmentFault as failure:
            delay_s = self._recovery.failed_again(name, time.monotonic())
            self._say(f"{failure}; trying again in {delay_s:.1f} s")
            return
        self._recovery.started(name)
        if name in self._unloaded:
            return
        self._say(f"{name or 'tritonserver'} is up again after {time.monotonic() - began_s:.1f} s")

    async def _is_unloaded(self, model: str) -> bool:
        """Whether somebody unloaded it while it was down."""
        assert self._control is not None
        if what_happened(await self._control.states(model), has_others=False, was_unloaded=False) is not Seen.UNLOADED:
            return False
        self._unloaded.add(model)
        self._say(f"{model} was unloaded; it stays so until it is loaded again")
        return True

    async def _mend_server(self) -> None:
        await self._clear_away()
        await self._start_server()
        models = list(self._configs)
        for model, failure in zip(models, await self._load_all(models), strict=True):
            if failure is None:
                self._recovery.started(model)
            else:
                self._say(str(failure))
                self._recovery.found_dead(model, time.monotonic())  # so it is tried again by itself

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self, hurry: asyncio.Event) -> None:
        """Lets requests in flight finish, unless in a hurry, and leaves nothing behind."""
        await self._close_control()
        if self._server is not None and self._has_served:  # before that nobody can wait for an answer
            self._server.send(signal.SIGTERM)
            await self._wait_drained(self._server, hurry)
        await self._clear_away()
        if self._launch.backends.parent != self._launch.environment.folder:
            shutil.rmtree(self._launch.backends, ignore_errors=True)

    async def _wait_drained(self, server: Child, hurry: asyncio.Event) -> None:
        """Until it has left, or nothing is lost by killing it: its models are unloaded, or its time is up, or ours is."""
        deadline_s = time.monotonic() + self._launch.exit_timeout_s + KILL_MARGIN_S
        while server.exit_code is None and not hurry.is_set() and time.monotonic() < deadline_s:
            if not stubs_of(server.pid):
                return  # only then is every accepted request answered; it would still sleep for up to a second
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), DRAIN_POLL_S)

    async def _clear_away(self) -> None:
        """Removes what a server that has ended left: its channel, its stubs, its shared memory."""
        await self._close_control()
        if self._server is not None and self._server.exit_code is None:
            self._server.send(signal.SIGKILL)
            await self._server.wait()
        await self._nursery.end_orphans()
        launching.remove_shared_memory(self._launch.region_prefix)
        self._stubs = dict.fromkeys(self._stubs, frozenset())
        self._unloaded.clear()

    async def _close_control(self) -> None:
        if self._control is not None:
            control, self._control = self._control, None
            await control.close()
