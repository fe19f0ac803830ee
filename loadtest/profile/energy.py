"""How many joules does a request take, where something measures them? Pure; reading them is `evidence/meters.py`'s.

They are of whole processors, and on a GPU pool of all cards beside them, with what idles there. Rule: never computed from a data sheet, and
a counter that stands still, as in many virtual machines, tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loadtest.records import Evidence
from serving.decisions.profile import LoadPoint, MaxRate


def of_a_run(found: Evidence | None, pool: str, num_answers: float) -> float | None:
    """Joules per good answer. A card's without its processor's, where only the card tells them; the other way round is no answer."""
    if found is None or num_answers <= 0:
        return None
    parts_j = {"cpu": (found.cpu_energy_j,), "gpu": (found.gpu_energy_j, found.cpu_energy_j)}.get(pool, (None,))
    if not parts_j[0]:
        return None
    return sum(part_j or 0.0 for part_j in parts_j) / num_answers


def at_the_highest_rate(load: Sequence[LoadPoint], max_rates: Sequence[MaxRate]) -> float | None:
    """Where requests of several sizes were sent, there is no such thing as the joules of a request."""
    if len({most.batch_size for most in max_rates}) != 1:
        return None
    highest_rps = max(most.rate_rps for most in max_rates)
    told = [p.joules_per_request for p in load if p.is_met and p.rate_rps == highest_rps and p.joules_per_request]
    return median(told) if told else None
