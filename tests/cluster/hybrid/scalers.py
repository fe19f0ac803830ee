"""What do the scalers say? Reads the pages of all of them every second, as Prometheus would; nothing that is decided goes through here.

Rule: what is not heard is absent at once, never the last number.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

METRIC, DEMAND, LEADS = "tandem_wanted_replicas", "tandem_scaler_demand_replicas", "tandem_scaler_leads"
EVERY_S = 1.0
TIMEOUT_S = 2.0

Addresses = Callable[[], list[str]]  # address:port of each scaler that is ready


class Scalers(threading.Thread):
    """Until the process ends. `wanted`, `demands`: of each pool that something is known of; `leader`: the address of the one that sets replicas."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__(name="scalers", daemon=True)
        self._addresses = addresses
        self.wanted: dict[str, float] = {}
        self.demands: dict[str, float] = {}
        self.leader: str | None = None

    def run(self) -> None:
        while True:
            began = time.monotonic()
            pages = {address: page for address in self._addresses() if (page := _page(address))}
            self.wanted, self.demands = (most(list(pages.values()), name) for name in (METRIC, DEMAND))
            self.leader = leader(pages)
            time.sleep(max(0.0, began + EVERY_S - time.monotonic()))


def most(pages: list[str], name: str) -> dict[str, float]:
    """Of a gauge with the label `pool`, over all pages; a pool of which none says anything is missing."""
    found: dict[str, float] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for it in family.samples if family.name == name else ():
                found[it.labels["pool"]] = max(it.value, found.get(it.labels["pool"], it.value))
    return found


def leader(pages: Mapping[str, str]) -> str | None:
    """The address of the only one that says that it leads; None where none says so, or two do."""
    leading = [
        address
        for address, page in pages.items()
        for family in text_string_to_metric_families(page)
        if family.name == LEADS and any(it.value == 1 for it in family.samples)
    ]
    return leading[0] if len(leading) == 1 else None


def _page(address: str) -> str:
    """Empty where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
