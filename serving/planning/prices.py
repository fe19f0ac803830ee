"""What does a pool cost an hour, and a request on it?

A price is money in one currency, which nobody here knows. Rule: what is charged for a request is the time of the device that it takes,
whether the device was idle before or not; what idles is charged to nobody and stands in the pool's cost.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0
EQUAL_PER_HOUR = (
    1.0  # of every pool where none is set: the one whose server is busy for the shortest time is the cheapest then
)


@dataclass(frozen=True, slots=True)
class Price:
    """Of one server of a pool, from the moment it is asked for to the moment it is given back."""

    per_hour: float

    def __post_init__(self) -> None:
        if not 0 <= self.per_hour < float("inf"):
            raise ValueError(f"a price is a number of 0 or more, not {self.per_hour}")

    def of(self, server_s: float) -> float:
        return self.per_hour * server_s / HOUR_S

    def per_million(self, rate_rps: float) -> float:
        """Requests, on a server that answers so many a second and is paid for whether it does or not."""
        if rate_rps <= 0:
            raise ValueError("what answers nothing has no price per answer")
        return self.per_hour / (HOUR_S * rate_rps) * 1e6
