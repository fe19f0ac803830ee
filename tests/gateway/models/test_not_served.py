"""What no Triton could load is told everywhere, with Triton's reason: health, the index, status, errors; and what another serves goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from serving.gateway.app import Gateway
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Lost, Target
from serving.gateway.models.account import entries
from serving.gateway.models.metadata import all_routable, not_served
from serving.local.environments import Environment
from serving.local.processes import children_of
from serving.ports import free_ports
from serving.scheduling.replica import Replica
from tests.command import tandem
from tests.gateway.conftest import SAMPLE, Running, gateway_before, triton_of_its_own
from tests.gateway.odd_triton import OddTriton, ask, gateway_of, until
from tests.local.harness import Program, wait_until
from tests.local.repository import BROKEN, publish_digits

NOT_LOADED = {"digits-int8", "other-fp32", "other-int8"}
WHY = "Load model from model.onnx failed:Protobuf parsing failed."


@dataclass(frozen=True, slots=True)
class Lacking:
    """A gateway before a real Triton with digits, of which INT8 does not load, and `other`, of which nothing does."""

    gateway: Running
    grpc_url: str
    folder: Path  # its model repository is `repository` there
    url: str


@pytest.fixture(scope="module")
def lacking(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lacking]:
    folder = tmp_path_factory.mktemp("lacking")
    publish_digits(folder / "repository")
    publish_digits(folder / "repository", precisions=["int8"], model_file=BROKEN)
    publish_digits(folder / "repository", "other", precisions=["fp32", "int8"], model_file=BROKEN)
    port = free_ports(1)[0]
    with (
        triton_of_its_own(folder, "--no-measure", "--model-repository", str(folder / "repository")) as (_, url),
        gateway_before(folder, {"cpu": [url]}, "--grpc-port", str(port), ready=False) as gateway,
    ):
        # One model is loaded after the other, and the gateway may look in between.
        wait_until(lambda: not_loaded(gateway) >= NOT_LOADED, "it has seen all of them")
        yield Lacking(gateway, f"127.0.0.1:{port}", folder, url)


def not_loaded(gateway: Running) -> set[str]:
    servers = gateway.ask("/admin/status").json()["pools"]["cpu"]["servers"]
    return {name for server in servers for name in server.get("not_loaded", ())}


@pytest.mark.triton
def test_a_gateway_is_not_ready_while_no_triton_can_load_a_model_and_names_it(lacking: Lacking) -> None:
    for path in ("/health/ready", "/v2/health/ready"):
        reply = lacking.gateway.ask(path)
        assert (reply.status, list(reply.json()["not_served"])) == (503, ["other"]), path
        assert WHY in reply.json()["not_served"]["other"]
    told = lacking.gateway.ask("/v2/models/other/ready")
    assert (told.status, told.json()["ready"], WHY in told.json()["reason"]) == (503, False, True)
    assert lacking.gateway.infer(SAMPLE).status == 200  # the others are served meanwhile
    with grpc.InferenceServerClient(lacking.grpc_url) as client:
        assert not client.is_server_ready()


@pytest.mark.triton
@pytest.mark.parametrize("name", ["other", "other-fp32", "digits-int8"])
def test_what_could_not_be_loaded_is_not_ready_for_tritons_reason_and_not_unknown(lacking: Lacking, name: str) -> None:
    reply = lacking.gateway.infer(SAMPLE, name)
    assert (reply.status, reply.headers["Tandem-Error"]) == (503, "not_ready")
    assert WHY in reply.json()["error"]
    assert "/" not in reply.json()["error"]  # no path of the server's
    with grpc.InferenceServerClient(lacking.grpc_url) as client:
        image = grpc.InferInput("image", [1, 1, 28, 28], "FP32")
        image._raw_content = bytes(4 * 28 * 28)
        with pytest.raises(InferenceServerException, match="Protobuf parsing failed") as refused:
            client.infer(name, [image])
        assert refused.value.status() == "StatusCode.UNAVAILABLE"


@pytest.mark.triton
@pytest.mark.protocol(
    "v2 HTTP", "a model that could not be loaded is UNAVAILABLE in the index, with the reason", "supported", item=34
)
def test_the_index_and_the_status_say_why_it_is_not_served(lacking: Lacking) -> None:
    rows = {row["name"]: row for row in lacking.gateway.ask("/v2/repository/index", b"").json()}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "digits": "READY",
        "digits-fp32": "READY",
        **dict.fromkeys(["digits-int8", "other", "other-fp32", "other-int8"], "UNAVAILABLE"),
    }
    assert all(WHY in row["reason"] for row in rows.values() if row["state"] == "UNAVAILABLE")
    with grpc.InferenceServerClient(lacking.grpc_url) as client:
        assert {row.name: row.reason for row in client.get_model_repository_index().models} == {
            name: row.get("reason", "") for name, row in rows.items()
        }
    status = lacking.gateway.ask("/admin/status").json()
    assert set(status["pools"]["cpu"]["servers"][0]["not_loaded"]) == {"digits-int8", "other-fp32", "other-int8"}
    account = {
        entry["name"]: (entry["state"], entry["expected"])
        for told in status["models"].values()
        for entry in told["account"]
    }
    assert account == {
        "digits-fp32": ("served", True),
        **dict.fromkeys(["digits-int8", "other-fp32", "other-int8"], ("not_loaded", True)),
    }
    assert status["models"]["digits"]["public"]["variant"] == "fp32"


@pytest.mark.triton
def test_models_says_what_a_gateway_cannot_serve(lacking: Lacking) -> None:
    words = ["models", "--json", "--url", f"http://{lacking.gateway.url}"]
    told = json.loads(tandem(*words).stdout)
    lost = {entry["name"]: entry["reason"] for entry in told["account"] if entry["state"] == "not_loaded"}
    assert set(lost) == {"digits-int8", "other-fp32", "other-int8"}
    assert WHY in lost["other-fp32"]
    assert tandem(*words[:-1], "http://127.0.0.1:1").returncode == 2


@pytest.mark.triton
def test_a_triton_whose_repository_is_away_goes_on_and_a_gateway_that_starts_meanwhile_asks_it(
    lacking: Lacking, tmp_path: Path
) -> None:
    gateway, there, away = lacking.gateway, lacking.folder / "repository", lacking.folder / "away"

    def num_said(line: str) -> int:
        return sum(line in said for said in gateway.program.lines())

    there.rename(away)
    try:
        wait_until(lambda: num_said("serves on without its model repository: "), "it is told")
        assert gateway.infer(SAMPLE).status == 200
        assert gateway.ask("/v2/models/digits-fp32/ready").status == 200
        assert not_loaded(gateway) >= NOT_LOADED, "what it said last stands"
        with gateway_before(tmp_path, {"cpu": [lacking.url]}, ready=False) as other:
            wait_until(lambda: other.infer(SAMPLE).status == 200, "another one serves it, too")
        assert num_said("serves on without") == 1
        [server] = gateway.ask("/admin/status").json()["pools"]["cpu"]["servers"]
        assert server["without_repository"].startswith("failed to open directory")
    finally:
        away.rename(there)
    wait_until(lambda: num_said("has its model repository again"), "it is told")
    wait_until(lambda: not_loaded(gateway) >= NOT_LOADED, "all is as before")
    assert gateway.ask("/admin/status").json()["pools"]["cpu"]["servers"][0]["without_repository"] is None
    assert gateway.infer(SAMPLE).status == 200


# -- what is not as its gate saw it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusing:
    """A gateway before a Triton whose repository holds variants that Tandem does not let it load."""

    gateway: Running
    triton: Program
    url: str


def needs_another_processor(variant: Path) -> None:
    """As if its answers were right on another processor alone."""
    file = variant / "tandem.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "needs": ["amx"]}))


@pytest.fixture(scope="module")
def refusing(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refusing]:
    folder = tmp_path_factory.mktemp("refusing")
    repository = folder / "repository"
    publish_digits(repository, precisions=["fp32"])
    publish_digits(repository, "changed", precisions=["fp32"])
    (repository / "changed-fp32" / "config.pbtxt").write_text("{")
    shutil.copytree(repository / "digits-fp32", repository / "copied-fp32")
    publish_digits(repository, "aged", precisions=["int8"])
    publish_digits(repository, "aged", precisions=["fp32"], version=2)
    publish_digits(repository, "foreign")
    needs_another_processor(repository / "foreign-int8")
    with (
        triton_of_its_own(folder, "--no-measure", "--model-repository", str(repository)) as (program, url),
        gateway_before(folder, {"cpu": [url]}, "--model-repository", str(repository), ready=False) as gateway,
    ):
        wait_until(lambda: "changed" in gateway.ask("/admin/status").json()["models"], "it has looked")
        yield Refusing(gateway, program, url)


REFUSED = {
    "changed-fp32": "config.pbtxt changed after its gate",
    "copied-fp32": "is the record of digits-fp32",
    "aged-int8": "it is of version 1, and FP32 is of version 2",
    "foreign-int8": "it needs a processor with amx, which this one lacks",
}


@pytest.mark.triton
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_as_its_gate_saw_it_is_not_served_and_everything_says_why(refusing: Refusing, name: str) -> None:
    reply = refusing.gateway.infer(SAMPLE, name)
    assert (reply.status, reply.headers["Tandem-Error"]) == (503, "not_ready")
    assert REFUSED[name] in reply.json()["error"]
    rows = {row["name"]: row for row in refusing.gateway.ask("/v2/repository/index", b"").json()}
    assert (rows[name]["state"], REFUSED[name] in rows[name]["reason"]) == ("UNAVAILABLE", True)
    assert "/" not in rows[name]["reason"].replace("1/model.onnx", "")
    told = refusing.gateway.ask("/v2/health/ready")
    assert (told.status, set(told.json()["not_served"])) == (503, {"changed", "copied"})
    words = ["models", "--json", "--url", f"http://{refusing.gateway.url}"]
    models = json.loads(tandem(*words).stdout)
    assert REFUSED[name] in next(entry["reason"] for entry in models["account"] if entry["name"] == name)


@pytest.mark.triton
def test_a_variant_that_a_pools_machine_cannot_compute_is_told_of_by_a_gateway_elsewhere(
    refusing: Refusing, tmp_path: Path
) -> None:
    """A gateway that reads no repository has it from Triton's index; FP32 answers under the public name meanwhile."""
    with gateway_before(tmp_path, {"cpu": [refusing.url]}, ready=False) as remote:
        wait_until(lambda: "foreign" in remote.ask("/admin/status").json()["models"], "it has looked")
        rows = {row["name"]: row for row in remote.ask("/v2/repository/index", b"").json()}
        assert rows["foreign"] == {"name": "foreign", "version": "1", "state": "READY"}
        reason = rows["foreign-int8"].pop("reason")
        assert rows["foreign-int8"] == {"name": "foreign-int8", "version": "1", "state": "UNAVAILABLE"}
        assert reason.startswith(REFUSED["foreign-int8"])
        assert remote.infer(SAMPLE, "foreign").status == 200
        ready = remote.ask("/v2/models/foreign-int8/ready")
        assert (ready.status, REFUSED["foreign-int8"] in ready.json()["reason"]) == (503, True)
        words = ["models", "--json", "--url", f"http://{remote.url}"]
        told = json.loads(tandem(*words).stdout)["account"]
        entry = next(entry for entry in told if entry["name"] == "foreign-int8")
        assert (entry["state"], REFUSED["foreign-int8"] in entry["reason"]) == ("not_loaded", True)


@pytest.mark.triton
@pytest.mark.parametrize("name", ["changed", "changed-fp32", "copied", "copied-fp32"])
def test_what_is_not_as_its_gate_saw_it_is_loaded_by_nobody(refusing: Refusing, name: str) -> None:
    reply = refusing.gateway.ask(f"/v2/repository/models/{name}/load", b"{}")
    assert (reply.status, REFUSED[f"{name.removesuffix('-fp32')}-fp32"] in reply.json()["error"]) == (403, True)
    assert refusing.gateway.infer(SAMPLE, name).status == 503


@pytest.mark.triton
def test_why_it_is_not_served_is_known_to_a_triton_that_was_started_again(refusing: Refusing) -> None:
    [server] = [child for child in children_of(refusing.triton.pid) if child.is_alive]
    os.kill(server.pid, signal.SIGKILL)
    refusing.triton.wait_for("tritonserver is up again")
    wait_until(lambda: refusing.gateway.infer(SAMPLE).status == 200, "the others are served")
    rows = {row["name"]: row for row in refusing.gateway.ask("/v2/repository/index", b"").json()}
    assert REFUSED["changed-fp32"] in rows["changed"]["reason"]


# -- who makes up for whom --------------------------------------------------------------------------------------------


REASON = {"m-fp32": "Internal: no room"}


def ready(gateway: Gateway, required: Iterable[str] = ()) -> bool:
    return all_routable(gateway.catalogue, list(required))


@pytest.mark.parametrize(
    ("pools", "more", "is_ready", "status"),
    [
        ({"cpu": [OddTriton(models=["n-fp32"], failures=REASON)]}, {}, False, 503),
        ({"cpu": [OddTriton(models=["n-fp32"], failures=REASON)]}, {"allow_missing": True}, True, 503),
        ({"cpu": [OddTriton(models=["n-fp32"], failures=REASON)]}, {"models": {"n": {}}}, True, 503),
        ({"cpu": [OddTriton(models=["n-fp32"], failures=REASON)]}, {"models": {"m": {}}}, False, 503),
        ({"cpu": [OddTriton(models=["n-fp32"], failures=REASON), OddTriton()]}, {}, True, 200),
        ({"a": [OddTriton(models=["n-fp32"], failures=REASON)], "b": [OddTriton()]}, {}, True, 200),
        ({"cpu": [OddTriton(models=["m-int8"], failures=REASON)]}, {}, True, 200),
        ({"cpu": [OddTriton(models=["n-fp32"], failures={"foreign": "x"})]}, {}, True, 404),  # no name of Tandem's
        ({"cpu": [OddTriton(models=[], failures=REASON)]}, {"allow_missing": True}, False, 503),  # nothing is served
    ],
)
def test_a_model_is_missing_where_nobody_serves_any_variant_of_it(
    pools: dict[str, list[OddTriton]], more: dict[str, Any], is_ready: bool, status: int
) -> None:
    async def run() -> None:
        async with gateway_of(pools, **more) as gateway:
            reply = await ask(gateway)
            assert (reply.status, ready(gateway, more.get("models", ()))) == (status, is_ready)
            assert ("no room" in json.dumps(json.loads(reply.body))) == (status == 503)

    asyncio.run(run())


@pytest.mark.thorough
def test_a_model_that_loads_later_is_served_and_no_longer_told_of() -> None:
    async def run() -> None:
        triton = OddTriton(models=["n-fp32"], failures=dict(REASON))
        async with gateway_of({"cpu": [triton]}) as gateway:
            assert not ready(gateway)
            triton.models, triton.failures = ["n-fp32", "m-fp32"], {}
            await until(lambda: ready(gateway), "it is seen")
            assert (await ask(gateway)).status == 200
            assert not_served(gateway.catalogue) == {}
            triton.models, triton.failures = ["n-fp32", "m-fp32"], {"k-fp32": "gone soon"}
            await until(lambda: not ready(gateway), "another is seen")
            triton.failures = {}  # it was taken out of the repository
            await until(lambda: ready(gateway), "it is forgotten")
            assert (await ask(gateway, model="k")).status == 404

    asyncio.run(run())


def test_a_model_that_no_repository_has_any_more_is_not_expected_whoever_keeps_the_triton() -> None:
    async def run() -> None:
        triton = OddTriton(models=["n-fp32", "m-fp32"])
        async with gateway_of({"cpu": [triton]}) as gateway:
            assert ready(gateway)
            triton.models, triton.unloaded = ["n-fp32"], ["m-fp32"]
            await until(lambda: "unloaded" in states(gateway), "somebody unloaded it")
            assert (ready(gateway), (await ask(gateway)).status) == (True, 503)
            triton.unloaded, triton.loading = [], ["m-fp32"]
            await until(lambda: "loading" in states(gateway), "somebody loads it")
            assert not ready(gateway)
            triton.loading = []  # its folder was removed
            await until(lambda: states(gateway) == ["served"], "it is forgotten")
            assert (ready(gateway), (await ask(gateway)).status) == (True, 404)

    asyncio.run(run())


def states(gateway: Gateway) -> list[str]:
    return [str(entry.state) for entry in entries(gateway.catalogue)]


def test_what_is_tried_again_is_not_unknown_meanwhile() -> None:
    async def run() -> None:
        async with gateway_of({"cpu": [triton := OddTriton(failures={"m-int8": WHY})]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]

            async def told() -> tuple[int, str, bool]:
                await gateway.catalogue.poll("cpu", server)
                reply = await ask(gateway, model="m-int8")
                return reply.status, reply.error, WHY.encode() in reply.body

            assert await told() == (503, "not_ready", True)
            triton.failures, triton.loading = {}, ["m-int8"]
            assert await told() == (503, "not_ready", True)
            triton.models, triton.loading = ["m-fp32", "m-int8"], []
            assert await told() == (200, "", False)

    asyncio.run(run())


AWAY = (500, {"error": "failed to open directory /models"})


def test_of_a_triton_whose_repository_is_away_the_models_in_its_statistics_are_loaded() -> None:
    async def run() -> None:
        counted = [{"name": "m-fp32", "version": "1"}, {"name": "n-fp32", "version": "2"}]
        failures, statistics = {"m-int8": WHY, "n-fp32": WHY}, (200, {"model_stats": counted})  # version 1 of n
        triton = OddTriton(models=["m-fp32", "n-fp32"], version="2", failures=failures, statistics=statistics)
        async with gateway_of({"cpu": [triton]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]
            before = server.snapshot
            triton.index = AWAY
            del counted[0]  # somebody unloads it
            await until(lambda: server.num_index_errors > 1, "it is asked twice")
            assert (server.alive, server.snapshot.served.keys()) == (True, {"n-fp32"})
            assert server.snapshot.failures == before.failures
            assert server.snapshot.listed == before.listed
            assert {it.name: str(it.state) for it in entries(gateway.catalogue)}["m-fp32"] == "away"
            counted[:] = [{"name": "n-fp32", "version": version} for version in ("1", "2")]
            await gateway.catalogue.poll("cpu", server)
            assert server.snapshot.versions == {"n-fp32": {"1", "2"}}
            triton.index = None
            await gateway.catalogue.poll("cpu", server)
            assert (server.snapshot.served.keys(), server.num_index_errors) == ({"m-fp32", "n-fp32"}, 0)
            for wrong in ((503, {"error": "out of order"}), (500, []), AWAY):
                triton.index, triton.statistics = wrong, (400, {"error": "statistics are off"})
                with pytest.raises(Lost):
                    await server.index()
            await until(lambda: not server.alive, "nothing tells what it has")

    asyncio.run(run())


def test_an_index_that_fails_once_changes_nothing() -> None:
    async def run() -> None:
        statistics = (200, {"model_stats": [{"name": "m-fp32", "version": "1"}]})
        triton = await OddTriton(failures={"m-int8": WHY}, statistics=statistics).start()
        server = Server(Target(triton.url, asyncio.get_running_loop()), Replica(triton.url))
        for triton.failures, triton.loading in (({"m-int8": WHY}, []), ({}, ["m-int8"])):
            assert await server.poll("cpu")
            before, triton.index = server.snapshot, AWAY
            assert not await server.poll("cpu")
            assert (server.alive, server.snapshot) == (True, before)
            triton.index = None
            assert not await server.poll("cpu")
            assert (server.snapshot.failures.keys(), server.num_index_errors) == ({"m-int8"}, 0)
        server.target.close()
        triton.close()

    asyncio.run(run())


def test_a_model_that_is_tried_again_is_not_unknown_while_its_repository_is_away_or_after() -> None:
    async def run() -> None:
        triton = OddTriton(
            failures={"m-int8": WHY}, statistics=(200, {"model_stats": [{"name": "m-fp32", "version": "1"}]})
        )
        async with gateway_of({"cpu": [triton]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]
            triton.failures, triton.loading = {}, ["m-int8"]
            await gateway.catalogue.poll("cpu", server)
            triton.index = AWAY
            await until(lambda: server.num_index_errors > 1, "it is asked twice")
            assert server.snapshot.failures.keys() == {"m-int8"}
            triton.index = None
            await gateway.catalogue.poll("cpu", server)
            assert server.snapshot.failures.keys() == {"m-int8"}

    asyncio.run(run())
