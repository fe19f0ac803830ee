"""Keeps one tritonserver and its models up: starts, watches, mends, stops.

The thin shell around `watch.py`, which decides when: this looks at processes, starts them, and talks gRPC to the server.
A model that somebody unloads is left alone until somebody loads it or exports it again, or the server starts again. What is
exported while it runs is proven and loaded like at the start (`_take_news`); what does not load leaves its earlier version serving, and is
tried again with growing pauses. One model's load, however long, holds up no other model.
Keep: after `stop` no process of ours and no segment in /dev/shm is left, whatever happened before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from serving.decisions.engines import BASELINE
from serving.errors import EnvironmentFault, UserError
from serving.export.scratch import writing_into
from serving.local import launch as launching
from serving.local import recycling
from serving.local.causes import how_ended
from serving.local.containment import LOOK_S as CLIENTS_LOOK_S
from serving.local.containment import Clients, Containment, clients_of, cpu_s
from serving.local.launch import Launch
from serving.local.logs import Output
from serving.local.pool_plan import PoolPlan, Refusal
from serving.local.processes import Child, Nursery, Stub, is_alive, stubs_of
from serving.local.recycling import LOOK_S as WEIGH_S
from serving.local.recycling import Growth
from serving.local.served_gate import Judged, ServedGate
from serving.local.venvs import Say
from serving.local.watch import POLL_S, Finding, Recovery, what_happened
from serving.repository import TRIAL, Repository, Tensor, model_of
from serving.repository.layout import Stamp

if TYPE_CHECKING:
    from serving.local.triton_control import Control

START_TIMEOUT_S = 60.0  # 0.4 s is usual; a machine that needs a minute has another trouble (guess, not measured)
KILL_MARGIN_S = 5.0  # what tritonserver may take beyond its own exit timeout before it is killed (guess, not measured)
DRAIN_POLL_S = 0.1  # Triton itself looks once a second
DEATH_S = 0.5  # from a connection that breaks to the end of the process (guess, not measured)
UNLOAD_S = 60.0  # that a trial may take to be gone (guess, not measured)
MISTAKE_S = 3600.0  # until a mistake of ours at the same place is told again: a look comes five times a second
LOOK_S = 1.0  # how soon an export is noticed; a look costs a `stat` for each variant
LONG_LOAD_S = 60.0  # from here on a load is told, again after twice as long each time, and others go on beside it (guess, not measured)
LONGEST_PAUSE_S = 60.0  # between loads that fail: each starts a process, and what mends them is seldom noticed sooner (guess, not measured)
LOAD = "tandem_load"  # the parameter that only our configurations have
TRIAL_OF = (
    "tandem_trial_of"  # the parameter of what answers its gate's rows before it is served under the name that it holds
)
CONTAINED = "tandem_contained"  # how often the server was restarted because it worked on for nobody
SERVER = ""  # the server's name in a Recovery: no model has it


def start_server(launch: Launch, nursery: Nursery, output: Output) -> tuple[Child, Control]:
    """A tritonserver that is not live yet. Raises EnvironmentFault where this machine starts nothing any more."""
    output.forget()
    launching.remove_shared_memory_of_dead()
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
        self._plan = self._newest = plan
        self._stamps = dict(plan.stamps)  # of the repository that is served
        self._refused: dict[str, Stamp] | None = None  # of one that no plan could be made of
        self._num_unread = 0  # looks in a row that could not read the repository
        self._refusals = dict(plan.refused)
        self._told: dict[str, Refusal] = {}  # those that this Triton's index tells of
        self._taken_s = 0.0
        self._looking: asyncio.Task[None] | None = None  # at the repository, and at what is to be loaded again
        self._taking: dict[str, asyncio.Task[None]] = {}  # public names whose exports are being loaded
        self._failed: dict[
            str, str
        ] = {}  # models that could not be loaded -> why not under a trial's name, as Triton's index tells
        self._retries = Recovery(LONGEST_PAUSE_S)  # of these
        self._mending: dict[str, asyncio.Task[None]] = {}
        self._changing: set[str] = set()  # models that are being loaded from another export
        self._nursery = nursery
        self._output = output
        self._say = say
        self._server: Child | None = None
        self._control: Control | None = None
        self._stubs: dict[str, frozenset[Stub]] = {}
        self._unloaded: set[str] = set()  # models, by somebody else
        self._withheld: dict[
            str, Refusal
        ] = {}  # models that are not served because their files changed, or their answers are off here
        self._recovery = Recovery()
        self._containment = Containment()
        self._looked_s = 0.0  # at its clients
        self._is_blind = False  # because it may not look at them
        self._gate = ServedGate(self._infer)
        self._growth = Growth(launch.memory_bound_bytes)
        self._weighed_s = 0.0
        self._is_told_in_vain = False  # that its memory's bound lies below what it takes at its start
        self._is_short_in_index = False  # likewise, of the server that runs
        self._wants_restart = False
        self._trials: dict[str, str] = {}  # name -> the one under which it is tried
        self._num_loads = 0
        self._tell_served: Callable[[], None] = lambda: None
        self._has_served = False
        self._mistakes: dict[str, float] = {}  # of ours, by their places -> when they were told

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
        failures = [failure for failure in await self._load_first() if failure is not None]
        self._containment.started(time.monotonic() - began_s)
        if failures:
            await self._require_alive()
        failures += await self._judge(self._plan, self._stubs.keys())
        for failure in failures:
            self._say(f"not served: {failure}")
        self._refusals |= self._withheld
        self._failed = dict.fromkeys(self._configs.keys() - self._stubs.keys(), "")
        if failures:
            await self._fall_back()
        if failures and not self._stubs:
            raise failures[0]
        self._configs = {model: config for model, config in self._configs.items() if model in self._stubs}
        for name in self._failed.keys() - self._withheld.keys():
            self._retries.failed_again(name, time.monotonic())
        await self._tell_refusals()
        self._taken_s = time.monotonic()
        self._has_served = True

    async def _load_first(self) -> list[EnvironmentFault | None]:
        """Loads all, and mends meanwhile what was loaded and dies."""
        loads = asyncio.ensure_future(self._load_all(self._configs))
        try:
            while not (await asyncio.wait({loads}, timeout=POLL_S))[0]:
                if self._server is not None and self._server.exit_code is None:
                    await self._look_at_models()
                    self._mend_models()
        finally:
            loads.cancel()
        return loads.result()

    async def _fall_back(self) -> None:
        """Serves models whose newest version is refused here in the newest one before it that is not, where its files are kept."""
        below = {
            _parameter(config, "tandem_model"): _newest_version(config)
            for name, config in self._configs.items()
            if name in self._failed and _parameter(config, "tandem_variant") == BASELINE
        }
        while below and self._plan.older is not None:
            try:
                plan = await asyncio.to_thread(self._plan.older, below)
            except UserError:  # nothing is kept
                return
            for name, config in list(self._configs.items()):
                is_of_them = _parameter(config, "tandem_model") in below
                if is_of_them and name in self._stubs and name not in plan.configs:
                    await self._drop(name, "it is judged beside FP32 of its version; it is unloaded")
            self._configs |= plan.configs
            self._prove |= dict.fromkeys(plan.configs, plan.prove)
            failures = [it for it in await self._load_all(plan.configs) if it is not None]
            for failure in failures + await self._judge(plan, plan.configs.keys() & self._stubs.keys()):
                self._say(f"not served: {failure}")
            for name in plan.configs.keys() & self._stubs.keys():
                self._say(f"{name}: version {_newest_version(plan.configs[name])} is served in its place")
            below = {
                _parameter(config, "tandem_model"): _newest_version(config)
                for name, config in plan.configs.items()
                if name not in self._stubs and _parameter(config, "tandem_variant") == BASELINE
            }

    async def _require_alive(self) -> None:
        """Raises EnvironmentFault where the server died while it loaded: that is the cause, and not what each load was told."""
        assert self._server is not None
        with contextlib.suppress(TimeoutError):
            await self._server.wait(DEATH_S)
            how = how_ended(self._server, self._output.last())
            raise EnvironmentFault(f"tritonserver ended while it loaded the models ({how})")

    async def _start_server(self) -> None:
        self._containment.forget()
        self._growth.started()
        self._wants_restart = self._is_short_in_index = False
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

    async def _infer(
        self, model: str, inputs: Sequence[Tensor], rows: Mapping[str, NDArray[Any]], outputs: Sequence[Tensor]
    ) -> list[NDArray[Any]]:
        if self._control is None:
            raise EnvironmentFault(f"{model} is not asked: tritonserver does not run")
        return await self._control.infer(self._trials.get(model, model), inputs, rows, outputs)

    async def _judge(self, plan: PoolPlan, models: Iterable[str]) -> list[EnvironmentFault]:
        """Lets those that were just loaded answer the rows of their gates, and unloads what is off; why, of each of these."""
        failures = []
        for it in await self._answer_rows(plan, models):
            if it.problem is None:
                continue
            self._withheld[it.name] = _refusal(it.name, plan.configs[it.name], UserError(it.problem))
            self._stubs.pop(it.name, None)
            await self._unload(it.name)
            failures.append(EnvironmentFault(f"{it.name}: {it.problem}"))
        return failures

    async def _answer_rows(self, plan: PoolPlan, models: Iterable[str]) -> list[Judged]:
        found = await self._gate.judge(plan.variants, {model: plan.configs[model] for model in models})
        if good := [it for it in found if it.problem is None and it.num_rows]:
            each = ", ".join(f"{it.name} ({it.num_rows} rows, {it.took_s:.1f} s)" for it in good)
            self._say(f"answers here as its gate saw: {each}")
        return found

    async def _tell_refusals(self) -> None:
        """Lets Triton's index say of each variant or version that is refused, and not served as it was before, why."""
        control = self._control
        if control is None:
            return
        new = {
            name: it
            for name, it in self._refusals.items()
            if self._told.get(name) != it
            and (name not in self._configs or it.version > _newest_version(self._configs[name]))
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
        if model not in self._configs:  # it was taken out of the repository meanwhile
            self._stubs.pop(model, None)
            await self._unload(model)

    async def _load_as(self, model: str, config: str) -> None:
        if self._server is None or self._control is None:
            raise EnvironmentFault(f"{model} is not loaded: tritonserver does not run")
        before = stubs_of(self._server.pid)
        self._told.pop(model, None)  # Triton's index has its own word on it from here on
        with self._told_if_long(model):
            await self._control.load(model, self._numbered(config))
        after = stubs_of(self._server.pid) - before
        self._stubs[model] = frozenset(stub for stub in after if stub.model == model)
        self._unloaded.discard(model)
        self._withheld.pop(model, None)

    @contextlib.contextmanager
    def _told_if_long(self, model: str) -> Iterator[None]:
        loop, began_s = asyncio.get_running_loop(), time.monotonic()
        timer: asyncio.TimerHandle

        def tell(waited_s: float) -> None:
            nonlocal timer
            self._say(
                f"{model} is still being loaded after {time.monotonic() - began_s:.0f} s; other models do not wait for it"
            )
            timer = loop.call_later(waited_s, tell, 2 * waited_s)

        timer = loop.call_later(LONG_LOAD_S, tell, LONG_LOAD_S)
        try:
            yield
        finally:
            timer.cancel()

    def _numbered(self, text: str) -> str:
        """A configuration with a number that was never used: Triton ignores a load that changes nothing."""
        self._num_loads += 1
        config = json.loads(text)
        told = {LOAD: self._num_loads, CONTAINED: self._containment.num_restarts}
        config.setdefault("parameters", {}).update({key: {"string_value": str(n)} for key, n in told.items()})
        return json.dumps(config)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(self, stop: asyncio.Event, tell_served: Callable[[], None] = lambda: None) -> None:
        """Mends what dies until told to stop. A mistake of ours is told, and ends no server that serves.

        `tell_served` is called when there is one more model, or another version of one.
        """
        self._tell_served = tell_served
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)
                return
            try:
                await self._watch_once(stop)
            except Exception as error:
                self._tell_mistake("looking after tritonserver", error)

    async def _watch_once(self, stop: asyncio.Event) -> None:
        await self._look()
        self._look_for_exports()
        if SERVER not in self._due():
            self._mend_models()
            return
        await _end(self._mending.values())  # they come up with it
        mending = asyncio.ensure_future(self._mend(SERVER))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({mending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await _end([mending])

    def _mend_models(self) -> None:
        """Each beside the watching, so that one that hangs keeps no other from it."""
        for name, task in list(self._mending.items()):
            if task.done():
                del self._mending[name]
                _raise_mistake(task)
        for name in self._due():
            if name not in self._mending:
                self._mending[name] = asyncio.create_task(self._mend(name))

    def _tell_mistake(self, what: str, error: Exception) -> None:
        """The first of each place in an hour: several places may take turns, and a text may name another process each time."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place, now_s = f"{type(error).__name__} {frame.filename}:{frame.lineno}", time.monotonic()
        if now_s - self._mistakes.get(place, -math.inf) < MISTAKE_S:
            return
        self._mistakes[place] = now_s
        trace = "".join(traceback.format_exception(error)).rstrip()
        self._say(f"{what} failed by a mistake of Tandem's own, and goes on:\n{trace}")

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
        if now_s - self._weighed_s >= WEIGH_S and self._has_served and self._launch.trials is not None:
            self._weighed_s = now_s
            if await self._recycle(self._launch.trials):
                return
        await self._look_at_models()

    async def _look_at_models(self) -> None:
        now_s = time.monotonic()
        for model, stubs in list(self._stubs.items()):
            if model in self._changing:
                continue
            is_whole = bool(stubs) and all(is_alive(stub) for stub in stubs)
            if not is_whole and not self._recovery.is_down(model) and not await self._is_explained(model):
                self._recovery.found_dead(model, now_s)
                self._say(f"a stub of {model} died; loading the model again")

    async def _contain(self, now_s: float) -> bool:
        """Ends a server that works on for nobody. One that loads a model may be busy with that; one that does not say so is not."""
        from serving.local.triton_control import LoadFailed

        assert self._server is not None
        assert self._control is not None
        clients = self._clients()
        if clients is None or not self._containment.is_stuck(
            now_s, clients, cpu_s(self._server.pid, self._containment.others)
        ):
            return False
        answered: Mapping[str, int] = {}
        with contextlib.suppress(EnvironmentFault):
            try:
                is_spared = self._changing or self._is_reloading() or await self._control.is_loading()
            except LoadFailed:  # it cannot list its repository, and without that could not start again
                is_spared = True
            if is_spared:
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

    async def _recycle(self, repository: Path) -> bool:
        """Gives a server that has grown too large a new start, once a gateway says that others answer meanwhile."""
        assert self._server is not None
        assert self._control is not None
        if self._growth.bound_bytes is None or self._changing:
            return False
        with contextlib.suppress(EnvironmentFault):
            if self._wants_restart:
                if not any(recycling.GRANTED in reason for _, reason in await self._control.states(recycling.RESTART)):
                    return False
                self._say("its gateways do without it; tritonserver gets a new start")
                self._server.send(signal.SIGTERM)
                await self._close_control()
                await self._wait_drained(self._server, asyncio.Event())
                self._recovery.ended(SERVER, time.monotonic())
                await self._clear_away()
                return True
            own = recycling.memory_bytes(self._server.pid)
            whole = own + sum(recycling.memory_bytes(stub.pid) for stub in stubs_of(self._server.pid))
            why, in_vain = self._growth.why(own, whole), self._growth.in_vain
            if in_vain and not self._is_told_in_vain:
                self._is_told_in_vain = True
                self._say(in_vain)
            if in_vain and not self._is_short_in_index:
                self._is_short_in_index = True
                with writing_into(repository):
                    recycling.write_model(repository, recycling.SHORT)
                # Triton's own log has it, too, where the sentence above is to stand once.
                await self._control.refuse(recycling.SHORT, 1, in_vain.removeprefix(f"{recycling.IN_VAIN}: "))
            if why:
                with writing_into(repository):
                    recycling.write_model(repository, recycling.RESTART)
                await self._control.refuse(recycling.RESTART, 1, why)
                self._wants_restart = True
                self._say(f"wants a new start, while others answer: {why}")
        return False

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
        except Exception as failure:
            if name != SERVER and name not in self._configs:  # it was taken out of the repository meanwhile
                self._recovery.started(name)
                return
            delay_s = self._recovery.failed_again(name, time.monotonic())
            if not isinstance(failure, EnvironmentFault):
                self._tell_mistake(f"mending {name or 'tritonserver'}", failure)
            self._say(f"{str(failure) or repr(failure)}; trying again in {delay_s:.1f} s")
            return
        self._recovery.started(name)
        if name in self._unloaded or (name != SERVER and name not in self._configs):
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
        for name in self._failed.keys() - self._refusals.keys():  # the index of this server says nothing of them yet
            self._failed[name] = ""
            self._retries.ended(name, time.monotonic())
        self._mending = {model: asyncio.create_task(self._load_anew(model)) for model in self._configs}
        if self._mending:  # one that takes long goes on beside the watching
            await asyncio.wait(self._mending.values(), timeout=LONG_LOAD_S)
        self._containment.started(time.monotonic() - began_s)

    async def _load_anew(self, model: str) -> None:
        """In a server that was just started."""
        try:
            await self._load(model)
        except EnvironmentFault as failure:
            self._say(str(failure))
            self._recovery.found_dead(model, time.monotonic())  # so it is tried again by itself
        else:
            self._recovery.started(model)

    # -- later exports ------------------------------------------------------------------------------------------------

    def _look_for_exports(self) -> None:
        """Begins to take what was exported since and to load again what could not be loaded, beside the watching."""
        now_s = time.monotonic()
        for model, taking in list(self._taking.items()):
            if taking.done():
                del self._taking[model]
                _raise_mistake(taking)
        if self._looking is not None and self._looking.done():
            looking, self._looking = self._looking, None
            _raise_mistake(looking)
        if self._looking is None and now_s - self._taken_s >= LOOK_S and not self._recovery.is_down(SERVER):
            self._taken_s = now_s
            self._looking = asyncio.create_task(self._take_news())

    async def _take_news(self) -> None:
        """One model after another; one that takes long goes on beside the next ones."""
        if self._plan.repository is not None:
            for model, names in _by_model(await self._exported(self._plan.repository)):
                await self._begin(model, self._take_model(names, self._newest))
        due = self._retries.due(time.monotonic())
        for model, names in _by_model(name for name in due if not self._is_taken(name)):
            await self._begin(model, self._take_again(names, self._newest))

    async def _begin(self, model: str, taking: Coroutine[Any, Any, None]) -> None:
        self._taking[model] = task = asyncio.create_task(taking)
        await asyncio.wait({task}, timeout=LONG_LOAD_S)

    def _is_taken(self, name: str) -> bool:
        """Whether an export of its model is being loaded: what is exported meanwhile waits for that."""
        return model_of(name) in self._taking and not self._taking[model_of(name)].done()

    async def _exported(self, repository: Repository) -> set[str]:
        """Variants of the newest plan that are to be taken, which is made anew where the repository changed."""
        assert self._plan.again is not None
        try:
            found = await asyncio.to_thread(repository.stamps, self._refusals.keys() - self._configs.keys())
        except (UserError, OSError) as error:  # it is missing, or cannot be read, such as a volume that was lost
            self._num_unread += 1
            if self._num_unread == 2:
                self._say(f"the repository cannot be read, and what is loaded stays: {error}")
            return set()
        self._num_unread = 0
        stamps: dict[str, Stamp] = {}
        try:
            if found is None or found == self._refused:
                return set()
            taken = {name for name in found.keys() | self._stamps.keys() if self._is_taken(name)}
            # What they are now is looked at once their model is done.
            stamps = {name: it for name, it in found.items() if name not in taken}
            stamps |= {name: self._stamps[name] for name in taken & self._stamps.keys()}
            if stamps == self._stamps:
                self._refused = None
                return set()
            for name in sorted((self._configs.keys() | self._failed.keys()) - stamps.keys()):
                await self._drop(name, "its folder was removed; it is unloaded, and no longer expected")
            plan = await asyncio.to_thread(self._plan.again)
        except UserError as error:
            if self._refused != stamps:
                self._refused = stamps
                self._say(f"what is in the repository now is not taken: {error}")
            return set()
        except OSError:  # it changes at this moment
            return set()
        changed = {name for name in stamps.keys() | self._stamps.keys() if stamps.get(name) != self._stamps.get(name)}
        models = {_parameter(plan.configs[name], "tandem_model") for name in changed & plan.configs.keys()}
        changed |= {
            name
            for name in self._refusals
            if name not in self._configs or _parameter(self._configs[name], "tandem_model") in models
        }
        changed = {name for name in changed if not self._is_taken(name)}
        kept = {name: refusal for name, refusal in self._refusals.items() if self._is_taken(name)}
        self._newest, self._stamps, self._refusals = plan, stamps, {**plan.refused, **kept}
        for name in changed:
            self._retries.forget(name)
        try:
            await self._tell_what_is_refused(changed - plan.configs.keys())
        except BaseException:  # as when tritonserver gets a new start meanwhile: the next look takes them
            for name in changed:
                self._stamps.pop(name, None)
            raise
        return changed & plan.configs.keys()

    async def _take_model(self, names: Collection[str], plan: PoolPlan) -> None:
        """Takes these variants of one model, and unloads those of an earlier version that nothing in the repository stands for."""
        try:
            failed = await self._take_all(names, plan)
        except BaseException:  # somebody ended it, or a mistake: the next look begins it anew
            for name in names:
                self._stamps.pop(name, None)
            raise
        models = {_parameter(plan.configs[name], "tandem_model") for name in names}
        for name in sorted(self._configs.keys() - plan.configs.keys()):
            model = _parameter(self._configs[name], "tandem_model")
            if model in models - {_parameter(plan.configs[each], "tandem_model") for each in failed}:
                await self._drop(name, "it is of an earlier version; it is unloaded")
        for name in failed & self._configs.keys():
            fp32 = self._configs.get(f"{_parameter(self._configs[name], 'tandem_model')}-{BASELINE}")
            if fp32 is not None and _newest_version(self._configs[name]) < _newest_version(fp32):
                await self._drop(name, "it is of an earlier version than FP32, and its own is refused; it is unloaded")
        await self._tell_what_is_refused(names)

    async def _take_again(self, names: Collection[str], plan: PoolPlan) -> None:
        """What could not be loaded, unless somebody unloaded it; after FP32 also what is judged beside it."""
        try:
            wanted = {name for name in plan.configs.keys() & names if not await self._is_unloaded(name)}
        except EnvironmentFault:  # tritonserver is away
            return
        for name in set(names) - wanted:
            self._retries.forget(name)
        if not wanted:
            return
        await self._take_model(wanted, plan)
        models = {_parameter(plan.configs[name], "tandem_model") for name in wanted if self._is_served_as(name, plan)}
        rest = {name for name, config in plan.configs.items() if _parameter(config, "tandem_model") in models}
        if rest := {name for name in rest - self._failed.keys() if not self._is_served_as(name, plan)}:
            await self._take_model(rest, plan)

    async def _tell_what_is_refused(self, names: Collection[str]) -> None:
        for name in self._told.keys() & names - self._refusals.keys():  # it is in the repository no more
            if name in self._configs:
                self._told.pop(name)
            else:
                await self._unload(name)
        await self._tell_refusals()

    async def _take_all(self, names: Iterable[str], plan: PoolPlan) -> set[str]:
        """FP32 first, because the others are judged beside it, and stay as they are where its new version is refused. Which failed."""
        failed = set[str]()
        for is_other, name in sorted((_parameter(plan.configs[it], "tandem_variant") != BASELINE, it) for it in names):
            config = plan.configs[name]
            fp32 = f"{_parameter(config, 'tandem_model')}-{BASELINE}"
            if is_other and name in self._configs and not self._is_served_as(fp32, plan):
                why = f"{fp32} of its version is not served, beside which it is judged"
                self._refusals[name] = Refusal(_newest_version(config), why)
                self._say(f"not served: {name}: {why}; what was loaded before is served")
                failed.add(name)
            elif not await self._take(name, plan):
                failed.add(name)
        return failed

    def _is_served_as(self, name: str, plan: PoolPlan) -> bool:
        """As this plan has it, where it has it."""
        new, old = plan.configs.get(name), self._configs.get(name)
        return new is None or (old is not None and _parameter(old, "tandem_digest") == _parameter(new, "tandem_digest"))

    async def _try(self, name: str, plan: PoolPlan, *, always: bool) -> bool:
        """Lets it answer the rows of its gate beside what is served, under a name that nobody asks for. False: there is nothing to ask.

        `always`: it is loaded under that name then, too. Raises UserError where its answers are off; EnvironmentFault where it cannot be
        loaded, or Triton is lost.
        """
        variant, trials, control = plan.variants.get(name), self._launch.trials, self._control
        if variant is None or trials is None or control is None:
            return False
        if not (can_judge := self._gate.can_judge(variant)) and not always:
            return False
        trial, config = f"{name}{TRIAL}", json.loads(plan.configs[name])
        config["name"] = trial
        config["parameters"].pop("tandem_model", None)  # what has none gets no requests from any gateway
        config["parameters"][TRIAL_OF] = {"string_value": name}
        link, self._trials[name] = trials / trial, trial
        try:
            with writing_into(trials):
                link.unlink(missing_ok=True)
                link.symlink_to(variant.directory)
            with self._told_if_long(name):
                await control.load(trial, self._numbered(json.dumps(config)))
            if can_judge and (problem := (await self._answer_rows(plan, [name]))[0].problem):
                raise UserError(f"{name}: {problem}")
            return can_judge
        finally:
            self._trials.pop(name)
            with contextlib.suppress(EnvironmentFault):
                if self._control is control:  # else the server ends, and Triton would wait for a load that hangs
                    await control.unload(trial)
                    await self._until_unloaded(control, trial)
            link.unlink(missing_ok=True)

    async def _until_unloaded(self, control: Control, model: str) -> None:
        """What it held is free then."""
        for _ in range(int(UNLOAD_S / DRAIN_POLL_S)):
            if not any(state in ("READY", "UNLOADING") for state, _ in await control.states(model)):
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def _take(self, name: str, plan: PoolPlan) -> bool:
        """Whether it is served as it is in the repository now."""
        from serving.local.triton_control import LoadFailed

        config, began_s, tried = plan.configs[name], time.monotonic(), ""
        self._changing.add(name)
        try:
            await asyncio.to_thread(plan.prove, name)
            is_judged = False
            try:
                is_judged = await self._try(name, plan, always=name in self._failed)
            except LoadFailed as failure:
                tried = failure.reason
                if tried == self._failed.get(name):  # what Triton's index says is true still
                    raise LoadFailed(name, tried) from None
            await self._load_as(name, config)  # which lets the index tell why not
            if not is_judged and (off := await self._judge(plan, [name])):
                self._configs.pop(name, None)
                raise UserError(str(off[0]))
        except (UserError, EnvironmentFault) as failure:
            still = "; what was loaded before is served" if name in self._configs else ""
            if isinstance(failure, UserError):
                self._retries.forget(name)
                self._refusals[name] = _refusal(name, config, failure)
            else:
                self._failed[name], now_s = tried, time.monotonic()
                pause_s = self._retries.failed_again(name, now_s, now_s - began_s)
                still += f"; trying again in {pause_s:.1f} s"
            self._say(f"not served: {failure}{still}")
            return False
        finally:
            self._changing.discard(name)
        was_failed = self._failed.pop(name, None) is not None
        self._configs[name], self._prove[name] = config, plan.prove
        self._recovery.started(name)
        self._retries.forget(name)
        self._say(f"{name} {'could be loaded now' if was_failed else 'was exported'} and is served")
        self._tell_served()
        return True

    async def _drop(self, name: str, why: str) -> None:
        self._configs.pop(name, None)
        self._stubs.pop(name, None)
        self._stamps.pop(name, None)
        self._failed.pop(name, None)
        self._retries.forget(name)
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
        control, self._control = self._control, None
        await _end([*([self._looking] if self._looking else []), *self._taking.values(), *self._mending.values()])
        if control is not None:
            await control.close()
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


async def _end(tasks: Iterable[asyncio.Future[None]]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


def _raise_mistake(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _by_model(names: Iterable[str]) -> list[tuple[str, set[str]]]:
    """In the order of the first of each."""
    found: dict[str, set[str]] = {}
    for name in sorted(names):
        found.setdefault(model_of(name), set()).add(name)
    return list(found.items())


def _refusal(model: str, config: str, error: UserError) -> Refusal:
    return Refusal(_newest_version(config), str(error).removeprefix(f"{model}: "))


def _newest_version(config: str) -> int:
    return int(max(json.loads(config)["version_policy"]["specific"]["versions"]))


def _parameter(config: str, name: str) -> str:
    return str(json.loads(config).get("parameters", {}).get(name, {}).get("string_value", ""))
