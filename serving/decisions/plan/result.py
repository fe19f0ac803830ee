"""What a plan says. Values only; the search is `search.py`'s, costs over load `fleet.py`'s."""

from __future__ import annotations

from dataclasses import dataclass

from serving.decisions.prices import Fit, Offer, per_million
from serving.decisions.profile import MaxRate, Profile, ServerProfile


@dataclass(frozen=True, slots=True)
class Objective:
    """What is wanted. `rates`: (hours a day, requests per second), one pair for a load that never changes.

    `minimise` energy needs joules in the profiles. `headroom_ratio`: the share of a server's highest rate that is planned with.
    """

    latency_p99_s: float
    rates: tuple[tuple[float, float], ...]
    max_price_per_hour: float | None = None
    minimise: str = "price"  # or "energy"
    min_replicas: int = 1  # of the pool that is always there
    max_replicas: int | None = None  # of each pool, that can be had
    headroom_ratio: float = 0.7
    batch_size: int = 1  # rows of a request

    @property
    def peak_rps(self) -> float:
        return max(rate for _, rate in self.rates)


@dataclass(frozen=True, slots=True)
class PricedServer:
    """A server that was profiled and the offer that stands for its machine; `per_hour` of one server, in the list's currency.

    `share`: of the offer, where the machine that was measured has fewer cores; said wherever the price is.
    """

    profile: Profile
    server: ServerProfile
    offer: Offer
    share: float
    per_hour: float
    max_rate: MaxRate
    fit: Fit = "named"  # how well the offer is known to be its machine

    @property
    def is_price_guessed(self) -> bool:
        """Whether the offer's machine was told from no more than a family of processors, or from nothing."""
        return self.fit in ("alike", "guess")

    @property
    def pool(self) -> str:
        return "gpu" if self.offer.device == "gpu" else "cpu"

    def per_million(self, load_ratio: float = 1.0) -> float:
        """Requests, at this share of its highest rate."""
        return per_million(self.per_hour, self.max_rate.rate_rps * load_ratio)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool of a plan. Replicas at the lowest and at the highest rate of the objective."""

    name: str
    chosen: PricedServer
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True)
class Step:
    """What runs at one of the objective's rates: servers of each kind, and what all of it costs an hour."""

    hours: float
    rate_rps: float
    num_cpu: int
    num_gpu: int
    per_hour: float


@dataclass(frozen=True, slots=True)
class CostPoint:
    """At one rate: the cheapest whole servers of each kind that carry it, and what they cost an hour; None where a kind is missing."""

    rate_rps: float
    cpu_replicas: int | None
    cpu_per_hour: float | None
    gpu_replicas: int | None
    gpu_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint that keeps a plan from being possible, in numbers."""

    constraint: str  # latency, rate, price, energy, profile, offer
    wanted: float | None
    possible: float | None
    says: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A card of which only somebody's published figures are known, and the rate from which on it would cost less than CPUs.

    `break_even_low_rps` where the card is as fast as anybody published and the CPU as slow as it was measured, `break_even_high_rps` the
    other way round. None: never, or no CPU server was weighed.
    """

    card: str
    offer: str
    share: float
    per_hour: float  # of one server, in the currency of the plan
    low_rps: float  # the published highest rate, from its lower to its upper end
    high_rps: float
    break_even_low_rps: float | None
    break_even_high_rps: float | None
    source: str  # whose figures, of what, and where they can be checked
    date: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`pools` is empty where nothing meets the objective; `bindings` says why then."""

    model: str
    objective: Objective
    currency: str
    pools: tuple[PoolPlan, ...]
    per_hour_at_peak: float | None
    per_day: float | None
    break_even_rps: float | None  # the lowest rate from which the best GPU server is the cheaper one and stays so
    per_million: tuple[
        tuple[str, float], ...
    ]  # (what, price): at max, at 70 % and at 50 % of each kind, and at the objective's rates
    curve: tuple[CostPoint, ...]
    considered: tuple[PricedServer, ...]  # all that were weighed, the cheapest first
    bindings: tuple[Binding, ...] = ()
    caveats: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    curve_of_two: tuple[CostPoint, ...] = ()  # as `curve`, with two servers at least
    gateway_per_hour: float = 0.0  # counted in the prices of the plan, in none that compares kinds
    joules_per_day: float | None = None
    what_ifs: tuple[WhatIf, ...] = ()  # the first to pay first
