"""Keeps one tritonserver and its models up: starts, watches, mends, stops.

The thin shell around `watch.py`, which decides when: this looks at processes, starts them, and talks gRPC to the server.
A model that somebody unloads is left alone until somebody loads it or exports it again, or the server starts again. What is
exported while it runs is proven and loaded like at the start (`_take_exports`); what does not load leaves its earlier version serving.
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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import EnvironmentFault, UserError
from serving.local import launch as launching
from serving.local.causes import how_ended
from serving.local.containment import LOOK_S as CLIENTS_LOOK_S
from serving.local.containment import Clients, Containment, clients_of, cpu_s
from serving.local.launch import Launch
from serving.local.logs import Output
from serving.local.pool_plan import PoolPlan, Refusal
from serving.local.processes import Child, Nursery, Stub, is_alive, stubs_of
from serving.local.venvs import Say
from serving.local.watch import POLL_S, Finding, Recovery, what_happened
from serving.repository import Repository
from serving.repository.layout import Stamp

if TYPE_CHECKING:
    from serving.local.triton_control import Control

START_TIMEOUT_S = 60.0  # 0.4 s is usual; a machine that needs a minute has another trouble (guess, not measured)
KILL_MARGIN_S = 5.0  # what tritonserver may take beyond its own exit timeout before it is killed (guess, not measured)
DRAIN_POLL_S = 0.1  # Triton itself looks once a second
DEATH_S = 0.5  # from a connection that breaks to the end of the process (guess, not measured)
LOOK_S = 1.0  # how soon an export is noticed; a look costs a `stat` for each variant
LOAD = "tandem_load"  # the parameter that only our configurations have
CONTAINED = "tandem_contained"  # how often the server was restarted because it worked on for nobody
SERVER = ""  # the server's name in a Recovery: no model has it


def start_server(launch: Launch, nursery: Nursery, output: Output) -> tuple[Child, Control]:
    """A tritonserver that is not live yet. Raises EnvironmentFault where this machine starts nothing any more."""
    output.forget()
    variables = launching.variables(launch, os.environ)
    try:
        server = nursery.start(launching.command(launch), variables, folder=Path("/"), output=output.end)
    except OSError as error:
        raise EnvironmentFault(f"tritonserver cannot be started ({error.strerror})") from None
    from serving.local.triton_control import Control  # gRPC takes 0.5 s to import; tritonserver starts meanwhile

    return server, Control(f"{launch.host}:{launch.ports.grpc}")


async def wait_live(server: Child, control: Control, output: Output) -> None:
    """Raises EnvironmentFault, with the cause, where it ends before it is, or is not for too long."""
    from serving.local.triton_control import TritonLost

    live = asyncio.ensure_future(control.wait_live(START_TIMEOUT_S))
    ended = asyncio.ensure_future(server.wait())
    try:
        await asyncio.wait({live, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise EnvironmentFault(f"tritonserver ended while it started ({how_ended(server, output.last())})")
        try:
            live.result()
        except TritonLost:
            last = (output.last() or ["it said nothing"])[-1]
            raise EnvironmentFault(
                f"tritonserver does not answer {START_TIMEOUT_S:.0f} s after its start: {last}"
            ) from None
    finally:
        live.cancel()
        ended.cancel()


class Supervisor:
    """Serves a plan: each model with its configuration, now and after every mend, as long as its files are what was proven."""

    def __init__(self, launch: Launch, plan: PoolPlan, nursery: Nursery, output: Output, say: Say) -> None:
        self._launch = launch
        self._configs = dict(plan.configs)
        self._prove = dict.fromkeys(plan.configs, plan.prove)
        self._plan = plan
        self._stamps = dict(plan.stamps)  # of the repository that is served
        self._refused: dict[str, Stamp] | None = None  # of one that no plan could be made of
        self._refusals = dict(plan.refused)
        self._told: dict[str, Refusal] = {}  # those that this Triton's index tells of
        self._taken_s = 0.0
        self._taking: asyncio.Task[None] | None = None
        self._again: set[str] = set()  # models that could not be loaded because tritonserver was away
        self._failed: set[str] = set()  # models that Triton could not load; its index says so until they are unloaded
        self._changing: set[str] = set()  # models that are being loaded from another export
        self._nursery = nursery
        self._output = output
        self._say = say
        self._server: Child | None = None
        self._control: Control | None = None
        self._stubs: dict[str, frozenset[Stub]] = {}
        self._unloaded: set[str] = set()  # models, by somebody else
        self._withheld: dict[str, Refusal] = {}  # models that are not loaded because their files changed
        self._recovery = Recovery()
        self._containment = Containment()
        self._looked_s = 0.0  # at its clients
        self._is_blind = False  # because it may not look at them
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
        began_s = time.monotonic()
        await self._start_server()
        failures = [failure for failure in await self._load_all(self._configs) if failure is not None]
        self._containment.started(time.monotonic() - began_s)
        if failures:
            await self._require_alive()
        for failure in failures:
            self._say(f"not served: {failure}")
        if failures and len(failures) == len(self._configs):
            raise failures[0]
        self._failed = self._configs.keys() - self._stubs.keys()
        self._configs = {model: config for model, config in self._configs.items() if model in self._stubs}
        self._refusals |= self._withheld
        await self._tell_refusals()
        self._taken_s = time.monotonic()
        self._has_served = True

    async def _require_alive(self) -> None:
        """Raises EnvironmentFault where the server died while it loaded: that is the cause, and not what each load was told."""
        assert self._server is not None
        with contextlib.suppress(TimeoutError):
            await self._server.wait(DEATH_S)
            how = how_ended(self._server, self._output.last())
            raise EnvironmentFault(f"tritonserver ended while it loaded the models ({how})")

    async def _start_server(self) -> None:
        self._containment.forget()
        self._server, self._control = start_server(self._launch, self._nursery, self._output)
        await wait_live(self._server, self._control, self._output)

    async def _load_all(self, models: Iterable[str]) -> list[EnvironmentFault | None]:
        async def load(model: str) -> EnvironmentFault | None:
            try:
                await self._load(model)
            except EnvironmentFault as failure:
                return failure
            return None

        return await asyncio.gather(*(load(model) for model in models))

    async def _tell_refusals(self) -> None:
        """Lets Triton's index say of each variant that is refused, and not served as it was before, why."""
        control = self._control
        if control is None:
            return
        new = {
            name: it for name, it in self._refusals.items() if name not in self._configs and self._told.get(name) != it
        }
        self._told |= new
        calls = (control.refuse(name, refusal.version, refusal.reason) for name, refusal in new.items())
        for name, failure in zip(new, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(failure, EnvironmentFault):
                self._told.pop(name, None)
            elif failure is not None:
                raise failure

    async def _load(self, model: str) -> None:
        """Loads, or loads again, and remembers the stubs that came up with it: those before them are on their way out."""
        assert self._server is not None
        assert self._control is not None
        try:
            self._prove[model](model)
        except UserError as error:
            self._withheld[model] = refusal = _refusal(model, self._configs[model], error)
            with contextlib.suppress(EnvironmentFault):
                await self._control.unload(model)  # else Triton calls it ready, whatever became of its stub
                await self._control.refuse(model, refusal.version, refusal.reason)
            raise EnvironmentFault(f"not loaded: {error}") from None
        await self._load_as(model, self._configs[model])

    async def _load_as(self, model: str, config: str) -> None:
        if self._server is None or self._control is None:
            raise EnvironmentFault(f"{model} is not loaded: tritonserver does not run")
        before = stubs_of(self._server.pid)
        self._told.pop(model, None)  # Triton's index has its own word on it from here on
        await self._control.load(model, self._numbered(config))
        after = stubs_of(self._server.pid) - before
        self._stubs[model] = frozenset(stub for stub in after if stub.model == model)
        self._unloaded.discard(model)
        self._withheld.pop(model, None)

    def _numbered(self, text: str) -> str:
        """A configuration with a number that was never used: Triton ignores a load that changes nothing."""
        self._num_loads += 1
        config = json.loads(text)
        told = {LOAD: self._num_loads, CONTAINED: self._containment.num_restarts}
        config.setdefault("parameters", {}).update({key: {"string_value": str(n)} for key, n in told.items()})
        return json.dumps(config)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(self, stop: asyncio.Event) -> None:
        """Mends what dies until told to stop."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)
                return
            await self._look()
            self._look_for_exports()
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
        due = tuple(name for name in self._recovery.due(time.monotonic()) if name not in self._changing)
        if self._server is not None and self._server.exit_code is None:
            return due
        return tuple(name for name in due if name == SERVER)

    async def _look(self) -> None:
        now_s = time.monotonic()
        if self._server is None or self._server.exit_code is not None:
            if self._recovery.found_dead(SERVER, now_s):
                how = how_ended(self._server, self._output.last()) if self._server else "it never started"
                self._say(f"tritonserver died ({how}); starting it again")
                await self._clear_away()
            return
        if now_s - self._looked_s >= CLIENTS_LOOK_S:
            self._looked_s = now_s
            if await self._contain(now_s):
                return
        for model, stubs in list(self._stubs.items()):
            if model in self._changing:
                continue
            is_whole = bool(stubs) and all(is_alive(stub) for stub in stubs)
            if not is_whole and not self._recovery.is_down(model) and not await self._is_explained(model):
                self._recovery.found_dead(model, now_s)
                self._say(f"a stub of {model} died; loading the model again")

    async def _contain(self, now_s: float) -> bool:
        """Ends a server that works on for nobody. One that loads a model may be busy with that; one that does not say so is not."""
        assert self._server is not None
        assert self._control is not None
        clients = self._clients()
        if clients is None or not self._containment.is_stuck(
            now_s, clients, cpu_s(self._server.pid, self._containment.others)
        ):
            return False
        answered: Mapping[str, int] = {}
        with contextlib.suppress(EnvironmentFault):
            if self._changing or self._is_reloading() or await self._control.is_loading():
                self._containment.forget()
                return False
            answered = await self._control.num_answered()
        clients = self._clients()
        if clients is None or self._containment.is_needed(clients):  # somebody came while it was asked
            return False
        if self._containment.is_of_use(sum(answered.values())):
            return False
        self._containment.restarts(answered, {s.pid: model for model, stubs in self._stubs.items() for s in stubs})
        self._say("tritonserver works on though everybody who asked has hung up; starting it again")
        self._recovery.ended(SERVER, time.monotonic())
        await self._clear_away()
        return True

    def _is_reloading(self) -> bool:
        """Whether somebody loads a model again that is loaded: Triton calls it ready all the while, and has a new process for it."""
        assert self._server is not None
        return any(s.model in self._stubs and s not in self._stubs[s.model] for s in stubs_of(self._server.pid))

    def _clients(self) -> Clients | None:
        assert self._server is not None
        try:
            return clients_of(self._server.pid, self._launch.ports)
        except OSError as error:
            if not self._is_blind and self._server.exit_code is None:
                self._is_blind = True
                self._say(
                    f"cannot see who waits for tritonserver ({error.strerror}): if it is stuck, nobody starts it again"
                )
            return None

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
        if seen is Finding.UNLOADED and not was_unloaded:
            self._unloaded.add(model)
            self._say(f"{model} was unloaded; it stays so until it is loaded again")
        return seen is not Finding.DEAD

    async def _take_over(self, model: str, stubs: frozenset[Stub]) -> bool:
        """Watches what somebody else loaded, if it is what we would have loaded."""
        assert self._control is not None
        self._unloaded.discard(model)
        try:
            self._prove[model](model)
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
        if (
            what_happened(await self._control.states(model), has_others=False, was_unloaded=False)
            is not Finding.UNLOADED
        ):
            return False
        self._unloaded.add(model)
        self._say(f"{model} was unloaded; it stays so until it is loaded again")
        return True

    async def _mend_server(self) -> None:
        await self._clear_away()
        began_s = time.monotonic()
        await self._start_server()
        await self._tell_refusals()
        models = list(self._configs)
        for model, failure in zip(models, await self._load_all(models), strict=True):
            if failure is None:
                self._recovery.started(model)
            else:
                self._say(str(failure))
                self._recovery.found_dead(model, time.monotonic())  # so it is tried again by itself
        self._containment.started(time.monotonic() - began_s)

    # -- later exports ------------------------------------------------------------------------------------------------

    def _look_for_exports(self) -> None:
        """Begins to take what was exported since, one export at a time, beside the watching."""
        now_s, repository = time.monotonic(), self._plan.repository
        is_busy = self._taking is not None and not self._taking.done()
        if repository is None or is_busy or now_s - self._taken_s < LOOK_S or self._recovery.is_down(SERVER):
            return
        self._taken_s = now_s
        self._taking = asyncio.create_task(self._take_exports(repository))

    async def _take_exports(self, repository: Repository) -> None:
        assert self._plan.again is not None
        stamps: dict[str, Stamp] = {}
        try:
            found = await asyncio.to_thread(repository.stamps, self._refusals.keys() - self._configs.keys())
            if found is None or found in (self._stamps, self._refused):
                return
            stamps = found
            for name in sorted((self._configs.keys() | self._failed) - stamps.keys()):
                await self._drop(name, "its folder was removed; it is unloaded, and no longer expected")
            plan = await asyncio.to_thread(self._plan.again)
        except (
            UserError
        ) as error:  # also where the whole repository is gone, such as a volume: then everything stays loaded
            if self._refused != stamps:
                self._refused = stamps
                self._say(f"what is in the repository now is not taken: {error}")
            return
        except OSError:  # it changes at this moment
            return
        changed = {name for name in stamps.keys() | self._stamps.keys() if stamps.get(name) != self._stamps.get(name)}
        changed |= self._refusals.keys() - self._configs.keys()
        self._refusals = dict(plan.refused)
        failed = [name for name in sorted(changed & plan.configs.keys()) if not await self._take(name, plan)]
        models = {_model(plan.configs[name]) for name in changed & plan.configs.keys()}
        for name in sorted(self._configs.keys() - plan.configs.keys()):
            is_older = _model(self._configs[name]) in models - {_model(plan.configs[each]) for each in failed}
            if is_older:
                await self._drop(name, "it is of an earlier version; it is unloaded")
        for name in self._told.keys() - self._refusals.keys():  # it is in the repository no more
            await self._unload(name)
        await self._tell_refusals()
        lost = {name: self._stamps[name] for name in self._again & self._stamps.keys()}
        self._stamps = {name: stamp for name, stamp in stamps.items() if name not in self._again} | lost
        self._again.clear()

    async def _take(self, name: str, plan: PoolPlan) -> bool:
        """Whether it is served as it is in the repository now."""
        from serving.local.triton_control import LoadFailed

        config = plan.configs[name]
        self._changing.add(name)
        try:
            await asyncio.to_thread(plan.prove, name)
            await self._load_as(name, config)
        except (UserError, EnvironmentFault) as failure:
            still = "; what was loaded before is served" if name in self._configs else ""
            self._say(f"not served: {failure}{still}")
            if isinstance(failure, UserError):
                self._refusals[name] = _refusal(name, config, failure)
            elif isinstance(failure, LoadFailed):
                self._failed.add(name)
            else:
                self._again.add(name)
            return False
        finally:
            self._changing.discard(name)
        self._configs[name], self._prove[name] = config, plan.prove
        self._failed.discard(name)
        self._recovery.started(name)
        self._say(f"{name} was exported and is served")
        return True

    async def _drop(self, name: str, why: str) -> None:
        self._configs.pop(name, None)
        self._stubs.pop(name, None)
        self._stamps.pop(name, None)
        self._failed.discard(name)
        self._recovery.started(name)
        self._say(f"{name}: {why}")
        await self._unload(name)

    async def _unload(self, name: str) -> None:
        self._told.pop(name, None)
        with contextlib.suppress(EnvironmentFault):
            if self._control is not None:
                await self._control.unload(name)

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self, hurry: asyncio.Event) -> None:
        """Lets requests in flight finish, unless in a hurry, and leaves nothing behind."""
        if self._taking is not None and not self._taking.done():
            self._taking.cancel()
            await asyncio.wait({self._taking})
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
        self._told.clear()

    async def _close_control(self) -> None:
        if self._control is not None:
            control, self._control = self._control, None
            await control.close()


def _refusal(model: str, config: str, error: UserError) -> Refusal:
    version = max(json.loads(config)["version_policy"]["specific"]["versions"])
    return Refusal(version, str(error).removeprefix(f"{model}: "))


def _model(config: str) -> str:
    """The public name in a configuration."""
    parameters = json.loads(config).get("parameters", {})
    return str(parameters.get("tandem_model", {}).get("string_value", ""))
