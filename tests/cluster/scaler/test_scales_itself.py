"""The scaler sets a pool's number itself on a real control plane: an install buys no card, no rendering takes a number away, one of two leads.

Two real processes with the rights of the chart's own service account; nodes and kubelets are simulated, and what gateways publish is said here.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from serving.ports import free_ports
from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import CHART, Nodes
from tests.cluster.release import PROFILES, stack
from tests.gateway.conftest import TANDEM
from tests.local.harness import Program, wait_until

pytestmark = pytest.mark.cluster
CARD = "nvidia.com/gpu"


class Gateways:
    """One page of what a gateway publishes: servers that the traffic would keep busy on either pool."""

    def __init__(self) -> None:
        self.cpu = self.gpu = 0.0
        self.num_gpu_ready = 0

        def page() -> bytes:
            lines = []
            for pool, number, ready in (("cpu", self.cpu, 2), ("gpu", self.gpu, self.num_gpu_ready)):
                for name, value in (("demand", number), ("demand_only", 0), ("demand_unseen", 0)):
                    lines.append(f'tandem_{name}_replicas{{pool="{pool}"}} {value}')
                lines.append(f'tandem_ready_servers{{pool="{pool}"}} {ready}')
            return ("\n".join(lines) + "\n").encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def gateways() -> Iterator[Gateways]:
    said = Gateways()
    yield said
    said.server.shutdown()
    said.server.server_close()


class Synced:
    """The chart as Argo CD does it: rendered without the cluster, and applied."""

    def __init__(self, bed: Bed, namespace: str) -> None:
        self.bed, self.namespace = bed, namespace

    def sync(self) -> list[Object]:
        profile = f"--values={PROFILES['scale-to-zero']}"
        where = f"--namespace={self.namespace}"
        rendered = self.bed.helm("template", "tandem", str(CHART), profile, "--set=auth.insecureNoAuth=true", where)
        kept = [it for it in stack(rendered) if "helm.sh/hook" not in it["metadata"].get("annotations", {})]
        self.bed.kubectl(
            "apply",
            "-f",
            "-",
            "-n",
            self.namespace,
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": kept}),
        )
        return kept

    def replicas(self) -> int:
        number = self._get("/apis/apps/v1", "deployments/tandem-gpu")["spec"]["replicas"]
        assert isinstance(number, int)
        return number

    def pods(self) -> list[Object]:
        pods = self._get("/api/v1", "pods?labelSelector=tandem-pool%3Dgpu")["items"]
        return [it for it in pods if "deletionTimestamp" not in it["metadata"]]

    def nodes(self) -> list[str]:
        """That a card's pod has, or was told to look for."""
        return [it["metadata"]["name"] for it in self.pods() if not it["spec"].get("schedulingGates")]

    def holder(self) -> str:
        leases = self._get("/apis/coordination.k8s.io/v1", "leases")["items"]
        return next((str(it["spec"].get("holderIdentity", "")) for it in leases if it["metadata"]["name"] == "tandem-scaler"), "")  # fmt: skip

    def _get(self, group: str, what: str) -> Any:
        return self.bed.api.get(f"{group}/namespaces/{self.namespace}/{what}")


class Scalers:
    """Processes as the chart's pods would be, each with the rights of its account."""

    def __init__(self, synced: Synced, made: list[Object], gateways: Gateways, folder: Path) -> None:
        token = synced.bed.kubectl("create", "token", "tandem-scaler", "-n", synced.namespace).strip()
        self._kubeconfig = folder / "scaler.kubeconfig"
        self._kubeconfig.write_text(json.dumps(synced.bed.kubeconfig_of({"token": token}, namespace=synced.namespace)))
        config = folder / "tandem.yaml"
        config.write_text(next(it["data"]["tandem.yaml"] for it in made if it["kind"] == "ConfigMap" and "gateway" in it["metadata"]["name"]))  # fmt: skip
        template = next(it for it in made if it["kind"] == "Deployment" and it["metadata"]["name"] == "tandem-scaler")
        words = template["spec"]["template"]["spec"]["containers"][0]["command"][1:]
        ours = (f"--config={config}", f"--gateways=http://127.0.0.1:{gateways.server.server_port}", "--host=127.0.0.1")
        replaced = {it.partition("=")[0] for it in (*ours, "--port", "--grpc-port")}
        self._words = [*(it for it in words if it.partition("=")[0] not in replaced), *ours]
        self._folder, self.programs = folder, []

    def start(self) -> Program:
        number = len(self.programs)
        port = free_ports(1)[0]
        environment = {"KUBECONFIG": str(self._kubeconfig), "NO_PROXY": "*"}
        words = [*TANDEM, *self._words, f"--port={port}"]
        self.programs.append(Program(words, self._folder / f"scaler-{number}.log", environment))
        return self.programs[-1]


def test_the_story_of_a_pool_that_the_scaler_scales(
    bed: Bed, namespace: str, nodes: Nodes, gateways: Gateways, tmp_path: Path
) -> None:
    synced = Synced(bed, namespace)
    made = synced.sync()
    # What Kubernetes takes a missing number for looks for no node.
    wait_until(synced.pods, "the pod of the first sync is made")
    assert (synced.replicas(), synced.nodes()) == (1, [])
    scalers = Scalers(synced, made, gateways, tmp_path)
    first = scalers.start()
    try:
        first.wait_for("sets replicas now")
        second = scalers.start()
        wait_until(lambda: synced.replicas() == 0, "nobody needs it")
        wait_until(lambda: not synced.pods(), "its pod has gone, without a node")
        # Twenty servers' work: the two of the CPU pool are too few.
        nodes.add(f"{namespace}-gpu", {CARD: "4"}, taint=CARD)
        gateways.cpu, gateways.gpu = 20.0, 0.6
        wait_until(lambda: synced.replicas() == 1, "a card is wanted")
        wait_until(synced.nodes, "its pod may look for a node")
        (pod,) = wait_until(lambda: [it for it in synced.pods() if it["spec"].get("nodeName")], "it has one")
        gateways.num_gpu_ready = 1
        # Renderings under load, and somebody else's number: neither a pod less nor a card more.
        for _ in range(3):
            synced.sync()
            assert synced.replicas() == 1
        bed.kubectl("scale", "deployment", "tandem-gpu", "--replicas=5", "-n", namespace)
        wait_until(lambda: synced.replicas() == 1, "the number is set right")
        wait_until(lambda: len(synced.pods()) == 1, "those that were too many have gone")
        assert [it["metadata"]["uid"] for it in synced.pods()] == [pod["metadata"]["uid"]]
        # Killed, and told to end: the other leads, and the number stays.
        holder = synced.holder()
        first.end(signal.SIGKILL)
        wait_until(lambda: synced.holder() not in ("", holder), "the other holds the lease")
        second.wait_for("sets replicas now")
        bed.kubectl("scale", "deployment", "tandem-gpu", "--replicas=0", "-n", namespace)
        wait_until(lambda: synced.replicas() == 1, "the other sets it right")
        wait_until(synced.nodes, "and lets its pod look for a node")
        third = scalers.start()
        third.wait_for("ready: ")
        second.end()
        third.wait_for("sets replicas now")
        assert synced.replicas() == 1
        # One that begins while a card is there begins with that, and not with none.
        told = wait_until(
            lambda: [it for it in third.lines() if it.startswith("published: ")], "it tells its first number"
        )
        assert "gpu 1" in told[0]
        assert synced.replicas() == 1
    finally:
        for it in scalers.programs:
            it.end()


def test_its_account_may_change_that_alone(bed: Bed, namespace: str) -> None:
    Synced(bed, namespace).sync()
    user = f"--as=system:serviceaccount:{namespace}:tandem-scaler"
    for words in (("patch", "deployments/tandem-gpu", "--subresource=scale"), ("patch", "pods"), ("create", "leases")):
        bed.kubectl("auth", "can-i", *words, user, "-n", namespace)
    for words in (
        ("patch", "deployments/tandem-cpu", "--subresource=scale"),
        ("patch", "deployments/tandem-gpu"),
        ("delete", "pods"),
        ("update", "leases/another"),
        ("get", "secrets"),
    ):
        with pytest.raises(Failed, match="no"):
            bed.kubectl("auth", "can-i", *words, user, "-n", namespace)
