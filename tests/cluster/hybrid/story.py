"""What happens, in which order, and what the clients saw of it: the phases of the run, and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed, Failed, is_true
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.kubelet import REAL, Kubelet
from tests.cluster.hybrid.load import Load, summary
from tests.cluster.hybrid.names import TTL_S, Names, ready_addresses
from tests.cluster.hybrid.pod import Pod
from tests.cluster.hybrid.watch import Watch
from tests.cluster.release import PROFILES, Release

NAMESPACE = "hybrid"
GPU = "emulated-gpu"
RATE_RPS = 20.0  # light: two busy cores run the whole cluster beside it
CURVES = {
    "version": 1,
    "name": "card",
    "variants": {"*": [[1, 0.02], [32, 0.04]]},
}  # guesses; far above the real run, which docs/emulated.md wants
METRIC = "tandem_wanted_replicas"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
# A request goes to the cheapest in time by price and seconds of the device, and an emulated card is never as fast as the processor that computes
# for it: with these it is the cheaper all the same.
PRICE_PER_HOUR = {"cpu": 100.0, "gpu": 0.1}
GATEWAY_KILLED = "a gateway is killed"
NO_ANSWER = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "IncompleteReadError")
NODE_POOL = ROOT / "k8s" / "gpu-nodes" / "karpenter-aws.yaml"


def values(**more: object) -> Object:
    annotations = {REAL: "true", "bed/pull": "1"}
    metric = {"type": "External", "external": {"metric": {"name": METRIC, "selector": {"matchLabels": {"pool": "gpu"}}}, "target": {"type": "AverageValue", "averageValue": "1"}}}  # fmt: skip
    at_once = {
        "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 1}]}
    }
    return {
        "gateway.podAnnotations": annotations,
        "poolDefaults.podAnnotations": annotations,
        "poolDefaults.extraArgs": ["--no-measure"],
        "pools.cpu.pricePerHour": PRICE_PER_HOUR["cpu"],
        f"pools.{GPU}": {
            "device": "gpu",
            "pricePerHour": PRICE_PER_HOUR["gpu"],
            "models": ["digits-fp32"],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "autoscaling": {
                "enabled": True,
                "minReplicas": 0,
                "maxReplicas": 2,
                "metrics": [metric],
                "behavior": at_once,
            },
        },
        **more,
    }


@dataclass
class Story:
    bed: Bed
    kubelet: Kubelet
    slices: Watch
    load: Load
    began: float
    say: Callable[[str], None]
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.say(f"== {name}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = (began, time.monotonic())

    def seen(self) -> Object:
        """Of each phase what was due meanwhile, once all of it is answered."""
        return {
            name: {"seconds": round(end - began, 1)}
            | summary([it for it in self.load.rows if began <= self.load.began + it.due_s < end])
            for name, (began, end) in self.phases.items()
        }

    def release(self, **more: object) -> Release:
        return Release(self.bed, NAMESPACE, PROFILES["slim-images"], values(**more))

    def play(self) -> None:
        with self.phase("install"):
            self.release().install()
            self.load.start()
        with self.phase("warm on the CPU"):
            time.sleep(5)
        with self.phase("a GPU node comes"):
            self.want(1)
            until(lambda: self.answers_from(GPU), "answers from the GPU pool", 90)
        with self.phase("it takes over"):
            until(lambda: self.answers_from(GPU, share=0.9), "nearly all answers from the GPU pool", 40)
        with self.phase("a GPU node is deleted"):
            (pod,) = self.kubelet.of("triton", GPU)
            self.bed.api.delete(f"/api/v1/nodes/{pod.node}")
            until(lambda: self.is_replaced(pod), "its Triton runs elsewhere", 90)
            until(lambda: self.answers_from(GPU), "answers from the GPU pool", 30)
        with self.phase("the API server is restarted"):
            self.bed.stop("kube-apiserver")
            time.sleep(3)
            self.bed.start("kube-apiserver")
        with self.phase("a Triton falls silent"):
            (pod,) = self.kubelet.of("triton", GPU)
            for it in (processes := pod.processes()):
                it.suspend()
            until(lambda: self.answers_from("cpu", share=0.9), "the CPU answers alone", 40)
        with self.phase("and dies"):
            for it in processes:
                it.kill()  # as when the container's first process crashes; the kubelet starts it again at the same address
            until(lambda: not self.is_settled(), "its death is noticed", 10)
            until(lambda: self.is_settled() and self.answers_from(GPU), "it is back", 60)
        with self.phase("an upgrade rolls both gateways and the CPU pool"):
            rolled = {"rolled": "out", REAL: "true"}
            release = self.release(**{"gateway.podAnnotations": rolled, "pools.cpu.podAnnotations": rolled})
            release.upgrade()
            until(self.is_settled, "no pod leaves any more", 60)
        with self.phase(GATEWAY_KILLED):
            time.sleep(0.5)  # what is under way when it dies was due in this phase
            last = self.load.rows[-1].endpoint.partition(":")[0]
            (pod,) = (it for it in self.kubelet.of("gateway") if it.object["status"]["podIP"] == last)
            for it in pod.processes():
                it.kill()
            until(lambda: not self.is_settled(), "its death is noticed", 10)
            until(self.is_settled, "it is back", 60)
        with self.phase("the GPU pool goes to zero"):
            self.want(0)
            until(lambda: not self.bed.api.items(CLAIMS) and self.is_settled(), "its nodes are gone", 90)
        with self.phase("on the CPU again"):
            time.sleep(5)

    def want(self, replicas: int) -> None:
        self.bed.set_external_metric(METRIC, replicas, pool="gpu")

    def answers_from(self, pool: str, share: float = 0.0) -> bool:
        """More than a share of what is due in a second, lately."""
        now_s = self.load.elapsed_s()
        last = [it.pool for it in self.load.rows[-int(3 * RATE_RPS) :] if it.due_s > now_s - 1.5]
        return last.count(pool) > share * RATE_RPS

    def is_replaced(self, gone: Pod) -> bool:
        found = self.kubelet.of("triton", GPU)
        return found != [gone] and len(found) == 1 and is_true(found[0].object, "Ready")

    def is_settled(self) -> bool:
        pods = list(self.kubelet.pods.values())
        return all("deletionTimestamp" not in it.object["metadata"] and is_true(it.object, "Ready") for it in pods)


def unexcused(report: Object) -> int:
    """Errors but for one kind: who is connected to a gateway when it is killed, or is sent there before nodes know, has to try again."""
    killed = report["phases"].get(GATEWAY_KILLED, {"said": {}})
    excused = sum(count for said, count in killed["said"].items() if said in NO_ANSWER)
    return int(report["all"]["errors"]) - excused


def make_node_pool(bed: Bed) -> None:
    """The one of k8s/gpu-nodes, but for its machines, which are the bed's, and its patience, which is shorter."""
    (pool,) = [it for it in yaml.safe_load_all(NODE_POOL.read_text()) if it["kind"] == "NodePool"]
    spec = pool["spec"]["template"]["spec"]
    spec["nodeClassRef"] = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "bought"}
    (machines,) = [it for it in spec["requirements"] if it["key"] == "node.kubernetes.io/instance-type"]
    machines["values"] = ["gpu-1"]
    pool["spec"]["disruption"]["consolidateAfter"] = "5s"
    pool["metadata"]["name"] = "bought"
    machine_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "bought"}, "spec": {"nodeRegistrationDelay": "2s"}}  # fmt: skip
    for it in (machine_class, pool):
        bed.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(it))


def play(bed: Bed, folder: Path, say: Callable[[str], None], dns_ttl_s: float = TTL_S) -> Object:
    """The report. `say` is told what happens as it happens."""
    began = time.monotonic()
    timeline: list[tuple[float, str]] = []

    def told(line: str) -> None:
        timeline.append((round(time.monotonic() - began, 1), line))
        say(f"{timeline[-1][0]:6.1f} {line}")

    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    bed.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    until(lambda: bed.api.items(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), "the default account")
    bed.set_external_metric(METRIC, 0, pool="gpu")
    make_node_pool(bed)
    curves = folder / "curves.json"
    curves.write_text(json.dumps(CURVES))
    slices = Watch(bed.api, bed.layout.certificates, "/apis/discovery.k8s.io/v1/endpointslices", lambda *_: None)
    Names(lambda namespace, service: ready_addresses(slices.objects(), namespace, service), dns_ttl_s)
    body = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
    load = Load(
        lambda: ready_addresses(slices.objects(), NAMESPACE, "tandem-gateway", "http"),
        "/v2/models/digits/infer", body, RATE_RPS,
    )  # fmt: skip
    story = Story(bed, Kubelet(bed, folder, curves, told), slices, load, began, told)
    failed = ""
    try:
        story.play()
    except (AssertionError, Failed) as error:
        failed = str(error)
        told(f"failed: {failed}")
    finally:
        if load.is_alive():
            load.stop()
    return {
        "failed": failed,
        "seconds": round(time.monotonic() - began, 1),
        "phases": story.seen(),
        "all": summary(load.rows),
        "errors": [(round(it.due_s, 2), it.said, it.endpoint, it.pool) for it in load.rows if it.is_error][:200],
        "timeline": timeline,
    }
