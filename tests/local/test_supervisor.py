"""A supervised Triton, really killed: what died comes back, and what was stopped leaves nothing behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.local import supervisor as supervising
from serving.local import triton_control
from serving.local.pool_plan import PoolPlan, Refusal
from serving.local.processes import Nursery, children_of, is_alive
from serving.local.supervisor import Supervisor
from serving.local.triton_control import Control, TritonLost
from serving.ports import free_ports
from tests.local import models
from tests.local.harness import LIMIT_S, SERVE, Program, Served, segments, served, still_there, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("environment")]


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all kills that it must survive."""
    folder = tmp_path_factory.mktemp("victims")
    with served(folder, models.write_victims(folder)) as running:
        yield running


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def count(served: Served, part: str) -> int:
    return sum(part in line for line in served.program.lines())


@pytest.mark.parametrize(("model", "num_stubs"), [("single", 1), ("pair", 2)])
def test_a_model_whose_stub_was_killed_is_loaded_again_with_all_its_stubs(
    victims: Served, model: str, num_stubs: int
) -> None:
    before = victims.stubs(model)
    assert len(before) == num_stubs
    kill(before[0].pid)
    victims.program.wait_for(f"a stub of {model} died; loading the model again")
    victims.program.wait_for(f"{model} is up again")

    def renewed() -> bool:
        now = victims.stubs(model)
        return len(now) == num_stubs and not set(now) & set(before)

    wait_until(renewed, "new stubs, the old ones gone")
    assert victims.answers(model)


def test_a_stub_that_dies_again_is_noticed_again(victims: Served) -> None:
    known = count(victims, "single is up again")
    kill(victims.stubs("single")[0].pid)
    wait_until(lambda: count(victims, "single is up again") > known, "another reload")
    assert victims.answers("single")


def test_a_killed_tritonserver_is_started_again_with_every_model_and_without_its_rests(victims: Served) -> None:
    server = victims.server
    rests = [stub for model in ("single", "pair") for stub in victims.stubs(model)]
    kill(rests[0].pid)
    kill(server)
    victims.program.wait_for("tritonserver died (killed by SIGKILL); starting it again")
    victims.program.wait_for("tritonserver is up again")
    assert victims.server != server
    victims.close()  # its connections were to the one that died
    assert all(victims.answers(model) for model in ("single", "pair"))
    assert not any(is_alive(stub) for stub in rests)
    assert not {stub.region for stub in rests} & set(segments({victims.program.pid: 0}))
    children = children_of(victims.program.pid)
    assert [child.is_alive for child in children] == [True], "what fell to us was reaped; as PID 1 nobody else would"


@pytest.mark.thorough
def test_a_model_that_somebody_unloads_stays_so_until_it_is_loaded_and_is_mended_from_then_on(victims: Served) -> None:
    config = victims.http.get_model_config("pair")
    victims.http.unload_model("pair")
    victims.program.wait_for("pair was unloaded; it stays so")
    wait_until(lambda: victims.stubs("pair") == [], "its processes have left")
    kill(victims.stubs("single")[0].pid)  # what is mended meanwhile is another
    wait_until(lambda: victims.answers("single"), "another reload")
    assert victims.stubs("pair") == []
    victims.http.load_model("pair", config=json.dumps(config))
    victims.program.wait_for("pair was loaded again")
    assert len(victims.stubs("pair")) == 2
    known = count(victims, "pair is up again")
    kill(victims.stubs("pair")[0].pid)
    wait_until(lambda: count(victims, "pair is up again") > known, "a reload")
    assert victims.answers("pair")


@pytest.mark.thorough
def test_what_somebody_loads_in_another_way_is_loaded_as_it_should_be(victims: Served) -> None:
    config = victims.http.get_model_config("single")
    del config["parameters"]["tandem_load"]
    victims.http.load_model("single", config=json.dumps(config))

    def is_ours() -> bool:
        return "tandem_load" in victims.http.get_model_config("single")["parameters"]

    wait_until(is_ours, "a load with the configuration that was planned")
    assert victims.answers("single")


def supervisor_of(models: dict[str, str], said: list[str]) -> Any:
    launch: Any = SimpleNamespace(memory_bound_bytes=None)
    nothing: Any = None
    return Supervisor(launch, PoolPlan("cpu", models, lambda _: None), Nursery(), nothing, said.append)


def test_mistakes_of_ours_that_take_turns_are_told_once_each_and_end_no_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    looks: list[int] = []

    async def run() -> None:
        stop = asyncio.Event()
        supervisor = supervisor_of({}, said)

        async def look() -> None:
            looks.append(len(looks))
            if len(looks) == 4:
                stop.set()
            if len(looks) % 2:
                raise OSError(errno.ENOSPC, "No space left on device", f"{len(looks)}")
            raise KeyError(len(looks))

        monkeypatch.setattr(supervisor, "_look", look)
        await supervisor.watch(stop)

    asyncio.run(run())
    assert (len(looks), len(said)) == (4, 2)
    assert "No space left on device" in said[0]


def test_a_model_that_is_taken_out_of_the_repository_while_it_is_loaded_again_is_not_served_after_that() -> None:
    said: list[str] = []
    asked: list[str] = []
    supervisor = supervisor_of({"m": "{}"}, said)

    class Triton:
        """Which is told to unload before it has loaded, as by a look at the repository beside the mending."""

        async def states(self, _: str) -> list[tuple[str, str]]:
            return [("READY", "")]

        async def load(self, model: str, _: str) -> None:
            await supervisor._drop(model, "its folder was removed")
            asked.append("loaded")

        async def unload(self, _: str) -> None:
            asked.append("unload")

    supervisor._server, supervisor._control = SimpleNamespace(pid=os.getpid(), exit_code=None), Triton()
    asyncio.run(supervisor._mend("m"))
    assert asked == ["unload", "loaded", "unload"]
    assert (supervisor.models(), len(said)) == ([], 1)


def test_a_load_that_takes_long_is_told_again_and_again_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "LONG_LOAD_S", 0.001)
    said: list[str] = []
    supervisor = supervisor_of({"m": "{}"}, said)

    class Triton:
        async def load(self, _: str, __: str) -> None:
            while len(said) < 3:
                await asyncio.sleep(0.001)

    supervisor._server, supervisor._control = SimpleNamespace(pid=os.getpid(), exit_code=None), Triton()

    async def load() -> int:
        await supervisor._load("m")
        told = len(said)
        await asyncio.sleep(0.05)  # longer than any of the pauses before
        return told

    assert asyncio.run(load()) == len(said) >= 3
    assert all(line.startswith("m is still being loaded after ") for line in said)


def test_a_load_that_hangs_in_a_server_that_was_started_again_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervising, "LONG_LOAD_S", 0.001)
    said: list[str] = []
    loaded: list[str] = []
    supervisor = supervisor_of({"good": "{}", "stuck": "{}"}, said)

    async def run() -> None:
        may_go = asyncio.Event()

        class Triton:
            async def load(self, model: str, _: str) -> None:
                if model == "stuck":
                    await may_go.wait()
                loaded.append(model)

        async def nothing() -> None: ...

        for name in ("_clear_away", "_start_server"):
            monkeypatch.setattr(supervisor, name, nothing)
        supervisor._server, supervisor._control = SimpleNamespace(pid=os.getpid(), exit_code=None), Triton()
        async with asyncio.timeout(LIMIT_S):
            await supervisor._mend(supervising.SERVER)
            assert any("tritonserver is up again" in line for line in said)
            assert "stuck" not in loaded
            may_go.set()
            await asyncio.wait(supervisor._mending.values())

    asyncio.run(run())
    assert loaded == ["good", "stuck"]


def test_a_trial_whose_load_hangs_holds_up_no_stop(tmp_path: Path) -> None:
    supervisor = supervisor_of({}, [])
    variant: Any = SimpleNamespace(
        directory=tmp_path, record=SimpleNamespace(variant="fp32", model="m", files=(), model_version=1)
    )
    supervisor._launch = SimpleNamespace(
        trials=tmp_path / "trials",
        region_prefix="none-",
        backends=tmp_path / "backends",
        environment=SimpleNamespace(folder=tmp_path),
    )
    supervisor._launch.trials.mkdir()
    supervisor._failed["m-fp32"] = ""
    plan = PoolPlan("cpu", {"m-fp32": '{"parameters": {}}'}, lambda _: None, variants={"m-fp32": variant})

    async def run() -> None:
        has_begun = asyncio.Event()

        class Triton:
            async def load(self, _: str, __: str) -> None:
                has_begun.set()
                await asyncio.Event().wait()

            async def unload(self, _: str) -> None:
                """As Triton's, which waits for the load."""
                await asyncio.Event().wait()

            async def close(self) -> None: ...

        supervisor._control = Triton()
        supervisor._taking["m"] = asyncio.create_task(supervisor._take_model({"m-fp32"}, plan))
        async with asyncio.timeout(LIMIT_S):
            await has_begun.wait()
            await supervisor.stop(asyncio.Event())
        assert supervisor._taking["m"].cancelled()

    asyncio.run(run())
    assert not list(supervisor._launch.trials.iterdir())


def test_an_export_that_a_new_start_of_the_server_came_between_is_taken_by_the_next_look() -> None:
    supervisor = supervisor_of({}, [])
    config = json.dumps({"version_policy": {"specific": {"versions": [1]}}})
    refused = {"m-int8": Refusal(1, "it is off")}
    plan = PoolPlan("cpu", {"m-fp32": config}, lambda _: None, refused=refused)
    supervisor._plan = SimpleNamespace(again=lambda: plan)
    repository: Any = SimpleNamespace(stamps=lambda _: {"m-fp32": (1, 1, 1), "m-int8": (2, 1, 1)})
    endings: list[type[BaseException] | None] = [asyncio.CancelledError, None]

    class Triton:
        async def refuse(self, *_: object) -> None:
            """Its channel is closed while it is asked."""
            if (ending := endings.pop(0)) is not None:
                raise ending

    async def run() -> set[str]:
        supervisor._control = Triton()
        looking = asyncio.create_task(supervisor._exported(repository))
        await asyncio.wait({looking})
        assert looking.cancelled()
        supervisor._told.clear()
        taken: set[str] = await supervisor._exported(repository)
        return taken

    assert asyncio.run(run()) == {"m-fp32"}


class Pipe:
    """In the place of a model's file: whoever opens it to read, waits until it is let go."""

    def __init__(self, file: Path) -> None:
        self._file, self._good, self._pipe = file, file.with_name("good"), file.with_name("pipe")
        file.rename(self._good)
        os.mkfifo(file)

    def let_go(self) -> None:
        """Whoever waits, once somebody does, finds an empty file, and whoever opens it from now on no file."""
        writer = wait_until(self._begun, "somebody reads it")
        self._file.rename(self._pipe)
        os.close(writer)

    def _begun(self) -> int | None:
        """The end to write to; None while nobody reads."""
        with contextlib.suppress(OSError):
            return os.open(self._file, os.O_WRONLY | os.O_NONBLOCK)
        return None

    def put_right(self) -> None:
        self._good.rename(self._file)


def reasons(served: Served, model: str) -> list[str]:
    rows = served.http.get_model_repository_index()
    return [row.get("reason", "") for row in rows if row["name"] == model and row.get("state") == "UNAVAILABLE"]


@pytest.mark.thorough
def test_a_model_that_hangs_and_fails_at_the_start_holds_up_no_other_and_is_loaded_once_it_can_be(
    tmp_path: Path,
) -> None:
    configs = {name: models.double(tmp_path, name) for name in ("good", "late")}
    pipe, ports = Pipe(tmp_path / "late" / "1" / "model.onnx"), free_ports(3)
    program = start(tmp_path, configs, ports)
    with contextlib.closing(Served(program, (ports[0], ports[1], ports[2]), tmp_path)) as running:
        try:
            wait_until(lambda: running.answers("good"), "the other one answers")
            kill(running.stubs("good")[0].pid)
            program.wait_for("good is up again")
            assert not program.says("ready:")
            pipe.let_go()
            program.wait_for("ready:")
            wait_until(
                lambda: count(running, "not served: Triton could not load late") > 3, "it is tried more than once"
            )
            assert wait_until(lambda: reasons(running, "late"), "it is told why") != ["unloaded"]
            assert running.answers("good")
            pipe.put_right()
            wait_until(lambda: running.answers("late"), "it is served")
            kill(running.stubs("late")[0].pid)
            program.wait_for("late is up again")  # it is kept up like all others
        finally:
            program.hurry()


def test_a_model_whose_load_hangs_while_it_is_mended_holds_up_no_other(tmp_path: Path) -> None:
    configs = {name: models.double(tmp_path, name) for name in ("good", "stuck")}
    with served(tmp_path, configs) as running:
        pipe = Pipe(tmp_path / "stuck" / "1" / "model.onnx")
        kill(running.stubs("stuck")[0].pid)
        running.program.wait_for("a stub of stuck died; loading the model again")
        kill(running.stubs("good")[0].pid)
        running.program.wait_for("good is up again")
        assert not running.program.says("stuck is up again")
        pipe.let_go()
        running.program.wait_for("Triton could not load stuck")
        pipe.put_right()
        running.program.wait_for("stuck is up again")
        assert running.answers("stuck")


async def lost(control: Control, call: Callable[[Control], Awaitable[object]]) -> None:
    with pytest.raises(TritonLost):
        async with asyncio.timeout(LIMIT_S):
            await call(control)


def test_whatever_a_tritonserver_is_told_that_stands_still_has_an_end(
    victims: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_control, "UNLOAD_S", 0.2)
    monkeypatch.setattr(triton_control, "LOAD_S", 0.2)

    async def run() -> None:
        control = Control(victims.grpc_url)
        await control.wait_live(LIMIT_S)
        os.kill(server, signal.SIGSTOP)
        try:
            await lost(control, lambda it: it.unload("nobody"))
            await lost(control, lambda it: it.refuse("nobody", 1, "why"))
            await lost(control, lambda it: it.infer("nobody", [], {}, []))
        finally:
            os.kill(server, signal.SIGCONT)
            await control.close()

    server = victims.server
    asyncio.run(run())
    wait_until(lambda: victims.answers("single"), "it goes on")


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, {"single": models.double(tmp_path, "single")}) as running:
        yield running


def family_of(own: Served) -> dict[int, int]:
    family = own.program.family()
    assert len(family) == 3, "the supervisor, the server, a stub"
    assert len(segments(family)) == 1
    return family


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_signal_stops_it_and_leaves_no_process_and_no_shared_memory(own: Served, number: signal.Signals) -> None:
    family = family_of(own)
    assert own.program.end(number) == 0
    assert still_there(family) == []
    assert segments(family) == []


@pytest.mark.parametrize("victim", ["server", pytest.param("stub", marks=pytest.mark.thorough)])
def test_a_stop_just_after_something_was_killed_leaves_nothing(own: Served, victim: str) -> None:
    family = family_of(own)
    kill(own.server if victim == "server" else own.stubs("single")[0].pid)
    assert own.program.end() == 0
    assert still_there(family) == []
    assert segments(family) == []


def test_when_the_supervisor_is_killed_the_rest_leaves_by_itself(own: Served) -> None:
    family = family_of(own)
    assert own.program.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not still_there(family), "server and stub gone")
    wait_until(lambda: not segments(family), "shared memory gone")


def test_a_second_signal_does_not_wait_for_an_idle_connection(tmp_path: Path) -> None:
    """Which alone would hold Triton's stop up for its whole exit timeout."""
    with served(tmp_path, {"single": models.double(tmp_path, "single")}, exit_timeout_s=600) as own:
        family = family_of(own)
        assert own.answers("single")
        own.program.send(signal.SIGTERM)
        own.program.wait_for("stopping")
        assert own.program.end(signal.SIGTERM) == 0
        assert still_there(family) == []


def test_a_request_in_flight_is_answered_before_it_stops(tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((1, 512, 1024)).astype(np.float32)
    with served(tmp_path, {"slow": models.slow(tmp_path, "slow")}, exit_timeout_s=60) as running:
        stub = running.stubs("slow")[0].pid
        used = cpu_ticks(stub)
        with concurrent.futures.ThreadPoolExecutor(1) as client:
            answer = client.submit(running.infer, "slow", {"x": x})
            wait_until(lambda: cpu_ticks(stub) - used >= 10, "a tenth of a second of work in the stub")
            running.program.send(signal.SIGTERM)
            y = answer.result()["y"]
        running.close()
        assert np.allclose(y, x)
        assert running.program.end() == 0


def cpu_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# -- starting ---------------------------------------------------------------------------------------------------------


def start(folder: Path, configs: dict[str, models.Config], ports: list[int]) -> Program:
    spec = {"repository": str(folder), "pool": "cpu", "ports": ports, "exit_timeout_s": 5, "configs": configs}
    (folder / "spec.json").write_text(json.dumps(spec))
    return Program([sys.executable, str(SERVE), str(folder / "spec.json")], folder / "log")


def test_where_no_model_loads_it_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    config = models.double(tmp_path, "single", instance_group=[{"count": 1, "kind": "KIND_GPU"}])
    program = start(tmp_path, {"single": config}, free_ports(3))
    family = program.family()
    assert program.process.wait(60) == 3
    assert "GPU" in program.lines()[-1]
    assert segments(family) == []


def test_a_model_that_does_not_load_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    configs = {
        "good": models.double(tmp_path, "good"),
        "bad": models.double(tmp_path, "bad", instance_group=[{"count": 1, "kind": "KIND_GPU"}]),
    }
    with served(tmp_path, configs) as running:
        running.program.wait_for("not served: Triton could not load bad:")
        assert running.answers("good")


def test_a_server_that_cannot_start_is_an_error_and_not_a_loop(tmp_path: Path) -> None:
    program = start(tmp_path, {"single": models.double(tmp_path, "single")}, [1, 1, 1])
    try:
        assert program.process.wait(60) == 3
    finally:
        program.process.kill()
    assert "tritonserver ended" in program.lines()[-1]


def test_a_stop_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    program = start(tmp_path, {"single": models.double(tmp_path, "single")}, free_ports(3))
    program.wait_for("loading: ")
    family = program.family()
    assert program.end() == 0
    assert still_there(family) == []
