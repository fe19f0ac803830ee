"""The bed itself: what the other tests lean on is really there, and nothing of it outlives its tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.bed.api import until
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import Nodes, SignIn

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: scaled}
spec:
  selector: {matchLabels: {app: scaled}}
  template:
    metadata: {labels: {app: scaled}}
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: x
          image: example.invalid/x:1
          resources: {requests: {cpu: 100m}}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaled}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}
  minReplicas: 0
  maxReplicas: 4
  metrics:
    - type: External
      external:
        metric: {name: tandem_demand_replicas, selector: {matchLabels: {pool: gpu}}}
        target: {type: AverageValue, averageValue: "1"}
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
"""


def test_the_kinds_of_others_exist_and_refuse_what_they_do_not_know(bed: Bed, namespace: str) -> None:
    kinds = bed.kubectl("get", "crd", "-o", "name")
    for kind in ("nodepools.karpenter.sh", "scaledobjects.keda.sh", "servicemonitors.monitoring.coreos.com",
                 "podmonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com", "httproutes.gateway.networking.k8s.io"):  # fmt: skip
        assert f"customresourcedefinition.apiextensions.k8s.io/{kind}\n" in kinds
    monitor = '{"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "x"}, "spec": {%s "endpoints": [], "selector": {}}}'
    words = ("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-")
    bed.kubectl(*words, stdin=monitor % "")
    with pytest.raises(Failed, match=r'unknown field "spec\.endpoint"'):
        bed.kubectl(*words, stdin=monitor % '"endpoint": [],')


def test_a_pod_outside_pod_security_restricted_is_refused(bed: Bed, namespace: str) -> None:
    with pytest.raises(Failed, match='violates PodSecurity "restricted'):
        bed.kubectl("run", "bad", "--image=example.invalid/x:1", "-n", namespace)


def test_the_real_autoscaler_follows_the_metric_to_zero_and_back(bed: Bed, namespace: str) -> None:
    bed.set_external_metric("tandem_demand_replicas", 3, pool="gpu")
    bed.kubectl("create", "-n", namespace, "-f", "-", stdin=DEPLOYMENT)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for wanted in (3, 0, 1):
        bed.set_external_metric("tandem_demand_replicas", wanted, pool="gpu")
        until(lambda wanted=wanted: len(bed.api.items(pods)) == wanted, f"{wanted} pods")


def test_limited_users_may_do_what_their_role_says_and_no_more(bed: Bed, namespace: str, sign_in: SignIn) -> None:
    listing = ("get", "configmaps", "-n", namespace)
    assert "kube-root-ca.crt" in bed.kubectl(*listing, kubeconfig=sign_in.role("view"))
    with pytest.raises(Failed, match="cannot list resource"):
        bed.kubectl(*listing, kubeconfig=sign_in.role(None))
    with pytest.raises(Failed, match="logged"):
        bed.kubectl(*listing, kubeconfig=sign_in.with_a_wrong_token())
    with pytest.raises(Failed, match="x509"):
        bed.kubectl(*listing, kubeconfig=sign_in.trusting_another_authority())


@pytest.mark.thorough
def test_an_api_server_comes_back_with_all_that_it_had(bed: Bed, namespace: str, nodes: Nodes) -> None:
    nodes.add("gpu-0", {"nvidia.com/gpu": "2"}, taint="nvidia.com/gpu")
    bed.stop("kube-apiserver")
    try:
        with pytest.raises(Failed, match="refused"):
            bed.kubectl("get", "nodes")
    finally:
        bed.start("kube-apiserver")
    assert bed.api.get("/api/v1/nodes/gpu-0")["status"]["allocatable"]["nvidia.com/gpu"] == "2"


@pytest.mark.thorough
def test_a_second_bed_runs_beside_the_first_and_dies_with_who_started_it(bed: Bed) -> None:
    command = [sys.executable, "-m", "tests.cluster.bed"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as starter:
        assert starter.stdout is not None
        line = next((it for it in starter.stdout if it.startswith("export ")), "")
        assert line, "it did not come up"
        folder = Path(line.split("KUBECONFIG=")[1].split()[0]).parent
        try:
            assert len(processes_with(str(folder))) >= 6
            assert bed.kubectl("get", "nodes", kubeconfig=folder / "kubeconfig").count(" Ready ") == 3
        finally:
            os.killpg(starter.pid, signal.SIGKILL)
            starter.wait()
        until(lambda: not processes_with(str(folder)), "the second bed's processes gone", 10)
    shutil.rmtree(folder)
    assert bed.kubectl("get", "nodes").count(" Ready ") >= 3


def processes_with(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if word in (entry / "cmdline").read_text() and "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile
                continue
    return found
