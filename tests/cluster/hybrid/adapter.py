"""How does the scaler's number reach the autoscaler? In the place of Prometheus and prometheus-adapter, neither of which runs here.

Every second it reads what the scaler's pods publish and tells the bed's external metrics API what the rule of k8s/scaling would make of it: the
most that any of them says of a pool, and nothing where none says anything. Rule: what is not heard is absent at once, never the last number.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.bed.cluster import Bed

METRIC, DEMAND = "tandem_wanted_replicas", "tandem_scaler_demand_replicas"
EVERY_S = 1.0  # the chart's ServiceMonitor may be told so; its default is 15
TIMEOUT_S = 2.0

Addresses = Callable[[], list[str]]  # address:port of each scaler that is there


class Adapter(threading.Thread):
    """Until the process ends. `wanted`, `demands`: of each pool that something is known of."""

    def __init__(self, bed: Bed, release: str, pools: tuple[str, ...], scalers: Addresses) -> None:
        super().__init__(name="adapter", daemon=True)
        self._bed, self._release, self._pools, self._scalers = bed, release, pools, scalers
        self._told: dict[str, float] = {}
        self.wanted: dict[str, float] = {}
        self.demands: dict[str, float] = {}

    def run(self) -> None:
        while True:
            began = time.monotonic()
            pages = [page for address in self._scalers() if (page := _page(address))]
            self.wanted, self.demands = (most(pages, name) for name in (METRIC, DEMAND))
            self._tell()
            time.sleep(max(0.0, began + EVERY_S - time.monotonic()))

    def _tell(self) -> None:
        now = self.wanted
        for pool in self._pools:
            if now.get(pool) != self._told.get(pool):
                self._bed.set_external_metric(METRIC, now.get(pool), pool=pool, tandem=self._release)
        self._told = now


def most(pages: list[str], name: str) -> dict[str, float]:
    """Of a gauge with the label `pool`, over all pages; a pool of which none says anything is missing."""
    found: dict[str, float] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for it in family.samples if family.name == name else ():
                found[it.labels["pool"]] = max(it.value, found.get(it.labels["pool"], it.value))
    return found


def _page(address: str) -> str:
    """Empty where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
