"""Which pools does `tandem up` serve from, and whose Tritons are they? Reads `--pool` values; starts nothing.

`cpu` and `gpu` are started here, `cpu=http://HOST:8000` is a Triton that runs already. Without any: cpu, and gpu where a
card is found. A pool's name is its device kind, because the gateway checks that every instance in it has that kind; but
names that begin with `emulated` are free. Those pools follow a file (`--emulate NAME=FILE`), and are never there unasked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.settings import EMULATED, NAME

KINDS = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class Pool:
    """`urls` are of Tritons that run already; `is_local` says that one is started here as well, which follows `curves` if given."""

    name: str
    is_local: bool
    urls: tuple[str, ...]
    curves: Path | None = None

    @property
    def device(self) -> str:
        return EMULATED if self.name.startswith(EMULATED) else self.name


def read_pools(values: Iterable[str], *, has_gpu: bool, emulate: Iterable[str] = ()) -> list[Pool]:
    """In the order in which they were first named, those of `emulate` (NAME=FILE) first and, without `values`, alone.

    Raises UserError for a name or an address that cannot be.
    """
    pools = {pool.name: pool for pool in _emulated(emulate)}
    for value in list(values) or ([] if pools else KINDS if has_gpu else KINDS[:1]):
        name, has_url, url = value.partition("=")
        if name.startswith(EMULATED) and NAME.fullmatch(name):
            if not has_url and name not in pools:
                raise UserError(f"--pool {value}: say whose times it follows: --emulate {name}=FILE")
        elif name not in KINDS:
            raise UserError(f"--pool {value}: there is no pool '{name}'{nearest(name, KINDS)}")
        before = pools.get(name, Pool(name, is_local=False, urls=()))
        if has_url:
            pools[name] = replace(before, urls=(*before.urls, _address(value, url)))
        else:
            pools[name] = replace(before, is_local=True)
    return list(pools.values())


def _emulated(values: Iterable[str]) -> Iterable[Pool]:
    seen = set()
    for value in values:
        name, _, file = value.partition("=")
        require_emulated(name, f"--emulate {value}")
        if not file:
            raise UserError(f"--emulate {value}: '{value}' is not of the form NAME=FILE")
        if name in seen:
            raise UserError(f"--emulate {value}: the pool {name} is given twice")
        seen.add(name)
        yield Pool(name, is_local=True, urls=(), curves=Path(file).absolute())


def require_emulated(pool: str, option: str) -> None:
    """Raises UserError where this may not be the name of an emulated pool."""
    if not pool.startswith(EMULATED) or not NAME.fullmatch(pool):
        raise UserError(
            f"{option}: the name of an emulated pool begins with '{EMULATED}', so that nobody takes what it shows for measured: "
            f"{EMULATED}-gpu"
        )


def _address(value: str, url: str) -> str:
    parts = urlsplit(url)
    try:
        is_good = parts.scheme == "http" and bool(parts.hostname) and parts.path in ("", "/") and not parts.query
        port = parts.port or 8000  # Triton's own default
    except ValueError:
        is_good, port = False, 0
    if not is_good:
        raise UserError(f"--pool {value}: '{url}' is not of the form http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"http://{host}:{port}"
