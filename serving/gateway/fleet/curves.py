"""How long does a variant take on a pool's server, before anybody has asked it for anything?

Triton's configuration may carry a curve; otherwise a quick one is measured with made-up inputs when a variant appears, off the request
path. What fails leaves a modest default until it is tried again (`candidates.py`). Rules: this is where predictions begin, not what
they are; every answer corrects them. The first inference of a size is never counted: it loads libraries, and may take seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod
from time import perf_counter
from typing import Any, NamedTuple

import orjson

from serving.gateway.fleet.upstream import Answer, Lost
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Full, Service

DEFAULT = Curve(
    ((1, 0.005),)
)  # a small vision or text model on one core; a guess, which answers mend within 1 to 80 ms
UNKNOWN_SIZE = 16  # for a dimension of any length: a short sentence; a guess, not measured
BATCHES = (
    1,
    8,
    64,
)  # measured, as far as the model takes them: alone, what a row more costs, and what a GPU makes of many
LONGEST_S = 0.1  # what is likely to take longer is not run beside requests that wait; a guess, not measured
NUM_TIMED = 3  # after one that is not counted; the fastest counts, because others only add
MAX_MEASURE_S = 2.0  # for all of it, but for what is not counted and one of each size; a guess, not measured
PATIENCE_S = 30.0  # with one inference: the first on a GPU may take seconds; a guess, not measured
MAX_BYTES = 48 * 2**20  # of made-up inputs: 64 images of 3x224x224 are 37 MiB, and Triton takes 64 MiB
SIZES = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8} | {
    f"{sign}INT{bits}": bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)
}
# Backends that compute a graph and nothing else: Triton hands them a request's parameters and they drop them in silence.
NO_PARAMETERS = frozenset({"onnxruntime", "tensorrt", "pytorch", "tensorflow", "openvino", "fil", "emulated"})
# A curve is wrong where executions take less than this part of it, and so much less; guesses, not measured.
MUCH_LESS, MIN_LESS_S = 0.7, 0.006
MIN_EXECUTIONS = 3  # that tell; a guess, not measured
WAY_S = (
    0.002  # to the server and back: it is in what is measured, and not in what a server tells; a guess, not measured
)
STRING = b"\x01\x00\x00\x00a"  # as the binary extension writes one: its length, then its bytes

Ask = Callable[[bytes, int, float], Awaitable[Answer]]  # body, length of its JSON part, until when (perf_counter)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model: Triton's datatype without TYPE_, and its dimensions without the batch; -1 is any."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a configuration says that decides how long things take. `max_batch` 0: no batch dimension; `curve` None: it says none."""

    num_instances: int
    max_batch: int
    inputs: tuple[Input, ...] = ()
    curve: Curve | None = None
    binary_only: frozenset[str] = frozenset()  # outputs that JSON cannot hold
    max_elements: int | None = None  # of all inputs of the largest request; None where they may have any number
    takes_parameters: bool = False  # of a request, beside those that Triton itself reads
    is_kept: bool = False  # `tandem triton` loaded it, and looks after it
    gathers: bool = False  # an instance that is idle waits for fuller batches

    @property
    def max_rows(self) -> int:
        return max(1, self.max_batch)

    @property
    def usual_length(self) -> int:
        """Of a row of any length, such as a text's tokens: what was measured. 0 where all rows are alike, or a curve is given for all."""
        first = self.inputs[0] if self.inputs else None
        is_free = first is not None and first.datatype != "BYTES" and first.dims[:1] == (-1,)
        return UNKNOWN_SIZE if is_free and self.max_batch and self.curve is None else 0

    @property
    def row_bytes(self) -> float:
        """Of a row in binary, of all inputs together; infinite where rows may have any size."""
        if self.max_elements is None:
            return inf
        return max(1.0, sum(prod(given.dims) * SIZES.get(given.datatype, inf) for given in self.inputs))

    def service(self, curve: Curve | None = None, model: str = "") -> Service:
        """Of a variant of `model`, by this curve, else the configuration's. Unmeasured batching counts as full batches being the best."""
        used = curve or self.curve or DEFAULT
        if self.curve is not None or self._shows_batching(used):
            return Service(used, self.num_instances, self.max_rows, model=model, gathers=self.gathers)
        seconds = used.seconds(self.max_rows)
        full = Full(self.max_rows, self.max_rows / seconds, 2 * seconds, model, self.gathers)
        return Service(used, self.num_instances, self.max_rows, known=full)

    def _shows_batching(self, curve: Curve) -> bool:
        """Up to the largest batch, or to one that was left out because it would take long."""
        rows = curve.points[-1][0]
        return rows >= min(self.max_rows, BATCHES[-1]) or 1 < rows < self.most_made_up

    @property
    def most_made_up(self) -> int:
        """Rows of the largest made-up inputs; 0 where not even one can be made."""
        return min(self.max_rows, *(most_rows(given) for given in self.inputs)) if self.inputs else self.max_rows


def read_facts(config: dict[str, Any]) -> Facts:
    """From Triton's JSON of a configuration."""
    groups = config.get("instance_group", [])
    inputs = (
        Input(
            entry["name"],
            {"TYPE_STRING": "BYTES"}.get(entry["data_type"], str(entry["data_type"]).removeprefix("TYPE_")),
            tuple(int(size) for size in entry.get("dims", ())),  # Triton writes int64 as text
        )
        for entry in config.get("input", [])
        if not entry.get("optional", False)
    )
    return Facts(
        num_instances=max(1, sum(int(g.get("count", 1)) * max(1, len(g.get("gpus", ()))) for g in groups)),
        max_batch=int(config.get("max_batch_size", 0)),
        inputs=tuple(inputs),
        curve=_given(config.get("parameters", {}).get("tandem_emulated_curve", {}).get("string_value")),
        max_elements=_most_elements(config),
        takes_parameters=str(config.get("backend") or config.get("platform", "")).split("_")[0] not in NO_PARAMETERS,
        is_kept="tandem_load" in config.get("parameters", {}),
        gathers=int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)) > 0,
        binary_only=frozenset(
            entry["name"] for entry in config.get("output", []) if entry["data_type"] in ("TYPE_FP16", "TYPE_BF16")
        ),
    )


def _most_elements(config: dict[str, Any]) -> int | None:
    sizes = [[int(size) for size in entry.get("dims", ())] for entry in config.get("input", [])]
    is_free = any(entry.get("optional") or entry["data_type"] == "TYPE_STRING" for entry in config.get("input", []))
    if not sizes or is_free or any(size < 0 for dims in sizes for size in dims):
        return None
    return max(1, int(config.get("max_batch_size", 0))) * sum(map(prod, sizes))


def _given(text: str | None) -> Curve | None:
    """The curve that a configuration carries: seconds for 1, 2, 3 … rows, of which the points that were measured are enough."""
    if not text:
        return None
    try:
        raw = orjson.loads(text)
        return Curve(tuple((rows, raw["seconds"][rows - 1]) for rows in raw["check_rows"]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def mended(old: Curve, took: Mapping[int, tuple[int, float]]) -> Curve | None:
    """Of a curve that was measured beside others' requests, and has their waiting in it: what executions really took, where that is much
    less; larger ones than were seen as many times less. None: it may stay. `took`: by rows, how many there were, and their seconds.
    """
    num = sum(num for num, _ in took.values())
    took_s, expected_s = sum(s for _, s in took.values()), sum(old.seconds(rows) * n for rows, (n, _) in took.items())
    if num < MIN_EXECUTIONS or took_s >= MUCH_LESS * expected_s or expected_s - took_s < MIN_LESS_S * num:
        return None
    # Fewer rows take no longer than more; from the largest down, because whoever else computes only adds.
    each_s = accumulate((took[rows][1] / took[rows][0] for rows in sorted(took, reverse=True)), min)
    seen = [(rows, one_s + WAY_S) for rows, one_s in zip(sorted(took, reverse=True), each_s, strict=True)][::-1]
    most, most_s = seen[-1]
    larger = [(rows, max(most_s, s * took_s / expected_s)) for rows, s in old.points if rows > most]
    return Curve((*seen, *larger))


class Measurement(NamedTuple):
    """`curve` is None where nothing came of it; `is_whole`: it did not break off, so that another time would say no more."""

    curve: Curve | None
    is_whole: bool


async def measure(facts: Facts, ask: Ask, clock: Callable[[], float] = perf_counter) -> Measurement:
    """A point for one row and some for more, by real inferences. `clock`: as `perf_counter`, by which `ask` is told until when."""
    points: list[tuple[float, float]] = []
    until = clock() + MAX_MEASURE_S
    for rows in sorted({min(facts.most_made_up, batch) for batch in BATCHES}):
        if points and Curve(tuple(points)).seconds(rows) > (LONGEST_S if len(points) > 1 else MAX_MEASURE_S):
            break
        seconds = await _fastest(facts, rows, ask, until, clock)
        if seconds is None:
            return Measurement(Curve(tuple(points)) if points else None, is_whole=False)
        least_s = points[-1][1] if points else 0.0  # more rows take no less time, whatever the noise says
        points.append((rows, max(seconds, least_s)))
    return Measurement(Curve(tuple(points)), is_whole=True)


async def _fastest(facts: Facts, rows: int, ask: Ask, until: float, clock: Callable[[], float]) -> float | None:
    """Of some, and of one at least, after one that is not counted. None where one got no good answer."""
    made = await asyncio.to_thread(made_up, facts, rows)  # copies of many megabytes
    if made is None:
        return None
    body, length = made
    best = inf
    for index in range(1 + NUM_TIMED):
        began = clock()
        try:
            answer = await ask(body, length, began + PATIENCE_S)
        except Lost:
            return best if best < inf else None
        if answer.status != 200:
            return None
        took_s = clock() - began
        if index > 0:
            best = min(best, took_s)
            if clock() + took_s > until:
                break
    return best


def most_rows(given: Input) -> int:
    """Rows of it that can be made up."""
    size = SIZES.get(given.datatype, len(STRING) if given.datatype == "BYTES" else 0)
    num_elements = prod(size if size >= 0 else UNKNOWN_SIZE for size in given.dims)
    return MAX_BYTES // max(1, num_elements * size) if size else 0


def made_up(facts: Facts, rows: int) -> tuple[bytes, int] | None:
    """A v2 request of zeros and short strings, and the length of its JSON part; None for one that would be too large or is not known."""
    if not 0 < rows <= facts.most_made_up:
        return None
    entries, blobs = [], []
    for given in facts.inputs:
        shape = [size if size >= 0 else UNKNOWN_SIZE for size in given.dims]
        if facts.max_batch:
            shape = [rows, *shape]
        num_elements = prod(shape)
        size = SIZES.get(given.datatype)
        blob = STRING * num_elements if size is None else bytes(size * num_elements)
        blobs.append(blob)
        parameters = {"binary_data_size": len(blob)}
        entries.append({"name": given.name, "datatype": given.datatype, "shape": shape, "parameters": parameters})
    head = orjson.dumps({"inputs": entries, "parameters": {"binary_data_output": True}})
    return b"".join((head, *blobs)), len(head)
