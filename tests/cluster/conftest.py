"""A real control plane for tests marked `cluster` (`make test-cluster`), started once a run by the first test that asks for `bed`.

    pytestmark = pytest.mark.cluster

    def test_x(bed: Bed, namespace: str, sign_in: SignIn) -> None:
        bed.kubectl("get", "pods", "-n", namespace)      # as administrator; Failed, with what was said, where it fails
        bed.helm("lint", str(CHART))
        bed.api.items(f"/api/v1/namespaces/{namespace}/pods")   # JSON, quicker than a kubectl
        path = sign_in.role("view")                      # a kubeconfig file; its context's namespace is the test's
        bed.stop("kube-apiserver"); bed.start("kube-apiserver")   # parts one by one; start what you stop, others use the bed too

`namespace` enforces Pod Security `restricted` and goes with the test. `nodes` adds nodes for one test: nodes.add("gpu-0",
{"nvidia.com/gpu": "1"}, taint="nvidia.com/gpu"). metrics.k8s.io and external.metrics.k8s.io answer what `bed.set_cpu_use` and
`bed.set_external_metric` put there; `bed.stop("metrics")` breaks both. Pods do what annotations such as bed/load, bed/waiting or
bed/unready say (bed/manifests/stages.yaml). The kinds of Karpenter (which runs), KEDA, the Prometheus operator and Gateway API exist.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.bed.api import Answered, Object, until
from tests.cluster.bed.build import NotBuilt, built
from tests.cluster.bed.cluster import Bed, is_true

CHART = Path(__file__).resolve().parents[2] / "helm" / "tandem"
numbers = itertools.count(1)
SECONDS = pytest.StashKey[dict[str, float]]()


@pytest.fixture(scope="session")
def bed(pytestconfig: pytest.Config) -> Iterator[Bed]:
    try:
        programs = built()
    except NotBuilt as error:
        pytest.fail(str(error), pytrace=False)
    with Bed(programs) as running:
        pytestconfig.stash[SECONDS] = running.seconds
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More than others get: the first test waits for the bed, and what takes seconds here takes minutes on a busy machine."""
    for item in items:
        if item.get_closest_marker("cluster") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


class Reports:
    """What a worker of `-n` says of its bed at its end, printed by the process that started it."""

    def __init__(self) -> None:
        self.beds: list[dict[str, float]] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if seconds := getattr(node, "workeroutput", {}).get("bed"):
            self.beds.append(seconds)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        own = config.stash.get(SECONDS, None)
        for bed in [*self.beds, *([own] if own else [])]:
            terminalreporter.write_line(
                "bed up, in seconds: " + ", ".join(f"{name} {it:.1f}" for name, it in bed.items())
            )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reports(), "beds")


def pytest_sessionfinish(session: pytest.Session) -> None:
    seconds = session.config.stash.get(SECONDS, None)
    if seconds and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["bed"] = seconds


@pytest.fixture
def namespace(bed: Bed) -> Iterator[str]:
    with_pod_security = new_namespace(bed)
    yield with_pod_security
    drop_namespace(bed, with_pod_security)


def new_namespace(bed: Bed) -> str:
    """One that refuses pods outside Pod Security `restricted`, and in which pods can start."""
    name = f"test-{next(numbers)}"
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    bed.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    until(lambda: bed.api.items(f"/api/v1/namespaces/{name}/serviceaccounts"), f"the default account of {name}")
    return name


def drop_namespace(bed: Bed, name: str) -> None:
    """Without waiting: its pods take their time, and no other test has its name."""
    bed.api.delete(f"/api/v1/namespaces/{name}")


class SignIn:
    """Kubeconfig files of users who may do less than the administrator, or nothing."""

    def __init__(self, bed: Bed, namespace: str, folder: Path) -> None:
        self._bed, self._namespace, self._folder = bed, namespace, folder

    def role(self, role: str | None) -> Path:
        """Of a service account with a ClusterRole (`view`, `edit`, `admin`) in the test's namespace only; None: with no right."""
        account = role or "nobody"
        of_namespace = f"/api/v1/namespaces/{self._namespace}/serviceaccounts"
        self._bed.api.create(of_namespace, {"metadata": {"name": account}})
        if role:
            self._bed.api.create(
                f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self._namespace}/rolebindings",
                {
                    "metadata": {"name": account},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self._namespace}],
                },
            )
        answer = self._bed.api.create(f"{of_namespace}/{account}/token", {"spec": {"expirationSeconds": 3600}})
        return self._write(account, {"token": answer["status"]["token"]})

    def admin(self) -> Path:
        admin = self._bed.layout.certificates / "admin"
        return self._write("administrator", {"client-certificate": f"{admin}.crt", "client-key": f"{admin}.key"})

    def with_a_wrong_token(self) -> Path:
        return self._write("wrong-token", {"token": "not-a-token"})

    def anonymously(self) -> Path:
        return self._write("anonymous", {})

    def trusting_another_authority(self) -> Path:
        return self._write("wrong-authority", {"token": "not-a-token"}, authority="other-ca.crt")

    def _write(self, name: str, user: Object, authority: str = "ca.crt") -> Path:
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(self._bed.kubeconfig_of(user, authority=authority, namespace=self._namespace)))
        return path


@pytest.fixture
def sign_in(bed: Bed, namespace: str, tmp_path: Path) -> SignIn:
    return SignIn(bed, namespace, tmp_path)


class Nodes:
    """Nodes beside the bed's three."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._added: list[str] = []

    def add(
        self,
        name: str,
        resources: dict[str, str],
        *,
        taint: str = "",
        labels: dict[str, str] | None = None,
        is_ready: bool = True,
    ) -> None:
        """Waits until the node is Ready, unless it never is to be. `taint` is a key, with the effect NoSchedule."""
        capacity = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi", **resources}
        annotations = {"kwok.x-k8s.io/node": "fake", **({} if is_ready else {"bed/unready": "true"})}
        node = {
            "metadata": {
                "name": name,
                "annotations": annotations,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **(labels or {}),
                },
            },
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []},
            "status": {"capacity": capacity, "allocatable": capacity},
        }
        self._bed.api.create("/api/v1/nodes", node)
        self._added.append(name)
        if is_ready:
            until(lambda: is_true(self._bed.api.get(f"/api/v1/nodes/{name}"), "Ready"), f"node {name} ready")

    def remove_all(self) -> None:
        for name in self._added:
            try:
                self._bed.api.delete(f"/api/v1/nodes/{name}")
            except Answered as error:
                if error.status != 404:
                    raise
        self._added.clear()


@pytest.fixture
def nodes(bed: Bed) -> Iterator[Nodes]:
    added = Nodes(bed)
    yield added
    added.remove_all()
