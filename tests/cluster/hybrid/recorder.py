"""What was there at which second? Looks four times a second at what the API server last said and at what the scaler tells.

Everything is counted from watches that go on anyway, so a look asks nobody. Rule: it only looks; what it saw is judged elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed, is_true
from tests.cluster.hybrid.chart import CPU, GPU, NAMESPACE
from tests.cluster.hybrid.scalers import Scalers
from tests.cluster.hybrid.watch import Watch

EVERY_S = 0.25
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"


@dataclass(frozen=True, slots=True)
class Look:
    """Numbers of things. `wanted_…` None: nothing is told. `cards`: nodes that were bought; `…_ready`: those that are Ready."""

    rate_rps: float = 0.0
    demand_cpu: float | None = None
    wanted_cpu: int | None = None
    wanted_gpu: int | None = None
    replicas_cpu: int = 0
    replicas_gpu: int = 0
    pods_gpu: int = 0
    ready_cpu: int = 0
    ready_gpu: int = 0
    claims: int = 0
    cards: int = 0
    cards_ready: int = 0


class Recorder(threading.Thread):
    """Until it is stopped. `looks`: seconds since `began`, whenever something had changed."""

    def __init__(self, bed: Bed, scalers: Scalers, pods: Callable[[], list[Object]], rate: Callable[[], float]) -> None:
        super().__init__(name="recorder", daemon=True)
        self._scalers, self._pods, self._rate = scalers, pods, rate
        certificates = bed.layout.certificates
        self._nodes, self._claims, self._deployments = (
            Watch(bed.api, certificates, path, lambda *_: None)
            for path in ("/api/v1/nodes", CLAIMS, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
        )
        self.began = time.monotonic()
        self.looks: list[tuple[float, Look]] = []
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            look = self.look()
            if not self.looks or look != self.looks[-1][1]:
                self.looks.append((round(time.monotonic() - self.began, 2), look))

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def told(self) -> list[Object]:
        return [{"at_s": at_s} | asdict(look) for at_s, look in self.looks]

    def node(self, name: str) -> Object | None:
        return next((it for it in self._nodes.objects() if it["metadata"]["name"] == name), None)

    def claim(self, node: str) -> Object | None:
        return next((it for it in self._claims.objects() if it.get("status", {}).get("nodeName") == node), None)

    def look(self) -> Look:
        pods, nodes = self._pods(), [it for it in self._nodes.objects() if "karpenter.sh/nodepool" in _labels(it)]
        of_pool = {pool: [it for it in pods if _labels(it).get("tandem-pool") == pool] for pool in (CPU, GPU)}
        wanted, demand = self._scalers.wanted, self._scalers.demands.get(CPU)
        replicas = {_labels(it).get("tandem-pool"): it["spec"].get("replicas", 1) for it in self._deployments.objects()}
        return Look(
            rate_rps=self._rate(),
            demand_cpu=None if demand is None else round(demand, 1),
            wanted_cpu=_whole(wanted.get(CPU)),
            wanted_gpu=_whole(wanted.get(GPU)),
            replicas_cpu=replicas.get(CPU, 0),
            replicas_gpu=replicas.get(GPU, 0),
            pods_gpu=len(of_pool[GPU]),
            ready_cpu=sum(_is_serving(it) for it in of_pool[CPU]),
            ready_gpu=sum(_is_serving(it) for it in of_pool[GPU]),
            claims=len(self._claims.objects()),
            cards=len(nodes),
            cards_ready=sum(is_true(it, "Ready") for it in nodes),
        )


def _is_serving(pod: Object) -> bool:
    return is_true(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]


def _labels(it: Object) -> dict[str, str]:
    labels: dict[str, str] = it["metadata"].get("labels") or {}
    return labels


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
