"""A control document in a ConfigMap of a real API server: two gateways agree on it within two seconds, by a watch of this one object."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from serving.cluster.api import connect
from serving.cluster.client import ServiceAccount, Unreachable, WriteError
from serving.cluster.control_map import ControlMap
from serving.control.evidence import Comparison
from serving.control.followers import Follower
from serving.control.revisions import History
from serving.control.stores import Conflict, Later
from tests.cluster.bed.cluster import Bed
from tests.cluster.conftest import SignIn
from tests.command import tandem
from tests.gateway.conftest import SAMPLE, Running, gateway_before, triton_of_its_own
from tests.gateway.test_rollouts import with_a_wrong_label_map
from tests.local.harness import wait_until
from tests.local.repository import publish_digits
from tests.local.test_later_exports import another

pytestmark = pytest.mark.cluster
NAME = "control"
PLACE = f"configmap:{NAME}"
PINNED = "version: 1\nmodels: {digits: {pin: {version: %d}}}\n"
NOBODY = {"cpu": ["http://127.0.0.1:9"]}  # no Triton: what is followed is told all the same


@pytest.fixture
def admin(sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(sign_in.admin()))


def account_of(bed: Bed, namespace: str, folder: Path) -> ServiceAccount:
    """What the chart gives a gateway's pod with rollouts: it may change two objects, and make none."""
    apis, role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}", {"name": "gateway"}
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": verbs}
        for name, verbs in ((NAME, ["get", "watch", "update"]), (f"{NAME}-rollouts", ["get", "update"]))
    ]
    bed.api.create(accounts, {"metadata": role})
    bed.api.create(f"{apis}/roles", {"metadata": role, "rules": rules})
    bed.api.create(
        f"{apis}/rolebindings",
        {
            "metadata": role,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway"},
            "subjects": [{"kind": "ServiceAccount", "name": "gateway", "namespace": namespace}],
        },
    )
    answer = bed.api.create(f"{accounts}/gateway/token", {"spec": {"expirationSeconds": 3600}})
    (folder / "token").write_text(answer["status"]["token"])
    (folder / "ca.crt").write_text((bed.layout.certificates / "ca.crt").read_text())
    host, _, port = bed.layout.api.removeprefix("https://").partition(":")
    return ServiceAccount(host, int(port), folder, namespace)


def told(gateway: Running) -> dict[str, Any]:
    return dict(gateway.ask("/admin/status").json()["control"])


def number(gateway: Running) -> int:
    return int(told(gateway)["revision"]["number"])


@pytest.mark.usefixtures("admin")
def test_what_a_pod_watches_is_what_was_applied(bed: Bed, namespace: str, tmp_path: Path) -> None:
    pod, admin = ControlMap(NAME, account_of(bed, namespace, tmp_path)), ControlMap(NAME, connect(None, None))
    assert (pod.current(), admin.history()) == (None, History())
    one = History().then(PINNED % 1, at="2026-11-25T20:00:00Z", by="ann")
    admin.write(one, History())
    first = pod.following(None)
    assert first == one.current
    two = one.then(PINNED % 2, at="2026-11-25T20:01:00Z", by="bob")
    admin.write(two, one)
    began = time.monotonic()
    assert pod.following(first) == two.current
    assert time.monotonic() - began < 2
    with pytest.raises(Conflict):
        ControlMap(NAME).write(one.then("x", at="", by=""), one)
    # What GitOps writes has no number of its own.
    bed.kubectl(
        "patch", "configmap", NAME, "-n", namespace, "--type=merge", "-p", '{"data": {"control.yaml": "version: 1"}}'
    )
    outside = pod.following(two.current)
    assert outside is not None
    assert (outside.number, outside.text) == (3, "version: 1")
    assert [it.number for it in admin.history().revisions] == [1, 2, 3]
    bed.kubectl("delete", "configmap", NAME, "-n", namespace)
    assert pod.following(outside) is None


@pytest.mark.usefixtures("admin")
def test_gateways_tell_each_other_what_they_see_of_a_rollout(bed: Bed, namespace: str, tmp_path: Path) -> None:
    one, over = Comparison("m", "d1", 3), Comparison("m", "", 4)
    account = account_of(bed, namespace, tmp_path)
    a, b = ControlMap(NAME, account), ControlMap(NAME, account)
    with pytest.raises(WriteError):
        a.exchange(one, "", 0, ["a1"])  # it may not make one
    bed.kubectl("create", "configmap", f"{NAME}-rollouts", "-n", namespace)
    first = a.exchange(one, "", 0, ["a1"])
    assert list(first.lines) == ["a1"]
    writing = [Thread(target=it.exchange, args=(one, "", 0, [line])) for it, line in ((a, "a2"), (b, "b1"))]
    for thread in writing:
        thread.start()
    for thread in writing:
        thread.join()
    assert sorted(a.exchange(one, first.began, first.place, ()).lines) == ["a2", "b1"]
    a.exchange(over, "", 0, ())
    with pytest.raises(Later):
        b.exchange(one, first.began, first.place, ["b2"])
    assert list(b.exchange(Comparison("m", "d1", 5), first.began, first.place, ["c1"]).lines) == ["c1"]
    announced = Follower("pod/a:1", "d1", 5, lacks={"m": "0 of 1"}, every_s=15.0)
    a.announce(announced)
    b.announce(Follower("b:1", "d1", 5, every_s=15.0))
    assert [replace(it, age_s=0.0) for it in ControlMap(NAME).followers()][1] == announced
    b.withdraw("b:1")
    assert [(it.name, it.is_silent) for it in b.followers()] == [("pod/a:1", False)]
    assert list(a.exchange(Comparison("m", "d1", 5), "", 0, ()).lines) == ["c1"]


@pytest.mark.usefixtures("admin")
def test_a_gateway_whose_clock_is_wrong_is_as_alive_as_others(
    bed: Bed, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.kubectl("create", "configmap", f"{NAME}-rollouts", "-n", namespace)
    pod, looks = ControlMap(NAME, account_of(bed, namespace, tmp_path)), ControlMap(NAME)
    for skew_s in (0.0, -200.0, 7200.0):
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time", lambda now=time.time, skew_s=skew_s: now() + skew_s)
            pod.announce(Follower("a:1", "d1", 1, every_s=15.0))
        for observer in (looks, ControlMap(NAME, connect(None, None))):
            (found,) = observer.followers()
            assert (found.is_silent, found.age_s < 40) == (False, True)


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("admin")
def test_a_wrong_canary_is_taken_back_at_all_gateways_and_no_request_fails(tmp_path: Path) -> None:
    repository, file = tmp_path / "repository", tmp_path / "new.yaml"
    for version, model in ((1, None), (2, with_a_wrong_label_map()), (3, another(3))):
        publish_digits(repository, precisions=["fp32"], version=version, model_file=model, num_kept=3)
    file.write_text(PINNED % 1)
    assert tandem("apply", str(file), "--control", PLACE).returncode == 0
    for name in ("a", "b", "triton"):
        (tmp_path / name).mkdir()
    options = ("--no-measure", "--versions", "3", "--model-repository", str(repository))
    told_of, told_after, is_back, is_over = Counter[tuple[int, str]](), Counter[str](), Event(), Event()

    def ask(gateway: Running) -> None:
        while not is_over.wait(0.02):
            begins_after = is_back.is_set()
            answer = gateway.infer(SAMPLE)
            version = answer.json()["model_version"] if answer.status == 200 else ""
            told_of[answer.status, version] += 1
            told_after[version] += begins_after

    with (
        triton_of_its_own(tmp_path / "triton", *options) as (_, url),
        gateway_before(tmp_path / "a", {"cpu": [url]}, "--control", PLACE) as a,
        gateway_before(tmp_path / "b", {"cpu": [url]}, "--control", PLACE) as b,
    ):
        asking = [Thread(target=ask, args=(gateway,)) for gateway in (a, b) for _ in range(4)]
        for thread in asking:
            thread.start()
        try:
            rollout = {"candidate": {"version": 2}, "step": "canary", "canary_ratio": 0.2, "sample_ratio": 0.2}
            models = {"digits": {"pin": {"version": 1}, "rollout": rollout}}
            file.write_text(json.dumps({"version": 1, "models": models}))
            words = ("apply", str(file), "--control", PLACE, "--url", f"http://{a.url}", "--url", f"http://{b.url}")
            assert tandem(*words).returncode == 0
            began = time.monotonic()
            wait_until(lambda: number(a) == number(b) == 3, "it is taken back in the document", 60)
            took_s = time.monotonic() - began
            is_back.set()
            print(f"taken back at both gateways {took_s:.1f} s after the canary began, by {told_of.total()} requests")
            wait_until(lambda: told_after.total() > 200, "more are answered")
        finally:
            is_over.set()
            for thread in asking:
                thread.join()
        assert {status for status, _ in told_of} == {200}
        assert told_of[200, "2"] > 0 == told_after["2"]
        assert "agreement" in ControlMap(NAME).history().current.why


@pytest.mark.usefixtures("admin")
def test_two_gateways_agree_and_keep_what_they_have_without_the_api(bed: Bed, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    file = tmp_path / "new.yaml"
    with (
        gateway_before(tmp_path / "a", NOBODY, "--control", PLACE, ready=False) as a,
        gateway_before(tmp_path / "b", NOBODY, "--control", PLACE, ready=False) as b,
    ):
        for revision in (1, 2, 3):
            file.write_text(PINNED % revision)
            assert tandem("apply", str(file), "--control", PLACE).returncode == 0
            began = time.monotonic()
            wait_until(lambda revision=revision: number(a) == number(b) == revision, "both have it")  # type: ignore[misc]
            assert time.monotonic() - began < 2
        assert told(a)["revision"]["digest"] == told(b)["revision"]["digest"]
        bed.stop("kube-apiserver")
        try:
            wait_until(lambda: not told(a)["is_current"] and not told(b)["is_current"], "both say that it is away")
            with pytest.raises(Unreachable):
                ControlMap(NAME).current()
            assert (number(a), number(b)) == (3, 3)
        finally:
            bed.start("kube-apiserver")
        wait_until(lambda: told(a)["is_current"] and told(b)["is_current"], "both say that it is back")
        assert (
            tandem("undo", "--control", PLACE, "--url", f"http://{a.url}", "--url", f"http://{b.url}").returncode == 0
        )
        assert (number(a), number(b)) == (4, 4)
