"""A tritonserver that works on for nobody is started again, and one for whose answer anybody waits never is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from serving.local.containment import CLOSE_WAIT, LOOK_S, PATIENCE_LOOKS, Clients, Connection, Containment, clients_of
from serving.local.launch import Ports
from tests.local import models, poison
from tests.local.harness import LIMIT_S, Served, served, wait_until

CONTAINED = "tritonserver works on though everybody who asked has hung up"
LEFT = Clients(0, frozenset({7}))
SERVER, STUB = 11, 12  # processes


def looks_until_stuck(containment: Containment, clients: Clients, cores: float = 0.0, limit: int = 100) -> int | None:
    """How many looks it takes, a second apart."""
    return next((i for i in range(limit) if containment.is_stuck(i, clients, {SERVER: 0.0, STUB: cores * i})), None)


def test_a_kernel_that_does_not_answer_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(socket.socket):
        def recv(self, *_: int) -> bytes:
            raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "socket", Silent)
    with pytest.raises(OSError, match="connections") as told:
        clients_of(os.getpid(), Ports(1, 2, 3))
    assert told.value.strerror


def test_one_that_works_on_for_clients_who_left_is_stuck_whether_it_computes_or_sleeps() -> None:
    assert looks_until_stuck(Containment(), LEFT) == PATIENCE_LOOKS - 1
    assert looks_until_stuck(Containment(), Clients(0), cores=1.0) == PATIENCE_LOOKS


@pytest.mark.parametrize(
    ("clients", "cores"),
    [
        pytest.param(Clients(1, frozenset({7})), 1.0, id="somebody waits beside one who left"),
        pytest.param(Clients(0), 0.1, id="it answers polls"),
    ],
)
def test_one_that_is_needed_or_rests_is_not_stuck(clients: Clients, cores: float) -> None:
    assert looks_until_stuck(Containment(), clients, cores) is None


def test_clients_who_leave_one_after_the_other_make_nothing_stuck() -> None:
    containment = Containment()
    assert not any(containment.is_stuck(i, Clients(0, frozenset({i // 2})), {}) for i in range(100))


def test_one_that_answered_nothing_between_its_restarts_is_given_longer_each_time() -> None:
    containment, took = Containment(), []
    for _ in range(3):
        took.append(looks_until_stuck(containment, LEFT))
        containment.restarts({"slow": 0}, {})
    assert took == [PATIENCE_LOOKS - 1, 2 * PATIENCE_LOOKS - 1, 4 * PATIENCE_LOOKS - 1]
    containment.restarts({"slow": 1}, {})
    assert looks_until_stuck(containment, LEFT) == PATIENCE_LOOKS - 1
    assert containment.num_restarts == 4


def test_a_model_that_is_slow_at_first_is_given_longer_whatever_others_answered() -> None:
    containment, answered, models = Containment(), {"slow": 0, "quick": 99}, {STUB: "slow"}
    looks_until_stuck(containment, LEFT, cores=1.0)
    containment.restarts(answered, models)
    assert looks_until_stuck(containment, LEFT, cores=1.0) == 2 * PATIENCE_LOOKS - 1
    containment.restarts(answered, {STUB: "quick"})
    assert looks_until_stuck(containment, LEFT, cores=1.0) == PATIENCE_LOOKS - 1


def test_nothing_is_cut_short_that_may_be_done_before_another_start_would_be() -> None:
    containment = Containment()
    containment.started(took_s=20.0)
    assert looks_until_stuck(containment, LEFT) == 20 / LOOK_S - 1
    containment.restarts({"model": 1}, {})
    containment.started(took_s=1.0)
    assert looks_until_stuck(containment, LEFT) == PATIENCE_LOOKS - 1


def test_one_that_computes_and_answers_between_two_looks_is_of_use_unless_somebody_left() -> None:
    containment = Containment()
    for answered in (10, 10 + 1, 10 + 2):
        assert looks_until_stuck(containment, Clients(0), cores=1.0) is not None
        assert containment.is_of_use(answered)
        assert not containment.is_stuck(100, Clients(0), {STUB: 1e9})
    assert looks_until_stuck(containment, Clients(0), cores=1.0) is not None
    assert not containment.is_of_use(10 + 2)
    containment.forget()
    assert looks_until_stuck(containment, LEFT) is not None
    assert not containment.is_of_use(10 + 3)


def test_what_triton_does_not_read_is_no_work_of_its_and_what_it_reads_is() -> None:
    left = frozenset({7})
    containment = Containment()
    assert any(containment.is_stuck(i, Clients(0, left, frozenset({(8, 64_000)})), {}) for i in range(PATIENCE_LOOKS))
    containment = Containment()
    assert not any(containment.is_stuck(i, Clients(0, left, frozenset({(8, 64_000 + i)})), {}) for i in range(100))


@pytest.fixture(scope="module")
def victim(environment: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("poisoned")
    with served(folder, {"double": models.double(folder, "double"), "loop": models.loop(folder, "loop")}) as running:
        yield running


def num_contained(served: Served) -> int:
    return sum(CONTAINED in line for line in served.program.lines())


@pytest.mark.triton
@pytest.mark.thorough
def test_one_that_could_not_start_again_because_its_repository_is_away_is_left_alone(victim: Served) -> None:
    wait_until(lambda: victim.answers("double"), "it serves")
    known, away = num_contained(victim), victim.repository.with_name("away")
    victim.repository.rename(away)
    try:
        poison.WAYS["a loop of a model"](victim)
        time.sleep(4 * PATIENCE_LOOKS * LOOK_S)
        assert (away / victim.program.log.name).read_text().count(CONTAINED) == known
    finally:
        away.rename(victim.repository)
    wait_until(lambda: num_contained(victim) > known, "it is started again once it can be")
    wait_until(lambda: victim.answers("double"), "it serves again")


@pytest.mark.triton
@pytest.mark.parametrize(
    "way",
    [way if way == "a loop of a model" else pytest.param(way, marks=pytest.mark.thorough) for way in poison.WAYS],
)
def test_a_poisoned_server_is_started_again_and_answers(victim: Served, way: str) -> None:
    wait_until(lambda: victim.answers("double"), "it serves")
    victim.close()
    known = num_contained(victim)
    poison.WAYS[way](victim)
    wait_until(lambda: num_contained(victim) > known, "it is started again")
    wait_until(lambda: num_told(victim) == str(num_contained(victim)), "the new one tells it")
    wait_until(lambda: victim.answers("double"), "it serves again")


def num_told(served: Served) -> str | None:
    """How often it was restarted for this, as its models' configurations tell."""
    with contextlib.suppress(Exception):
        return str(served.http.get_model_config("double")["parameters"]["tandem_contained"]["string_value"])
    return None


@pytest.mark.triton
def test_work_for_whose_answer_a_client_waits_is_never_killed(victim: Served) -> None:
    for model in ("double", "loop"):  # each is loaded for itself after a restart
        wait_until(lambda model=model: poison.is_ready(victim.url, model), "it serves")  # type: ignore[misc]
    known = num_contained(victim)
    with ThreadPoolExecutor(1) as client:
        # Longer than what is worked on for one who left.
        waiting = client.submit(poison.answer, victim.url, "loop", poison.rounds(1_500_000))
        poison.send(victim.url, "loop", poison.rounds(1)).close()  # behind it, or before
        poison.send(victim.url, "loop", poison.rounds(2)).close()
        assert waiting.result() == 200
    assert num_contained(victim) == known


@pytest.mark.triton
@pytest.mark.thorough
def test_a_model_that_is_loaded_again_over_http_may_take_its_time(environment: object, tmp_path: Path) -> None:
    configs = {"folding": models.folding(tmp_path, "folding", times=1)}
    models.folding(tmp_path / "later", "folding", times=200)
    with served(tmp_path, configs) as running, contextlib.ExitStack() as idle:
        for _ in range(8):  # on the thread that loads; it does not notice when they leave
            client = HTTPConnection(running.url)
            client.request("GET", "/v2/health/live")
            client.getresponse().read()
            idle.callback(client.close)
        shutil.copytree(tmp_path / "later", tmp_path, dirs_exist_ok=True)
        load = json.dumps({"parameters": {"config": json.dumps(configs["folding"])}})
        with ThreadPoolExecutor(1) as operator:
            waiting = operator.submit(status_of, running.url, "/v2/repository/models/folding/load", load)
            wait_until(lambda: len(running.stubs("folding")) == 2, "it is being loaded")
            idle.close()
            assert waiting.result() == 200
        assert not num_contained(running)


def status_of(url: str, path: str, body: str) -> int:
    with contextlib.closing(HTTPConnection(url, timeout=LIMIT_S)) as client:
        client.request("POST", path, body)
        return client.getresponse().status


def test_sockets_of_another_program_on_the_same_port_are_not_tritons(tmp_path: Path) -> None:
    """Which listens on another address."""
    process = tmp_path / "1"
    (process / "fd").mkdir(parents=True)
    (tmp_path / "self" / "fd").mkdir(parents=True)
    half_closed = [Connection(8000, 53248, CLOSE_WAIT, unsent=0, unread=0, inode=inode) for inode in (21, 22)]
    (process / "fd" / "5").symlink_to("socket:[22]")
    assert clients_of(1, Ports(http=8000), tmp_path, half_closed).left == {22}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_client_who_hung_up_is_seen_with_what_was_not_read(family: socket.AddressFamily, tmp_path: Path) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with contextlib.ExitStack() as open_ones:
        here = open_ones.enter_context(socket.create_server((host, 0), family=family))
        ports = Ports(http=here.getsockname()[1])
        with socket.create_connection((host, ports.http)) as client:
            client.sendall(b"x" * 40)
            server = open_ones.enter_context(here.accept()[0])
            inode = os.fstat(server.fileno()).st_ino
            wait_until(lambda: clients_of(os.getpid(), ports).unread == {(inode, 40)}, "what it sent has come")
        wait_until(lambda: clients_of(os.getpid(), ports).left == {inode}, "its end has come")


def test_of_a_server_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        clients_of(1, Ports(), tmp_path)
