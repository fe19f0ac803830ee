"""`tandem cluster preflight` and `status` against a real API server, in good states and broken ones, as users of every kind.

Kubelets are simulated here: what only a kubelet says (a crash, a failed pull) is written into a pod's status as a kubelet would.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from serving.cli import main
from serving.cluster.api import METADATA_ONLY, connect
from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import CHART, Nodes, SignIn, drop_namespace, new_namespace
from tests.cluster.release import Release

pytestmark = pytest.mark.cluster
WAIT_S = 150
MERGE = "application/merge-patch+json"


class Told(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def report(self) -> Any:
        return json.loads(self.out)

    def line(self, name: str) -> str:
        """Of a preflight: the line of one finding, optional or not."""
        (found,) = [it for it in self.out.splitlines() if it[9:].startswith((f"{name}:", f"{name} (optional):"))]
        return found


Tandem = Callable[..., Told]


@pytest.fixture
def tandem(
    bed: Bed, namespace: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Tandem:
    """`tandem cluster …` in the test's namespace, as the administrator unless told otherwise."""

    def run(*words: str, kubeconfig: Path | None = None, of: str | None = None) -> Told:
        for name, value in (("HOME", tmp_path), ("KUBECONFIG", kubeconfig or bed.layout.kubeconfig), ("NO_PROXY", "*")):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(sys, "argv", ["tandem", "cluster", *words, f"--namespace={of or namespace}"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Told(end.value.code, *capfd.readouterr())

    return run


@pytest.fixture(autouse=True)
def without_cards(bed: Bed) -> None:
    """A card that another test's Karpenter still takes away would change what is said here."""

    def num_cards() -> int:
        return sum("nvidia" in key for it in bed.api.items("/api/v1/nodes") for key in it["status"]["allocatable"])

    until(lambda: num_cards() == 0, "nodes of other tests gone", WAIT_S)


def install(bed: Bed, namespace: str, *words: str, **values: Any) -> Release:
    """Without waiting for anything to be ready. Values by path, with __ for a dot."""
    release = Release(bed, namespace, more={key.replace("__", "."): it for key, it in values.items()})
    given = [f"--set-json={key}={json.dumps(it)}" for key, it in {"auth.insecureNoAuth": True, **release.more}.items()]
    bed.helm("install", release.name, str(CHART), *given, f"--namespace={namespace}", *words)
    return release


def waiting(told: Told, part: str) -> list[str]:
    """What status says of a part's pods: reason and way out, in one."""
    (release,) = told.report["releases"]
    (found,) = [it for it in release["parts"] if it["name"] == part]
    return [f"{it['why']}; {it['way_out']}" for it in found["waiting"]]


def says(tandem: Tandem, part: str, words: str, of: str | None = None) -> Told:
    """Waits until status says so of a part."""
    last: list[Told] = []

    def is_said() -> bool:
        last[:] = [tandem("status", "--json", of=of)]
        return any(words in it for it in waiting(last[0], part))

    until(is_said, f"status says of {part}: {words}", WAIT_S)
    return last[0]


def serving(tandem: Tandem) -> Told:
    last: list[Told] = []

    def is_so() -> bool:
        last[:] = [tandem("status", "--json")]
        return bool(last[0].out) and last[0].report["is_serving"] is True

    until(is_so, "a release that serves", WAIT_S)
    return last[0]


# -- who asks -----------------------------------------------------------------------------------------------------------------


def test_an_administrator_sees_everything_and_all_that_is_required_is_there(tandem: Tandem) -> None:
    told = tandem("preflight")
    assert (told.code, told.err) == (0, "")
    assert "ok       metrics.k8s.io (optional): served by kube-system/external-metrics" in told.out
    assert "'restricted' is enforced" in told.line("pod security")
    assert {it.split()[0] for it in told.out.splitlines()[1:] if "(optional)" not in it} == {"ok"}
    assert tandem("preflight", "--json").report["is_good"] is True


def test_a_namespace_that_is_not_there_is_the_only_thing_missing(tandem: Tandem) -> None:
    told = tandem("preflight", of="nowhere")
    assert told.code == 1
    assert told.line("namespace").startswith("missing  namespace: ")
    assert told.line("namespace").endswith("; kubectl create namespace nowhere")
    assert "pod security" not in told.out


@pytest.mark.parametrize(
    ("role", "code", "rights"),
    [
        ("admin", 3, "ok       rights: may create all that is installed"),
        ("edit", 3, "ok       rights: may create all that is installed"),
        ("view", 1, "missing  rights: may not create configmaps, secrets, serviceaccounts, services, deployments"),
        (None, 1, "missing  rights: may not create configmaps, secrets, serviceaccounts, services, deployments"),
    ],
)
def test_who_may_do_less_is_told_what_is_unknown(
    tandem: Tandem, sign_in: SignIn, role: str | None, code: int, rights: str
) -> None:
    told = tandem("preflight", kubeconfig=sign_in.role(role))
    assert (told.code, told.err) == (code, "")
    assert rights in told.out
    assert told.line("nodes").startswith("unknown  nodes: ")
    assert told.line("storage").startswith("unknown  storage (optional)")
    assert told.line("metrics.k8s.io") == "ok       metrics.k8s.io (optional): served"  # by whom it may not see
    assert told.line("Karpenter").startswith("ok ")
    assert told.line("quotas").startswith("ok " if role else "unknown ")


def test_status_tells_all_but_nodes_to_whoever_may_look_into_the_namespace(
    bed: Bed, namespace: str, tandem: Tandem, sign_in: SignIn
) -> None:
    install(bed, namespace)
    serving(tandem)
    for role in ("admin", "edit", "view"):
        told = tandem("status", kubeconfig=sign_in.role(role))
        assert (told.code, told.err) == (0, "")
        assert "pool cpu (cpu): 1 of 1 ready" in told.out
        unseen = "KEDA's scaled objects, nodes, Karpenter's node claims, cert-manager's certificates"
        assert told.out.splitlines()[-1].startswith("unknown: ")
        assert told.out.splitlines()[-1].endswith(unseen)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("role", "answers 403 when asked for the deployments of namespace"),
        ("anonymously", "answers 40"),
        ("with_a_wrong_token", "answers 401 when asked for deployments; sign in again"),
        ("trusting_another_authority", "fails its TLS handshake"),
    ],
)
def test_status_has_one_line_for_who_may_not_ask(tandem: Tandem, sign_in: SignIn, user: str, says: str) -> None:
    kubeconfig = sign_in.role(None) if user == "role" else getattr(sign_in, user)()
    told = tandem("status", kubeconfig=kubeconfig)
    (line,) = told.err.splitlines()
    assert (told.code, told.out) == (3, "")
    assert says in line


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("anonymously", "answers 40"),
        ("with_a_wrong_token", "answers 401 when asked for its version; sign in again"),
        ("trusting_another_authority", "fails its TLS handshake"),
    ],
)
def test_preflight_has_one_line_for_who_may_not_ask(tandem: Tandem, sign_in: SignIn, user: str, says: str) -> None:
    told = tandem("preflight", kubeconfig=getattr(sign_in, user)())
    (line,) = told.err.splitlines()
    assert (told.code, told.out) == (3, "")
    assert says in line


@pytest.mark.thorough
def test_a_server_that_is_down_is_one_line(bed: Bed, tandem: Tandem) -> None:
    bed.stop("kube-apiserver")
    try:
        found = [tandem(verb) for verb in ("preflight", "status")]
    finally:
        bed.start("kube-apiserver")
    for told in found:
        (line,) = told.err.splitlines()
        assert (told.code, told.out) == (3, "")
        assert "cannot be reached" in line


@pytest.mark.thorough
def test_a_server_without_its_etcd_is_one_line(bed: Bed, tandem: Tandem) -> None:
    bed.stop("etcd")
    try:
        told = tandem("status")
    finally:
        bed.start("etcd")
    (line,) = told.err.splitlines()
    assert (told.code, told.out) == (3, "")
    assert "the API server" in line
    until(lambda: tandem("preflight").code == 0, "the server well again", WAIT_S)


# -- preflight: what a cluster has --------------------------------------------------------------------------------------------

CARD = {"nvidia.com/gpu": "2"}


def test_a_gpu_node_is_counted_by_what_its_device_plugin_announces(bed: Bed, tandem: Tandem, nodes: Nodes) -> None:
    assert tandem("preflight", "--gpu").code == 1
    nodes.add("gpu-0", CARD, taint="nvidia.com/gpu")
    told = tandem("preflight", "--gpu")
    assert told.code == 0
    assert told.line("GPU nodes").startswith("ok ")
    assert "2 nvidia.com/gpu" in told.line("GPU nodes")
    assert told.line("GPU taints").startswith("ok ")
    assert "nvidia.com/gpu:NoSchedule" in told.line("GPU taints")
    bed.api.call("PATCH", "/api/v1/nodes/gpu-0/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, MERGE)
    told = tandem("preflight", "--gpu")
    assert told.code == 1
    assert "nvidia.com/gpu, 0 allocatable" in told.line("GPU nodes")


def test_a_gpu_node_whose_device_plugin_is_not_there_yet_is_told_apart(tandem: Tandem, nodes: Nodes) -> None:
    nodes.add("gpu-new", {}, labels={"nvidia.com/gpu.present": "true"})
    told = tandem("preflight", "--gpu")
    assert told.code == 1
    assert told.line("GPU device plugin").startswith("missing  GPU device plugin: gpu-new ")
    assert tandem("preflight").code == 0


@pytest.mark.thorough
def test_slices_of_cards_and_taints_of_others_are_told(tandem: Tandem, nodes: Nodes) -> None:
    nodes.add("sliced", {"nvidia.com/mig-1g.10gb": "7"}, taint="team")
    assert "pools.gpu.gpu.resource=nvidia.com/mig-1g.10gb" in tandem("preflight", "--gpu").line("GPU nodes")
    told = tandem("preflight", "--gpu", "nvidia.com/mig-1g.10gb")
    assert told.line("GPU nodes").startswith("ok ")
    assert told.line("GPU taints").endswith(
        "add to pools.gpu.tolerations: {key: team, operator: Exists, effect: NoSchedule}"
    )
    assert told.code == 1


def test_a_quota_that_is_too_small_is_told_before_and_after_an_installation(
    bed: Bed, namespace: str, tandem: Tandem
) -> None:
    bed.kubectl("create", "quota", "team", "--hard=pods=2,limits.cpu=20", "-n", namespace)
    until(lambda: "team leaves 2 of pods" in tandem("preflight").line("quotas"), "the quota's status", WAIT_S)
    told = tandem("preflight")
    assert (told.code, "3 is asked for" in told.line("quotas")) == (1, True)
    install(bed, namespace)
    until(lambda: "exceeded quota: team" in tandem("status").out, "status tells of the quota", WAIT_S)
    assert "raise the quota" in tandem("status").out


@pytest.mark.thorough
def test_a_quota_that_a_release_fills_itself_is_no_hindrance_to_its_upgrade(
    bed: Bed, namespace: str, tandem: Tandem
) -> None:
    bed.kubectl("create", "quota", "team", "--hard=pods=3", "-n", namespace)
    until(lambda: tandem("preflight").code == 0, "the quota's status", WAIT_S)
    install(bed, namespace)
    serving(tandem)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/team"
    until(lambda: bed.api.get(path)["status"]["used"]["pods"] == "3", "the quota used up", WAIT_S)
    assert tandem("preflight").line("quotas").startswith("ok ")


def test_a_limit_range_that_the_chart_does_not_keep_is_told(bed: Bed, namespace: str, tandem: Tandem) -> None:
    limits = {"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}
    bed.api.create(f"/api/v1/namespaces/{namespace}/limitranges", limits)
    told = tandem("preflight")
    assert told.code == 1
    assert "small allows 1" in told.line("limit ranges")


@pytest.mark.parametrize(("level", "says"), [("privileged", "ok "), ("baseline", "ok "), ("", "missing ")])
def test_the_pod_security_of_the_namespace_is_read(
    bed: Bed, namespace: str, tandem: Tandem, level: str, says: str
) -> None:
    label = {"pod-security.kubernetes.io/enforce": level or None}
    bed.api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": label}})
    told = tandem("preflight")
    assert (told.code, told.line("pod security").startswith(says)) == (0, True)


def test_a_pull_secret_is_looked_for_by_name_and_type(bed: Bed, namespace: str, tandem: Tandem) -> None:
    asked = ("preflight", "--image-pull-secret", "registry")
    assert "missing  pull secret 'registry'" in tandem(*asked).out
    bed.kubectl("create", "secret", "generic", "registry", "--from-literal=password=hidden", "-n", namespace)
    told = tandem(*asked)
    assert (told.code, "kubernetes.io/dockerconfigjson" in told.out) == (1, True)
    bed.kubectl("delete", "secret", "registry", "-n", namespace)
    bed.kubectl(
        "create", "secret", "docker-registry", "registry", "--docker-server=r.example.com", "--docker-username=u",
        "--docker-password=hidden", "-n", namespace,
    )  # fmt: skip
    told = tandem(*asked)
    assert (told.code, told.line("pull secret 'registry'").startswith("ok ")) == (0, True)


def test_what_a_secret_holds_does_not_leave_the_server(
    bed: Bed, namespace: str, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.kubectl("create", "secret", "generic", "keys", "--from-literal=password=hidden", "-n", namespace)
    monkeypatch.setenv("KUBECONFIG", str(sign_in.admin()))
    with (connection := connect(None, None)).api:
        path = f"/api/v1/namespaces/{namespace}/secrets"
        (found,) = connection.items(path, "secrets", lambda it: it, accept=METADATA_ONLY) or ()
    assert (found["kind"], found["metadata"]["name"]) == ("PartialObjectMetadata", "keys")
    assert "data" not in found


def test_a_user_without_a_look_at_secrets_is_told_so(tandem: Tandem, sign_in: SignIn) -> None:
    told = tandem("preflight", "--image-pull-secret", "registry", kubeconfig=sign_in.role("view"))
    assert told.line("pull secret 'registry'").startswith("unknown  pull secret 'registry': ")


def test_pulls_that_failed_are_told_from_events(bed: Bed, namespace: str, tandem: Tandem) -> None:
    event = {
        "metadata": {"name": "x.1"}, "reason": "Failed", "type": "Warning",
        "involvedObject": {"kind": "Pod", "name": "x", "namespace": namespace},
        "message": 'Failed to pull image "r.example.com/tandem-gateway:0.1.0": unexpected status: 401 Unauthorized',
        "lastTimestamp": "2026-11-20T10:00:00Z",
    }  # fmt: skip
    bed.api.create(f"/api/v1/namespaces/{namespace}/events", event)
    told = tandem("preflight")
    assert told.code == 0
    assert "r.example.com/tandem-gateway:0.1.0 (Failed" in told.line("image pulls")


@pytest.mark.thorough
def test_a_metrics_server_that_is_down_is_told_from_one_that_is_not_there(
    bed: Bed, namespace: str, tandem: Tandem
) -> None:
    assert "not served" in tandem("preflight").line("custom.metrics.k8s.io")
    wanted = {"enabled": True, "by": "wanted", "minReplicas": 1, "maxReplicas": 2}
    monitored = {
        "scaler__enabled": True,
        "monitoring__serviceMonitor__enabled": True,
        "networkPolicy__metricsFrom": [{"podSelector": {}}],
    }
    install(bed, namespace, pools__cpu__autoscaling=wanted, **monitored)
    bed.stop("metrics")
    try:
        until(lambda: "does not answer" in tandem("preflight").line("metrics.k8s.io"), "the aggregator noticed", WAIT_S)
        told = tandem("preflight")
        cause = first_cause(
            tandem, "its HPA reads external.metrics.k8s.io, which is registered by kube-system/external-metrics"
        )
        assert (cause["of"], "prometheus-adapter" in cause["way_out"]) == ("pool cpu", True)
    finally:
        bed.start("metrics")
    assert told.code == 0
    line = told.line("external.metrics.k8s.io")
    assert line.startswith("missing  external.metrics.k8s.io (optional): ")
    assert "kube-system/external-metrics" in line
    assert "FailedDiscoveryCheck" in line
    until(lambda: "ok " in tandem("preflight").line("metrics.k8s.io")[:9], "metrics served again", WAIT_S)


def test_the_default_storage_class_is_named(bed: Bed, tandem: Tandem) -> None:
    path = "/apis/storage.k8s.io/v1/storageclasses"
    marked = {"storageclass.kubernetes.io/is-default-class": "true"}
    bed.api.create(path, {"metadata": {"name": "fast", "annotations": marked}, "provisioner": "example.com/disk"})
    try:
        assert "fast (example.com/disk)" in tandem("preflight").line("storage")
    finally:
        bed.api.delete(f"{path}/fast")


# -- preflight for rendered objects -------------------------------------------------------------------------------------------


def rendered(bed: Bed, namespace: str, tmp_path: Path, **values: Any) -> Path:
    path = tmp_path / "rendered.yaml"
    given = [f"--set-json={key.replace('__', '.')}={json.dumps(it)}" for key, it in values.items()]
    path.write_text(bed.helm("template", "tandem", str(CHART), *given, f"--namespace={namespace}"), encoding="utf-8")
    return path


def test_what_the_charts_own_rendering_needs_is_what_is_asked_for(
    bed: Bed, namespace: str, tandem: Tandem, tmp_path: Path
) -> None:
    keys = {"auth__existingSecret": "tandem-keys", "auth__client__existingSecret": "tandem-client"}
    path = rendered(bed, namespace, tmp_path, **keys, imagePullSecrets=[{"name": "registry"}], pools__gpu__enabled=True)
    told = tandem("preflight", "--rendered", str(path))
    assert told.code == 1
    assert f"for {path}" in told.out.splitlines()[0]
    assert told.line("GPU nodes").startswith("missing  GPU nodes: ")
    assert told.line("pull secret 'registry'").startswith("missing ")
    assert told.line("secret 'tandem-keys'").startswith("missing  secret 'tandem-keys': ")
    assert f"'{namespace}'" in told.line("secret 'tandem-keys'")
    assert "tandem-client" not in told.out  # only the test pod names it


def test_a_rendering_that_scales_by_cpu_requires_the_metrics_api(
    bed: Bed, namespace: str, tandem: Tandem, tmp_path: Path
) -> None:
    values = {"auth__insecureNoAuth": True, "pools__cpu__autoscaling__enabled": True}
    path = rendered(bed, namespace, tmp_path, **values)
    told = tandem("preflight", "--rendered", str(path))
    assert (told.code, told.line("metrics.k8s.io")) == (
        0,
        "ok       metrics.k8s.io: served by kube-system/external-metrics",
    )


# -- status -------------------------------------------------------------------------------------------------------------------


def test_where_nothing_is_installed_another_namespace_is_named(bed: Bed, namespace: str, tandem: Tandem) -> None:
    assert tandem("status").code == 2
    install(bed, namespace)
    told = tandem("status", of="default")
    assert (told.code, told.out) == (2, "")
    assert "namespace 'default'" in told.err
    assert "context 'bed'" in told.err
    assert namespace in told.err
    bed.helm("uninstall", "tandem", f"--namespace={namespace}")
    until(lambda: tandem("status").code == 2, "nothing left", WAIT_S)


def test_a_release_that_serves_is_told_with_all_its_parts(bed: Bed, namespace: str, tandem: Tandem) -> None:
    install(bed, namespace, pools__cpu__replicas=2)
    serving(tandem)
    of_parts = ("serves  gateway: 2 of 2 ready; tandem-gateway:0.1.0; on cpu-", "2 of 2 ready; nvcr.io")
    last: list[Told] = []

    def are_ready() -> bool:
        last[:] = [tandem("status")]
        return all(it in last[0].out for it in (*of_parts, "loads digits-fp32, digits-int8"))

    until(are_ready, "all gateways and Tritons ready", WAIT_S)
    (told,) = last
    assert (told.code, told.err) == (0, "")
    assert "release tandem (0.1.0): answered by pool cpu (cpu)\n" in told.out
    assert tandem("status", "--release", "tandem").code == 0
    wrong = tandem("status", "--release", "beta")
    assert (wrong.code, wrong.err.strip()) == (
        2,
        f"tandem: no release 'beta' in namespace '{namespace}'; there is tandem",
    )


@pytest.mark.thorough
def test_two_releases_of_a_namespace_are_two(bed: Bed, namespace: str, tandem: Tandem) -> None:
    install(bed, namespace)
    serving(tandem)
    bed.helm("install", "beta", str(CHART), "--set=auth.insecureNoAuth=true", f"--namespace={namespace}",
             '--set-json=pools.cpu.podAnnotations={"bed/unready":"true"}')  # fmt: skip
    told = tandem("status", "--json")
    assert (told.code, [it["name"] for it in told.report["releases"]]) == (1, ["beta", "tandem"])
    assert tandem("status", "--release=tandem").code == 0


def test_an_image_that_cannot_be_pulled_is_named(bed: Bed, namespace: str, tandem: Tandem) -> None:
    install(bed, namespace, pools__cpu__podAnnotations={"bed/waiting": "ImagePullBackOff"})
    told = says(tandem, "cpu", "its image nvcr.io/nvidia/tritonserver:26.08-py3 cannot be pulled (ImagePullBackOff)")
    assert (told.code, told.report["is_serving"]) == (1, False)


# -- status: bad nights (more of them by recorded objects, in test_bad_nights.py) -----------------------------------------------


def first_cause(tandem: Tandem, words: str) -> Object:
    """Waits until the gravest cause says so; then status ends with 1, and says it before anything else of the release."""
    last: list[Told] = []

    def causes() -> list[Object]:
        last[:] = [tandem("status", "--json")]
        (release,) = last[0].report["releases"]
        found: list[Object] = release["causes"]
        return found

    until(lambda: words in str((causes() or [{}])[0].get("why")), f"the first cause is {words}", WAIT_S)
    assert (last[0].code, last[0].report["waits_for_ever"]) == (1, True)
    it: Object = last[0].report["releases"][0]["causes"][0]
    assert tandem("status").out.splitlines()[2].startswith(f"  cause   {it['of']}: ")
    return it


def test_a_budget_a_service_and_a_gateway_that_is_deleted_are_causes_with_their_way_out(
    bed: Bed, namespace: str, tandem: Tandem
) -> None:
    install(bed, namespace)
    told = serving(tandem)
    assert (told.code, told.report["releases"][0]["causes"]) == (0, [])
    (pod,) = bed.api.items(f"/api/v1/namespaces/{namespace}/pods?labelSelector=tandem-pool=cpu")
    budget = {
        "metadata": {"name": "mine"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"tandem-pool": "cpu"}}},
    }
    bed.api.create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
    bed.kubectl("cordon", pod["spec"]["nodeName"])
    try:
        cause = first_cause(
            tandem, f"pod {pod['metadata']['name']} cannot be evicted: its disruption budget mine wants 1 of 1"
        )
        assert cause["of"] == f"node {pod['spec']['nodeName']}, which is cordoned"
        with pytest.raises(Failed, match="disruption budget"):
            bed.kubectl(
                "drain", pod["spec"]["nodeName"], "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3s"
            )
    finally:
        bed.kubectl("uncordon", pod["spec"]["nodeName"])
    bed.api.delete(f"/api/v1/namespaces/{namespace}/services/tandem-cpu")
    assert first_cause(tandem, "its Service")["of"] == "pool cpu"
    bed.api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/tandem-gateway")
    cause = first_cause(tandem, "its Deployment is not there")
    assert (cause["of"], "helm rollback tandem" in cause["way_out"]) == ("gateway", True)


def test_a_keda_that_has_died_is_the_cause_and_preflight_knows_it_too(bed: Bed, namespace: str, tandem: Tandem) -> None:
    keda = {"enabled": True, "by": "keda", "minReplicas": 1, "maxReplicas": 2}
    peers = [{"namespaceSelector": {}}]
    install(bed, namespace, scaler__enabled=True, pools__cpu__autoscaling=keda, networkPolicy__kedaFrom=peers)
    serving(tandem)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    lease = {
        "metadata": {"name": "operator.keda.sh"},
        "spec": {"holderIdentity": "keda", "renewTime": "2026-11-20T10:00:00.000000Z"},
    }
    bed.api.create(path, lease)
    try:
        cause = first_cause(tandem, "KEDA does not work: it has not renewed its Lease operator.keda.sh")
        assert (cause["of"], namespace in cause["way_out"]) == ("pool cpu", True)
        assert "KEDA does not work" in tandem("preflight").line("KEDA")
        assert "missing  autoscaling of tandem's pool 'cpu'" in tandem("preflight").out
    finally:
        bed.api.delete(f"{path}/operator.keda.sh")


class Kubelet(NamedTuple):
    """Of a release whose pods run and never get ready: writes into the status of its CPU pool's pod, as a node's kubelet would."""

    bed: Bed
    namespace: str

    def write(self, **status: Any) -> None:
        def running() -> list[Object]:
            found = self.bed.api.items(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=tandem-pool=cpu")
            return [it for it in found if it.get("status", {}).get("phase") == "Running"]

        (pod,) = until(running, "the pod runs", WAIT_S)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.bed.api.call("PATCH", path, {"status": status}, MERGE)


@pytest.fixture(scope="module")
def kubelet(bed: Bed) -> Iterator[Kubelet]:
    namespace = new_namespace(bed)
    install(bed, namespace, pools__cpu__podAnnotations={"bed/unready": "true"})
    yield Kubelet(bed, namespace)
    drop_namespace(bed, namespace)


def test_while_the_first_model_is_not_ready_nothing_is_answered(tandem: Tandem, kubelet: Kubelet) -> None:
    told = says(tandem, "cpu", "first model is not ready", kubelet.namespace)
    assert told.code == 1
    assert told.report["releases"][0]["parts"][1]["standing"] == "waits"


def container(name: str, state: Object, last: Object, **more: Any) -> Object:
    return {
        "name": name,
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 4,
        "state": state,
        "lastState": last,
        **more,
    }


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}


def ended(code: int, reason: str = "Error", message: str = "") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (ended(1, message="error: creating server: Internal - failed to load all models"), "(exit code 1: error: creating server: Internal - failed to load all models), started again 4 times"),
        (ended(137, "OOMKilled"), "triton was killed for memory, started again 4 times; raise pools.cpu.resources.limits.memory"),
    ],
    ids=["an error", "memory"],
)  # fmt: skip
def test_a_crash_loop_is_told_with_its_last_end(tandem: Tandem, kubelet: Kubelet, end: Object, words: str) -> None:
    kubelet.write(initContainerStatuses=None, containerStatuses=[container("triton", BACK_OFF, end)])
    assert says(tandem, "cpu", words, kubelet.namespace).code == 1


def test_a_model_repository_that_is_refused_names_the_log_to_read(tandem: Tandem, kubelet: Kubelet) -> None:
    refused = container("verify-models", BACK_OFF, ended(1))
    initializing = container("triton", {"waiting": {"reason": "PodInitializing"}}, {})
    kubelet.write(initContainerStatuses=[refused], containerStatuses=[initializing])
    told = says(tandem, "cpu", "verify-models refuses the model repository (exit code 1)", kubelet.namespace)
    assert f"kubectl --namespace {kubelet.namespace} logs tandem-cpu-" in told.out


def test_pod_security_that_refuses_a_pod_is_told(bed: Bed, namespace: str, tandem: Tandem) -> None:
    """The chart's own pods are never refused, so this is a Deployment that says it is one of its pools."""
    labels = {
        "app.kubernetes.io/part-of": "tandem", "app.kubernetes.io/instance": "tandem",
        "app.kubernetes.io/component": "triton", "tandem-pool": "cpu",
    }  # fmt: skip
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "triton", "image": "x:1"}]}}
    body = {
        "metadata": {"name": "tandem-cpu", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    bed.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
    told = says(tandem, "cpu", "the namespace's pod security refuses its pods: violates PodSecurity")
    assert told.code == 1
    assert told.report["releases"][0]["now"].endswith("no gateway")


def test_a_volume_claim_that_lacks_or_is_not_bound_is_the_reason(bed: Bed, namespace: str, tandem: Tandem) -> None:
    claim = {"modelRepository__source": "claim", "modelRepository__claimName": "models"}
    install(bed, namespace, **claim)
    says(
        tandem, "cpu", "there is no PersistentVolumeClaim 'models'; make it, or name another: modelRepository.claimName"
    )
    spec = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "gold"}
    bed.api.create(
        f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {"metadata": {"name": "models"}, "spec": spec}
    )
    says(tandem, "cpu", "its PersistentVolumeClaim 'models' is Pending (storage class 'gold')")


# -- status: a pool of cards --------------------------------------------------------------------------------------------------


def test_a_gpu_pool_without_cards_is_bridged_and_told_what_lacks(
    bed: Bed, namespace: str, tandem: Tandem, nodes: Nodes
) -> None:
    install(bed, namespace, pools__gpu__enabled=True)
    told = says(tandem, "gpu", "it asks for 1 nvidia.com/gpu and no node carries that")
    assert "Insufficient nvidia.com/gpu" in told.out
    told = serving(tandem)
    assert re.search(r"pool cpu \(cpu\); .*bridges.* gpu ", told.report["releases"][0]["now"])
    nodes.add("gpu-0", CARD, taint="nvidia.com/gpu")
    until(
        lambda: "answered by pool cpu (cpu) and pool gpu (gpu)" in tandem("status").out, "the GPU pool serves", WAIT_S
    )
    assert "  ready     gpu-0: 2 nvidia.com/gpu, 1 pod of Tandem" in tandem("status").out


@pytest.mark.thorough
def test_a_taint_that_the_pool_does_not_tolerate_is_named(
    bed: Bed, namespace: str, tandem: Tandem, nodes: Nodes
) -> None:
    nodes.add("gpu-0", CARD, taint="team")
    install(bed, namespace, pools__gpu__enabled=True)
    told = says(
        tandem,
        "gpu",
        "add to pools.gpu.tolerations, if those nodes are meant: {key: team, operator: Exists, effect: NoSchedule}",
    )
    assert "untolerated taint" in told.out


MakePool = Callable[[int, int], None]


@pytest.fixture
def node_pool(bed: Bed) -> Iterator[MakePool]:
    """Makes a Karpenter NodePool of one-card machines, whose nodes take so many seconds to join and so many more to get ready."""

    def make(joins_s: int, boots_s: int) -> None:
        group = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
        delay = {"nodeRegistrationDelay": f"{joins_s}s"}
        bed.api.create(group, {**kind("karpenter.kwok.sh/v1alpha1", "KWOKNodeClass", "cards"), "spec": delay})
        spec = {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "cards"},
            "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
            "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["gpu-1"]}],
            "expireAfter": "Never",
        }
        template = {"metadata": {"annotations": {"bed/boot": str(boots_s)}}, "spec": spec}
        disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s"}
        pool = {"template": template, "limits": {"nvidia.com/gpu": "1"}, "disruption": disruption}
        bed.api.create(
            "/apis/karpenter.sh/v1/nodepools", {**kind("karpenter.sh/v1", "NodePool", "cards"), "spec": pool}
        )

    yield make
    bed.kubectl("delete", "nodepool", "cards", "--wait=true", "--timeout=60s")
    bed.kubectl("delete", "kwoknodeclass", "cards", "--wait=true", "--timeout=60s")


def kind(version: str, name: str, of: str) -> Object:
    return {"apiVersion": version, "kind": name, "metadata": {"name": of}}


LONGER_THAN_THE_TEST_S = 600


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("joins_s", "boots_s", "phase"),
    [
        (LONGER_THAN_THE_TEST_S, 1, "is bought and boots (NodeNotFound: Node not registered with cluster), asked for "),
        (1, LONGER_THAN_THE_TEST_S, "has joined and gets ready (driver, device plugin) (NodeNotReady: "),
    ],
    ids=["boots", "joined"],
)
def test_a_node_that_karpenter_buys_is_told_with_its_phase(
    bed: Bed, namespace: str, tandem: Tandem, node_pool: MakePool, joins_s: int, boots_s: int, phase: str
) -> None:
    node_pool(joins_s, boots_s)
    until(lambda: "NodePool 'cards' buys them" in tandem("preflight", "--gpu").out, "the NodePool ready", WAIT_S)
    assert tandem("preflight", "--gpu").code == 0
    install(bed, namespace, pools__gpu__enabled=True)
    told = says(tandem, "gpu", f"is on its way: it {phase}")
    (coming,) = [it for it in told.report["nodes"] if it["standing"] == "coming"]
    assert (coming["instance_type"], coming["gpus"]) == ("gpu-1", {"nvidia.com/gpu": 1})
    assert coming["note"].startswith(f"NodePool cards: it {phase}")


@pytest.mark.thorough
def test_a_node_that_karpenter_bought_serves(bed: Bed, namespace: str, tandem: Tandem, node_pool: MakePool) -> None:
    node_pool(1, 1)
    install(bed, namespace, pools__gpu__enabled=True)
    until(lambda: "and pool gpu (gpu)" in tandem("status").out, "the GPU pool serves", WAIT_S)
    until(lambda: "coming" not in tandem("status").out, "its node is said to be there", WAIT_S)


@pytest.mark.thorough
def test_what_karpenter_refuses_to_buy_is_told_in_its_words(
    bed: Bed, namespace: str, tandem: Tandem, node_pool: MakePool
) -> None:
    node_pool(1, 1)
    install(bed, namespace, pools__gpu__enabled=True, pools__gpu__gpu__count=4)
    told = says(tandem, "gpu", "karpenter buys none: Failed to schedule pod")
    # None has one, or, while the machine of an earlier test is still there, none has more than one.
    assert "4 nvidia.com/gpu" in told.out


# -- the page -----------------------------------------------------------------------------------------------------------------


def test_the_pod_that_tries_network_policies_is_let_in_under_restricted(bed: Bed, namespace: str) -> None:
    page = (CHART.parents[1] / "docs" / "cluster.md").read_text(encoding="utf-8")
    overrides = page.split("--overrides='")[1].split("'\n")[0]
    pod = {"metadata": {"name": "probe", "namespace": namespace}, **json.loads(overrides)}
    bed.api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
