"""Which engine and variant is faster on this very processor? A quick contest of what no record and no cache knows.

The contest itself is `serving/export/speed`, in the Pythons of the engines that will serve; here is what is asked of it and
where its answer is kept. A failure costs the knowledge only: the variant counts as unmeasured, and FP32 serves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serving.decisions.engines import BASELINE, ONLY_ENGINE, PLAIN, EnginePython, here
from serving.errors import TandemError
from serving.local.devices import gpu_name
from serving.local.folders import cache_dir
from serving.local.venvs import Say
from serving.measure.machine import processor_key
from serving.repository import GATE_DATA_FILE, Speed, Variant

if TYPE_CHECKING:
    from serving.export.speed import Results

BATCH_SIZES = (1, 8, 32)  # one request, a small and a full dynamic batch
SECONDS = (
    1.0  # per batch size and entrant: tells a gain of a few per cent on a quiet machine, and a start can wait for it
)
MAX_SECONDS = 40.0  # per batch size: past two minutes in all, the start matters more (guess, not measured)

Key = tuple[str, str]  # variant, engine


@dataclass(frozen=True, slots=True)
class MeasurementSite:
    """Where a measurement holds: a speed measured elsewhere says nothing here. `engines` are the pool's that are installed."""

    pool: str
    processor: str  # its key, or the card's name
    engines: Mapping[str, EnginePython]
    num_threads: int

    @property
    def plain(self) -> str:
        return PLAIN[self.pool]

    @property
    def versions(self) -> dict[str, str]:
        return {name: engine.version for name, engine in self.engines.items()}

    def engines_of(self, variant: Variant) -> list[str]:
        """Those that may run this variant. Its answers were proven on the plain one and on those that its record names:
        another rounds otherwise, which is nothing for FP32 and may be much for INT8.
        """
        record = variant.record
        if only := ONLY_ENGINE.get((self.pool, record.variant)):
            return [engine for engine in self.engines if engine == only]
        proven = {self.plain, record.pools[self.pool].engine, *(speed.engine for speed in record.speed)}
        return [engine for engine in self.engines if record.variant == BASELINE or engine in proven]


def place_here(pool: str, engines: Mapping[str, EnginePython], num_threads: int) -> MeasurementSite:
    processor = processor_key() if pool == "cpu" else gpu_name() or "unknown card"
    return MeasurementSite(pool, processor, engines, num_threads)


def speeds(
    model: Mapping[str, Variant], place: MeasurementSite, *, may_measure: bool, say: Say
) -> dict[Key, tuple[Speed, ...]]:
    """Of one model's variants, on every engine that could run them: from the gate records, else from the cache, else
    measured now. What is not known is not there.
    """
    known = recorded(model.values(), place)
    wanted = [
        (name, engine) for name in model for engine in place.engines_of(model[name]) if (name, engine) not in known
    ]
    missing = []
    baseline = model.get(BASELINE)
    for key in wanted if baseline is not None else ():
        assert baseline is not None
        cached = _read(cache_file(model[key[0]], key[1], baseline, place))
        if cached is not None:
            known[key] = cached
        elif key != (BASELINE, place.plain):  # what all others are measured beside
            missing.append(key)
    if may_measure and missing and baseline is not None:
        known |= _measured(model, missing, place, say)
    return {key: rows for key, rows in known.items() if rows}


def recorded(variants: Iterable[Variant], place: MeasurementSite) -> dict[Key, tuple[Speed, ...]]:
    """What the gate records know of this place; the number of threads is not compared."""
    return {
        (variant.record.variant, engine): rows
        for variant in variants
        for engine, rows in here(variant.record.speed, processor=place.processor, versions=place.versions).items()
    }


def _measured(
    model: Mapping[str, Variant], missing: Sequence[Key], place: MeasurementSite, say: Say
) -> dict[Key, tuple[Speed, ...]]:
    baseline = model[BASELINE]
    names = ", ".join(f"{model[variant].name} on {engine}" for variant, engine in missing)
    say(f"timing {names} beside {baseline.name} on this processor ({place.processor}), once")
    try:
        found = _contest(model, missing, place)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:  # the last three: of the rows, by NumPy
        say(f"could not time {names}, which counts as unmeasured: {error}")
        return {}
    for (variant, engine), reason in found.left_out.items():
        say(f"could not time {model[variant].name} on {engine}, which counts as unmeasured: {reason}")
    rows = {key: found.speeds(*key) for key in missing}
    for key in missing:
        if rows[key] or (key in found.left_out and key not in found.crashed):
            _write(cache_file(model[key[0]], key[1], baseline, place), rows[key], say)
    return rows


def _contest(model: Mapping[str, Variant], missing: Sequence[Key], place: MeasurementSite) -> Results:
    """FP32 on the plain engine, and what is missing beside it, on the rows that FP32's gate ran on where they are kept."""
    from serving.export.speed import (
        Entrant,
        contest,
    )  # NumPy takes 0.1 s to import, and a start that knows all needs none

    baseline = model[BASELINE]
    sizes = [size for size in BATCH_SIZES if size <= max(1, baseline.record.max_batch_size)]
    rows = baseline.directory / GATE_DATA_FILE
    return contest(
        [
            Entrant(variant, engine, model[variant].model_path)
            for variant, engine in [(BASELINE, place.plain), *missing]
        ],
        engines=place.engines,
        batch_sizes=sizes,
        inputs=rows if rows.is_file() else None,
        num_threads=place.num_threads,
        seconds=SECONDS,
        max_seconds=MAX_SECONDS,
    )


def dtype(variant: Variant, engine: str, baseline: Variant | None, place: MeasurementSite, *, may_measure: bool) -> str:
    """Types that its products compute in here, as a profile of one run shows, which is remembered; empty where none was, or shows none.

    Of ONNX Runtime's own engine alone: others show no nodes, and a card is proven when its variant is exported.
    """
    file = cache_file(variant, engine, variant, place).with_suffix(".dtype")
    with contextlib.suppress(OSError):
        return file.read_text()
    record = variant.record
    rows_file = None if baseline is None else baseline.directory / GATE_DATA_FILE
    if (
        not may_measure
        or engine != "cpu"
        or rows_file is None
        or not rows_file.is_file()
        or len(list(variant.model_path.parent.iterdir())) > 1
    ):
        return ""
    from serving.export.speed.kernels import dtypes
    from serving.export.speed.process import profiled
    from serving.local.served_gate import some_rows

    try:
        rows = some_rows(rows_file, 1)
        inputs = {it.name: rows[it.name] if record.max_batch_size else rows[it.name][0] for it in record.inputs}
        found = dtypes(profiled(place.engines[engine], variant.model_path.read_bytes(), record.variant, inputs))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)
    except (TandemError, OSError, ValueError, KeyError, zipfile.BadZipFile):
        return ""
    return found


# -- the cache --------------------------------------------------------------------------------------------------------


def cache_file(variant: Variant, engine: str, baseline: Variant, place: MeasurementSite) -> Path:
    """Named by all that decides the answer. A variant's name counts too: BF16's file is FP32's."""
    versions = [place.versions.get(name) for name in (place.plain, engine)]
    what = [variant.digest, variant.record.variant, engine, baseline.digest]
    content = json.dumps([*what, place.processor, versions, place.num_threads])
    return cache_dir() / "speeds" / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.json"


def _read(file: Path) -> tuple[Speed, ...] | None:
    """Empty where the engine could not run it. A cache file that cannot be read is measured anew."""
    try:
        content = json.loads(file.read_text())
        return tuple(Speed(**row) for row in content["speeds"]) if content["version"] == 2 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, measured: Sequence[Speed], say: Say) -> None:
    fresh = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps({"version": 2, "speeds": [asdict(speed) for speed in measured]}, indent=1))
        fresh.replace(file)
    except OSError as error:
        say(f"could not remember the speeds in {file.parent}: {error.strerror}; they are measured again next time")
