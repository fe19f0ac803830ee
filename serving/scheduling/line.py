"""Who waits, in what order, and does one more fit without making anybody late?

One line per variant of a pool and priority, ordered by when each must be done (`due`). Those who wait are done one after another, each
taking `share` of its cost. Whoever is let in must be done in time **and** leave everybody behind it in time: that is why a later `due`
never turns a yes into a no. Rule: a look costs by the number of blocks, not of tickets; keep `total` and `room` of every block right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from math import inf

from serving.scheduling.replica import Ticket

MAX_BLOCK = 20  # tickets; a look goes through one block and past the others (16 to 24 were fastest with 150 waiting)
ROUNDING_S = 1e-9  # two ways to add up the same costs differ by less


class _Block:
    """Neighbours in the line. `room`: the latest moment at which the block may begin so that all in it are done when due.

    `has_room`: whether `room` is right; where somebody left it is worked out by whoever needs it, which is nobody where all come last.
    """

    __slots__ = ("costs", "dues", "has_room", "largest", "room", "tickets", "total")

    def __init__(self, tickets: list[Ticket], share: float) -> None:
        self.tickets = tickets
        self.dues = [ticket.due for ticket in tickets]
        self.costs = [ticket.cost_s for ticket in tickets]
        self.weigh(share)

    def weigh(self, share: float) -> None:
        self.total = sum(self.costs)
        self.largest = max(self.costs)
        self.room = min([due - share * end for due, end in zip(self.dues, accumulate(self.costs), strict=True)])
        self.has_room = True

    def remove(self, at: int) -> None:
        del self.tickets[at], self.dues[at], self.costs[at]
        self.total = sum(self.costs)
        self.largest = max(self.costs, default=0.0)
        self.has_room = False


class Line:
    def __init__(self, share: float = 1.0) -> None:
        self._blocks: list[_Block] = []
        self.share = share
        self.total_s = 0.0  # costs of all who wait
        self.num_waiting = 0

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for block in self._blocks for ticket in block.tickets)

    @property
    def first(self) -> Ticket | None:
        return self._blocks[0].tickets[0] if self._blocks else None

    def reshare(self, share: float) -> None:
        """The number of servers that work on this line is another one."""
        self.share = share
        for block in self._blocks:
            block.weigh(share)

    def add(self, ticket: Ticket) -> None:
        blocks, due = self._blocks, ticket.due
        index = len(blocks) - 1
        while index > 0 and blocks[index - 1].dues[-1] > due:  # most come last
            index -= 1
        ticket.in_line = True
        self.num_waiting += 1
        self.total_s += ticket.cost_s
        if index < 0:
            blocks.append(_Block([ticket], self.share))
            return
        block = blocks[index]
        at = bisect_right(block.dues, due)
        if at == len(block.dues):
            block.total += ticket.cost_s
            block.largest = max(block.largest, ticket.cost_s)
            block.room = min(block.room, due - self.share * block.total)
        block.tickets.insert(at, ticket)
        block.dues.insert(at, due)
        block.costs.insert(at, ticket.cost_s)
        if len(block.dues) > MAX_BLOCK:
            half = len(block.dues) // 2
            blocks[index : index + 1] = [
                _Block(block.tickets[:half], self.share),
                _Block(block.tickets[half:], self.share),
            ]
        elif at < len(block.dues) - 1:
            block.weigh(self.share)

    def remove(self, ticket: Ticket) -> None:
        """Nothing happens if it does not wait here."""
        if self.first is ticket:
            block, at = self._blocks[0], 0
        else:
            found = next((b for b in self._blocks if b.dues[-1] >= ticket.due and ticket in b.tickets), None)
            if found is None:
                return
            block, at = found, found.tickets.index(ticket)
        block.remove(at)
        ticket.in_line = False
        self.num_waiting -= 1
        self.total_s = self.total_s - ticket.cost_s if self.num_waiting else 0.0
        if not block.tickets:
            self._blocks.remove(block)

    def fits(self, start: float, due: float, cost_s: float) -> bool:
        """Whether one more is done when due, and all behind it still are, if the line begins to be done at `start`."""
        share, blocks = self.share, self._blocks
        due += ROUNDING_S
        if not blocks or due >= blocks[-1].dues[-1]:
            return start + share * (self.total_s + cost_s) <= due
        finish = start + share * cost_s
        index = 0
        while blocks[index].dues[-1] <= due:
            finish += share * blocks[index].total
            index += 1
        dues, costs = blocks[index].dues, blocks[index].costs
        at = bisect_right(dues, due)
        finish += share * sum(costs[:at])
        return finish <= due and self._leaves_in_time(index, at, finish)

    def has_place(self, start: float, begin_by: float, due_by: float, cost_s: float) -> bool:
        """Whether one more might fit that costs so much or more, and must begin and be done by then or earlier.

        Where this is False, `fits` is for all of them.
        """
        share, begin_by, due_by = self.share, begin_by + 2 * ROUNDING_S, due_by + 2 * ROUNDING_S
        if start > begin_by:
            return False
        begin = start  # at the last place that it can have, since there it keeps the fewest waiting
        for index, block in enumerate(self._blocks):
            if begin + share * block.total <= begin_by and block.dues[-1] <= due_by:
                begin += share * block.total
                continue
            at = 0
            while begin + share * block.costs[at] <= begin_by and block.dues[at] <= due_by:
                begin += share * block.costs[at]
                at += 1
                if at == len(block.costs):  # sums differ by rounding
                    break
            return self._leaves_in_time(index, at, begin + share * cost_s)
        return True

    def _leaves_in_time(self, index: int, at: int, finish: float) -> bool:
        """Whether those of this block from `at` on, and of all blocks behind it, are in time if they begin at `finish`."""
        share, block = self.share, self._blocks[index]
        for due, cost_s in zip(block.dues[at:], block.costs[at:], strict=True):
            finish += share * cost_s
            if finish > due + ROUNDING_S:
                return False
        for block in self._blocks[index + 1 :]:
            if not block.has_room:
                block.weigh(share)
            if finish > block.room + ROUNDING_S:
                return False
            finish += share * block.total
        return True

    def opens_at(
        self,
        now: float,
        start: float,
        due_in_s: float,
        cost_s: float,
        *,
        flight_s: float = 0.0,
        then: Sequence[Line] = (),
    ) -> float:
        """The first moment at which one with `due_in_s` left would fit if nothing more came; infinite if never.

        Who was sent can no longer be overtaken, and is sent `flight_s` before it is done; `then` are the lines that follow.
        """
        own_s = self.share * cost_s
        if due_in_s < own_s - ROUNDING_S:
            return inf
        ahead = self._ahead(now + due_in_s, start, own_s)
        finish = ahead[1] if ahead else start
        opens = max(now, finish + own_s - due_in_s)
        if ahead:
            opens = max(opens, min(ahead[0] - due_in_s, finish - flight_s))
        if due_in_s >= flight_s + own_s:
            return opens  # it is in time behind all that is in flight, whatever that is
        return self._behind_the_sent(opens, finish, ahead, own_s - due_in_s, flight_s, then)

    def _behind_the_sent(
        self,
        opens: float,
        finish: float,
        ahead: tuple[float, float] | None,
        early_s: float,
        flight_s: float,
        then: Sequence[Line],
    ) -> float:
        """One in a hurry goes behind all that are sent before it would be let in: when that is over."""
        share, reach_s = self.share, flight_s + early_s
        for costs, total, largest in self._behind(-inf if ahead is None else ahead[0], then):
            if finish + share * costs[0] - flight_s > opens:
                return opens
            if share * largest <= reach_s:  # each is sent before the one before it is done: all of them are
                finish += share * total
                opens = max(opens, finish + early_s)
                continue
            for cost in costs:
                finish += share * cost
                if finish - flight_s > opens:
                    return opens
                opens = max(opens, finish + early_s)
        return opens

    def _behind(self, due: float, then: Sequence[Line]) -> Iterator[tuple[list[float], float, float]]:
        """Costs of those due later, and of the lines that follow, in blocks: each, together, the largest."""
        for block in self._blocks:
            at = bisect_right(block.dues, due)
            if at == 0:
                yield block.costs, block.total, block.largest
            elif at < len(block.costs):
                yield block.costs[at:], sum(block.costs[at:]), block.largest
        for block in chain.from_iterable(line._blocks for line in then):
            yield block.costs, block.total, block.largest

    def _ahead(self, behind_from: float, start: float, own_s: float) -> tuple[float, float] | None:
        """Due and predicted finish of the last that it must go behind: due by `behind_from`, or late if it waited for `own_s`."""
        begin, begins = start, []
        for block in self._blocks:
            begins.append(begin)
            begin += self.share * block.total
        for at in range(len(begins) - 1, -1, -1):
            block, begin = self._blocks[at], begins[at]
            if not block.has_room:
                block.weigh(self.share)
            if block.dues[0] <= behind_from or begin + own_s > block.room + ROUNDING_S:
                last = self._last_before(block, begin, behind_from, own_s)
                if last is not None:
                    return last
        return None

    def _last_before(self, block: _Block, start: float, behind_from: float, own_s: float) -> tuple[float, float] | None:
        if block.dues[-1] <= behind_from:
            return block.dues[-1], start + self.share * block.total
        last = None
        for due, end in zip(block.dues, accumulate(block.costs), strict=True):
            finish = start + self.share * end
            if due <= behind_from or finish + own_s > due + ROUNDING_S:
                last = due, finish
        return last
