"""The options of `tandem profile`: words of a command line become values, and an error says in one line what is wrong with one.

Nothing here looks at a repository or a machine.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from serving.cuda_options import cuda_options
from serving.decisions.plan.command import seconds
from serving.decisions.profile import SHORT, tuning_options, tuning_words
from serving.errors import UserError

Encoding = Literal["binary", "json"]
SHAPE = re.compile(
    r"([1-9][0-9]{0,2})[x×]([1-9][0-9]{0,2})(?:/batch=(?P<batch>[1-9][0-9]{0,4}))?(?:/delay=(?P<delay>[0-9]{1,8})us)?"
    r"(?P<tuning>(?:/(?!batch=|delay=)[a-z][a-z0-9_]*=[A-Za-z0-9+]+)*)"
)
MAX_OBJECTIVE_S = 60.0  # beyond it a search would take hours


@dataclass(frozen=True, slots=True)
class Pace:
    """How long what takes. The default takes about four minutes for two variants, `--quick` 90 s on two cores."""

    num_rounds: int = 7  # of the ladder
    slice_s: float = 0.25  # of each rung in a round
    ladder_s: float = 60.0  # after which no further round begins, once there are three
    run_s: float = 4.0  # of an open-loop run, measured
    warmup_s: float = 1.0
    num_repeats: int = 3  # estimates of the highest rate
    precision_ratio: float = 1.06  # a rate that is met over the next one that is not
    max_runs: int = 12  # of a search
    cold_starts: int = 3


QUICK = Pace(
    num_rounds=3,
    slice_s=0.1,
    ladder_s=15.0,
    run_s=2.0,
    warmup_s=0.5,
    num_repeats=1,
    precision_ratio=1.25,
    max_runs=7,
    cold_starts=1,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How Triton is to run the model, as `--settings` says it; None: as it is served without."""

    num_instances: int
    num_threads: int
    max_batch_size: int | None = None
    queue_delay_us: int | None = None
    tuning: tuple[str, ...] = ()  # NAME=VALUE, as in a profile

    @property
    def words(self) -> str:
        """`1x2/batch=8/delay=500us/buckets=auto/prefer_nhwc=1`"""
        batch = "" if self.max_batch_size is None else f"/batch={self.max_batch_size}"
        delay = "" if self.queue_delay_us is None else f"/delay={self.queue_delay_us}us"
        return f"{self.num_instances}x{self.num_threads}{batch}{delay}{tuning_words(self.tuning)}"

    @property
    def triton_options(self) -> list[str]:
        batch = [] if self.max_batch_size is None else ["--max-batch", str(self.max_batch_size)]
        delay = [] if self.queue_delay_us is None else ["--queue-delay-us", str(self.queue_delay_us)]
        return [
            "--instances",
            str(self.num_instances),
            "--threads",
            str(self.num_threads),
            *batch,
            *delay,
            *tuning_options(self.tuning),
        ]


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Empty tuples and None: the default, which `measure.py` chooses by what it finds."""

    model: str
    model_repository: Path | None = None
    variants: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    objectives_s: tuple[float, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 8)
    rate_batch_sizes: tuple[int, ...] = ()  # of the search; default: the smallest of the above
    settings: tuple[Shape, ...] = ()
    data: str | None = None
    encoding: Encoding = "binary"  # of the search
    pool: str = "cpu"
    emulate: Path | None = None
    is_quick: bool = False
    seconds: float | None = None  # of each open-loop run
    has_search: bool = True
    has_cold_start: bool = True
    output: Path | None = None
    as_json: bool = False

    @property
    def pace(self) -> Pace:
        pace = QUICK if self.is_quick else Pace()
        return pace if self.seconds is None else replace(pace, run_s=self.seconds)

    @property
    def command(self) -> str:
        """What to type to have it again."""
        words: list[str] = ["tandem", "profile", self.model]
        for name, value in (
            ("--model-repository", self.model_repository),
            ("--p99", ",".join(f"{one:g}s" for one in self.objectives_s)),
            ("--batch-size", ",".join(map(str, self.batch_sizes)) if self.batch_sizes != (1, 8) else ""),
            ("--rate-batch-size", ",".join(map(str, self.rate_batch_sizes))),
            ("--settings", ",".join(one.words for one in self.settings)),
            ("--data", self.data),
            ("--encoding", self.encoding if self.encoding != "binary" else ""),
            ("--emulate", f"{self.pool}={self.emulate}" if self.emulate else ""),
            ("--pool", self.pool if self.pool != "cpu" and self.emulate is None else ""),
            ("--seconds", self.seconds),
        ):
            words += [name, str(value)] if value not in (None, "") else []
        for variant in self.variants:
            words += ["--variant", variant]
        for engine in self.engines:
            words += ["--engine", engine]
        flags = (
            ("--quick", self.is_quick),
            ("--no-search", not self.has_search),
            ("--no-cold-start", not self.has_cold_start),
        )
        return shlex.join([*words, *(flag for flag, is_on in flags if is_on)])


def times_s(text: str, option: str) -> tuple[float, ...]:
    """`20ms,50ms`, each with its unit. In rising order, each once. Raises UserError."""
    return tuple(sorted({seconds(word, option, MAX_OBJECTIVE_S) for word in text.split(",")}))


def whole_numbers(text: str, option: str, most: int) -> tuple[int, ...]:
    """`1,8`, in rising order, each once. Raises UserError."""
    words = [word.strip() for word in text.split(",")]
    if bad := [word for word in words if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= most]:
        raise UserError(f"{option} {text}: {bad[0]!r} is no whole number from 1 to {most}")
    return tuple(sorted({int(word) for word in words}))


def shapes(text: str, option: str) -> tuple[Shape, ...]:
    """`1x2,2x1/batch=8/delay=500us/buckets=auto/prefer_nhwc=1`: instances × threads of each, largest batch, wait for fuller ones, buffers
    for batches (`buckets=1+8`, `lengths=32+128`), options of a card. Raises UserError, for an unknown one with the nearest.
    """
    found = []
    for word in text.split(","):
        match = SHAPE.fullmatch(word.strip())
        if match is None:
            raise UserError(
                f"{option} {text}: {word.strip()!r} is not INSTANCESxTHREADS, such as 1x2, 2x1/batch=8 or 1x2/delay=500us"
            )
        batch, delay = (None if match[name] is None else int(match[name]) for name in ("batch", "delay"))
        found.append(Shape(int(match[1]), int(match[2]), batch, delay, _tuning(match["tuning"], option)))
    return tuple(dict.fromkeys(found))


def _tuning(text: str, option: str) -> tuple[str, ...]:
    """`/buckets=1+8/prefer_nhwc=1` as NAME=VALUE. Raises UserError."""
    parts = dict(part.split("=", 1) for part in text.split("/")[1:])
    buffers = [f"{name}={parts.pop(short).replace('+', ',')}" for name, short in SHORT.items() if short in parts]
    card = cuda_options((f"{name}={value}" for name, value in parts.items()), option)
    return (*buffers, *(f"{name}={value}" for name, value in card))


def emulation(text: str, option: str) -> tuple[str, Path]:
    """`emulated-gpu=FILE`. Raises UserError."""
    name, equals, file = text.partition("=")
    if not equals or not name or not file:
        raise UserError(f"{option} {text}: want NAME=FILE, such as emulated-gpu=t4.yaml")
    return name, Path(file)
