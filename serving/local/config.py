"""The settings with which `tandem up` starts its gateway: the addresses of the pools here, and the user's tandem.yaml.

In that file a pool without `urls` is one that is started here, and `device` may be left out. Checking is `serving/settings.py`'s, before
anything is started. Rule: nothing in that file is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serving.documents.reader import Document, read_document
from serving.local.instances import TritonOverrides
from serving.local.pool_options import Pool
from serving.settings import (
    OF_A_TRITON,
    GatewaySettings,
    PoolSettings,
    require_nothing_started,
    settings_of,
)

PLACE = "http://127.0.0.1:1"  # of a Triton that is not started yet: settings are checked before


class UpConfig:
    """A tandem.yaml, or nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path("tandem.yaml")
        self._document = (
            Document("tandem.yaml", {"version": 1}) if path is None else read_document(path, "the configuration")
        )
        if not isinstance(self._document.data, dict):
            raise self._document.wrong((), "expected a mapping with version and pools")
        pools = self._document.data.get("pools") or {}
        if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
            raise self._document.wrong(("pools",), "expected a mapping of names to the settings of each pool")
        self._pools = pools

    def values(self, given: Sequence[str], emulate: Iterable[str]) -> list[str]:
        """`--pool` values: those that were given, else the pools of the file."""
        emulated = {value.partition("=")[0] for value in emulate}
        values = list(given)
        if not given:
            for name, pool in self._pools.items():
                urls = pool.get("urls") or []
                urls = urls if isinstance(urls, list) else [urls]
                values += [f"{name}={url}" for url in urls] or ([] if name in emulated else [name])
        return values

    def settings(self, pools: Sequence[Pool], here: Mapping[str, str] | None = None) -> GatewaySettings:
        """`here`: the addresses of Tritons that are started here. Raises UserError for what cannot be."""
        names = {pool.name for pool in pools}
        for name in self._pools:
            if name not in names:
                raise self._document.wrong(
                    ("pools", name),
                    f"it is not served here, where --pool names {', '.join(sorted(names))}; add --pool {name}, or leave --pool away",
                )
        described = {}
        for pool in pools:
            of_file = self._pools.get(pool.name, {})
            if of_file.get("device", pool.device) != pool.device:
                raise self._document.wrong(
                    ("pools", pool.name), f"its device here is '{pool.device}', not '{of_file['device']}'"
                )
            started = [(here or {}).get(pool.name, PLACE)] if pool.is_local else []
            described[pool.name] = {**of_file, "urls": [*started, *pool.urls], "device": pool.device}
        settings = settings_of(replace(self._document, data={**self._document.data, "pools": described}))
        for pool in pools:
            if not pool.is_local:
                why = "its Tritons run already, by its urls; `tandem triton` takes them as options"
                require_nothing_started(pool.name, settings.pools[pool.name], self._path, why)
        return settings


def overrides_of(settings: GatewaySettings, pool: str) -> TritonOverrides:
    """How the Triton of this pool is to be started."""
    return TritonOverrides(**{name: getattr(settings.pools[pool], name) for name in OF_A_TRITON})


def for_gateway(settings: GatewaySettings) -> GatewaySettings:
    """Without what is for the Tritons, which a gateway does not start."""
    pools = {}
    for name, pool in settings.pools.items():
        said = pool.model_dump(mode="json", exclude_unset=True, exclude=set(OF_A_TRITON))
        pools[name] = PoolSettings.model_validate(said)
    return settings.model_copy(update={"pools": pools})
