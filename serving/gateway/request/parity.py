"""Do all servers, pools and variants give the same answers? A sample of requests is answered by another one too, and compared.

The client has its answer by then. The other one is asked only while it has nothing to do, one comparison at a time, and of a request no
more than its body is kept meanwhile. Where two answers differ, a third says who is wrong; where there is none, FP32 is what the others
must be like. What is off beyond its gate's limit, by evidence that alarms falsely once in a million comparisons at most, is quarantined:
it gets no requests, is told, and answered around. It is compared on, and back once it is shown to be right. Rule: the last that serves a
model is told and stays, because a wrong answer now and then is better than none; where nobody can say who is wrong, that is told alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from serving import errors
from serving.export.gates import likeness
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Answer, Lost
from serving.gateway.request.dispatch import InferRequest
from serving.measure.anytime import DriftTest
from serving.protocol.tensors import all_outputs
from serving.scheduling.routing import Variant

SURE = math.log(1e6)  # comparisons between two false quarantines of one variant on one server, at least
RIGHT_AGAIN = math.log(1e3)  # a false release costs what the next quarantine takes to see
MAX_BYTES = 4 * 2**20  # of a body that is sent twice: some 50 texts or 6 images; a guess, not measured
LONGEST_S = 1.0  # as predicted, that another server is busy for nobody; a guess, not measured
PATIENCE_S = 10.0  # then the answer is not waited for; a guess, not measured
FP32 = "fp32"

log = logging.getLogger("tandem")


@dataclass(frozen=True, slots=True)
class Place:
    """A variant on a server of a pool."""

    pool: str
    server: Server
    variant: Variant

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.pool, self.server.target.url, self.variant.name, self.variant.digest

    @property
    def is_reference(self) -> bool:
        """What gates compare the others with."""
        return self.variant.variant == FP32

    def __str__(self) -> str:
        return f"{self.variant.name} at {self.server.target.url} ({self.pool})"


@dataclass(slots=True)
class Record:
    """What comparisons said of a place. `right_again`: while it is quarantined."""

    place: Place
    drift: DriftTest
    right_again: DriftTest | None = None
    last: float = 0.0  # perf_counter; when it was compared
    is_suspect: bool = False  # its answers are off, and nobody else could answer


@dataclass(slots=True)
class Counts:
    """Of one (model, variant, pool): comparisons by how they ended."""

    alike: int = 0
    different: int = 0
    disputed: int = 0  # different, and nobody could say who is wrong


@dataclass(frozen=True, slots=True)
class _Sample:
    """A request that was answered: its body, the length of its JSON part, and who gave which outputs."""

    body: bytes
    length: int | None
    rows: float
    place: Place
    answer: Answer


class Parity:
    """`ratio`: of the requests, above 0."""

    def __init__(self, ratio: float, catalogue: Catalogue, candidates: Candidates) -> None:
        self._ratio = ratio
        self._catalogue = catalogue
        self._candidates = candidates
        self._left = self._gap()
        self._task: asyncio.Task[None] | None = None
        self.records: dict[tuple[str, str, str, str], Record] = {}
        self.counts: dict[tuple[str, str, str], Counts] = {}
        self.num_skipped = (
            0  # samples for which nobody else was idle, or that were too large, or came while one was compared
        )

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def takes(self) -> bool:
        """Whether the next one that was answered well is a sample."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._gap()
        return True

    def saw(self, request: InferRequest, pool: str, variant: Variant, server: Server, answer: Answer) -> None:
        """Of every sample."""
        size = sum(map(len, request.chunks))
        if not variant.task or (self._task is not None and not self._task.done()) or size > MAX_BYTES:
            self.num_skipped += 1
            return
        sample = _Sample(
            b"".join(request.chunks), request.header_length, request.rows, Place(pool, server, variant), answer
        )
        self._task = asyncio.get_running_loop().create_task(self._compare(sample))

    def _gap(self) -> int:
        """Requests until the next sample, by chance, so that no rhythm of clients' hides anything."""
        return 1 if self._ratio >= 1 else 1 + int(math.log(1 - random.random()) / math.log1p(-self._ratio))

    async def _compare(self, sample: _Sample) -> None:
        try:
            other = next(self._others(sample, {sample.place.key}), None)
            if other is None:
                self.num_skipped += 1
                return
            theirs = await self._ask(sample, other)
            if theirs is None:
                return
            ours = _outputs(sample.place, sample.answer)
            await self._weigh(sample, ours, other, theirs)
        except (errors.Internal, Lost):
            self.num_skipped += 1  # liveness and errors are looked after elsewhere
        except Exception:
            log.exception("comparing answers failed by a mistake of the gateway's own")

    def _others(self, sample: _Sample, without: set[tuple[str, str, str, str]]) -> Iterator[Place]:
        """Who else would answer it the same way and has nothing to do now, the one longest not compared first. Quarantined ones too."""
        mine = sample.place.variant
        found: list[tuple[float, int, Place]] = []
        for pool, servers in self._catalogue.pools.items():
            queue = self._candidates.queues[pool]
            if queue.num_waiting:
                continue
            for server in servers:
                if not server.alive or server.replica.num_in_flight:
                    continue
                for variant in server.snapshot.served.values():
                    if (variant.model, variant.version, variant.space) != (mine.model, mine.version, mine.space):
                        continue
                    place = Place(pool, server, variant)
                    if place.key not in without and self._is_short(sample, place):
                        record = self.records.get(place.key)
                        found.append((0.0 if record is None else record.last, len(found), place))
        return (place for _, _, place in sorted(found, key=lambda it: it[:2]))

    def _is_short(self, sample: _Sample, place: Place) -> bool:
        """As far as anybody knows."""
        if place.server.suspended.get(place.variant.name, 0.0) > perf_counter():
            return False
        try:
            candidate = self._candidates.of(place.pool, place.variant.name)
        except KeyError:
            return True
        takes = sample.rows <= self._candidates.max_rows(place.pool, place.variant.name)
        return takes and candidate.service.curve.seconds(max(1, int(sample.rows))) <= LONGEST_S

    async def _ask(self, sample: _Sample, place: Place) -> dict[str, NDArray[Any]] | None:
        """None where it gave no good answer, which is no difference: some variants take what others do not. Raises Lost, Internal."""
        answer = await place.server.infer(place.variant.name, sample.body, sample.length, perf_counter() + PATIENCE_S)
        if answer.status != 200:
            self.num_skipped += 1
            return None
        return _outputs(place, answer)

    async def _weigh(
        self, sample: _Sample, ours: dict[str, NDArray[Any]], other: Place, theirs: dict[str, NDArray[Any]]
    ) -> None:
        mine = sample.place
        found = _losses(mine, ours, theirs)
        if not found:  # whoever asked wanted no outputs
            self.num_skipped += 1
            return
        if _mean(found) <= _limit(mine, other):
            self._note(mine, _beyond(found, mine, other), "alike")
            self._note(other, _beyond(found, other, mine), "alike")
            return
        wrong, off = await self._wrong(sample, ours, other, theirs)
        if wrong is None:
            for place in (mine, other):
                self._count(place).disputed += 1
            log.warning("%s and %s answer differently, and nobody can say which is wrong", mine, other)
            return
        right = other if wrong is mine else mine
        self._note(right, [0.0] * len(found), "alike")
        self._note(wrong, off, "different")

    async def _wrong(
        self, sample: _Sample, ours: dict[str, NDArray[Any]], other: Place, theirs: dict[str, NDArray[Any]]
    ) -> tuple[Place | None, list[float]]:
        """Who of two is wrong, and how far off its rows are: the one that a third differs from; else the one that is not FP32.

        Two of one file round alike: they say nothing against FP32.
        """
        mine = sample.place
        thirds = self._others(sample, {mine.key, other.key})
        for third in sorted(thirds, key=lambda it: not it.is_reference):
            opinion = await self._ask(sample, third)
            if opinion is None:
                continue
            from_mine, from_other = _losses(mine, ours, opinion), _losses(mine, theirs, opinion)
            is_mine_off = _mean(from_mine) > _limit(mine, third)
            if is_mine_off == (_mean(from_other) > _limit(other, third)):
                continue
            off, wrong, right = (from_mine, mine, other) if is_mine_off else (from_other, other, mine)
            if wrong.is_reference and right.variant.digest == third.variant.digest and not right.is_reference:
                return None, []
            return wrong, off
        if mine.is_reference != other.is_reference:
            return (other if mine.is_reference else mine), _losses(mine, ours, theirs)
        return None, []

    # -- what is known of each place ----------------------------------------------------------------------------------

    def _note(self, place: Place, losses: list[float], outcome: str) -> None:
        count = self._count(place)
        setattr(count, outcome, getattr(count, outcome) + 1)
        record = self._record(place)
        value = [_mean(losses)]  # rows of a request cling together
        if record.right_again is not None:
            record.right_again.add(value)
            if record.right_again.evidence >= RIGHT_AGAIN:
                self._catalogue.release_quarantine(place.server, place.variant.name)
                self.records.pop(place.key, None)
            return
        record.drift.add(value)
        if record.drift.evidence < SURE:
            record.is_suspect = False
            return
        reason = (
            f"its answers are off by {record.drift.mean:.2%} on average over {record.drift.num} requests that others answered too, "
            f"more than {record.drift.limit:.2%}"
        )
        if self._catalogue.quarantine(place.server, place.variant.name, reason):
            record.right_again, record.is_suspect = DriftTest(record.drift.limit, above=False), False
        elif not record.is_suspect:
            record.is_suspect = True
            log.error("%s would be quarantined if anybody else served its model: %s", place, reason)

    def _record(self, place: Place) -> Record:
        record = self.records.get(place.key)
        if record is None:
            self._forget_others()
            limit = min(0.5, likeness.most(place.variant.task) + place.variant.max_loss)
            record = self.records[place.key] = Record(place, DriftTest(limit))
        if record.right_again is not None and place.variant.name not in place.server.quarantined:
            record = self.records[place.key] = Record(
                place, DriftTest(record.drift.limit)
            )  # it has another file by now
        record.last = perf_counter()
        return record

    def _forget_others(self) -> None:
        """Servers and files that are gone."""
        here = {server for servers in self._catalogue.pools.values() for server in servers}
        self.records = {
            key: it
            for key, it in self.records.items()
            if it.place.server in here
            and (now := it.place.server.snapshot.served.get(it.place.variant.name)) is not None
            and now.digest == it.place.variant.digest
        }

    def _count(self, place: Place) -> Counts:
        variant = place.variant
        return self.counts.setdefault((variant.model, variant.variant, place.pool), Counts())

    def told(self) -> dict[str, object]:
        """For the status."""
        return {
            "sample_ratio": self._ratio,
            "skipped": self.num_skipped,
            "places": [
                {
                    "pool": record.place.pool,
                    "url": record.place.server.target.url,
                    "name": record.place.variant.name,
                    "requests": record.drift.num,
                    "off_ratio": None if not record.drift.num else round(record.drift.mean, 6),
                    "limit_ratio": round(record.drift.limit, 6),
                    "state": _state(record),
                }
                for record in sorted(self.records.values(), key=lambda it: it.place.key)
            ],
        }


def _state(record: Record) -> str:
    if record.place.variant.name in record.place.server.quarantined:
        return "quarantined"
    return "suspect" if record.is_suspect else "compared"


def _outputs(place: Place, answer: Answer) -> dict[str, NDArray[Any]]:
    """[rows, …] each; of a model without batches one row. Raises Internal."""
    found = all_outputs(answer.body, answer.header_length)
    facts = place.server.snapshot.facts.get(place.variant.name)
    if facts is not None and facts.max_batch == 0:
        return {name: values[None] for name, values in found.items()}
    return found


def _losses(place: Place, ours: dict[str, NDArray[Any]], theirs: dict[str, NDArray[Any]]) -> list[float]:
    names = sorted(theirs)
    if names != sorted(ours):
        return [1.0]
    return likeness.losses(place.variant.task, [ours[name] for name in names], [theirs[name] for name in names])


def _limit(one: Place, other: Place) -> float:
    """That two variants may be apart: what gates allow, and what theirs found."""
    return likeness.most(one.variant.task) + one.variant.max_loss + other.variant.max_loss


def _beyond(found: list[float], place: Place, other: Place) -> list[float]:
    """Of what two are apart, what is not the other's rounding; FP32's is none of it where the other is not FP32."""
    if place.is_reference and not other.is_reference:
        return [0.0] * len(found)
    return [max(0.0, value - other.variant.max_loss) for value in found]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
