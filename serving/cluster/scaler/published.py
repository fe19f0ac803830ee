"""What does one gateway say? Out of the text of its `/metrics/demand`, or of an older one's `/metrics`. Pure.

Lines that nobody here needs are not parsed: an older gateway with many models publishes thousands, every second. Rule: a gateway whose
numbers cannot be right is no gateway that was heard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite

from prometheus_client.parser import text_string_to_metric_families

from serving.planning.wanted import Demand

DEMAND, ONLY, READY = "tandem_demand_replicas", "tandem_demand_only_replicas", "tandem_ready_servers"
UNSEEN = "tandem_demand_unseen_replicas"  # an older gateway, which leaves while a release is upgraded, does not tell
STATE, REQUESTS = "tandem_pool_state", "tandem_requests_total"
NUMBERS = (DEMAND, ONLY, READY, UNSEEN)
MOST = 100_000.0  # servers of a pool: no cluster has so many nodes; of numbers without end a sum is none
NEEDED = tuple(f"{name}{{" for name in (*NUMBERS, STATE))


class NotUsable(ValueError):
    """What it publishes cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One gateway at one moment; all by pool. `good`: requests that it has answered well since it began."""

    demands: Mapping[str, Demand]
    states: Mapping[str, str]
    good: Mapping[str, float]


def heard(text: str, pools: Collection[str]) -> Heard:
    """Raises NotUsable."""
    numbers: dict[str, dict[str, float]] = {name: {} for name in NUMBERS}
    states: dict[str, str] = {}
    good = dict.fromkeys(pools, 0.0)
    lines = "\n".join(line for line in text.splitlines() if _is_needed(line))
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                pool = sample.labels.get("pool", "")
                if pool not in good:
                    continue
                if sample.name in numbers:
                    numbers[sample.name][pool] = sample.value
                elif sample.name == STATE and sample.value == 1:
                    states[pool] = sample.labels.get("state", "")
                elif sample.name == REQUESTS and sample.labels.get("outcome") == "ok":
                    good[pool] += sample.value
    except ValueError as error:
        raise NotUsable(f"its metrics cannot be read ({' '.join(str(error).split())[:200]})") from None
    for pool in pools:
        numbers[UNSEEN].setdefault(pool, 0.0)
        for name in NUMBERS:
            _check(name, pool, numbers[name].get(pool))
    demands = {
        p: Demand(numbers[DEMAND][p], numbers[ONLY][p], int(numbers[READY][p]), numbers[UNSEEN][p]) for p in pools
    }
    return Heard(demands, states, good)


def _is_needed(line: str) -> bool:
    return line.startswith(NEEDED) or (line.startswith(REQUESTS) and 'outcome="ok"' in line)


def _check(name: str, pool: str, value: float | None) -> None:
    if value is None:
        raise NotUsable(
            f"it publishes no {name} of pool '{pool}': is it a gateway of this version, with the same tandem.yaml?"
        )
    if not isfinite(value) or not 0 <= value <= MOST:
        raise NotUsable(f"{name} of pool '{pool}' is {value:g}")
