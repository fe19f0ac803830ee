"""What is to be simulated, from a file: two pools with curves, prices and cold starts, and an objective.

Every name is checked and everything is required that has no harmless default; a number has its unit in its name. Rule: what a scenario says
is an assumption; nothing of it is taken for measured, so every result is a what-if.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from serving.documents.reader import read_document
from serving.errors import UserError
from serving.planning.simulate.setting import ColdStart, PoolSetting, Setting
from serving.planning.wake import WakeRules
from serving.replay.curves import ALL, read_curves
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.settings import nearest

TOP: dict[str, Any] = {
    "version": None,
    "objective_s": None,
    "pools": None,
    "rows": 1.0,
    "cooldown_s": 300.0,
    "wake": {},
}
POOL: dict[str, Any] = {
    "curve": None,
    "price_per_hour": None,
    "replicas": None,
    "cold_start_s": None,
    "instances": 1,
    "max_batch": 1,
    "noise_ratio": 0.0,
}
CURVE_FILE: dict[str, Any] = {"file": None, "variant": ALL}
WAKE = ("max_load_ratio", "patience_s", "hold_s", "cpu_hold_s", "handover_s", "max_wakes_per_hour")
POOLS = ("cpu", "gpu")


def read_scenario(path: Path) -> Setting:
    """Raises UserError with the file, the place in it and the way out."""
    top = _filled(read_document(path, "the scenario"), TOP, f"{path}")
    if top["version"] != 1 or isinstance(top["version"], bool):
        raise UserError(f"{path}: version {top['version']!r} is not known here; this reads version 1")
    pools = _filled(top["pools"], dict.fromkeys(POOLS), f"{path}: pools")
    try:
        wake = _filled(top["wake"], dict.fromkeys(WAKE, 0), f"{path}: wake") and top["wake"]
        return Setting(
            cpu=_pool("cpu", pools["cpu"], f"{path}: pools.cpu", path.parent),
            gpu=_pool("gpu", pools["gpu"], f"{path}: pools.gpu", path.parent),
            objective_s=_number(top["objective_s"], f"{path}: objective_s"),
            rows=_number(top["rows"], f"{path}: rows"),
            cooldown_s=_number(top["cooldown_s"], f"{path}: cooldown_s"),
            wake=WakeRules(
                **{  # type: ignore[arg-type]
                    key: (_whole if key == "max_wakes_per_hour" else _number)(value, f"{path}: wake.{key}")
                    for key, value in wake.items()
                }
            ),
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _pool(name: str, raw: Any, where: str, folder: Path) -> PoolSetting:
    pool = _filled(raw, POOL, where)
    least, most = (
        _whole(value, f"{where}.replicas") for value in _list(pool["replicas"], 2, f"{where}.replicas", "[1, 8]")
    )
    cold = [
        _number(value, f"{where}.cold_start_s")
        for value in _list(pool["cold_start_s"], 3, f"{where}.cold_start_s", "[240, 300, 420]")
    ]
    try:
        service = Service(
            _curve(pool["curve"], f"{where}.curve", folder),
            _whole(pool["instances"], f"{where}.instances"),
            _whole(pool["max_batch"], f"{where}.max_batch"),
        )
        made = PoolSetting(
            name,
            service,
            _number(pool["price_per_hour"], f"{where}.price_per_hour"),
            least,
            most,
            ColdStart(*cold),
            noise_ratio=_number(pool["noise_ratio"], f"{where}.noise_ratio"),
        )
        made.supply  # noqa: B018  (checks itself)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return made


def _curve(raw: Any, where: str, folder: Path) -> Curve:
    """Points, or a file of them beside the scenario."""
    if isinstance(raw, dict):
        of_file = _filled(raw, CURVE_FILE, where)
        for key, value in of_file.items():
            if not isinstance(value, str):
                raise UserError(f"{where}.{key}: {value!r} is no text")
        try:
            return read_curves(folder / of_file["file"]).named(of_file["variant"])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    if not isinstance(raw, list) or not all(isinstance(point, list) and len(point) == 2 for point in raw):
        raise UserError(
            f"{where} must be a list of [rows, seconds], such as [[1, 0.005], [32, 0.010]], or {{file: …, variant: …}}"
        )
    return Curve(tuple((_number(rows, where), _number(seconds, where)) for rows, seconds in raw))


def _filled(raw: Any, known: Mapping[str, Any], where: str) -> dict[str, Any]:
    """With defaults; None stands for what must be given."""
    if not isinstance(raw, dict):
        raise UserError(f"{where}: expected a mapping with {', '.join(known)}")
    for key in raw:
        if key not in known:
            raise UserError(f"{where}: unknown key '{key}'{nearest(str(key), known)}")
    for key, default in known.items():
        if default is None and raw.get(key) is None:
            raise UserError(f"{where}: '{key}' is missing")
    return {**known, **raw}


def _list(raw: Any, length: int, where: str, example: str) -> list[Any]:
    if not isinstance(raw, list) or len(raw) != length:
        raise UserError(f"{where} must be a list of {length} numbers, such as {example}")
    return raw


def _number(raw: Any, where: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not _is_finite(raw):
        raise UserError(f"{where}: {raw!r} is no number (YAML reads 5e-3 as text: write 0.005)")
    return raw


def _is_finite(number: float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _whole(raw: Any, where: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise UserError(f"{where}: {raw!r} is no whole number")
    return raw
