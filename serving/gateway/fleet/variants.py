"""Reads a variant from Triton's configuration of a model, and decides whether requests may go to it.

A variant is routable when its configuration carries the parameters that a gate wrote, the gate passed for this pool, and every instance
runs on the pool's kind of device. Asking Triton is not here (`server.py`).
"""

from __future__ import annotations

import re
from typing import Any

from serving.protocol.triton_reason import plain_reason
from serving.repository import PRECISIONS
from serving.repository.triton_config import EARLIER
from serving.scheduling.routing import LoadFailure, Variant
from serving.settings import EMULATED

ROUTABLE = ("passed", "not_useful", "ungated", "untrained: speed only")  # what `tandem_gate` may say
UNMEASURED = "unmeasured"  # of types that nothing has shown yet
KINDS = {"cpu": "KIND_CPU", "gpu": "KIND_GPU", EMULATED: "KIND_CPU"}


# What keeps a model of these kinds from being served at all, gate or no gate.
SEQUENCE = "it keeps a state between the requests of a sequence"
DECOUPLED = "it answers a request any number of times (decoupled)"
ENSEMBLE = "it is an ensemble of other models"
KINDS_NOT_SERVED = (SEQUENCE, DECOUPLED, ENSEMBLE)


class NotRoutable(Exception):
    """Why a model that Triton serves gets no request from here."""


def read_variant(config: dict[str, Any], device: str) -> Variant:
    """A variant from Triton's JSON of its configuration, for a pool of `device` (cpu, gpu or emulated). Raises NotRoutable."""
    _require_kind(config)
    parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}
    missing = [
        key for key in ("tandem_model", "tandem_variant", "tandem_digest", "tandem_gate") if key not in parameters
    ]
    if missing:
        raise NotRoutable("it has no gate record (its configuration lacks the tandem_ parameters)")
    gate = parameters["tandem_gate"]
    if gate not in ROUTABLE:
        raise NotRoutable(f"its gate says '{gate}' for this pool")
    groups = config.get("instance_group", [])
    kinds = {group.get("kind") for group in groups}
    if kinds != {KINDS[device]}:
        raise NotRoutable(
            f"it has instances of {', '.join(sorted(map(str, kinds))) or 'no kind'}, not {KINDS[device]} alone"
        )
    if device == "gpu" and not all(group.get("gpus") for group in groups):
        raise NotRoutable("it has a GPU instance on no GPU")
    emulated = _printable(parameters.get("tandem_emulated", ""))
    if "tandem_emulated" in parameters and device != EMULATED:
        raise NotRoutable(f"it emulates {emulated}, which only a pool with device '{EMULATED}' may serve")
    if not emulated and device == EMULATED:
        raise NotRoutable(f"it runs as fast as it can, in a pool whose device is '{EMULATED}'")
    label = _printable(parameters.get("tandem_device_name", ""))
    device = f"{EMULATED}-{emulated}" if emulated else device
    return Variant(
        name=config["name"],
        model=parameters["tandem_model"],
        variant=parameters["tandem_variant"],
        engine=parameters.get("tandem_engine", "unknown"),
        digest=parameters["tandem_digest"],
        device=f'{device}; name="{label}"' if label else device,
        gate=gate,
        dtype=_printable(parameters.get("tandem_dtype", "")) or UNMEASURED,
        version=max(_versions(config), key=int, default="1"),
        versions=frozenset(_versions(config)),
        earlier=_earlier(parameters),
        space=parameters.get("tandem_space", ""),
        speed_ratio=_ratio(parameters.get("tandem_speed_ratio")),
        task=parameters.get("tandem_task", ""),
        max_loss=_ratio(parameters.get("tandem_loss")) or 0.0,
    )


def trial_of(config: dict[str, Any]) -> tuple[str, str] | None:
    """(Triton's name, version) of what answers the rows of its gate under another name before it is served; None of all else."""
    name = config.get("parameters", {}).get("tandem_trial_of", {}).get("string_value")
    return (str(name), max(_versions(config), key=int, default="1")) if name else None


def read_failures(index: list[dict[str, Any]]) -> dict[str, LoadFailure]:
    """By Triton's name, from its index: what it was told to load and could not, in the newest version that failed.

    An older version that is not READY is one that a newer took the place of. What did not load has no configuration that names its model:
    here alone the public name is what stands before the precision, in which no public name ends. Other names are not Tandem's.
    """
    failures: dict[str, LoadFailure] = {}
    for row in sorted(index, key=lambda row: int(row.get("version") or 0)):
        name, state = row["name"], row.get("state")
        model, _, precision = name.rpartition("-")
        if state == "READY":
            failures.pop(name, None)
        elif (
            state == "UNAVAILABLE" and row.get("reason", "unloaded") != "unloaded" and model and precision in PRECISIONS
        ):
            reason = plain_reason(row["reason"])
            failures[name] = LoadFailure(name, model, precision, str(row.get("version") or 1), reason)
    return failures


def _require_kind(config: dict[str, Any]) -> None:
    """Each request has to be answered once and by itself: only then may it go to any server, and a second time. Raises NotRoutable."""
    if "sequence_batching" in config:
        raise NotRoutable(SEQUENCE)
    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise NotRoutable(DECOUPLED)
    if "ensemble_scheduling" in config or config.get("platform") == "ensemble":
        raise NotRoutable(ENSEMBLE)


def _printable(text: str) -> str:
    """What may be part of a header's value."""
    return re.sub(r'[^ -~]|["\\]', "", text)


def _versions(config: dict[str, Any]) -> list[str]:
    """Those that Triton was told to serve; none where it was told none, as for a model of one version."""
    return [str(each) for each in config.get("version_policy", {}).get("specific", {}).get("versions", [])]


def _earlier(parameters: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """(version, digest) of those that are served beside the newest."""
    told = ((key.removeprefix(EARLIER), digest) for key, digest in parameters.items() if key.startswith(EARLIER))
    return tuple(sorted((version, digest) for version, digest in told if version.isdecimal()))


def _ratio(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # "unmeasured"
