"""Which variant is faster on this very processor? A quick measurement where the gate record has none for it.

Runs `serving/export/speed.py` in Triton's environment, with the ONNX Runtime that will serve, and keeps the answer in the
cache. Not here: the measuring itself. A failure costs the knowledge only: the variant counts as unmeasured, and FP32 serves.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import serving
from serving.local.environments import Environment, Say
from serving.local.places import cache_dir
from serving.local.processes import leashed
from serving.repository import Speed, Variant, processor_key

SCRIPT = Path(serving.__file__).parent / "export" / "speed.py"
BATCH_SIZES = (1, 8, 32)  # one request, a small and a full dynamic batch
SECONDS = 1.0  # per batch size: tells a gain of a few per cent on a quiet machine, and a start can wait for it
TIMEOUT_S = 120.0  # a big model needs longer than asked for; past this the start matters more (guess, not measured)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a measurement holds: a speed measured elsewhere says nothing here."""

    processor: str
    engine: str
    engine_version: str
    num_threads: int


def place_here(engine: str, engine_version: str, num_threads: int) -> Place:
    return Place(processor_key(), engine, engine_version, num_threads)


def recorded(variant: Variant, place: Place) -> tuple[Speed, ...]:
    """What the gate record knows of this place; the number of threads is not compared."""
    key = (place.processor, place.engine, place.engine_version)
    return tuple(s for s in variant.record.speed if (s.processor, s.engine, s.engine_version) == key)


def speeds(environment: Environment, variant: Variant, baseline: Variant, place: Place, say: Say) -> tuple[Speed, ...]:
    """From the gate record, else from the cache, else measured now; empty where that is not possible."""
    if known := recorded(variant, place):
        return known
    file = cache_file(variant.digest, baseline.digest, place)
    if (cached := _read(file)) is not None:
        return cached
    say(f"measuring {variant.name} beside {baseline.name} on this processor ({place.processor}), once")
    try:
        rows = _measure(environment, variant, baseline, place)
        measured = tuple(as_speed(row, place) for row in rows)
        _write(file, measured)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        say(f"could not measure {variant.name}, so it counts as unmeasured: {_last_line(error)}")
        return ()
    return measured


def cache_file(digest: str, baseline_digest: str, place: Place) -> Path:
    content = json.dumps([digest, baseline_digest, asdict(place)], sort_keys=True)
    return cache_dir() / "speeds" / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.json"


def _measure(environment: Environment, variant: Variant, baseline: Variant, place: Place) -> list[dict[str, float]]:
    most = variant.record.max_batch_size
    sizes = [size for size in BATCH_SIZES if size <= max(1, most)]
    command = [
        *(str(environment.python), "-I", str(SCRIPT)),
        *(str(baseline.model_path), str(variant.model_path)),
        *("--batch-sizes", ",".join(map(str, sizes))),
        *("--threads", str(place.num_threads), "--seconds", str(SECONDS), "--json"),
    ]
    variables = {"ORT_DISABLE_TELEMETRY": "1", **os.environ}
    done = subprocess.run(
        leashed(command), capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=variables
    )
    rows = json.loads(done.stdout)
    if not isinstance(rows, list):
        raise ValueError(f"{SCRIPT.name} printed no list")
    return rows


def as_speed(row: dict[str, float], place: Place) -> Speed:
    return Speed(
        processor=place.processor,
        engine=place.engine,
        engine_version=place.engine_version,
        baseline_engine="cpu",
        batch_size=int(row["batch_size"]),
        num_threads=place.num_threads,
        ratio=row["ratio"],
        ratio_low=row["ratio_low"],
        ratio_high=row["ratio_high"],
        latency_s=row["latency_s"],
        fp32_latency_s=row["fp32_latency_s"],
        measured=datetime.date.today().isoformat(),
    )


def _read(file: Path) -> tuple[Speed, ...] | None:
    """A cache file that cannot be read is measured anew."""
    try:
        content = json.loads(file.read_text())
        return tuple(Speed(**row) for row in content["speeds"]) if content["version"] == 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, measured: Sequence[Speed]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({"version": 1, "speeds": [asdict(speed) for speed in measured]}, indent=1))
    fresh.replace(file)


def _last_line(error: Exception) -> str:
    words = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = [line.strip() for line in (words or "").splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
