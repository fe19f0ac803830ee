"""The judge of a rollout, who hears all gateways of a control document: each adds what it saw to one log, and reads what all did.

While the log is away it judges what this gateway sees alone, so that what is broken is taken back all the same; that is added to the log
once it is there again, and counted once. Rule: nothing here runs on the event loop but what says so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from serving.control.evidence import Comparison, Entry, Joined, read_line
from serving.control.stores import Store
from serving.decisions.rollout import MIN_BLOCK, Block, Judge
from serving.errors import TandemError

NUM_ALIKE = Store.num_alike  # blocks of one length; those that follow are twice as long
MAX_PENDING = 3600  # lines that wait for the log to be there again: an hour; older ones are forgotten
# Of a log that is read from its beginning: parts at once, so that others may look at the judge, and what lies between them, so that
# requests have the processor.
MAX_PARTS, PAUSE_S = 10, 0.2

log = logging.getLogger("tandem")


class SharedJudge:
    """`make`: a judge, by the metric of answers that are compared; empty while none is known. `store` None: it hears nobody else."""

    def __init__(self, comparison: Comparison, store: Store | None, make: Callable[[str], Judge]) -> None:
        self.judge = make("")
        self.problem = ""  # why it hears this gateway alone now
        self._comparison = comparison
        self._store = store
        self._make = make
        self._metric = ""
        self._writer = secrets.token_hex(4)
        self._number = 0
        self._pending: deque[str] = deque(maxlen=MAX_PENDING)
        self._joined = Joined()
        self._began, self._place = "", 0  # of the log, as it was read last

    @property
    def metric(self) -> str:
        """By which answers are compared; empty where none was yet."""
        return self._metric

    @property
    def num_gateways(self) -> int:
        """That have seen anything of it, over restarts."""
        return self._joined.num_seen

    @property
    def block_s(self) -> float:
        """How long the next block lasts."""
        store = self._store
        each_s, num_alike = (1.0, NUM_ALIKE) if store is None else (store.block_s, store.num_alike)
        return float(each_s * 2 ** (self.judge.num_blocks // num_alike))

    @property
    def num_latencies(self) -> int:
        """That the next block should have of an arm: many gateways tell fewer each."""
        most = 100 if self._store is None else self._store.num_latencies
        return max(MIN_BLOCK, most // self._joined.num_writers)

    async def is_urgent(self, block: Block) -> bool:
        """Whether it would prove the candidate worse, so that nobody is to wait for the end of a long one. On the event loop."""
        metric = self._metric or _metric(block)
        judge = self.judge if metric == self._metric else self._make(metric)
        blocks = [_compared_by(metric, it) for it in (*self._joined.open, block)]
        return await asyncio.to_thread(judge.would_be_sure, blocks)

    async def hear(self, block: Block | None) -> None:
        """What this gateway saw, and then what the others did. On the event loop."""
        entry = None
        if block is not None:
            self._number += 1
            entry = Entry(self._writer, self._number, block)
            self._pending.append(entry.line)
        for _ in range(MAX_PARTS):
            if not await asyncio.to_thread(self._exchange, entry):
                return
            await asyncio.sleep(PAUSE_S)

    def _exchange(self, entry: Entry | None) -> bool:
        """Whether there is more to read."""
        if self._store is None:
            if entry is not None:
                self._take(entry)
            return False
        lines = list(self._pending)
        try:
            read = self._store.exchange(self._comparison, self._began, self._place, lines)
        except TandemError as error:
            if not self.problem:
                log.warning("%s is judged by this gateway alone: %s", self._comparison.model, error)
            self.problem = str(error)
            if entry is not None:
                self._take(entry)
            return False
        self.problem = ""
        for _ in lines:
            self._pending.popleft()
        if self._began and read.began != self._began:
            self._metric, self.judge, self._joined = "", self._make(""), Joined()
        self._began, self._place = read.began, read.place
        for line in read.lines:
            if (found := read_line(line)) is not None:
                self._take(found)
        return read.has_more

    def _take(self, entry: Entry) -> None:
        for block in self._joined.add(entry):
            metric = _metric(block)
            if metric and not self._metric:  # a judge knows from its beginning what it compares
                self._metric, self.judge = metric, self._make(metric)
            self.judge.observe(_compared_by(self._metric, block))


def _metric(block: Block) -> str:
    return next((losses.metric for losses in block.losses), "")


def _compared_by(metric: str, block: Block) -> Block:
    return replace(block, losses=[it for it in block.losses if it.metric == metric])
