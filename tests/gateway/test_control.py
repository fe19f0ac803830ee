"""Gateways follow a control document: they agree within two seconds, keep what they have when its source is away, and say so."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from serving.control.document import parse
from serving.control.followers import Follower
from serving.control.stores import EVERY_S, FileStore, store_at
from serving.keys import changes
from serving.keys.key import ADMIN, INFER
from serving.ports import free_ports
from tests.command import tandem
from tests.gateway.conftest import SAMPLE, Running, gateway_before
from tests.gateway.fleet.test_addresses import Relay
from tests.local.harness import wait_until
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.triton]

AGREE_S = 2.0  # what docs/rollouts.md promises
PINNED = "version: 1\nmodels: {digits: {pin: {variant: %s}}}\n"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@contextlib.contextmanager
def following(folder: Path, place: str, triton: str, *, ready: bool = True) -> Iterator[Running]:
    folder.mkdir(exist_ok=True)
    with gateway_before(folder, {"cpu": [triton]}, "--control", place, ready=ready) as running:
        yield running


def told(gateway: Running) -> dict[str, Any]:
    return dict(gateway.ask("/admin/status").json()["control"])


def number(gateway: Running) -> int:
    return int(told(gateway)["revision"]["number"])


def metric(gateway: Running, name: str) -> float:
    lines = gateway.ask("/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


def apply(folder: Path, place: str, text: str, *more: str) -> dict[str, Any]:
    file = folder / "new.yaml"
    file.write_text(text)
    done = tandem("apply", str(file), "--control", place, "--json", *more)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def agree(gateways: Sequence[Running], revision: int) -> None:
    wait_until(lambda: all(number(it) == revision for it in gateways), f"revision {revision} everywhere")


def test_two_gateways_agree_within_two_seconds_and_tell_it(digits: str, redis: RedisServer, tmp_path: Path) -> None:
    assert EVERY_S <= AGREE_S / 4  # a look; the rest is for reading
    with following(tmp_path / "a", redis.url, digits) as a, following(tmp_path / "b", redis.url, digits) as b:
        both = (a, b)
        assert [told(it)["revision"]["number"] for it in both] == [0, 0]
        assert a.infer(SAMPLE).headers["Tandem-Revision"] is None
        for revision, variant in enumerate(("int8", "fp32"), start=1):
            applied = apply(tmp_path, redis.url, PINNED % variant)
            assert applied["number"] == revision
            agree(both, revision)
            for it in both:
                assert told(it)["revision"]["digest"] == applied["digest"]
                assert it.infer(SAMPLE).headers["Tandem-Revision"] == f"{revision}-{applied['digest'][7:19]}"
                assert metric(it, "tandem_control_revision") == revision
        # A document that is wrong is refused whole, and one that is not there any more takes nothing away.
        file = tmp_path / "wrong.yaml"
        file.write_text(PINNED % "int9")
        assert tandem("apply", str(file), "--control", redis.url).returncode == 2
        for command in (("HSET", "tandem:control", "document", PINNED % "int9"), ("DEL", "tandem:control")):
            with redis.client() as client:
                client.ask(*command)
            wait_until(lambda: not any(told(it)["is_current"] for it in both), "both say that it is wrong")
            assert [number(it) for it in both] == [2, 2]
            assert metric(a, "tandem_control_current") == 0


def test_a_redis_that_is_killed_takes_nothing_away(digits: str, redis: RedisServer, tmp_path: Path) -> None:
    with following(tmp_path / "a", redis.url, digits) as a:
        apply(tmp_path, redis.url, PINNED % "fp32", "--url", f"http://{a.url}")
        assert number(a) == 1
        redis.kill()
        wait_until(lambda: not told(a)["is_current"], "it says that the source is away")
        assert a.infer(SAMPLE).headers["Tandem-Revision"].startswith("1-")
        assert metric(a, "tandem_control_current") == 0
        # One that begins now knows nothing, and answers nothing.
        with following(tmp_path / "b", redis.url, digits, ready=False) as b:
            assert (b.ask("/health/ready").status, b.infer(SAMPLE).status) == (503, 503)
            assert told(b)["revision"] is None
            redis.start()
            wait_until(lambda: b.ask("/health/ready").status == 200, "it is ready")
            assert number(b) == 1
            wait_until(lambda: told(a)["is_current"], "it says that the source is back")
            apply(tmp_path, redis.url, PINNED % "int8")
            agree((a, b), 2)
        a.program.send(signal.SIGKILL)
        a.program.process.wait()
    with following(tmp_path / "a", redis.url, digits) as again:
        assert number(again) == 2


def test_a_model_that_must_not_mix_waits_for_a_gateway_that_is_cut_off_or_killed(
    digits: str, redis: RedisServer, tmp_path: Path
) -> None:
    """All that follow the source are waited for, whether they are named or not."""
    port = free_ports(1)[0]
    relay = Relay("127.0.0.1", port, ("127.0.0.1", redis.port), holds_all=True)
    strict = "version: 1\nmodels: {digits: {may_mix: false, pin: {variant: %s}}}\n"
    file = tmp_path / "next.yaml"

    def change(variant: str, *words: str) -> CompletedProcess[str]:
        file.write_text(strict % variant)
        return tandem("apply", str(file), "--control", redis.url, *words)

    def followers() -> list[Follower]:
        with store_at(redis.url) as store:
            return store.followers()

    def silent() -> list[str]:
        return [it.name for it in followers() if it.is_silent]

    try:
        with (
            following(tmp_path / "a", redis.url, digits) as a,
            following(tmp_path / "b", f"redis://127.0.0.1:{port}", digits) as b,
        ):
            assert change("fp32").returncode == 0
            assert (number(a), number(b)) == (1, 1)
            name = f"{socket.gethostname()}:{b.port}"
            relay.passes.clear()
            wait_until(
                lambda: not told(b)["is_current"] and silent() == [name],
                "it is known to be cut off",
                seen=lambda: f"{told(b)}\n{followers()}",
            )
            for urls in ((), ("--url", f"http://{a.url}", "--url", f"http://{b.url}")):
                refused = change("int8", *urls)
                assert (refused.returncode, str(b.port) in refused.stderr) == (1, True)
            assert (number(a), number(b)) == (1, 1)
            assert b.infer(SAMPLE).headers["Tandem-Revision"].startswith("1-")
            relay.passes.set()
            wait_until(lambda: told(b)["is_current"] and not silent(), "it is back")
            assert change("int8").returncode == 0
            assert (number(a), number(b)) == (2, 2)
            b.program.process.kill()
            b.program.process.wait()
            wait_until(lambda: silent() == [name], "it is silent")
            assert change("fp32").returncode == 1
            assert tandem("models", "rollback", "digits", "--control", redis.url).returncode == 0  # does not wait
            assert change("int8", "--gone", "nobody:1").returncode == 2
            assert change("int8", "--gone", name).returncode == 0
            assert number(a) == 4
        assert followers() == []  # the other one said that it ends
    finally:
        relay.close()


def test_a_file_is_followed_and_undone(digits: str, tmp_path: Path) -> None:
    file = tmp_path / "control.yaml"
    file.write_text(PINNED % "fp32")
    with following(tmp_path / "a", str(file), digits) as a:
        assert (number(a), told(a)["revision"]["by"]) == (1, "outside of tandem apply")
        apply(tmp_path, str(file), PINNED % "int8", "--why", "half the time", "--url", f"http://{a.url}")
        assert (number(a), told(a)["revision"]["why"]) == (2, "half the time")
        undone = tandem("undo", "--control", str(file), "--url", f"http://{a.url}")
        assert undone.returncode == 0
        assert number(a) == 3
        assert file.read_text() == PINNED % "fp32"
    with following(tmp_path / "b", str(file), digits) as again:
        assert number(again) == 3


def test_nothing_is_written_where_a_gateway_follows_no_document(tmp_path: Path) -> None:
    file, place = tmp_path / "new.yaml", tmp_path / "control.yaml"
    file.write_text(PINNED % "fp32")
    with gateway_before(tmp_path, {"cpu": ["http://127.0.0.1:1"]}, ready=False) as a:
        done = tandem("apply", str(file), "--control", str(place), "--url", f"http://{a.url}")
    assert (done.returncode, done.stdout, place.exists()) == (2, "", False)


def test_the_page_changes_the_document_as_commands_do_and_for_nobody_else(tmp_path: Path) -> None:
    place, keys = tmp_path / "control.yaml", tmp_path / "keys.json"
    rollout = "pin: {version: 1}, rollout: {candidate: {version: 2}, step: shadow}"
    place.write_text(f"version: 1\nmodels: {{digits: {{{rollout}}}}}\n")
    now = datetime.now(UTC)
    admin, other = (
        changes.add(keys, name, frozenset({scope}), now).text for name, scope in (("ann", ADMIN), ("bob", INFER))
    )
    limited = changes.add(keys, "eve", frozenset({ADMIN}), now, models=frozenset({"other"})).text
    nobody = {"cpu": ["http://127.0.0.1:1"]}
    with gateway_before(tmp_path, nobody, "--control", str(place), "--keys", str(keys), ready=False) as a:

        def change(key: str | None, **wanted: Any) -> tuple[int, Any]:
            headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
            reply = a.ask("/admin/control", json.dumps(wanted).encode(), headers)
            return reply.status, reply.json()

        first = FileStore(place).history().current.name
        wanted = {"model": "digits", "revision": first, "step": "canary"}
        assert [change(key, **wanted)[0] for key in (None, other, limited)] == [401, 403, 403]
        wrongs: list[dict[str, Any]] = [
            {},
            {"step": "all"},
            {"step": "canary", "is_rollback": True},
            {"pin": {}},
            {"pin": {"version": 0}},
        ]
        for wrong in wrongs:
            assert change(admin, model="digits", revision=first, **wrong)[0] == 400
        status, said = change(admin, model="digits", revison=first, step="canary")
        assert (status, "'revision'" in said["error"]) == (400, True)  # that was meant
        assert change(admin, model="other", revision=first, step="canary")[0] == 400
        assert change(admin, **wanted | {"revision": "7-4f1d2c3b9a0e"})[0] == 409
        assert FileStore(place).history().current.name == first
        status, said = change(admin, **wanted)
        assert status == 200
        current = FileStore(place).history().current
        assert (current.name, current.by, current.number) == (said["revision"], "ann at the page", 2)
        assert parse(current.text, "x").models["digits"].arms
        assert change(admin, **wanted)[0] == 409  # it was seen before
        # A candidate that nothing serves beside what is pinned is not promoted, and one more gateway that is silent keeps it waiting.
        FileStore(place).announce(Follower("other:1", current.digest, 2, lacks={"digits": "0 of 1"}))
        status, said = change(admin, model="digits", revision=current.name, step="promote")
        assert (status, "other:1" in said["error"]) == (409, True)
        assert change(admin, model="digits", revision=current.name, is_rollback=True)[0] == 200
        assert parse(place.read_text(), "x").models["digits"].arms == {}


def test_a_page_of_another_site_changes_no_document(tmp_path: Path) -> None:
    place = tmp_path / "control.yaml"
    place.write_text(PINNED % "fp32")
    wanted = {"model": "digits", "revision": FileStore(place).history().current.name, "pin": {"variant": "int8"}}
    with gateway_before(tmp_path, {"cpu": ["http://127.0.0.1:1"]}, "--control", str(place), ready=False) as a:
        body = json.dumps(wanted).encode()
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
            assert a.ask("/admin/control", body, headers).status == 403
        assert place.read_text() == PINNED % "fp32"
        assert a.ask("/admin/control", body, {"Origin": f"http://{a.url}"}).status == 200
        assert "int8" in place.read_text()
    with gateway_before(tmp_path, {"cpu": ["http://127.0.0.1:1"]}, ready=False) as b:
        assert b.ask("/admin/control", body).status == 501


def test_what_nothing_serves_is_not_put_in_the_document_by_the_page(digits: str, tmp_path: Path) -> None:
    place = tmp_path / "control.yaml"
    place.write_text(PINNED % "fp32")
    with gateway_before(tmp_path, {"cpu": [digits]}, "--control", str(place)) as a:

        def pin(**target: Any) -> int:
            wanted = {"model": "digits", "revision": FileStore(place).history().current.name, "pin": target}
            return a.ask("/admin/control", json.dumps(wanted).encode()).status

        assert [pin(version=99), pin(variant="bf16")] == [409, 409]
        assert place.read_text() == PINNED % "fp32"
        assert pin(variant="int8") == 200
        wait_until(lambda: number(a) == 2, "it is in force")


def test_the_words_of_the_command_line(tmp_path: Path) -> None:
    place, file = str(tmp_path / "control.yaml"), tmp_path / "new.yaml"
    file.write_text(PINNED % "fp32")
    assert tandem("diff", str(file), "--control", place).returncode == 1
    assert tandem("undo", "--control", place).returncode == 2
    assert json.loads(tandem("apply", str(file), "--control", place, "--json").stdout)["changed"] is True
    assert json.loads(tandem("apply", str(file), "--control", place, "--json").stdout)["changed"] is False
    assert (
        tandem("diff", str(file), "--control", place).returncode,
        tandem("diff", str(file), "--control", place).stdout,
    ) == (0, "")
    file.write_text(PINNED % "int8")
    assert (
        "+models: {digits: {pin: {variant: int8}}}" in tandem("diff", str(file), "--control", place).stdout.splitlines()
    )
    assert tandem("apply", str(file), "--control", place, "--why", "faster").returncode == 0
    kept = json.loads(tandem("history", "--control", place, "--json").stdout)["revisions"]
    assert [(it["number"], it["why"]) for it in kept] == [(1, "from new.yaml"), (2, "faster")]
    assert tandem("undo", "1", "--control", place).returncode == 0
    assert (tmp_path / "control.yaml").read_text() == PINNED % "fp32"
    assert tandem("apply", str(file), "--control", "redis://127.0.0.1:1").returncode == 3
