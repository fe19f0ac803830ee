"""A tritonserver that works on for nobody is started again, and one for whose answer anybody waits never is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.local.containment import PATIENCE_LOOKS, Clients, Containment
from tests.local import models, poison
from tests.local.harness import Served, served, wait_until

CONTAINED = "tritonserver works on though everybody who asked has hung up"
LEFT = Clients(0, frozenset({7}))


def looks_until_stuck(containment: Containment, clients: Clients, cores: float = 0.0, limit: int = 100) -> int | None:
    """How many looks it takes, a second apart."""
    return next((i for i in range(limit) if containment.is_stuck(i, clients, cores * i)), None)


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
    assert not any(containment.is_stuck(i, Clients(0, frozenset({i // 2})), 0.0) for i in range(100))


def test_one_that_answered_nothing_between_its_restarts_is_given_longer_each_time() -> None:
    containment, took = Containment(), []
    for _ in range(3):
        took.append(looks_until_stuck(containment, LEFT))
        containment.restarts(has_answered=False)
    assert took == [PATIENCE_LOOKS - 1, 2 * PATIENCE_LOOKS - 1, 4 * PATIENCE_LOOKS - 1]
    containment.restarts(has_answered=True)
    assert looks_until_stuck(containment, LEFT) == PATIENCE_LOOKS - 1
    assert containment.num_restarts == 4


def test_what_triton_does_not_read_is_no_work_of_its_and_what_it_reads_is() -> None:
    left = frozenset({7})
    containment = Containment()
    assert any(containment.is_stuck(i, Clients(0, left, frozenset({(8, 64_000)})), 0.0) for i in range(PATIENCE_LOOKS))
    containment = Containment()
    assert not any(containment.is_stuck(i, Clients(0, left, frozenset({(8, 64_000 + i)})), 0.0) for i in range(100))


@pytest.fixture(scope="module")
def victim(environment: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("poisoned")
    with served(folder, {"double": models.double(folder, "double"), "loop": models.loop(folder, "loop")}) as running:
        yield running


def num_contained(served: Served) -> int:
    return sum(CONTAINED in line for line in served.program.lines())


@pytest.mark.triton
@pytest.mark.parametrize(
    "way",
    [
        way if way in ("a loop of a model", "gRPC") else pytest.param(way, marks=pytest.mark.thorough)
        for way in poison.WAYS
    ],
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
    wait_until(lambda: victim.answers("double"), "it serves")
    known = num_contained(victim)
    with ThreadPoolExecutor(1) as client:
        # Longer than what is worked on for one who left.
        waiting = client.submit(poison.answer, victim.url, "loop", poison.rounds(1_500_000))
        poison.send(victim.url, "loop", poison.rounds(1)).close()  # behind it, or before
        poison.send(victim.url, "loop", poison.rounds(2)).close()
        assert waiting.result() == 200
    assert num_contained(victim) == known
