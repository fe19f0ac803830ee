"""What a gateway decides of a rollout: in force here, in the document as soon as that can be written, and not undone by other changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.cli import runs
from serving.control.document import Control, ModelControl, Target, parse
from serving.control.followers import Follower
from serving.control.revisions import History, digest_of
from serving.control.stores import FileStore
from serving.errors import EnvironmentFault, UserError
from serving.gateway import app, control_watch
from serving.gateway.control_watch import ControlWatch
from serving.settings import GatewaySettings
from tests.gateway.odd_triton import LIMIT_S, until

CANARY = "rollout: {candidate: {version: 2}, step: canary}"
OF_M = f"version: 1\nmodels: {{m: {{pin: {{version: 1}}, {CANARY}}}}}\n"
OF_BOTH = f"version: 1\nmodels: {{m: {{pin: {{version: 1}}, {CANARY}}}, n: {{pin: {{version: 1}}, {CANARY}}}}}\n"
OF_STRICT = OF_M.replace("pin:", "may_mix: false, pin:").replace("canary", "shadow")
TENANT = "tenants: {a: {weight: 2}}\n"
SETTINGS = {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:1"], "device": "cpu"}}}


class ReadOnly(FileStore):
    """As long as it `is_closed`."""

    is_closed = True

    def write(self, following: History, before: History) -> None:
        if self.is_closed:
            raise EnvironmentFault("it cannot be written now")
        super().write(following, before)


def model(watch: ControlWatch, name: str = "m") -> ModelControl:
    assert watch.control is not None
    return watch.control.models[name]


def step(text: str, name: str = "m") -> str:
    rollout = parse(text, "x").models[name].rollout
    assert rollout is not None
    return rollout.step


def followed(
    store: FileStore, work: Callable[[ControlWatch], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_watch, "LONGEST_WAIT_S", 0.5)

    async def run() -> None:
        watch = ControlWatch(store)
        watch.start(lambda: None, lambda _: None)
        try:
            await work(watch)
        finally:
            watch.stop()

    asyncio.run(run())


def test_a_rollback_outlives_changes_of_other_things_and_reaches_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReadOnly(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    async def work(watch: ControlWatch) -> None:
        watch.change("m", "rollback", "it is worse")
        assert model(watch).arms == {}
        store.path.write_text(OF_M.replace("pin:", "weight: 3, pin:") + TENANT)
        await until(lambda: watch.control is not None and bool(watch.control.tenants), "the revision is in force")
        assert model(watch).weight == 3
        assert model(watch).arms == {}
        assert watch.told()["decided_here"] == {"m": "rollback"}
        store.is_closed = False
        await until(lambda: step(store.path.read_text()) == "rollback", "it is in the document")
        await until(lambda: not watch.told()["decided_here"], "the document is followed")
        assert model(watch).arms == {}
        assert parse(store.path.read_text(), "x").tenants
        assert model(watch).weight == 3
        # Who has decided something else of the model since is right.
        store.path.write_text(OF_M)
        await until(lambda: bool(model(watch).arms), "it is a canary again")

    followed(store, work, monkeypatch)


def test_a_rollback_reaches_a_document_that_was_read_while_an_editor_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(FileStore):
        num_read = 0

        def history(self) -> History:
            history = super().history()
            self.num_read += 1
            return history

    store = Counted(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    async def work(watch: ControlWatch) -> None:
        store.path.write_text("")  # as an editor's file is for a moment
        watch.change("m", "rollback", "it is worse")
        await until(lambda: store.num_read, "it was read")
        whole = tmp_path / "whole"
        whole.write_text(OF_M)
        whole.replace(store.path)
        await until(lambda: step(store.path.read_text()) == "rollback", "it is in the document")

    followed(store, work, monkeypatch)


def test_two_rollouts_that_end_at_once_both_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(OF_BOTH)

    async def work(watch: ControlWatch) -> None:
        for name in ("m", "n"):
            watch.change(name, "rollback", "it is worse")
        await until(
            lambda: {step(store.path.read_text(), name) for name in ("m", "n")} == {"rollback"}, "both are written"
        )

    followed(store, work, monkeypatch)


def test_a_decision_about_another_candidate_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that an editor wrote one after the other have the same number."""
    store = FileStore(tmp_path / "control.yaml")
    store.write(History().then("version: 1\n", at="", by=""), History())
    store.path.write_text(OF_M)

    async def work(watch: ControlWatch) -> None:
        other = OF_M.replace("{version: 2}", "{version: 3}")
        store.path.write_text(other)
        watch.change("m", "rollback", "version 2 is worse")
        await until(lambda: bool(model(watch).arms), "the revision is in force")
        assert model(watch).arms["canary"].version == 3
        assert store.path.read_text() == other

    followed(store, work, monkeypatch)


def test_nothing_is_promoted_at_one_gateway_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReadOnly(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    async def work(watch: ControlWatch) -> None:
        watch.change("m", "promote", "it is within all limits")
        assert model(watch).stable == Target(version=1)
        store.is_closed = False
        await until(lambda: model(watch).stable == Target(version=2), "the document says so")

    followed(store, work, monkeypatch)


def test_a_promotion_that_waits_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReadOnly(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    async def work(watch: ControlWatch) -> None:
        watch.change("m", "promote", "it is within all limits")
        watch.change("m", "", "it is slower")
        assert watch.told()["decided_here"] == {}
        await until(lambda: "control-change" not in {it.name for it in threads()}, "nobody tries any more")
        store.is_closed = False
        assert store.path.read_text() == OF_M

    before = set(threading.enumerate())

    def threads() -> set[threading.Thread]:
        return set(threading.enumerate()) - before

    followed(store, work, monkeypatch)


def test_what_is_wrong_is_told_again_once_the_source_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    async def work(watch: ControlWatch) -> None:
        def is_wrong() -> bool:
            return "candidat" in (watch.told()["problem"] or "")

        store.path.write_text(OF_M.replace("candidate", "candidat"))
        await until(is_wrong, "it is wrong")
        store.path.rename(tmp_path / "away")
        await until(lambda: not is_wrong(), "it is away")
        assert not watch.is_current
        (tmp_path / "away").rename(store.path)
        await until(is_wrong, "it is wrong")
        store.path.write_text(OF_M)
        await until(lambda: watch.is_current, "it is right again")

    followed(store, work, monkeypatch)


@pytest.mark.parametrize(
    ("other", "mended"),
    [
        (Follower("b", lacks={"m": "0 of 1"}), Follower("b")),
        (Follower("b", "another"), Follower("b", digest_of(OF_STRICT), 1)),
    ],
)
def test_a_gateway_promotes_only_where_all_can_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Follower, mended: Follower
) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(OF_M if other.lacks else OF_STRICT)
    store.announce(other)

    async def work(watch: ControlWatch) -> None:
        watch.change("m", "promote", "it is as good")
        await asyncio.sleep(0.3)
        assert step(store.path.read_text()) != "promote"
        assert model(watch).stable == Target(version=1)
        store.announce(mended)
        await until(lambda: step(store.path.read_text()) == "promote", "it is promoted once the other one can")
        await until(lambda: model(watch).stable == Target(version=2), "here, too")

    followed(store, work, monkeypatch)


def first(version: int, *, may_mix: bool = True) -> str:
    return f"version: 1\nmodels: {{m: {{may_mix: {str(may_mix).lower()}, pin: {{version: {version}}}}}}}\n"


@pytest.mark.parametrize(
    ("texts", "answers"),
    [
        ([first(1), first(2), first(9)], 2),
        ([first(2), first(8), first(9)], 2),
        ([first(8), first(9)], None),
        ([first(2), first(9, may_mix=False)], None),
        ([first(2, may_mix=False), first(9)], None),
    ],
    ids=["the one before", "one before that", "none", "it must not mix any more", "it must not mix"],
)
def test_a_gateway_starts_from_the_newest_revision_by_which_all_has_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], answers: int | None
) -> None:
    monkeypatch.setattr(control_watch, "START_S", 0.0)
    store = FileStore(tmp_path / "control.yaml")
    for text in texts:
        before = store.history()
        store.write(before.then(text, at="", by=""), before)
    served: set[int | None] = set()

    def require(control: Control) -> None:
        if served and (wanted := control.models["m"].pin) is not None and wanted.version not in served:
            raise UserError(f"no pool serves {wanted}")

    async def run() -> None:
        watch = ControlWatch(store)
        watch.start(lambda: None, require, require)
        try:
            # Before anything is known of servers nothing is decided, and nothing is wrong.
            assert (watch.revision.number, watch.is_current, watch.is_informed) == (len(texts), True, True)
            served.update({1, 2})
            watch.try_again()
            assert (watch.is_current, watch.is_informed) == (False, False)
            await until(lambda: watch.is_informed, "it is decided from which to start")
            assert model(watch).stable == Target(version=answers or 9)
            assert not watch.is_current
            assert "version 9" in (watch.told()["problem"] or "")
            served.add(9)  # what is waited for came
            watch.try_again()
            assert (watch.revision.number, watch.is_current) == (len(texts), True)
        finally:
            watch.stop()

    asyncio.run(run())


def test_what_follows_from_a_document_is_made_on_a_thread_before_it_is_in_force(tmp_path: Path) -> None:
    """Of thousands of tenants it takes longer than an event loop may stand still."""
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    async def run() -> None:
        made: list[tuple[Control, int]] = []
        in_force: list[int] = []
        watch = ControlWatch(store)
        watch.start(
            lambda: in_force.append(len(made)),
            lambda _: None,
            prepare=lambda control: made.append((control, threading.get_ident())),
        )
        try:
            store.path.write_text(OF_M + TENANT)
            await until(lambda: bool(in_force), "a revision is in force")
        finally:
            watch.stop()
        assert in_force[0] >= 1
        assert watch.control is not None
        assert watch.control.tenants is made[-1][0].tenants
        assert all(thread != threading.get_ident() for _, thread in made)

    asyncio.run(run())


def test_a_mistake_of_the_gateways_own_is_told_as_a_wrong_document_is(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(OF_M)

    def prepare(control: Control) -> None:
        if control.tenants:
            raise KeyError("a mistake")

    async def run() -> None:
        watch = ControlWatch(store)
        watch.start(lambda: None, lambda _: None, prepare=prepare)
        try:
            store.path.write_text(OF_M + TENANT)
            await until(lambda: "a mistake" in (watch.told()["problem"] or ""), "it is told")
            assert not watch.is_current
            assert watch.control is not None
            assert not watch.control.tenants
            store.path.write_text(OF_M.replace("canary", "shadow"))
            await until(lambda: watch.is_current, "the next one is right")
            assert "canary" not in model(watch).arms
        finally:
            watch.stop()

    asyncio.run(run())


def test_what_waited_comes_in_force_and_the_wrong_document_after_it_is_still_told(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(first(1))
    served = {1}

    def require(control: Control) -> None:
        if (wanted := control.models["m"].pin) is not None and wanted.version not in served:
            raise UserError(f"no pool serves {wanted}")

    async def run() -> None:
        watch = ControlWatch(store)
        watch.start(lambda: None, require)
        try:
            store.path.write_text(first(2))
            await until(lambda: "version 2" in (watch.told()["problem"] or ""), "it waits")
            store.path.write_text(first(3).replace("pin", "pim"))
            await until(lambda: "pim" in (watch.told()["problem"] or ""), "the next one is wrong")
            served.add(2)
            watch.try_again()
            assert "pim" in watch.told()["problem"]
            store.path.write_text(first(2))
            await until(lambda: watch.is_current, "it is taken back")
            assert model(watch).stable == Target(version=2)
        finally:
            watch.stop()

    asyncio.run(run())


def test_a_rollouts_step_after_tenants_were_made_on_the_thread_leaves_none_to_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "control.yaml")
    store.path.write_text(OF_M)
    is_made, may_go = threading.Event(), threading.Event()
    threads: list[int] = []
    make = app._tenants

    def made(control: Control) -> app._Tenants:
        threads.append(threading.get_ident())
        return make(control)

    async def run() -> None:
        watch = ControlWatch(store)
        gateway = app.Gateway(GatewaySettings.model_validate(SETTINGS), admin_here=True, control=watch)
        monkeypatch.setattr(app, "_tenants", made)

        def prepare(control: Control) -> None:
            gateway._prepare(control)
            if control.tenants:
                is_made.set()
                assert may_go.wait(LIMIT_S)

        watch.start(gateway._control_changed, lambda _: None, prepare=prepare)
        try:
            store.path.write_text(OF_M + TENANT)
            await until(is_made.is_set, "they are made")
            watch.change("m", "rollback", "it is worse")
            may_go.set()
            await until(lambda: bool(gateway._tenants.of), "they are in force")
        finally:
            may_go.set()
            watch.stop()
            await gateway.stop()
        assert threads
        assert threading.get_ident() not in threads

    asyncio.run(run())


def test_a_gateway_whose_versions_come_a_moment_later_starts_from_the_newest(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "control.yaml")
    for text in (first(1), first(2)):
        before = store.history()
        store.write(before.then(text, at="", by=""), before)
    served = {1}
    in_force = []

    def require(control: Control) -> None:
        if (wanted := control.models["m"].pin) is not None and wanted.version not in served:
            raise UserError(f"no pool serves {wanted}")

    async def run() -> None:
        watch = ControlWatch(store)
        watch.start(lambda: in_force.append(watch.revision.number), require, require)
        try:
            watch.try_again()
            assert not watch.is_informed
            served.add(2)
            watch.try_again()
            assert (watch.is_informed, watch.is_current, watch.revision.number, in_force) == (True, True, 2, [])
        finally:
            watch.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("unanswered", "code"), [({"digits": "version 9"}, 1), ({}, 0)])
def test_status_fails_where_a_model_has_no_answer(
    monkeypatch: pytest.MonkeyPatch, unanswered: dict[str, str], code: int
) -> None:
    shares = {"digits": [{"arm": "pinned", "version": 9, "variant": None, "ratio": 1.0}]}
    control = {"revision": None, "problem": None, "lacks": {}, "models": shares, "unanswered": unanswered}
    state = {
        "url": "http://127.0.0.1:1", "state": "ready", "pid": 1, "began": "", "repository": "", "model_source": None, "gateways": [],
        "pools": {}, "models": {"digits": ["digits-fp32"]}, "not_loaded": None, "control": control, "untold": None, "page": "", "logs": "",
    }  # fmt: skip
    monkeypatch.setattr(runs, "_found", lambda _: [None])
    monkeypatch.setattr(runs, "_state", lambda _: state)
    done = CliRunner().invoke(runs.status, [])
    assert (done.exit_code, "503" in done.output) == (code, bool(unanswered))
