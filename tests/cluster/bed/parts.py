"""With which words is each program of the bed started, and where does it say that it is ready? Values only; nothing starts here.

Every address is 127.0.0.1. Rule: what a part needs to know of another comes out of `Layout`, so that beds can run side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.bed.build import Programs

HERE = Path(__file__).resolve().parent
MANIFESTS = HERE / "manifests"
# The HPA controller's own are 15 s, 5 min and 30 s: nobody waits for them in a test.
HPA_SYNC_S, HPA_CPU_INITIALIZATION_S, HPA_READINESS_S = 2, 1, 1


@dataclass(frozen=True, slots=True)
class Ports:
    etcd: int
    etcd_peer: int
    api: int
    controllers: int
    scheduler: int
    kwok: int
    karpenter: int
    karpenter_health: int
    metrics: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one bed has its things."""

    folder: Path
    programs: Programs
    ports: Ports

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def api(self) -> str:
        return f"https://127.0.0.1:{self.ports.api}"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: tuple[str, ...]
    ready: str  # URL that answers 200
    environment: Mapping[str, str] = field(default_factory=dict)


def parts(at: Layout) -> dict[str, Part]:
    """By name, in the order in which they start."""
    made = (_etcd(at), _apiserver(at), _controllers(at), _scheduler(at), _kwok(at), _metrics(at), _karpenter(at))
    return {it.name: it for it in made}


def _program(at: Layout, name: str) -> tuple[str, str]:
    return str(at.programs.controlplane), name


def _etcd(at: Layout) -> Part:
    client, peer = (f"http://127.0.0.1:{port}" for port in (at.ports.etcd, at.ports.etcd_peer))
    words = (
        f"--data-dir={at.folder / 'etcd'}",
        "--unsafe-no-fsync",  # a bed does not outlive its machine
        "--log-level=warn",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    )
    return Part("etcd", (*_program(at, "etcd"), *words), f"{client}/health")


def _apiserver(at: Layout) -> Part:
    key = {name: at.certificates / name for name in ("ca.crt", "server.crt", "server.key", "sa.key")}
    proxy = at.certificates / "front-proxy"
    words = (
        f"--etcd-servers=http://127.0.0.1:{at.ports.etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={at.ports.api}",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # EndpointSlices on loopback are refused
        "--service-cluster-ip-range=10.0.0.0/16",
        f"--tls-cert-file={key['server.crt']}",
        f"--tls-private-key-file={key['server.key']}",
        f"--client-ca-file={key['ca.crt']}",
        f"--service-account-key-file={key['sa.key']}",
        f"--service-account-signing-key-file={key['sa.key']}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",  # as clusters have it; Pod Security is what refuses privileged pods
        f"--proxy-client-cert-file={proxy}.crt",
        f"--proxy-client-key-file={proxy}.key",
        f"--requestheader-client-ca-file={key['ca.crt']}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--feature-gates=HPAScaleToZero=true",
    )
    return Part("kube-apiserver", (*_program(at, "kube-apiserver"), *words), f"{at.api}/readyz")


def _of_a_controller(at: Layout, port: int) -> tuple[str, ...]:
    return (
        f"--kubeconfig={at.kubeconfig}",
        f"--authentication-kubeconfig={at.kubeconfig}",
        f"--authorization-kubeconfig={at.kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
    )


def _controllers(at: Layout) -> Part:
    words = (
        *_of_a_controller(at, at.ports.controllers),
        f"--root-ca-file={at.certificates / 'ca.crt'}",
        f"--service-account-private-key-file={at.certificates / 'sa.key'}",
        f"--horizontal-pod-autoscaler-sync-period={HPA_SYNC_S}s",
        f"--horizontal-pod-autoscaler-cpu-initialization-period={HPA_CPU_INITIALIZATION_S}s",
        f"--horizontal-pod-autoscaler-initial-readiness-delay={HPA_READINESS_S}s",
        "--feature-gates=HPAScaleToZero=true",
    )
    ready = f"https://127.0.0.1:{at.ports.controllers}/healthz"
    return Part("kube-controller-manager", (*_program(at, "kube-controller-manager"), *words), ready)


def _scheduler(at: Layout) -> Part:
    words = _of_a_controller(at, at.ports.scheduler)
    ready = f"https://127.0.0.1:{at.ports.scheduler}/readyz"
    return Part("kube-scheduler", (*_program(at, "kube-scheduler"), *words), ready)


def _kwok(at: Layout) -> Part:
    words = (
        f"--kubeconfig={at.kubeconfig}",
        f"--config={MANIFESTS / 'stages.yaml'}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--cidr=10.244.0.0/16",
        "--node-ip=10.1.0.1",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{at.ports.kwok}",
    )
    return Part("kwok", (*_program(at, "kwok"), *words), f"http://127.0.0.1:{at.ports.kwok}/healthz")


def _metrics(at: Layout) -> Part:
    words = (f"--port={at.ports.metrics}", f"--certificates={at.certificates}", f"--api={at.api}")
    command = (sys.executable, str(HERE / "metrics.py"), *words)
    return Part("metrics", command, f"https://127.0.0.1:{at.ports.metrics}/apis")


def _karpenter(at: Layout) -> Part:
    environment = {
        "KUBECONFIG": str(at.kubeconfig),
        "DISABLE_LEADER_ELECTION": "true",
        "SYSTEM_NAMESPACE": "kube-system",
        "METRICS_PORT": str(at.ports.karpenter),
        "HEALTH_PROBE_PORT": str(at.ports.karpenter_health),
        "INSTANCE_TYPES_FILE_PATH": str(MANIFESTS / "instance-types.json"),
    }
    ready = f"http://127.0.0.1:{at.ports.karpenter_health}/readyz"
    return Part("karpenter", _program(at, "karpenter"), ready, environment)
