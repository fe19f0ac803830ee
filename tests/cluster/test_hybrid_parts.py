"""What the stand-ins of tests/cluster/hybrid think: DNS answers, what a container runs, when probes count, what of a report is wrong. No process,
no cluster."""

from __future__ import annotations

import socket
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.cluster.hybrid import container as planned
from tests.cluster.hybrid.channels import message
from tests.cluster.hybrid.container import NotImitated, Places
from tests.cluster.hybrid.endpoints import PROXY_LATE_S, Known
from tests.cluster.hybrid.excused import GATEWAY_KILLED, MOST, UPGRADED, unexcused
from tests.cluster.hybrid.moments import ALONE, BACK, DOWN, NOTICES, UP, of, wrong
from tests.cluster.hybrid.names import AAAA, A, answer, read, ready_addresses
from tests.cluster.hybrid.probe import Probing
from tests.cluster.hybrid.quick_day import DAY, GPU_PRICE, bill
from tests.cluster.hybrid.scalers import LEADS, METRIC, leader, most
from tests.cluster.hybrid.spent import spent
from tests.cluster.hybrid.status import Seen, status

PLACES = Places(Path("/pod"), "10.244.0.7", Path("/image"), Path("/pod/curves"))
NAME = b"\x0atandem-cpu\x06hybrid\x03svc\x07cluster\x05local\x00"


# -- names --------------------------------------------------------------------------------------------------------------------


def question(kind: int = A, number: int = 7) -> bytes:
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + NAME + struct.pack("!2H", kind, 1)


def test_a_name_is_answered_with_each_address() -> None:
    asked = read(question())
    assert asked.name == "tandem-cpu.hybrid.svc.cluster.local"
    told = answer(asked, ["10.244.0.1", "10.244.0.2"])
    assert struct.unpack_from("!4H", told) == (7, 0x8580, 1, 2)
    assert told.endswith(socket.inet_aton("10.244.0.2"))
    assert NAME in told


@pytest.mark.parametrize(
    ("kind", "addresses", "flags", "count"),
    [(A, None, 0x8583, 0), (AAAA, ["10.244.0.1"], 0x8580, 0), (AAAA, None, 0x8583, 0), (A, [], 0x8580, 0)],
    ids=["no such name", "no IPv6", "no such name, IPv6", "nothing"],
)
def test_what_is_not_there_is_told_apart(kind: int, addresses: list[str] | None, flags: int, count: int) -> None:
    told = answer(read(question(kind)), addresses)
    assert struct.unpack_from("!4H", told) == (7, flags, 1, count)


@pytest.mark.parametrize("message", [b"", b"\0" * 11, question()[:20], question().replace(b"\x0atan", b"\xc0tan")])
def test_what_is_no_question_gets_no_answer(message: bytes) -> None:
    with pytest.raises((ValueError, IndexError, struct.error)):
        read(message)


def one_slice(*endpoints: dict[str, Any], service: str = "tandem-cpu") -> dict[str, Any]:
    about = {"namespace": "hybrid", "labels": {"kubernetes.io/service-name": service}}
    return {"metadata": about, "ports": [{"name": "http", "port": 8080}], "endpoints": list(endpoints)}


def test_only_ready_endpoints_of_that_service_count() -> None:
    ready = {"addresses": ["10.244.0.1"], "conditions": {"ready": True}}
    unsaid = {"addresses": ["10.244.0.2"]}
    leaving = {"addresses": ["10.244.0.3"], "conditions": {"ready": False, "serving": True, "terminating": True}}
    other = one_slice({"addresses": ["10.244.0.4"]}, service="tandem-gpu")
    slices = [one_slice(ready, unsaid, leaving), other, {"metadata": {"namespace": "hybrid"}, "endpoints": None}]
    assert ready_addresses(slices, "hybrid", "tandem-cpu") == ["10.244.0.1", "10.244.0.2"]
    assert ready_addresses(slices, "hybrid", "tandem-cpu", "http") == ["10.244.0.1:8080", "10.244.0.2:8080"]
    assert ready_addresses(slices, "default", "tandem-cpu") == []


# -- containers ---------------------------------------------------------------------------------------------------------------


def pod(pool: str = "emulated-gpu") -> dict[str, Any]:
    return {"metadata": {"labels": {"tandem-pool": pool}, "name": "it"}, "spec": {}}


def container(*words: str, image: str = "registry.example.com/team/tandem-triton-gpu:0.1.0") -> dict[str, Any]:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "models", "mountPath": "/models"}]
    return {"name": "it", "image": image, "command": list(words), "volumeMounts": mounts}


@pytest.mark.parametrize(
    ("word", "here"),
    [
        ("--host=0.0.0.0", "--host=10.244.0.7"),
        ("--ready-file=/tmp/ready", "--ready-file=/pod/volumes/tmp/ready"),
        ("/models", "/pod/volumes/models"),
        ("/modelsque", "/modelsque"),
        ("--model-repository=/opt/tandem/model_repo", "--model-repository=/image"),
        ("digits-fp32", "digits-fp32"),
    ],
)
def test_addresses_and_mounted_places_are_the_pods_own(word: str, here: str) -> None:
    assert planned.command(pod(), container("tandem", "triton", word), PLACES)[-1] == here


def test_a_triton_that_wants_a_card_is_an_emulated_one() -> None:
    words = planned.command(pod(), container("tandem", "triton", "--pool=gpu", "--host=0.0.0.0"), PLACES)
    assert words[-3:] == ["--pool=emulated-gpu", "--emulate=/pod/curves/emulated-gpu.json", "--host=10.244.0.7"]


def test_an_emulated_pool_may_stand_for_processors_and_a_real_one_stays_what_it_is() -> None:
    it = container("tandem", "triton", "--pool=cpu")
    assert planned.command(pod("emulated-cpu"), it, PLACES)[-2:] == [
        "--pool=emulated-cpu",
        "--emulate=/pod/curves/emulated-cpu.json",
    ]
    assert planned.command(pod("cpu"), it, PLACES)[-1] == "--pool=cpu"


def test_only_emulated_pools_are_told_to_be_so() -> None:
    text = '  "{}":\n    urls: ["http://x:8000"]\n    device: {}\n    max_replicas: 2\n'
    told = planned.emulated_config(text.format("emulated-cpu", "cpu") + text.format("cpu", "cpu"))
    assert told == text.format("emulated-cpu", "emulated") + text.format("cpu", "cpu")


def test_a_service_accounts_token_lies_where_a_pod_finds_it(tmp_path: Path) -> None:
    it = container("tandem", "cluster", "scaler", image="tandem-gateway")
    it["volumeMounts"].append({"name": "token", "mountPath": planned.ACCOUNT})
    words = planned.command(pod(), it, PLACES)
    assert words[: len(planned.IN_ITS_PLACE) + 1] == [*planned.IN_ITS_PLACE, "/pod/volumes/token"]
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    holder = pod() | {"spec": {"volumes": [{"name": "token", "projected": {"sources": sources}}]}}
    places = Places(tmp_path, "10.244.0.7", tmp_path, tmp_path)
    planned.make_volumes(holder, places, lambda kind, name: {"data": {"ca.crt": name}}, lambda wanted: "a token")
    files = {path.name: path.read_text() for path in places.volume("token").iterdir()}
    assert files == {"token": "a token", "ca.crt": "kube-root-ca.crt", "namespace": "it"}


def test_a_container_is_told_where_the_api_server_is() -> None:
    found = planned.environment(pod(), {"name": "it"}, lambda kind, name: {}, "https://127.0.0.1:6443")
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6443")


@pytest.mark.parametrize(
    ("it", "why"),
    [
        (container("tritonserver", image="nvcr.io/nvidia/tritonserver:26.08-py3"), "no program here"),
        (container("sh", "-c", "true"), "it runs sh"),
        (container(), "runs what its image says"),
    ],
)
def test_what_has_no_stand_in_is_refused(it: dict[str, Any], why: str) -> None:
    with pytest.raises(NotImitated, match=why):
        planned.command(pod(), it, PLACES)


def test_a_pool_for_cards_has_to_be_named_emulated() -> None:
    with pytest.raises(NotImitated, match="emulated-SOMETHING"):
        planned.command(pod("gpu"), container("tandem", "triton", "--pool=gpu"), PLACES)


def test_variables_come_from_where_the_spec_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MAX_IN_FLIGHT", "1")
    env = [
        {"name": "PLAIN", "value": "1"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    secret = {"kind": "Secret", "data": {"k": "c2VjcmV0"}}
    found = planned.environment(pod(), {"name": "it", "env": env}, lambda kind, name: secret)
    assert (found["PLAIN"], found["KEY"], found["NODE"]) == ("1", "secret", "it")
    assert "TANDEM_MAX_IN_FLIGHT" not in found


# -- probes and status --------------------------------------------------------------------------------------------------------

PROBES = {
    "startupProbe": {"periodSeconds": 0, "failureThreshold": 2},
    "readinessProbe": {"periodSeconds": 0, "failureThreshold": 2},
    "livenessProbe": {"periodSeconds": 0, "failureThreshold": 2},
}


def test_readiness_is_asked_only_once_it_has_started_and_lost_only_after_its_threshold() -> None:
    answers = {"startupProbe": False, "readinessProbe": True, "livenessProbe": True}
    asked: list[str] = []

    def once(probe: dict[str, Any]) -> bool:
        kind = next(kind for kind, it in PROBES.items() if it is probe)
        asked.append(kind)
        return answers[kind]

    it = Probing(PROBES, once)
    assert not it.look()
    assert asked == ["startupProbe"]
    answers["startupProbe"] = True
    assert it.look()
    assert (it.is_started, it.is_ready) == (True, False)
    assert it.look()
    assert it.is_ready
    answers["readinessProbe"] = False
    assert not it.look()
    assert it.look()
    assert not it.is_ready
    answers["livenessProbe"] = False
    it.look()
    assert not it.is_dead
    assert it.look()
    assert it.is_dead


def test_what_others_wrote_about_a_pod_stays_and_times_of_conditions_are_kept() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    initialized = {"type": "Initialized", "status": "True", "lastTransitionTime": "then"}
    seen = Seen("it", "image", waits_for="", is_started=True, is_ready=True)
    told = status({"status": {"conditions": [scheduled, initialized]}}, [], [seen], is_initialized=True)
    assert told["conditions"][:2] == [scheduled, initialized]
    assert {it["type"]: it["status"] for it in told["conditions"]}["Ready"] == "True"
    seen.exit_code = 1
    told = status({"status": {}}, [], [seen], is_initialized=True)
    assert {it["type"]: it["status"] for it in told["conditions"]}["Ready"] == "False"
    assert told["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1


# -- the scaler's number, and the story's moments -----------------------------------------------------------------------------


def test_of_two_scalers_the_most_counts_and_what_none_says_is_missing() -> None:
    pages = [f'{METRIC}{{pool="a"}} 1.0\n', f'{METRIC}{{pool="a"}} 2.0\n{METRIC}{{pool="b"}} 0.0\n', "", "other 1.0\n"]
    assert most(pages, METRIC) == {"a": 2.0, "b": 0.0}
    assert most([], METRIC) == {}


@pytest.mark.parametrize(
    ("leads", "told"),
    [({"a": 1, "b": 0}, "a"), ({"a": 0, "b": 0}, None), ({"a": 1, "b": 1}, None), ({}, None)],
)
def test_who_leads_is_known_only_where_just_one_says_so(leads: dict[str, int], told: str | None) -> None:
    assert leader({address: f"{LEADS} {it}\n" for address, it in leads.items()}) == told


NOTHING: dict[str, Any] = dict.fromkeys(("wanted_gpu", "replicas_gpu", "pods_gpu", "claims", "cards", "cards_ready", "ready_gpu"), 0)  # fmt: skip


def told() -> dict[str, Any]:
    """Of a run in which each step comes a second after the one before."""
    looks, now = [{"at_s": 5.0, **NOTHING}], dict(NOTHING)
    for at_s, names in enumerate(["wanted_gpu", "replicas_gpu", "pods_gpu", "claims", "cards", "cards_ready", "ready_gpu"], 11):  # fmt: skip
        now[names] = 1
        looks.append({"at_s": float(at_s), **now})
    for at_s, gone in ((61.0, ["wanted_gpu"]), (62.0, ["replicas_gpu"]), (63.0, ["pods_gpu", "ready_gpu"])):
        now |= dict.fromkeys(gone, 0)
        looks.append({"at_s": at_s, **now})
    looks.append({"at_s": 70.0, **NOTHING})
    marks = {"demand rises": 10.0, "demand falls": 60.0}
    alone: set[int] = set()  # seconds
    for began, (kind, steps) in zip((25, 35, 45), NOTICES.items(), strict=True):
        marked = [it for it, *_ in steps if it not in (ALONE, BACK)]
        marks |= {f"{kind}: {it}": float(began + at) for at, it in enumerate(marked)}
        alone |= {began + len(marked) - 1, began + len(marked) - 2}
    return {
        "marks": marks,
        "looks": looks,
        "first_gpu_answer_s": 13.0,
        "load_began_s": 5.5,
        "answers": [[at, 1, 2 if at > 20 and at not in alone else 0, 0] for at in range(60)],
    }


def seen(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [asdict(it) for it in of(report)]


def test_a_story_in_order_is_told_step_by_step() -> None:
    moments = seen(told())
    assert wrong(moments) == []
    assert len(moments) == len(UP) + len(DOWN) + sum(map(len, NOTICES.values())) + 4
    assert [it["at_s"] for it in moments] == sorted(it["at_s"] for it in moments)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"first_gpu_answer_s": None}, "the first answer from it: never"),
        ({"first_gpu_answer_s": 2.0}, "the first answer from it: -9.5 s after"),
        ({"answers": [[0, 1, 0, 0]]}, "most of the traffic goes there: never"),
        ({"looks": told()["looks"][:-1]}, "no node is left: never"),
        ({"looks": [{**it, "wanted_gpu": None} for it in told()["looks"]]}, "the scaler wants a GPU server: never"),
        (
            {"marks": {**told()["marks"], "spot notice: its Triton has ended": 76.0}},
            "spot notice: its Triton has ended: 31.0 s",
        ),
        (
            {"marks": {**told()["marks"], "maintenance: the gateways have let go of it": None}},
            "maintenance: the gateways have let go of it: never",
        ),
    ],
)
def test_what_does_not_come_or_comes_out_of_order_or_late_is_said(change: dict[str, Any], what: str) -> None:
    assert any(it.startswith(what) for it in wrong(seen(told() | change)))


# -- clients ------------------------------------------------------------------------------------------------------------------


def test_nodes_know_the_endpoints_late_however_seldom_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now, there = [0.0], ["a"]
    monkeypatch.setattr("tests.cluster.hybrid.endpoints.time.monotonic", lambda: now[0])
    known = Known(lambda: {"grpc": list(there)})
    assert known.now("grpc") == ["a"]
    now[0], there[0] = 10.0, "b"
    known.look()
    assert known.now("grpc") == ["a"]
    now[0] += PROXY_LATE_S
    assert known.now("grpc") == ["b"]


def test_a_request_over_http_says_the_same_over_grpc() -> None:
    body = b'{"inputs": [{"name": "image", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1.0]}]}'
    told = pb.ModelInferRequest.FromString(message("digits", body))
    assert (told.model_name, told.inputs[0].name, list(told.inputs[0].shape)) == ("digits", "image", [1, 2])
    assert list(told.inputs[0].contents.fp32_contents) == [0.5, 1.0]


def phases(**said: int) -> dict[str, Any]:
    errors = sum(count for name, count in said.items() if name != "OK")
    return {"phases": {GATEWAY_KILLED: {"said": said}, UPGRADED: {"said": {}}}, "all": {"errors": errors}}


@pytest.mark.parametrize(
    ("said", "left"),
    [({"OK": 9, "UNAVAILABLE": 2}, 0), ({"UNAVAILABLE": MOST + 3}, 3), ({"UNAVAILABLE": 1, "CANCELLED": 1}, 1)],
)
def test_of_a_killed_gateway_only_lost_connections_are_excused(said: dict[str, int], left: int) -> None:
    assert unexcused(phases(**said)) == left


# -- what it cost -------------------------------------------------------------------------------------------------------------


def machines(*steps: tuple[float, int, int]) -> list[dict[str, Any]]:
    return [{"at_s": at_s, "claims": claims, "replicas_cpu": cpu} for at_s, claims, cpu in steps]


def test_each_of_two_machines_is_paid_from_its_purchase_to_its_end() -> None:
    looks = machines((0.0, 0, 2), (20.0, 1, 3), (50.0, 2, 2), (60.0, 1, 2), (90.0, 0, 2))
    found = spent({"load_began_s": 10.0, "seconds": 110.0, "looks": looks})
    assert (found.lasting_s, found.one_s, found.node_s, found.cpu_s) == (100.0, 70.0, 80.0, 230.0)
    assert found.cost / found.always_cost == pytest.approx(0.8)


def test_a_day_in_minutes_is_told_as_24_hours() -> None:
    looks = machines((0.0, 0, 2), (30.0, 0, 3), (40.0, 1, 2), (80.0, 0, 2), (120.0, 1, 2))
    found = bill({"phases": {DAY: {"at_s": 20.0, "seconds": 80.0}}, "looks": looks})
    assert (found.share, found.node_hours, found.third_cpu_hours) == (0.5, 12.0, 3.0)
    assert found.always_cost == pytest.approx(24 * GPU_PRICE)
