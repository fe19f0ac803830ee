"""A supervised Triton, really killed: what died comes back, and what was stopped leaves nothing behind."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.local.processes import children_of, is_alive
from serving.ports import free_ports
from tests.local import models
from tests.local.harness import SERVE, Program, Served, segments, served, still_there, wait_until

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


def test_a_second_signal_does_not_wait_for_an_idle_connection(own: Served) -> None:
    """Which alone would hold Triton's stop up for its whole exit timeout."""
    family = family_of(own)
    assert own.answers("single")
    own.program.send(signal.SIGTERM)
    own.program.wait_for("stopping")
    assert own.program.end(signal.SIGTERM, limit_s=9) == 0, "the exit timeout is 10 s"
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
    program = start(tmp_path, models.write_victims(tmp_path), free_ports(3))
    program.wait_for("loading: ")
    family = program.family()
    assert program.end() == 0
    assert still_there(family) == []
