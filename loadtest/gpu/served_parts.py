"""What do rounds of serving say together: the share of in process that is left, and where the rest goes? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.claims.values import ServedRound, ServingRates

IN_PROCESS, GENERATOR, DIRECT = "in process", "the generator alone", "Triton, without the gateway"
GATEWAY, SOCKET = "gateway", "gateway, no shared memory"
UNCOMPILED, GRAPHS = "gateway, not compiled", "gateway, captured graphs"
ARMS = (GATEWAY, IN_PROCESS, DIRECT, GRAPHS, SOCKET, UNCOMPILED, GENERATOR)
MOST_RATIO = 1.3  # of in process: several instances overlap what one session does one after another; more is a broken clock (guess)

Key = tuple[str, str, str, int]


def key(one: ServedRound) -> Key:
    return one.model, one.variant, one.pool, one.batch_size


def by_case(rounds: Iterable[ServedRound]) -> dict[Key, list[ServedRound]]:
    found: dict[Key, list[ServedRound]] = {}
    for one in rounds:
        found.setdefault(key(one), []).append(one)
    return found


def rates(rounds: Iterable[ServedRound], arm: str) -> list[float]:
    return [one.rate for one in rounds if one.arm == arm]


def served_rates(rounds: Iterable[ServedRound]) -> tuple[ServingRates, ...]:
    """The gateway beside in process, as claims ask for it."""
    return tuple(
        ServingRates(*of, tuple(rates(its, GATEWAY)), tuple(rates(its, IN_PROCESS)))
        for of, its in by_case(rounds).items()
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds for one batch, by the medians of rounds. They are of throughput, with OUTSTANDING requests under way: what happens beside
    something slower takes no time. `generator_s`: the least that the generator itself takes, no part of the sum."""

    batch_s: float
    net_s: float
    stub_s: float
    triton_s: float
    gateway_s: float
    generator_s: float | None

    @property
    def sentence(self) -> str:
        names = (
            ("the net", self.net_s),
            ("copies and waits of Triton's instance", self.stub_s),
            ("Triton before it", self.triton_s),
            ("the gateway", self.gateway_s),
        )
        parts = ", ".join(f"{name} {1e3 * seconds:.3g} ({seconds / self.batch_s:.0%})" for name, seconds in names)
        alone = "" if self.generator_s is None else f"; the generator alone takes {1e3 * self.generator_s:.3g}"
        limit = (
            ", so that it is the limit" if self.generator_s and self.generator_s > LIMIT_RATIO * self.batch_s else ""
        )
        return f"of {1e3 * self.batch_s:.3g} ms for a batch: {parts}{alone}{limit}"


LIMIT_RATIO = 0.8  # of a batch's time (guess)


def parts(rounds: Sequence[ServedRound]) -> Parts | None:
    """Of one net and batch size. None where the ways to tell them apart were not measured."""
    size = rounds[0].batch_size

    def batch_s(arm: str) -> float | None:
        return size / float(np.median(found)) if (found := rates(rounds, arm)) else None

    def outside_s(arm: str) -> float | None:
        """While the model's instance is not at work."""
        ratios = [one.instance_ratio for one in rounds if one.arm == arm and one.instance_ratio is not None]
        whole_s = batch_s(arm)
        return whole_s * (1 - float(np.median(ratios))) if whole_s is not None and ratios else None

    whole_s, net_s, out_s, direct_s = batch_s(GATEWAY), batch_s(IN_PROCESS), outside_s(GATEWAY), outside_s(DIRECT)
    if whole_s is None or net_s is None or out_s is None or direct_s is None:
        return None
    inside_s = whole_s - out_s
    net_s = min(net_s, inside_s)
    triton_s = min(out_s, direct_s)
    return Parts(whole_s, net_s, inside_s - net_s, triton_s, out_s - triton_s, batch_s(GENERATOR))
