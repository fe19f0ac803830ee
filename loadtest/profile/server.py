"""One variant under one setting while it is profiled: how a Triton runs it, and what has been found of it so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from loadtest.errors import CannotMeasure
from loadtest.profile.ladder import Step, timings
from loadtest.profile.options import ProfileOptions
from loadtest.profile.selection import EMULATED, accuracy
from loadtest.sending.bodies import Body
from loadtest.target import Gateway
from serving.decisions.curves import read_curves
from serving.decisions.profile import (
    SHORT,
    LoadPoint,
    MaxRate,
    Phase,
    Rung,
    ServerProfile,
    Settings,
    Timing,
    tuning_options,
)
from serving.repository.layout import Variant
from serving.repository.triton_config import CUDA_PARAMETERS


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
                tuning=_tuning(config, parameters),
            ),
            engine=parameters["tandem_engine"],
            allow_spinning=parameters["session.intra_op.allow_spinning"] == "1",
            device_name=parameters.get("tandem_device_name", "unknown"),
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        raise CannotMeasure("Triton's configuration of the model does not say how it runs") from None


def _tuning(config: Any, parameters: Mapping[str, str]) -> tuple[str, ...]:
    """What Triton was told beside its own: buffers for batches, and options of a card that the variant does not say itself."""
    found = {name: parameters[name] for name in SHORT if name in parameters}
    for name, words in CUDA_PARAMETERS.items():
        if name in parameters:
            found[name] = words[int(parameters[name])] if words else parameters[name]
    blocks = config.get("optimization", {}).get("execution_accelerators", {}).get("gpu_execution_accelerator", [])
    for block in blocks:
        if block["name"] == "cuda":
            found |= {name: value for name, value in block["parameters"].items() if name != "use_tf32"}
    return tuple(f"{name}={value}" for name, value in found.items())


@dataclass(slots=True)
class Server:
    """What is known so far of one variant under one setting."""

    variant: Variant
    running: ModelSetup
    device: str
    steps: list[Step] = field(default_factory=list)
    load: list[LoadPoint] = field(default_factory=list)
    max_rates: list[MaxRate] = field(default_factory=list)
    cold_start: tuple[Phase, ...] = ()
    by_file: tuple[Timing, ...] = ()  # of an emulated device: what its engine alone takes

    @property
    def has_ladder(self) -> bool:
        return any(step.rounds for step in self.steps)

    def profile(self) -> ServerProfile:
        return ServerProfile(
            variant=self.variant.record.variant,
            engine=self.running.engine,
            device=self.device,
            device_name=self.running.device_name,
            digest=self.variant.digest,
            settings=self.running.settings,
            ladder=timings(self.steps, self.variant.name, self.by_file),
            load=tuple(self.load),
            max_rates=tuple(self.max_rates),
            cold_start=self.cold_start,
            joules_per_request=at_the_highest_rate(self.load, self.max_rates),
            accuracy=accuracy(self.variant),
            is_untrained=self.variant.record.is_untrained,
        )

    def median_s(self, rung: Rung, batch_size: int) -> float | None:
        return next(
            (t.latency_p50_s for t in self.profile().ladder if (t.rung, t.batch_size) == (rung, batch_size)), None
        )

    def guessed_s(self, batch_size: int) -> float:
        """Through the gateway, of a batch size that is not in the ladder: as if rows took their time one after the other.

        Raises CannotMeasure where nothing came through the gateway.
        """
        known = [timing for timing in self.profile().ladder if timing.rung == "gateway_binary"]
        if not known:
            raise CannotMeasure("no request of it came through the gateway")
        nearest = min(known, key=lambda timing: abs(timing.batch_size - batch_size))
        return nearest.latency_p50_s * max(1.0, batch_size / nearest.batch_size)


def server_of(variant: Variant, options: ProfileOptions, gateway: Gateway, triton_url: str, body: Body) -> Server | str:
    """Or why it cannot be measured here. Raises CannotMeasure."""
    config = Gateway(triton_url).get_json(f"/v2/models/{variant.name}/config")
    if config is None:
        return f"this machine's {options.pool} pool does not serve it"
    running = setup_of(config)
    is_limited = running.settings.max_batch_size < variant.record.max_batch_size
    running = replace(running, settings=replace(running.settings, is_batch_limited=is_limited))
    if (why := gateway.refusal(options.model, variant.record.variant, options.pool, body)) is not None:
        return why
    return Server(variant, running, _device(config, options.pool), by_file=_by_file(variant, options))


def _device(config: Any, pool: str) -> str:
    emulated = config["parameters"].get("tandem_emulated")
    return f"{EMULATED}-{emulated['string_value']}" if emulated else pool


def _by_file(variant: Variant, options: ProfileOptions) -> tuple[Timing, ...]:
    """The engine alone, as the file of an emulated device has it; no request was sent."""
    curve = read_curves(options.emulate).of(variant) if options.emulate else None
    if curve is None:
        return ()
    return tuple(Timing("in_process", size, 0, curve.seconds(size), None, None, None) for size in options.batch_sizes)


def as_profiled(server: ServerProfile) -> list[str]:
    """Options of `tandem triton` that run it so again. On a card threads do not compute."""
    how = server.settings
    threads = [] if server.device == "gpu" else ["--threads", str(how.num_threads)]
    batch = ["--max-batch", str(how.max_batch_size)] if how.is_batch_limited else []
    own = ["--instances", str(how.num_instances), *threads, *batch, "--queue-delay-us", str(how.queue_delay_us)]
    return [*own, *tuning_options(how.tuning)]


def at_the_highest_rate(load: Sequence[LoadPoint], max_rates: Sequence[MaxRate]) -> float | None:
    """Where requests of several sizes were sent, there is no such thing as the joules of a request."""
    if len({most.batch_size for most in max_rates}) != 1:
        return None
    highest_rps = max(most.rate_rps for most in max_rates)
    told = [p.joules_per_request for p in load if p.is_met and p.rate_rps == highest_rps and p.joules_per_request]
    return median(told) if told else None
