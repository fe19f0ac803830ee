"""What would change the answer: another rate, price, speed or idle share, all else as it is? Pure.

Found by trying: the very comparison that judges is asked again with one number changed, until it turns. Rule: by the middle of what was
measured, at the highest rate asked for; what does not turn within a hundredfold is not told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from serving.decisions.fleet import choice
from serving.decisions.plan.result import Objective, PricedServer

PRECISION = 1e-4  # of a number that would change the answer


@dataclass(frozen=True, slots=True)
class Flip:
    """What would change the answer, all else as it is: from `now` to `at`. `price` and `speed` are of one server."""

    what: Literal["rate", "gpu_price", "cpu_price", "gpu_speed", "idle"]
    now: float
    at: float
    to: Literal["pays", "does_not_pay"]


def flips(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], break_even_rps: float | None, objective: Objective
) -> tuple[Flip, ...]:
    """At the highest rate asked for, by the middle of what was measured."""
    at = objective.peak_rps
    now = choice(cpu, gpu, at, objective)
    if now.cpu is None or now.gpu is None:
        return ()
    pays = now.gpu_is_cheaper
    to: Literal["pays", "does_not_pay"] = "does_not_pay" if pays else "pays"
    found = []
    if break_even_rps is not None and (break_even_rps < at) == pays and break_even_rps > 0:
        found.append(Flip("rate", at, break_even_rps, to))

    def is_cheaper(cpu_price: float, gpu_price: float, gpu_speed: float) -> bool:
        ours, theirs = _dearer(cpu, cpu_price), _dearer(_faster(gpu, gpu_speed), gpu_price)
        return choice(ours, theirs, at, objective).gpu_is_cheaper

    card, processor = now.gpu.servers[0][0], now.cpu.servers[0][0]
    dearer_gpu = _turning(lambda ratio: is_cheaper(1.0, ratio, 1.0), pays, up=pays)
    dearer_cpu = _turning(lambda ratio: is_cheaper(ratio, 1.0, 1.0), pays, up=not pays)
    faster_gpu = _turning(lambda ratio: is_cheaper(1.0, 1.0, ratio), pays, up=not pays)
    if dearer_gpu is not None:
        found.append(Flip("gpu_price", card.per_hour, card.per_hour * dearer_gpu, to))
    if dearer_cpu is not None:
        found.append(Flip("cpu_price", processor.per_hour, processor.per_hour * dearer_cpu, to))
    if faster_gpu is not None:
        found.append(Flip("gpu_speed", card.max_rate.rate_rps, card.max_rate.rate_rps * faster_gpu, to))
    if pays and dearer_gpu is not None:
        found.append(Flip("idle", 0.0, 1 - 1 / dearer_gpu, to))
    return tuple(found)


def _dearer(servers: Sequence[PricedServer], ratio: float) -> list[PricedServer]:
    return [replace(p, per_hour=p.per_hour * ratio) for p in servers]


def _faster(servers: Sequence[PricedServer], ratio: float) -> list[PricedServer]:
    return [replace(p, max_rate=replace(p.max_rate, rate_rps=p.max_rate.rate_rps * ratio)) for p in servers]


def _turning(pays_at: Callable[[float], bool], now: bool, *, up: bool) -> float | None:
    """The ratio at which the answer turns, looked for within a hundredfold; None where it does not."""
    near, far = 1.0, 100.0 if up else 0.01
    if pays_at(far) == now:
        return None
    while abs(math.log(far / near)) > PRECISION:
        middle = math.sqrt(near * far)
        near, far = (middle, far) if pays_at(middle) == now else (near, middle)
    return math.sqrt(near * far)
