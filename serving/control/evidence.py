"""What gateways saw of a rollout, as lines of a log that all of them read, so that all judge alike and a restart forgets nothing.

Each gateway adds a line for every block of time; each reads all lines in the log's order, and what several saw at a time is one block.
So whoever reads the log, now or later, comes to the same judgement (`decisions/rollout.py`). Where a log is kept is `stores.py`'s.
Rule: pure, and nothing follows from clocks, which differ between machines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from serving.control.document import ModelControl, Share
from serving.control.revisions import Revision
from serving.decisions.rollout import MAX_LOSS, Arm, Block, Losses

MAX_NUMBER = 2**53  # JSON's: beyond it numbers are not exact


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a log is about. `digest` is empty where nothing is compared any more.

    `revision`, `origin`: number and document of the revision that this is in force by.
    """

    model: str
    digest: str
    revision: int
    origin: str = ""

    def goes_on(self, began: str) -> bool:
        head = _head(began, self.origin)
        return bool(self.digest) and (head.digest, head.origin) == (self.digest, self.origin)

    def is_behind(self, began: str) -> bool:
        """Whether a log is of something that came later: numbers of another document say nothing, but when it was begun."""
        head = _head(began, self.origin)
        if head.origin != self.origin:
            return bool(self.origin) and head.origin > self.origin
        return not self.goes_on(began) and head.revision > self.revision

    def head(self, writer: str) -> str:
        """The first line of a new log. `writer` makes it another one than any before."""
        return json.dumps([self.digest, self.revision, writer, self.origin])


def comparison_of(model: str, of: ModelControl | None, revision: Revision) -> Comparison:
    """Of a model's part of the document; None: it compares nothing."""
    if of is None or of.rollout is None or of.rollout.step not in ("shadow", "canary"):
        return Comparison(model, "", revision.number, revision.origin)
    told = json.dumps(of.model_dump(mode="json", exclude=set(Share.model_fields)), sort_keys=True)
    return Comparison(model, sha256(told.encode()).hexdigest()[:16], revision.number, revision.origin)


def _head(began: str, of: str) -> Comparison:
    """`of`: the document that is taken for its own where it names none, as before they had names."""
    try:
        digest, revision, _, *origin = json.loads(began)
        return Comparison("", str(digest), int(revision), str(origin[0]) if origin else of)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return Comparison("", "", 0)


@dataclass(frozen=True, slots=True)
class Read:
    """Of a log: its first line, what came after a place in it, and the place after that."""

    began: str
    place: int
    lines: Sequence[str]
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """`number`: of the writer's, rising. One that was sent twice, because nobody said that it had come, is known by it."""

    writer: str
    number: int
    block: Block

    @property
    def line(self) -> str:
        arms = [_told(self.block.candidate), _told(self.block.primary)]
        losses = [[it.metric, it.replica, [round(value, 6) for value in it.values]] for it in self.block.losses]
        return json.dumps([self.writer, self.number, *arms, losses], separators=(",", ":"))


def read_line(line: str) -> Entry | None:
    """None for what is none: a log outlives versions of Tandem, and a writer that was killed."""
    try:
        writer, number, candidate, primary, losses = json.loads(line)
        known = [Losses(metric, values, name) for metric, name, values in losses if metric in MAX_LOSS]
        if not all(0 <= value <= 1 for it in known for value in it.values):
            return None
        return Entry(str(writer), int(number), Block(_arm(candidate), _arm(primary), known))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _told(arm: Arm) -> list[Any]:
    cost = None if arm.cost is None else float(f"{arm.cost:.6g}")
    return [arm.num, arm.num_failed, [round(it * 1e6) for it in arm.latencies_s], cost, arm.num_costed]  # microseconds


def _arm(told: list[Any]) -> Arm:
    num, num_failed, micros, cost, num_costed = told
    if not all(0 <= it < MAX_NUMBER for it in (num, *micros, cost or 0, num_costed or 0)):
        raise ValueError("no count, time or cost is so")  # one NaN, and a judge would never be sure again
    costed = (None, None) if cost is None else (float(cost), None if num_costed is None else float(num_costed))
    return Arm([it / 1e6 for it in micros], int(num), int(num_failed), *costed)


class Joined:
    """Makes one block of what several gateways saw at a time.

    It is whole once everybody has told who told of the block before, and when one tells again, because it waits for nobody. So does the
    first, of which nobody knows who will.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # writer -> number
        self._open: dict[str, Block] = {}
        self._before: frozenset[str] | None = None

    @property
    def num_writers(self) -> int:
        """Of the last block."""
        return len(self._before or "1")

    @property
    def num_seen(self) -> int:
        """Writers at any time."""
        return len(self._last)

    @property
    def open(self) -> Sequence[Block]:
        """What was told and is no whole block yet."""
        return list(self._open.values())

    def add(self, entry: Entry) -> list[Block]:
        """Those that are whole now."""
        if entry.number <= self._last.get(entry.writer, 0):
            return []
        self._last[entry.writer] = entry.number
        whole = [self._close()] if entry.writer in self._open else []
        self._open[entry.writer] = entry.block
        if self._before is not None and self._before <= self._open.keys():
            whole.append(self._close())
        return whole

    def _close(self) -> Block:
        blocks, self._before = list(self._open.values()), frozenset(self._open)
        self._open = {}
        if len(blocks) == 1:
            return blocks[0]
        candidate, primary = blocks[0].candidate, blocks[0].primary
        for block in blocks[1:]:
            candidate, primary = candidate + block.candidate, primary + block.primary
        return Block(candidate, primary, [losses for block in blocks for losses in block.losses])
