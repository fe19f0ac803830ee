"""Servers of one pool that serve different files as one variant: one digest gets the requests, and the difference is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.fleet.server import CONFIG_EVERY, MAX_CONFIGS, Server
from serving.gateway.fleet.upstream import Target
from serving.local.environments import Environment
from serving.repository import Repository
from serving.scheduling.replica import Replica
from tests.gateway.conftest import SAMPLE, Running, gateway_before, triton_of_its_own
from tests.gateway.odd_triton import OddTriton, ask, gateway_of, until
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits

GAUGE = 'tandem_digest_conflict{model="digits",pool="cpu",variant="fp32"}'


def receipts(gateway: Running, model: str = "digits-fp32", number: int = 8) -> set[str]:
    replies = [gateway.infer(SAMPLE, model) for _ in range(number)]
    assert {reply.status for reply in replies} == {200}
    return {reply.headers["Tandem-Model-Digest"].removeprefix("sha256:") for reply in replies}


@pytest.fixture
def two_repositories(environment: Environment, tmp_path: Path) -> Iterator[tuple[Running, list[Program], list[str]]]:
    """A gateway before one pool of two real Tritons, whose digits-fp32 are different files; their digests."""
    other = (Repository(Path(__file__).parents[3] / "model_repo").variant("digits-fp32").model_path).read_bytes()
    digests = []
    for name, model_file in [
        ("one", None),
        ("other", other + b"\x72\x00"),
    ]:  # an empty metadata text, which ONNX lets pass
        publish_digits(tmp_path / name, precisions=["fp32"], model_file=model_file)
        digests.append(Repository(tmp_path / name).variant("digits-fp32").digest)
        (tmp_path / f"triton-{name}").mkdir()
    with (
        triton_of_its_own(tmp_path / "triton-one", "--no-measure", "--model-repository", str(tmp_path / "one")) as one,
        triton_of_its_own(
            tmp_path / "triton-other", "--no-measure", "--model-repository", str(tmp_path / "other")
        ) as two,
        gateway_before(tmp_path, {"cpu": [one[1], two[1]]}) as gateway,
    ):
        yield gateway, [one[0], two[0]], digests


@pytest.mark.thorough
@pytest.mark.triton
def test_of_two_real_tritons_with_different_files_one_gets_the_requests_until_it_dies(
    two_repositories: tuple[Running, list[Program], list[str]],
) -> None:
    gateway, tritons, digests = two_repositories
    assert len(set(digests)) == 2
    conflict = wait_until(
        lambda: gateway.ask("/admin/status").json()["pools"]["cpu"]["digest_conflicts"], "both are seen"
    )["digits-fp32"]
    assert sorted(conflict["servers"].values()) == sorted(f"sha256:{digest}" for digest in digests)
    chosen = conflict["chosen"].removeprefix("sha256:")
    assert chosen == min(digests)  # by a gateway without a past
    assert receipts(gateway) == receipts(gateway, "digits") == {chosen}
    assert f"{GAUGE} 1.0" in gateway.ask("/metrics").body.decode()
    gateway.program.wait_for("differ in digits-fp32")
    assert sum("differ in digits-fp32" in line for line in gateway.program.lines()) == 1

    tritons[digests.index(chosen)].end()
    [left] = set(digests) - {chosen}
    wait_until(lambda: gateway.infer(SAMPLE).status == 200, "the other takes over")
    assert receipts(gateway) == {left}
    assert gateway.ask("/admin/status").json()["pools"]["cpu"]["digest_conflicts"] == {}
    assert f"{GAUGE} 0.0" in gateway.ask("/metrics").body.decode()


def test_a_roll_out_moves_the_requests_once_and_a_rollback_moves_them_back(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        servers = [OddTriton(digest="bb") for _ in range(3)]
        async with gateway_of({"cpu": servers}) as gateway:

            async def rolled(number: int, digest: str) -> str:
                """The digest of receipts once this server has been started again with another one."""
                servers[number].digest = digest
                servers[number].models = []
                server = gateway.catalogue.pools["cpu"][number]
                await until(lambda: not server.snapshot.served, "it stops")
                servers[number].models = ["m-fp32"]
                await until(lambda: server.snapshot.served, "it is back")
                told = {(await ask(gateway)).headers["tandem-model-digest"] for _ in range(6)}
                [one] = told
                return one.removeprefix("sha256:")

            steps = [(0, "aa"), (1, "aa"), (2, "aa"), (0, "bb"), (1, "bb"), (2, "bb")]
            assert [await rolled(*step) for step in steps] == ["bb", "aa", "aa", "aa", "bb", "bb"]
            assert gateway.catalogue.conflicts == {"cpu": {}}

    with caplog.at_level(logging.WARNING, "tandem"):
        asyncio.run(run())
    assert sum("m-fp32" in message for message in caplog.messages) >= 2


def test_what_is_told_of_a_conflict_names_each_server() -> None:
    async def run() -> None:
        servers = [OddTriton(digest="bb"), OddTriton(digest="aa")]
        async with gateway_of({"cpu": servers}) as gateway:
            await until(lambda: gateway.catalogue.conflicts["cpu"], "it is seen")
            conflict = gateway.catalogue.conflicts["cpu"]["m-fp32"]
            assert conflict.digests == {servers[0].url: "bb", servers[1].url: "aa"}
            assert all(server.url in str(conflict) for server in servers)
            assert conflict.chosen == "aa"  # not whoever answered first

    asyncio.run(run())


def test_another_version_is_seen_with_the_index_and_not_when_configurations_are_asked_for_again() -> None:
    async def run() -> None:
        triton = OddTriton(digest="aa")
        async with gateway_of({"cpu": [triton]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]
            await until(lambda: server.polls % CONFIG_EVERY == 1, "configurations have just been asked for")
            polls, triton.version, triton.digest = server.polls, "2", "bb"
            await until(lambda: server.snapshot.served["m-fp32"].digest == "bb", "the new one is seen")
            assert server.polls <= polls + 2
            assert (await ask(gateway)).headers["tandem-model-digest"] == "sha256:bb"

    asyncio.run(run())


def test_a_triton_of_many_models_is_asked_for_few_configurations_at_once_and_for_each_in_its_turn() -> None:
    """Nothing but its configuration shows that a model was loaded anew."""

    class Counting(OddTriton):
        def _config(self, name: str) -> dict[str, Any]:
            asked.append(name)
            return super()._config(name)

    async def run() -> None:
        triton = await Counting(models=names).start()
        server = Server(Target(triton.url, asyncio.get_running_loop()), Replica(triton.url))
        await server.poll("cpu")
        assert sorted(asked) == sorted(names), "all of what is new"
        asked.clear()
        triton.digest = "11"
        for _ in range(3 * CONFIG_EVERY):
            before = len(asked)
            await server.poll("cpu")
            assert len(asked) - before <= MAX_CONFIGS
        assert sorted(asked) == sorted(names)
        assert {variant.digest for variant in server.snapshot.served.values()} == {"11"}
        triton.models = [*names, "new-fp32"]
        await server.poll("cpu")
        assert "new-fp32" in server.snapshot.served
        server.target.close_idle()
        triton.close()

    asked: list[str] = []
    names = [f"m{number}-fp32" for number in range(25)]
    asyncio.run(run())
