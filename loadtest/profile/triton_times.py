"""What Triton says of a request's time inside it: waiting, inputs, the net, outputs; and how a model is run.

From differences of `/v2/models/NAME/stats`, so that what was before does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.errors import CannotMeasure
from loadtest.target import Gateway
from serving.decisions.profile import Settings

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class TritonTimes:
    """Requests so far, and seconds of all of them in each of PARTS."""

    num_requests: int = 0
    seconds: tuple[float, ...] = (0.0,) * len(PARTS)

    def __add__(self, other: TritonTimes) -> TritonTimes:
        added = tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True))
        return TritonTimes(self.num_requests + other.num_requests, added)

    def since(self, before: TritonTimes) -> TritonTimes:
        left = tuple(a - b for a, b in zip(self.seconds, before.seconds, strict=True))
        return TritonTimes(self.num_requests - before.num_requests, left)

    @property
    def means_s(self) -> dict[str, float]:
        """Empty where nothing was counted."""
        if self.num_requests < 1:
            return {}
        return {f"{part}_s": seconds / self.num_requests for part, seconds in zip(PARTS, self.seconds, strict=True)}


def times_reader(url: str, name: str) -> Callable[[], TritonTimes]:
    """Asks a Triton for the times of a model."""
    triton = Gateway(url)

    def count() -> TritonTimes:
        return read_times(triton.get_json(f"/v2/models/{name}/stats"))

    return count


def read_times(answer: Any) -> TritonTimes:
    try:
        models = [model["inference_stats"] for model in answer["model_stats"]]
        num = sum(int(stats["success"]["count"]) for stats in models)
        return TritonTimes(num, tuple(sum(int(stats[part]["ns"]) for stats in models) / 1e9 for part in PARTS))
    except (TypeError, KeyError, ValueError):
        raise CannotMeasure("Triton's statistics of the model cannot be read") from None


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """How a Triton runs a model."""

    settings: Settings
    engine: str
    allow_spinning: bool
    device_name: str


def setup_of(config: Any) -> ModelSetup:
    """Raises CannotMeasure."""
    try:
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        delay_us = config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)
        return ModelSetup(
            settings=Settings(
                num_instances=sum(int(group["count"]) for group in config["instance_group"]),
                num_threads=int(parameters["intra_op_thread_count"]),
                max_batch_size=int(config["max_batch_size"]),
                queue_delay_us=int(delay_us),
            ),
            engine=parameters["tandem_engine"],
            allow_spinning=parameters["session.intra_op.allow_spinning"] == "1",
            device_name=parameters.get("tandem_device_name", "unknown"),
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        raise CannotMeasure("Triton's configuration of the model does not say how it runs") from None
