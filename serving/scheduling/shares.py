"""Which tenant's requests go before others', so that each gets its share of a pool's time whatever the others send?

Weighted fair queueing in seconds of a server. All that was let in is work of its tenant in an imagined server that works on all tenants
at once, on each by its weight (generalised processor sharing): a tenant whose work there is done, or is much less than the others',
has had less than its share, and goes first. Time there goes on with the work that the pool really does, so that neither wrong curves
nor idle servers move it. It has two clocks, since a share is a weight and a part of all that grows with others' weights: so whoever comes
or goes changes nobody's account. Rules: here is who comes first and never who is let in; a tenant alone costs nothing, so `PoolQueue` asks
only where there are two; and nothing costs by the number of tenants, but other terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

SMALL_RATIO = 0.9  # of the others' mean backlog by weight: whose is smaller has had less than its share; a guess, simulated in tests

MAX_STALE = 64  # entries of a heap that are of before, beside as many as there are tenants with work
# What all have may grow by so much before it is worked out anew when a tenant with a reservation is done: less does that more often, more
# looks at it in vain more often; a guess, not measured.
GROWTH = 1.25
DONE_RATIO = 1e-9  # of what a tenant had, that is left of it by rounding
LEAST_RATIO = 1e-3  # of every pool, for tenants without a reservation where all is reserved


@dataclass(frozen=True, slots=True)
class Term:
    """What a tenant or model gets of a pool's time: the part `reserved_ratio` before all others, and of the rest its part by `weight`."""

    weight: float = 1.0
    reserved_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not (0.001 <= self.weight <= 10_000 and 0 <= self.reserved_ratio <= 1):  # beyond, sums of floats are no sums
            raise ValueError("a weight is in 0.001..10,000, a reserved ratio in 0..1")


USUAL = Term()


@dataclass(frozen=True, slots=True)
class Terms:
    """Of all tenants, or of all models; who is not named has `USUAL`. Raises ValueError where more than all is reserved."""

    by_name: Mapping[str, Term] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reserved_ratio > 1 + 1e-9:
            raise ValueError(f"{self.reserved_ratio:g} of every pool is reserved, which is more than all of it")

    @property
    def reserved_ratio(self) -> float:
        return sum(term.reserved_ratio for term in self.by_name.values())

    def of(self, name: str) -> Term:
        return self.by_name.get(name, USUAL)


def shares_of(each: Sequence[Term]) -> list[float]:
    """Of those that have work. What is reserved is worth as much weight as makes it that part of all."""
    whole = _whole(sum([one.weight for one in each]), sum([one.reserved_ratio for one in each]))
    return [one.weight + one.reserved_ratio * whole for one in each]


def _whole(weight: float, reserved_ratio: float) -> float:
    """What all have that have work, of which so much is not reserved."""
    return weight / max(LEAST_RATIO, 1 - reserved_ratio)


class _Account:
    """Of its work so much is left as `end` is more than its weight by one clock and its reserved ratio by the other say.

    `large_s`: the most that there was since it last had none. `number`: of its entries in `_ends` and `_limits`.
    """

    __slots__ = ("end", "is_active", "large_s", "number", "term")

    def __init__(self, term: Term) -> None:
        self.term = term
        self.end = 0.0
        self.large_s = 0.0
        self.number = 0
        self.is_active = False  # it has work in the imagined server


class Shares:
    """Of one pool."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._accounts: dict[str, _Account] = {}
        # Seconds of a server for each unit of share, and the same times the whole of which ratios are reserved.
        self._by_weight = self._by_ratio = 0.0
        self._weight = self._reserved_ratio = 0.0  # of all that have work
        self._whole = 0.0
        self.backlog_s = 0.0
        self._ends: list[
            tuple[float, int, _Account]
        ] = []  # `_by_weight`, no later than it ends, for each that is active
        self._limits: list[tuple[float, int, _Account]] = []  # the whole up to which that holds, of those that reserve
        self._number = 0
        self.num_active = 0

    def use(self, terms: Terms) -> None:
        """From now on."""
        self._terms = terms
        self._weight = self._reserved_ratio = 0.0
        active = []
        for tenant, account in self._accounts.items():
            left_s = self._left_s(account) if account.is_active else 0.0
            account.term = terms.of(tenant)
            if account.is_active:
                self._begin(account, left_s)
                active.append(account)
        self._ends.clear()
        self._limits.clear()
        for account in active:
            self._push(account)

    def group(self, tenant: str) -> int:
        """0: it has had less than its share, all that it sent is done there. 1: little is left of it. 2: as much as of others, or more."""
        account = self._accounts.get(tenant)
        if account is None or not account.is_active:
            return 0
        left_s, share = self._left_s(account), account.term.weight + account.term.reserved_ratio * self._whole
        return 1 if left_s * self._share <= SMALL_RATIO * self.backlog_s * share else 2

    def sole(self) -> str:
        """The tenant that alone has work."""
        return next(tenant for tenant, account in self._accounts.items() if account.is_active)

    def charge(self, tenant: str, cost_s: float) -> None:
        """It was let in."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(self._terms.of(tenant))
        self.backlog_s += cost_s
        if account.is_active:
            account.end += cost_s
            account.large_s = max(account.large_s, self._left_s(account))
            return
        account.is_active = True
        self.num_active += 1
        self._begin(account, cost_s)
        self._push(account)
        limits, whole = self._limits, self._whole
        while limits and limits[0][0] < whole:
            _, number, other = heappop(limits)
            if number == other.number and other.is_active:
                self._push(other)

    def did(self, cost_s: float) -> None:
        """So much work was done, of whoever."""
        self.backlog_s -= cost_s
        ends = self._ends
        while ends:
            end, number, account = ends[0]
            if number != account.number:  # of before
                heappop(ends)
                continue
            until_s = max(0.0, end - self._by_weight) * self._share
            if until_s > cost_s:
                self._go_on(cost_s)
                return
            cost_s -= until_s
            self._go_on(until_s)
            heappop(ends)
            # What is left that no longer moves the clock is of rounding, however much that is by now: looked at again, it would never end.
            is_left = self._left_s(account) > DONE_RATIO * account.large_s
            if is_left and self._ends_at(account, self._whole) > self._by_weight:
                self._push(account, is_near=True)
            else:
                self._finish(account)
        # Nothing is left, but what adding up has.
        self._weight = self._reserved_ratio = self._whole = self._by_weight = self._by_ratio = self.backlog_s = 0.0
        self._limits.clear()

    def give_back(self, tenant: str, cost_s: float) -> None:
        """It was let in and left without being worked on. What the imagined server has done of it already counts as done."""
        account = self._accounts.get(tenant)
        if account is not None and account.is_active:
            own_s = min(cost_s, max(0.0, self._left_s(account)))
            account.end -= own_s
            self.backlog_s -= own_s
            cost_s -= own_s
            self._push(account)
        self.did(cost_s)

    @property
    def _share(self) -> float:
        """Of all that have work."""
        return self._weight + self._reserved_ratio * self._whole

    def _left_s(self, account: _Account) -> float:
        term = account.term
        return account.end - term.weight * self._by_weight - term.reserved_ratio * self._by_ratio

    def _ends_at(self, account: _Account, whole: float) -> float:
        """`_by_weight` when its work is done, where all have so much."""
        return self._by_weight + self._left_s(account) / (account.term.weight + account.term.reserved_ratio * whole)

    def _go_on(self, cost_s: float) -> None:
        """So much work of all that have any."""
        by_weight = cost_s / self._share
        self._by_weight += by_weight
        self._by_ratio += by_weight * self._whole

    def _begin(self, account: _Account, left_s: float) -> None:
        """It has so much work from now on."""
        term = account.term
        account.end = left_s + term.weight * self._by_weight + term.reserved_ratio * self._by_ratio
        account.large_s = left_s
        self._weight += term.weight
        self._reserved_ratio += term.reserved_ratio
        self._whole = _whole(self._weight, self._reserved_ratio)

    def _finish(self, account: _Account) -> None:
        """It has no work any more."""
        account.is_active = False
        account.number = 0
        self.num_active -= 1
        self._weight -= account.term.weight
        self._reserved_ratio -= account.term.reserved_ratio
        self._whole = _whole(self._weight, self._reserved_ratio)

    def _push(self, account: _Account, *, is_near: bool = False) -> None:
        """In place of the entries that it had. `is_near`: it ends soon, and is looked at again as soon as others come."""
        self._number += 1
        account.number = self._number
        limit = self._whole * (1.0 if is_near else GROWTH)
        heappush(self._ends, (self._ends_at(account, limit), self._number, account))
        _tidy(self._ends, self.num_active)
        if account.term.reserved_ratio:
            heappush(self._limits, (limit, self._number, account))
            _tidy(self._limits, self.num_active)


def _tidy(entries: list[tuple[float, int, _Account]], num_active: int) -> None:
    """Leaves those that hold."""
    if len(entries) > 2 * num_active + MAX_STALE:
        entries[:] = [entry for entry in entries if entry[1] == entry[2].number]
        heapify(entries)
