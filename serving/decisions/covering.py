"""Which whole numbers of units, each of a price and a capacity, carry divisible tasks for the least money?

Branch and bound over the numbers, by linear programs in which they may be fractions. Such a program is a transport: each task's shares add
up to one, each unit's load is within its number. The dual simplex method solves it, from where each task is at the unit that is cheapest
for it; a branch begins where its parent ended. A key share stands for each task (generalised upper bounds), so that a step inverts a matrix
of the units alone. HiGHS takes 1.7 to 6 s for 20 units and 100 tasks, once over 10 (SciPy 1.17, on shared cores).

Rule: arrays in, arrays out, and no clock: the same question has the same answer, however busy the machine is.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TOLERANCE = 1e-9  # of a unit, of a price and of a pivot: what rounding leaves
# Steps of the simplex method, over all branches; fewer the more shares there are. 120 steps for 20 units and 100 tasks take 20 ms.
MIN_STEPS, MAX_SHARES = 120, 20_000


@dataclass(frozen=True, slots=True)
class Problem:
    """`prices` [units] of one each. `work` float64 [tasks, units]: units that a task keeps busy alone, inf where it cannot go.

    `least` and `most` [units]: whole bounds of the numbers; `usable` [units]: the load that can go there, of which the last unit of `most`
    may be a part. `undone` [tasks]: the price of a task that is not done. `members` [limits, units] share `limits` [limits] of units.
    """

    prices: Floats
    work: Floats
    least: Ints
    most: Ints
    usable: Floats
    undone: Floats
    members: Bools
    limits: Floats


@dataclass(frozen=True, slots=True)
class Cover:
    """`numbers` and `loads` [units], and `undone` [tasks], the shares that are not done. No cover costs less than `bound`."""

    numbers: Ints
    loads: Floats
    undone: Floats
    cost: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Branch:
    """Bounds [units], and the basis that was best before they moved: `keys` [tasks], `others` [units and limits]."""

    least: Ints
    most: Ints
    keys: Ints
    others: Ints


@dataclass(frozen=True, slots=True)
class _Fractions:
    """The best where numbers may be fractions: `cost` is a bound for all whole ones of the branch."""

    branch: _Branch
    numbers: Floats
    loads: Floats
    undone: Floats
    cost: float


def cover(of: Problem, max_steps: int | None = None) -> Cover:
    """The cheapest numbers, or the cheapest that were found in `max_steps`; tasks stay undone where that is cheaper, or cannot be helped.

    Goes to whole numbers first, each time to the nearest, then on from the branch whose bound is lowest. Raises ValueError where `limits`
    do not allow `least`.
    """
    if (of.members @ of.least > of.limits + TOLERANCE).any():
        raise ValueError("the limits do not allow the fewest that are wanted")
    if of.work.size == 0:
        cost = float(of.prices @ of.least + of.undone.sum())
        return Cover(of.least, np.zeros(len(of.least)), np.ones(len(of.undone)), cost, cost)
    columns = _Columns(of)
    budget = max(MIN_STEPS, MAX_SHARES // of.work.size) if max_steps is None else max_steps
    order, best, cut_off = count(), None, np.inf
    waiting: list[tuple[float, int, _Branch]] = [(-np.inf, next(order), columns.first_branch())]
    while waiting and (best is None or columns.num_steps < budget):
        bound, _, branch = heapq.heappop(waiting)
        if best is not None and bound >= best.cost - TOLERANCE:
            break
        following: _Branch | None = branch
        while following is not None:
            simplex = _Simplex(columns, following)
            found = simplex.solved()
            if found is None:
                cut_off = min(cut_off, bound) if simplex.is_lost else cut_off
                break
            best, bound, following = _better(of, best, found), found.cost, None
            both = _split(of, found) if best is None or bound < best.cost - TOLERANCE else None
            if both is not None and best is not None and columns.num_steps >= budget:
                cut_off = min(cut_off, bound)
            elif both is not None:
                following, later = both
                heapq.heappush(waiting, (bound, next(order), later))
    if best is None:  # rounding has lost even the first branch
        best = Cover(of.least, np.zeros(len(of.least)), np.ones(len(of.undone)), np.inf, np.inf)
    bound = min(cut_off, min((it[0] for it in waiting), default=np.inf))
    return replace(best, bound=bound if bound < best.cost - 2 * TOLERANCE else best.cost)


def _better(of: Problem, best: Cover | None, found: _Fractions) -> Cover | None:
    """Rounded up, where the limits allow it and it costs less."""
    numbers = _rounded_up(found)
    cost = float(of.prices @ numbers + of.undone @ found.undone)
    if (of.members @ numbers > of.limits + TOLERANCE).any() or (best is not None and cost >= best.cost - TOLERANCE):
        return best
    return Cover(numbers, found.loads, found.undone, cost, cost)


def _split(of: Problem, found: _Fractions) -> tuple[_Branch, _Branch] | None:
    """The number whose rounding moves the price most: towards the nearer whole one first. None where all are whole."""
    numbers = _rounded_up(found)
    lacking = numbers - found.numbers
    is_part = (lacking > TOLERANCE) & (lacking < 1 - TOLERANCE)
    if not is_part.any():
        return None
    at = int(np.where(is_part, (of.prices + TOLERANCE) * np.minimum(lacking, 1 - lacking), -1.0).argmax())
    fewer, more = found.branch.most.copy(), found.branch.least.copy()
    fewer[at], more[at] = numbers[at] - 1, numbers[at]
    down, up = replace(found.branch, most=fewer), replace(found.branch, least=more)
    return (up, down) if lacking[at] < 0.5 else (down, up)


def _rounded_up(found: _Fractions) -> Ints:
    return np.ceil(found.numbers - TOLERANCE).astype(np.int64)


class _Columns:
    """The matrix: shares of each task on each unit and, last, undone; then units that are paid for, units more, what limits leave."""

    def __init__(self, of: Problem) -> None:
        self.of, self.num_steps = of, 0
        self.num_tasks, self.num_units = of.work.shape
        self.width, num_limits = self.num_units + 1, len(of.limits)
        self.num_shares = self.num_tasks * self.width
        self.tasks = np.arange(self.num_tasks)
        self.allowed = np.c_[np.isfinite(of.work), np.ones(self.num_tasks, bool)]
        self.loads = np.where(self.allowed, np.c_[of.work, np.zeros(self.num_tasks)], 0.0)
        self.costs = np.c_[np.zeros(of.work.shape), of.undone]
        units = self.num_units
        self.rest = np.zeros((units + num_limits, 2 * units + num_limits))
        self.rest[:units, :units] = self.rest[:units, units : 2 * units] = -np.eye(units)
        self.rest[units:, units : 2 * units] = of.members
        self.rest[units:, 2 * units :] = np.eye(num_limits)
        self.rest_costs = np.r_[np.zeros(units), of.prices, np.zeros(num_limits)]

    def first_branch(self) -> _Branch:
        """Each task where it is cheapest, were there as many units as it takes: no price can fall, whatever the bounds are."""
        full = np.where(self.allowed, self.loads * np.r_[self.of.prices, 0.0] + self.costs, np.inf)
        return _Branch(
            self.of.least,
            self.of.most,
            full.argmin(axis=1),
            np.arange(len(self.rest)) + self.num_shares + self.num_units,
        )


class _Simplex:
    """The dual simplex method with bounded columns: every basis is cheap enough, and each step mends the amount that is furthest out."""

    def __init__(self, columns: _Columns, branch: _Branch) -> None:
        of = columns.of
        self._columns, self._branch = columns, branch
        self._keys, self._others = branch.keys.copy(), branch.others.copy()
        self._paid = np.minimum(branch.least, of.usable)
        more = np.minimum(branch.most, of.usable) - self._paid
        self._upper = np.concatenate((self._paid, more, np.full(len(of.limits), np.inf)))
        self._room = of.limits - of.members @ branch.least
        self.is_lost = False  # by rounding: what the branch holds is not known
        self._is_low: Bools | None = None  # of the rest: which bound it is at, outside of the basis

    def solved(self) -> _Fractions | None:
        """None where the limits allow no such numbers."""
        if (self._room < -TOLERANCE).any():
            return None
        for _ in range(
            100 + 20 * sum(self._columns.of.work.shape)
        ):  # far more than it takes, unless rounding makes a circle
            self._columns.num_steps += 1
            try:
                self._look()
            except np.linalg.LinAlgError:
                break
            ray = self._ray()
            if ray is None:
                return self._fractions()
            if not self._step(*ray):
                return None
        self.is_lost = True
        return None

    def _look(self) -> None:
        """Inverts the basis, and tells prices and amounts by it."""
        c = self._columns
        self._is_share = self._others < c.num_shares
        self._task, self._unit = np.divmod(np.where(self._is_share, self._others, 0), c.width)
        self._rest = np.where(self._is_share, 0, self._others - c.num_shares)
        self._key_loads = c.loads[c.tasks, self._keys]
        at = np.flatnonzero(self._is_share)
        task, unit = self._task[at], self._unit[at]
        shares = np.zeros((c.width, len(self._others)))
        shares[unit, at] = c.loads[task, unit]
        shares[self._keys[task], at] -= self._key_loads[task]
        basis = np.where(self._is_share, 0.0, c.rest[:, self._rest])
        basis[: c.num_units] += shares[:-1]
        self._inverse = np.linalg.inv(basis)

        key_costs = c.costs[c.tasks, self._keys]
        of_shares = c.costs[self._task, self._unit] - key_costs[self._task]
        duals = np.where(self._is_share, of_shares, c.rest_costs[self._rest]) @ self._inverse
        self._gaps, self._rest_gaps = self._reduced(c.costs, c.rest_costs, key_costs, duals)
        self._is_basic = np.zeros(len(self._upper), bool)
        self._is_basic[self._rest[~self._is_share]] = True
        if self._is_low is None:
            self._is_low = (self._rest_gaps >= 0) | np.isinf(self._upper)

        self._amounts = np.where(self._is_low | self._is_basic, 0.0, self._upper)  # of the rest
        by_keys = np.bincount(self._keys, self._key_loads, c.width)[:-1]
        self._found = self._inverse @ (np.concatenate((-by_keys, self._room)) - c.rest @ self._amounts)
        self._key_shares = 1.0 - np.bincount(task, self._found[at], c.num_tasks)

    def _reduced(self, costs: Floats, rest_costs: Floats, of_keys: Floats, duals: Floats) -> tuple[Floats, Floats]:
        """Costs of all columns beyond what the basis gives for them."""
        c = self._columns
        of_units = np.append(duals[: c.num_units], 0.0)
        of_tasks = of_keys - of_units[self._keys] * self._key_loads
        return costs - of_tasks[:, None] - of_units * c.loads, rest_costs - duals @ c.rest

    def _ray(self) -> tuple[Floats, int | None, bool, int, float] | None:
        """Of the amount that is furthest out: the row of the inverse, its task if a key, whether it is above, its place, how far."""
        above = self._found - np.where(self._is_share, np.inf, self._upper[self._rest])
        out = np.maximum(above, -self._found)
        place, key = int(out.argmax()), int(self._key_shares.argmin())
        if max(out[place], -self._key_shares[key]) <= TOLERANCE:
            return None
        if out[place] >= -self._key_shares[key]:
            return self._inverse[place], None, bool(above[place] > 0), place, float(out[place])
        of_key = self._is_share & (self._task == key)
        far = -float(self._key_shares[key])
        return -of_key.astype(float) @ self._inverse, key, False, int(of_key.argmax()), far

    def _step(self, ray: Floats, key: int | None, is_above: bool, place: int, far: float) -> bool:
        """Puts it to its bound, and the column that costs least for that into the basis. False where there is none."""
        c = self._columns
        assert self._is_low is not None
        of_keys = np.zeros(c.num_tasks)
        if key is not None:
            of_keys[key] = 1.0
        away, rest_away = self._reduced(np.zeros(c.loads.shape), np.zeros(len(self._upper)), of_keys, ray)
        if is_above:
            away, rest_away = -away, -rest_away
        may = c.allowed & (away > TOLERANCE)
        may[c.tasks, self._keys] = may[self._task[self._is_share], self._unit[self._is_share]] = False
        rest_may = np.where(self._is_low, rest_away > TOLERANCE, rest_away < -TOLERANCE) & ~self._is_basic
        rest_may &= self._upper > 0
        may_all = np.concatenate((may.ravel(), rest_may))
        slopes = np.abs(np.concatenate((away.ravel(), rest_away)))
        gaps = np.concatenate((np.maximum(self._gaps, 0.0).ravel(), np.abs(self._rest_gaps)))
        ratios = np.divide(gaps, slopes, out=np.full(len(gaps), np.inf), where=may_all)
        least = ratios.min()
        if not np.isfinite(least):
            return False
        entering: int | None = int(np.where(ratios <= least + TOLERANCE, slopes, -1.0).argmax())  # of equals the safest
        if slopes[entering] < far - TOLERANCE:
            entering = self._entering_past(ratios, away, far - TOLERANCE)
        if entering is None:
            return False
        if key is not None:
            self._keys[key] = self._unit[place]
        elif not self._is_share[place]:
            self._is_low[self._rest[place]] = not is_above
        self._others[place] = entering
        return True

    def _entering_past(self, ratios: Floats, away: Floats, far: float) -> int | None:
        """Moves whole tasks, the cheapest to move first, as long as it stays out for all of them; then the column that ends it.

        So one step does what one for each task would. A task that is at several units is not moved: it is the column.
        """
        c = self._columns
        of_shares, gaps = ratios[: c.num_shares].reshape(c.loads.shape), np.maximum(self._gaps, 0.0)
        at = of_shares.argmin(axis=1)
        first = of_shares[c.tasks, at]
        waiting: list[tuple[float, int]] = list(zip(first.tolist(), (c.tasks * c.width + at).tolist(), strict=True))
        waiting += zip(ratios[c.num_shares :].tolist(), range(c.num_shares, len(ratios)), strict=True)
        heapq.heapify(waiting)
        divided, moved = set(self._task[self._is_share].tolist()), dict[int, int]()
        while waiting:
            ratio, column = heapq.heappop(waiting)
            if ratio == np.inf:
                break
            task, unit = divmod(column, c.width)
            slope = 0.0
            if column < c.num_shares:
                slope = away[task, unit] - (away[task, moved[task]] if task in moved else 0.0)
            if column >= c.num_shares or task in divided or slope >= far:
                for each, to in moved.items():
                    self._keys[each] = to
                return column
            far -= slope
            moved[task] = unit
            steeper = away[task] - away[task, unit]
            more = np.divide(
                gaps[task] - gaps[task, unit],
                steeper,
                out=np.full(c.width, np.inf),
                where=c.allowed[task] & (steeper > TOLERANCE),
            )
            heapq.heappush(waiting, (float(more.min()), task * c.width + int(more.argmin())))
        return None

    def _fractions(self) -> _Fractions:
        c, branch = self._columns, self._branch
        units = c.num_units
        self._amounts[self._rest[~self._is_share]] = self._found[~self._is_share]
        undone = np.where(self._keys == units, self._key_shares, 0.0)
        lost = self._is_share & (self._unit == units)
        undone[self._task[lost]] += self._found[lost]
        undone = np.where(undone > 10 * TOLERANCE, undone, 0.0)
        more = np.maximum(self._amounts[units : 2 * units], 0.0)
        numbers = np.minimum(branch.least + more, branch.most)
        loads = np.maximum(self._amounts[:units], 0.0) + more
        cost = float(c.of.prices @ numbers + c.of.undone @ undone)
        return _Fractions(replace(branch, keys=self._keys, others=self._others), numbers, loads, undone, cost)
