"""What is to be simulated, from a file: two pools with curves, prices and cold starts, and an objective.

Every name is checked and everything is required that has no harmless default; a number has its unit in its name. Rule: what a scenario says
is an assumption; nothing of it is taken for measured, so every result is a what-if.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.decisions.files.curves import ALL, Points, read_curves
from serving.decisions.simulate.setting import ColdStart, PoolSetting, Setting
from serving.decisions.wake import WAKE_RULES, WakeRules
from serving.documents.reader import read_document
from serving.errors import UserError
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service


@dataclass(frozen=True, slots=True)
class _CurveFile:
    """Beside the scenario."""

    file: str
    variant: str = ALL


@dataclass(frozen=True, slots=True)
class _Pool:
    curve: Points | _CurveFile
    price_per_hour: float
    replicas: tuple[int, int]  # fewest, most
    cold_start_s: tuple[float, float, float]  # least, usual, most
    instances: int = 1
    max_batch: int = 1
    noise_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class _Pools:
    cpu: _Pool
    gpu: _Pool


@dataclass(frozen=True, slots=True)
class _Scenario:
    version: Literal[1]
    objective_s: float
    pools: _Pools
    rows: float = 1.0
    cooldown_s: float = 300.0
    wake: WakeRules = WAKE_RULES


def read_scenario(path: Path) -> Setting:
    """Raises UserError with the file, the place in it and the way out."""
    document = read_document(path, "the scenario")
    read = document.values(_Scenario)
    pools = {}
    for name, pool in (("cpu", read.pools.cpu), ("gpu", read.pools.gpu)):
        try:
            pools[name] = _setting(name, pool, path.parent)
        except ValueError as error:
            raise document.wrong(("pools", name), str(error)) from None
        except UserError as error:
            raise document.wrong(("pools", name, "curve"), str(error)) from None
    try:
        return Setting(
            pools["cpu"],
            pools["gpu"],
            objective_s=read.objective_s,
            rows=read.rows,
            cooldown_s=read.cooldown_s,
            wake=read.wake,
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _setting(name: str, pool: _Pool, folder: Path) -> PoolSetting:
    """Raises ValueError for what cannot be, UserError for a file of curves."""
    least, most = pool.replicas
    curve = pool.curve
    setting = PoolSetting(
        name,
        Service(
            read_curves(folder / curve.file).named(curve.variant) if isinstance(curve, _CurveFile) else Curve(curve),
            pool.instances,
            pool.max_batch,
        ),
        pool.price_per_hour,
        least,
        most,
        ColdStart(*pool.cold_start_s),
        noise_ratio=pool.noise_ratio,
    )
    setting.supply  # noqa: B018  (checks itself)
    return setting
