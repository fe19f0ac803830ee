"""Promotion and rollback over two pools and two gateways, while a gateway, Redis and a pool are killed: no error, and nothing is mixed."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.command import tandem
from tests.gateway.conftest import SAMPLE, Running, gateway_before, triton_of_its_own
from tests.gateway.fleet.test_faults import server_of
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits
from tests.local.test_later_exports import another
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.triton, pytest.mark.campaigns]  # servers that are killed under load


class Answer(NamedTuple):
    began: float  # monotonic
    status: int
    version: str  # as the receipt says
    model_version: str  # as Triton says
    revision: str
    pool: str


@dataclass
class Clients:
    """Each asks one gateway after the other, and another one where a connection is lost, as a load balancer has it."""

    urls: list[str]
    answers: list[Answer] = field(default_factory=list)
    num_lost: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def ask_on(self) -> None:
        for turn in itertools.count():
            if self.stop.wait(0.01):
                return
            began = time.monotonic()
            urls = list(self.urls)
            for number in range(len(urls) * 3):
                url = urls[(turn + number) % len(urls)]
                try:
                    self.answers.append(self.ask(url, began))
                    break
                except (OSError, http.client.HTTPException):
                    self.num_lost += 1
            else:
                raise AssertionError("nobody answers")

    @staticmethod
    def ask(url: str, began: float) -> Answer:
        connection = http.client.HTTPConnection(url, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/v2/models/digits/infer", SAMPLE)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            version, revision, pool = (answer.headers.get(f"tandem-{it}", "") for it in ("version", "revision", "pool"))
            return Answer(began, answer.status, version, body.get("model_version", ""), revision, pool)

    def next(self, number: int) -> list[Answer]:
        """Answers to requests that are sent from now on."""
        now = time.monotonic()

        def found() -> list[Answer]:
            return [it for it in self.answers if it.began > now]

        wait_until(lambda: len(found()) >= number, "more are answered")
        return found()


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[dict[str, tuple[Program, str]]]:
    repository = tmp_path / "repository"
    publish_digits(repository, precisions=["fp32"])
    publish_digits(repository, precisions=["fp32"], version=2, model_file=another(2))
    with contextlib.ExitStack() as stack:
        started = {}
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            more = ("--no-measure", "--versions", "2", "--model-repository", str(repository))
            started[name] = stack.enter_context(triton_of_its_own(tmp_path / name, *more))
        yield started


def pin(redis: RedisServer, version: int, *gateways: Running) -> None:
    urls = [word for it in gateways for word in ("--url", f"http://{it.url}")]
    done = tandem("models", "pin", "digits", "--version", str(version), "--control", redis.url, *urls)
    assert done.returncode == 0, done.stderr


def versions(answers: list[Answer]) -> set[str]:
    return {it.version for it in answers}


def test_a_promotion_and_a_rollback_are_whole_whatever_dies(
    pools: dict[str, tuple[Program, str]], tmp_path: Path
) -> None:
    redis = RedisServer(tmp_path)
    pin(redis, 1)
    urls = {name: [url] for name, (_, url) in pools.items()}
    with contextlib.ExitStack() as stack:
        stack.callback(redis.kill)
        gateways = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            gateways.append(stack.enter_context(gateway_before(tmp_path / name, urls, "--control", redis.url)))
        a, b = gateways
        clients = Clients([a.url, b.url])
        threads = [threading.Thread(target=clients.ask_on) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert versions(clients.next(50)) == {"1"}
            pin(redis, 2, a, b)
            assert versions(clients.next(50)) == {"2"}
            # A gateway dies just as it hears of the next revision; the other one has it all the same.
            pin(redis, 1)
            a.program.send(signal.SIGKILL)
            a.program.process.wait()
            pin(redis, 1, b)
            assert versions(clients.next(50)) == {"1"}
            clients.urls.remove(a.url)
            (tmp_path / "again").mkdir()
            again = stack.enter_context(gateway_before(tmp_path / "again", urls, "--control", redis.url))
            clients.urls.append(again.url)
            # Redis dies: what is in force stays, and when it is back the next revision comes.
            redis.kill()
            assert versions(clients.next(100)) == {"1"}
            redis.start()
            pin(redis, 2, again, b)
            assert versions(clients.next(50)) == {"2"}
            # A pool that answers dies in the middle of a rollback: the other one answers, in the version that is in force.
            dead = clients.answers[-1].pool
            os.kill(server_of(pools[dead][0]), signal.SIGKILL)
            done = tandem("models", "rollback", "digits", "--control", redis.url, "--url", f"http://{b.url}")
            assert done.returncode == 0
            pin(redis, 1, again, b)
            assert versions(clients.next(100)) == {"1"}

            # It comes back for whoever asks for it. Others go to the cheaper one, as each gateway timed the two for this version.
            def answers_again() -> bool:
                replies = [it.infer(SAMPLE, headers={"Tandem-Pool": dead}) for it in (again, b)]
                found = {(it.status, it.headers["Tandem-Pool"], it.headers["Tandem-Version"]) for it in replies}
                return found == {(200, dead, "1")}

            def seen() -> str:
                told = [it.ask("/admin/status").body.decode() for it in (again, b)]
                return "\n".join([*told, again.program.account, b.program.account, pools[dead][0].account])

            wait_until(answers_again, f"the pool {dead} answers again", seen=seen)
        finally:
            clients.stop.set()
            for thread in threads:
                thread.join(60)
    assert {it.status for it in clients.answers} == {200}
    assert all(it.version == it.model_version for it in clients.answers)
    for revision in {it.revision for it in clients.answers}:
        assert len(versions([it for it in clients.answers if it.revision == revision])) == 1
    print(f"{len(clients.answers)} requests, {clients.num_lost} connections lost to a gateway that was killed")
