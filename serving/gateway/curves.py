"""How long does a variant take on a pool's server, before anybody has asked it for anything?

Triton's configuration may carry a curve; otherwise a quick one is measured with made-up inputs when a variant appears, off the request
path. What fails leaves a modest default. Rule: this is where predictions begin, not what they are; every answer corrects them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any

import orjson

from serving.gateway.upstream import Answer, Lost
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service

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
MAX_MEASURE_S = 2.0  # for all of it; what takes longer shows in the first answers
MAX_BYTES = 8 * 2**20  # of made-up inputs
SIZES = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8} | {
    f"{sign}INT{bits}": bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)
}
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

    @property
    def max_rows(self) -> int:
        return max(1, self.max_batch)

    @property
    def usual_length(self) -> int:
        """Of a row of any length, such as a text's tokens: what was measured. 0 where all rows are alike, or a curve is given for all."""
        first = self.inputs[0] if self.inputs else None
        is_free = first is not None and first.datatype != "BYTES" and first.dims[:1] == (-1,)
        return UNKNOWN_SIZE if is_free and self.max_batch and self.curve is None else 0

    def service(self, curve: Curve | None = None) -> Service:
        return Service(curve or self.curve or DEFAULT, self.num_instances, self.max_rows)


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
    )


def _given(text: str | None) -> Curve | None:
    """The curve that a configuration carries: seconds for 1, 2, 3 … rows, of which the points that were measured are enough."""
    if not text:
        return None
    try:
        raw = orjson.loads(text)
        return Curve(tuple((rows, raw["seconds"][rows - 1]) for rows in raw["check_rows"]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None


async def measure(facts: Facts, ask: Ask) -> Curve | None:
    """A point for one row and some for more, by real inferences; None where the model cannot be asked with made-up inputs."""
    until = perf_counter() + MAX_MEASURE_S
    points: list[tuple[float, float]] = []
    for rows in sorted({min(facts.max_rows, batch) for batch in BATCHES}):
        if len(points) > 1 and Curve(tuple(points)).seconds(rows) > LONGEST_S:
            break
        seconds = await _fastest(facts, rows, ask, until)
        if seconds is None:
            break
        least_s = points[-1][1] if points else 0.0  # more rows take no less time, whatever the noise says
        points.append((rows, max(seconds, least_s)))
    return Curve(tuple(points)) if points else None


async def _fastest(facts: Facts, rows: int, ask: Ask, until: float) -> float | None:
    made = made_up(facts, rows)
    if made is None:
        return None
    body, length = made
    best: float | None = None
    for index in range(1 + NUM_TIMED):
        began = perf_counter()
        try:
            answer = await ask(body, length, until)
        except Lost:
            return best
        if answer.status != 200:
            return None
        took_s = perf_counter() - began
        is_last = perf_counter() + took_s > until  # the next one would not be done in time
        if (index > 0 or is_last) and (best is None or took_s < best):
            best = took_s
        if is_last:
            return best
    return best


def made_up(facts: Facts, rows: int) -> tuple[bytes, int] | None:
    """A v2 request of zeros and short strings, and the length of its JSON part; None for one that would be too large or is not known."""
    entries, blobs = [], []
    for given in facts.inputs:
        shape = [size if size >= 0 else UNKNOWN_SIZE for size in given.dims]
        if facts.max_batch:
            shape = [rows, *shape]
        num_elements = prod(shape)
        size = SIZES.get(given.datatype)
        if size is None and given.datatype != "BYTES":
            return None
        if num_elements * (size or len(STRING)) > MAX_BYTES:
            return None
        blob = STRING * num_elements if size is None else bytes(size * num_elements)
        blobs.append(blob)
        parameters = {"binary_data_size": len(blob)}
        entries.append({"name": given.name, "datatype": given.datatype, "shape": shape, "parameters": parameters})
    head = orjson.dumps({"inputs": entries, "parameters": {"binary_data_output": True}})
    return head + b"".join(blobs), len(head)
