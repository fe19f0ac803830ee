"""A scaler's cold starts through a real API server's proxy of Services: who may, who may not, and a scaler that does not answer."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.cluster.api import connect
from serving.cluster.objects.pods import Deployment
from serving.cluster.scaler.http_server import HttpServer
from serving.cluster.scaler.state import Result, ScalerState
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.command import scaler_reports
from serving.decisions.cold_start import ColdStart, Server
from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed
from tests.cluster.conftest import SignIn
from tests.cluster.objects import labels

pytestmark = pytest.mark.cluster
COLD = ColdStart("gpu", 1000.0, Server("tandem-gpu-1", created_at=1001.0), warm_at=1090.0, answered_at=1091.0)
LABELS = {"app.kubernetes.io/instance": "tandem", "app.kubernetes.io/component": "scaler"}
SCALER = Deployment.parse({"metadata": {"name": "tandem-scaler", "labels": labels("scaler")}})


def own_address() -> str:
    """Of this machine, and not its loopback, to which an API server forwards nothing. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("203.0.113.1", 9))
        return str(probe.getsockname()[0])


@pytest.fixture
def port() -> Iterator[int]:
    """Where the cold starts are told: the scaler's own pages."""

    async def told_of() -> ScalerState:
        told = ScalerState(("gpu",))
        told.publish(Result(cold_starts=(COLD,)))
        return told

    with socket.socket() as free:
        free.bind((own_address(), 0))
        number = int(free.getsockname()[1])
    with asyncio.Runner() as runner:
        pages = HttpServer(runner.run(told_of()), own_address(), number)
        pages.start()
        yield number
        pages.stop()


def service(bed: Bed, namespace: str, port: int) -> None:
    """As the chart's, but with its one address said."""
    inside = f"namespaces/{namespace}"
    spec: Object = {"ports": [{"name": "metrics", "port": 9091, "targetPort": port}]}
    bed.api.create(
        f"/api/v1/{inside}/services", {"metadata": {"name": "tandem-scaler", "labels": LABELS}, "spec": spec}
    )
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod_spec = {
        "nodeName": "elsewhere",
        "containers": [{"name": "scaler", "image": "i", "securityContext": secure}],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    bed.api.create(f"/api/v1/{inside}/pods", {"metadata": {"name": "scaler"}, "spec": pod_spec})
    status = {"phase": "Running", "podIP": own_address(), "podIPs": [{"ip": own_address()}]}
    bed.api.merge(f"/api/v1/{inside}/pods/scaler/status", {"status": status})
    # An API server forwards to addresses of pods alone.
    address = {"ip": own_address(), "targetRef": {"kind": "Pod", "namespace": namespace, "name": "scaler"}}
    subsets = [{"addresses": [address], "ports": [{"name": "metrics", "port": port}]}]
    bed.api.create(f"/api/v1/{inside}/endpoints", {"metadata": {"name": "tandem-scaler"}, "subsets": subsets})


def asked(kubeconfig: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("NO_PROXY", "*")
    connection = connect(None, namespace)
    with connection.api:
        return scaler_reports(connection, ClusterSnapshot(connection.namespace, deployments=(SCALER,))).get("tandem")


def comes(kubeconfig: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon: an API server hears of an address after a moment."""
    last: list[object] = []

    def has_come() -> bool:
        last[:] = [asked(kubeconfig, namespace, monkeypatch)]
        return last == [(COLD,)]

    try:
        until(has_come, "its cold starts", 20)
    except AssertionError:
        assert last == [(COLD,)]
        raise


def test_the_scalers_cold_starts_come_through_the_api_server(
    bed: Bed, namespace: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(bed, namespace, port)
    comes(bed.layout.kubeconfig, namespace, monkeypatch)


def test_who_may_not_ask_through_it_is_told_which_right_lacks(
    bed: Bed, namespace: str, port: int, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(bed, namespace, port)
    assert asked(sign_in.role("view"), namespace, monkeypatch).endswith("get services/proxy")
    comes(sign_in.role("edit"), namespace, monkeypatch)


def test_a_scaler_that_is_not_there_is_told_with_the_way_out(
    bed: Bed, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(bed, namespace, 1)
    said = str(asked(bed.layout.kubeconfig, namespace, monkeypatch))
    assert "tandem-scaler answers 503" in said
    assert "networkPolicy.metricsFrom" in said


def test_one_that_a_network_policy_hides_is_not_waited_for(
    bed: Bed, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind((own_address(), 0))
        silent.listen()
        service(bed, namespace, silent.getsockname()[1])

        def hidden() -> bool:
            began = time.monotonic()
            said = str(asked(bed.layout.kubeconfig, namespace, monkeypatch))
            took_s = time.monotonic() - began
            return "does not answer within 3 s" in said and "networkPolicy.metricsFrom" in said and took_s < 8

        until(hidden, "what hides it is told", 40)  # an API server hears of an address after a moment
