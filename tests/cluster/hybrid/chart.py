"""What the run installs: the chart's values, the emulated pools, and the nodes that Karpenter may buy. Values only, but for the objects.

Prices and times are made up so that two minutes of load show what a day does otherwise: a third CPU server is dearer than the "card", and one
demand is on either side. They are an operator's own settings (docs/settings.md); the rules by which the scaler weighs them are the product's.
"""

from __future__ import annotations

import json

import yaml

from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.kubelet import REAL

NAMESPACE = "hybrid"
RELEASE = "tandem"
CPU, GPU = "emulated-cpu", "emulated-gpu"
LOW_RPS, HIGH_RPS = 4.0, 28.0  # 0.24 and 1.7 CPU servers: of two carried with room, of two carried and three wanted
SECONDS_A_ROW = {
    CPU: 0.06,
    GPU: 0.02,
    "emulated-gpu-large": 0.01,
}  # straight: executions gain nothing by being full, so a demand is easy to reckon
MAX_ROWS = 32
PRICE_PER_HOUR = {CPU: 0.3, GPU: 0.05}
# As measured here, 16 to 19 s of a GPU: a node's boot of 2 s, an image of 1 s, a Triton, a name looked up. Longer than
# the 11 s for which a gateway that was killed knows too little of its demand: what is weighed over less would let the GPU go.
COLD_START_S = {CPU: 10.0, GPU: 15.0}
CPU_REPLICAS, GPU_REPLICAS = (2, 3), (0, 1)
MACHINES, NODE_POOL_FILE = "bought", ROOT / "k8s" / "gpu-nodes" / "karpenter-aws.yaml"
BOOT_S, EMPTY_S = 2, 2  # of a bought machine; until an empty one is given back


def curves() -> dict[str, Object]:
    """By pool, as docs/emulated.md has the file."""
    return {
        pool: {"version": 1, "name": pool, "variants": {"*": [[1, s], [MAX_ROWS, MAX_ROWS * s]]}}
        for pool, s in SECONDS_A_ROW.items()
    }


def values(**more: object) -> Object:
    annotations = {REAL: "true", "bed/pull": "1"}
    return {
        "gateway.podAnnotations": annotations,
        "poolDefaults.podAnnotations": annotations,
        "scaler.podAnnotations": annotations,
        "scaler.enabled": True,
        "networkPolicy.metricsFrom": [{"podSelector": {}}],
        "pools.cpu.enabled": False,
        f"pools.{CPU}": _pool(CPU, "cpu", CPU_REPLICAS),
        f"pools.{GPU}": _pool(GPU, "gpu", GPU_REPLICAS) | TOLERATES,
        **more,
    }


TOLERATES: Object = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}


def _pool(name: str, device: str, replicas: tuple[int, int]) -> Object:
    return _of(device, PRICE_PER_HOUR[name], COLD_START_S[name], replicas)


def gpu_pool(price_per_hour: float) -> Object:
    """Another size."""
    return _of("gpu", price_per_hour, COLD_START_S[GPU], GPU_REPLICAS)


def _of(device: str, price_per_hour: float, cold_start_s: float, replicas: tuple[int, int]) -> Object:
    least, most = replicas
    return {
        "device": device,
        "models": ["digits-fp32"],
        "pricePerHour": price_per_hour,
        "coldStartS": cold_start_s,
        "autoscaling": {
            "enabled": True,
            "by": "scaler",
            "minReplicas": least,
            "maxReplicas": most,
        },
    }


def make_node_pool(bed: Bed) -> None:
    """The one of k8s/gpu-nodes, but for its machines, which are the bed's, and its patience, which is shorter."""
    (pool,) = [it for it in yaml.safe_load_all(NODE_POOL_FILE.read_text()) if it["kind"] == "NodePool"]
    spec = pool["spec"]["template"]["spec"]
    spec["nodeClassRef"] = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": MACHINES}
    (machines,) = [it for it in spec["requirements"] if it["key"] == "node.kubernetes.io/instance-type"]
    machines["values"] = ["gpu-1"]
    pool["spec"]["disruption"]["consolidateAfter"] = f"{EMPTY_S}s"
    pool["metadata"]["name"] = MACHINES
    machine_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": MACHINES}, "spec": {"nodeRegistrationDelay": f"{BOOT_S}s"}}  # fmt: skip
    for it in (machine_class, pool):
        bed.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(it))


def allow_cheaper_nodes(bed: Bed) -> None:
    """As an operator may: spot machines too, which are cheaper, and Karpenter may move a Triton there. The pool of k8s/gpu-nodes has neither."""
    path = f"/apis/karpenter.sh/v1/nodepools/{MACHINES}"
    requirements = bed.api.get(path)["spec"]["template"]["spec"]["requirements"]
    (capacity,) = [it for it in requirements if it["key"] == "karpenter.sh/capacity-type"]
    capacity["values"] = ["on-demand", "spot"]
    disruption = {"consolidationPolicy": "WhenEmptyOrUnderutilized"}
    template = {"spec": {"requirements": requirements}}
    bed.api.merge(path, {"spec": {"template": template, "disruption": disruption}})
