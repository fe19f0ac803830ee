"""What was measured of a model on a machine: the ladder from the bare engine to the gateway, load against latency, cold starts.

A profile holds one server each for every (variant, engine, settings) that was tried. It says what was seen and nothing that follows from
it but what can be read off: the most a server carries in time. Rule: what was not measured is None or not there, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from serving.documents.reader import read_document
from serving.measure.machine import Machine

# To whoever reads one from a file: an unknown word is an error, and so is a number that is none.
STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}

# `emulated`: times follow a file. `published`: somebody else's figures, whose source the note names; they were not measured by Tandem.
Provenance = Literal["measured", "emulated", "published"]
# From the engine alone to what a client lives through; each has all that the one before has, and one thing more (JSON beside binary).
Rung = Literal["in_process", "triton_grpc", "triton_http_binary", "triton_http_json", "gateway_binary", "gateway_json"]
RUNGS: tuple[Rung, ...] = get_args(Rung)
MAX_J = 1e9  # a request that takes more is a mistake in a file: a day of a large card


BUCKETS, LENGTHS = "batch_buckets", "bucket_lengths"
SHORT = {BUCKETS: "buckets", LENGTHS: "lengths"}


def tuning_words(tuning: Sequence[str]) -> str:
    """`/buckets=1+8/prefer_nhwc=1`: what separates settings is no comma inside them."""
    pairs = (word.partition("=") for word in tuning)
    return "".join(f"/{SHORT.get(name, name)}={value.replace(',', '+')}" for name, _, value in pairs)


def tuning_options(tuning: Sequence[str]) -> list[str]:
    """As options of `tandem triton`."""
    flags: list[str] = []
    for word in tuning:
        name, _, value = word.partition("=")
        flags += [f"--{name.replace('_', '-')}", value] if name in SHORT else ["--cuda-option", word]
    return flags


@dataclass(frozen=True, slots=True)
class Settings:
    """How Triton runs the variant. Threads are an instance's; on a card they do not compute."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    num_instances: int = 1
    num_threads: int = 1
    max_batch_size: int = 1
    queue_delay_us: int = 0
    is_batch_limited: bool = False  # below what the model was exported for
    tuning: tuple[
        str, ...
    ] = ()  # NAME=VALUE: batch_buckets, bucket_lengths, and options of a card's provider; empty: its own

    @property
    def tuning_words(self) -> str:
        """`/buckets=1+8/prefer_nhwc=1`, as `--settings` of `tandem profile` takes them."""
        return tuning_words(self.tuning)

    def __post_init__(self) -> None:
        if min(self.num_instances, self.num_threads) < 1 or min(self.max_batch_size, self.queue_delay_us) < 0:
            raise ValueError("instances and threads are 1 or more, batches and delays not negative")


@dataclass(frozen=True, slots=True)
class Timing:
    """One request at a time on one rung. `low_s` and `high_s` are the 95 % interval of the median over rounds, None for one round.

    The four below are Triton's own means of one request over the same rounds; None where there is no Triton.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rung: Rung
    batch_size: int  # rows of a request
    num_requests: int
    latency_p50_s: float
    latency_p99_s: float | None  # None: too few requests to tell
    low_s: float | None
    high_s: float | None
    num_bytes: int | None = None  # of a request's body
    queue_s: float | None = None
    compute_input_s: float | None = None
    compute_infer_s: float | None = None
    compute_output_s: float | None = None


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """An open-loop run through the gateway. Latencies count from when a request was due; None: too few answers to tell."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rate_rps: float  # requests due per second
    batch_size: int
    num_due: int
    throughput_rps: float  # good answers per second
    latency_p50_s: float | None
    latency_p99_s: float | None
    num_late_or_lost: int  # of those due: not answered well within the objective of the search that asked
    objective_s: float
    is_met: bool  # at most 1 % were late or lost, and the queue did not grow to the end
    void: str | None = None  # why it does not count
    joules_per_request: float | None = None  # of a good answer; None: nothing measures them
    is_real_time: bool | None = None  # whether the load generator went before all other work; None: it did not say


@dataclass(frozen=True, slots=True)
class MaxRate:
    """The most requests per second that a server answered with p99 within the objective, by search; an interval over its repeats.

    `rate_rps` 0: not even the lowest rate that was tried. `is_bounded_by_generator`: the server could perhaps carry more.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    objective_s: float
    batch_size: int
    rate_rps: float
    low_rps: float | None
    high_rps: float | None
    runs: tuple[float, ...] = ()
    is_bounded_by_generator: bool = False

    def __post_init__(self) -> None:
        if self.objective_s <= 0 or self.batch_size < 1:
            raise ValueError("an objective is above 0, and a batch has a row")
        if min(self.rate_rps, *self.runs, self.low_rps or 0.0, self.high_rps or 0.0) < 0:
            raise ValueError("rates are not negative")


@dataclass(frozen=True, slots=True)
class Phase:
    """Of a cold start, in their order: `process`, `load`, `warm_up`, `first_answer`; a cluster adds `node` and `image` before."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    seconds: float

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError(f"{self.name}: no phase ends before it begins, as one of {self.seconds} s would")


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """One Triton server with one variant on one engine."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    variant: str
    engine: str
    device: str  # cpu, gpu, emulated-…
    device_name: str
    digest: str | None  # of model.onnx
    settings: Settings
    ladder: tuple[Timing, ...] = ()
    load: tuple[LoadPoint, ...] = ()
    max_rates: tuple[MaxRate, ...] = ()
    cold_start: tuple[Phase, ...] = ()
    joules_per_request: float | None = None
    accuracy: float | None = None  # as the gate recorded it; None where it judges otherwise
    is_untrained: bool = False  # random weights: its speed is real, its answers mean nothing

    def __post_init__(self) -> None:
        if self.joules_per_request is not None and not 0 < self.joules_per_request < MAX_J:
            raise ValueError(f"joules_per_request is above 0 and under {MAX_J:g}, not {self.joules_per_request}")

    @property
    def cold_start_s(self) -> float | None:
        return sum(phase.seconds for phase in self.cold_start) if self.cold_start else None

    @property
    def label(self) -> str:
        """`int8 on openvino, 1 × 2`, and what else Triton was told."""
        how = self.settings
        batch = f", batches of {how.max_batch_size} at most" if how.is_batch_limited else ""
        delay = f", waiting {how.queue_delay_us} µs for fuller ones" if how.queue_delay_us else ""
        tuning = f", {' '.join(how.tuning)}" if how.tuning else ""
        return f"{self.variant} on {self.engine}, {how.num_instances} × {how.num_threads}{batch}{delay}{tuning}"

    def max_rate_rps(self, objective_s: float, batch_size: int = 1) -> MaxRate | None:
        """As measured for this objective, or for a stricter one, which is then a lower bound; None where neither was.

        Not in time at a stricter one bounds nothing.
        """
        known = [m for m in self.max_rates if m.batch_size == batch_size and m.objective_s <= objective_s * (1 + 1e-9)]
        telling = [m for m in known if m.rate_rps > 0 or m.objective_s >= objective_s * (1 - 1e-9)]
        return max(telling, key=lambda m: m.objective_s, default=None)


@dataclass(frozen=True, slots=True)
class Profile:
    """`date` is ISO 8601 with offset. `versions`: name -> version of what took part."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    model: str
    provenance: Provenance
    date: str
    command: str
    machine: Machine
    servers: tuple[ServerProfile, ...]
    versions: dict[str, str] = field(default_factory=dict)
    data: str | None = None  # what was sent
    note: str | None = None  # what a reader must know, such as the source of published figures
    others_ratio: float | None = None  # of the cores, taken by other work meanwhile
    version: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.others_ratio is not None and self.others_ratio < 0:
            raise ValueError(f"others_ratio: other work took {self.others_ratio} of the cores")
        if self.version != 1 or isinstance(self.version, bool):
            raise ValueError(f"version {self.version!r} is not known here; this reads version 1")


def provenance_of(profile: Profile, server: ServerProfile) -> Provenance:
    """Whose figures a server's are: those of an emulated one are a file's, whoever measured the rest."""
    return "emulated" if server.device.startswith("emulated") else profile.provenance


def read_profile(path: Path) -> Profile:
    """Raises UserError with the file, the place in it and what is wrong there."""
    document = read_document(path, "the profile")
    document.version(1, "a profile", "`tandem profile` writes one")
    return document.values(Profile)


def write_profile(path: Path, profile: Profile) -> None:
    """Replaces the file in one step."""
    text = json.dumps(asdict(profile), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    fresh = path.with_name(path.name + ".part")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
