"""Which pools does `tandem up` serve from, and whose Tritons are they? Reads `--pool` values; starts nothing.

`cpu` and `gpu` are started here, `cpu=http://HOST:8000` is a Triton that runs already. Without any: cpu, and gpu where a
card is found. A pool's name is its device kind, because the gateway checks that every instance in it has that kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from serving.errors import UserError

KINDS = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class Pool:
    """`urls` are of Tritons that run already; `is_local` says that one is started here as well."""

    name: str
    is_local: bool
    urls: tuple[str, ...]


def read_pools(values: Iterable[str], *, has_gpu: bool) -> list[Pool]:
    """In the order in which they were first named. Raises UserError for a name or an address that cannot be."""
    pools: dict[str, Pool] = {}
    for value in list(values) or (KINDS if has_gpu else KINDS[:1]):
        name, has_url, url = value.partition("=")
        if name not in KINDS:
            near = difflib.get_close_matches(name, KINDS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "pools are: cpu, gpu"
            raise UserError(f"--pool {value}: there is no pool '{name}'; {hint}")
        before = pools.get(name, Pool(name, is_local=False, urls=()))
        if has_url:
            pools[name] = Pool(name, before.is_local, (*before.urls, _address(value, url)))
        else:
            pools[name] = Pool(name, is_local=True, urls=before.urls)
    return list(pools.values())


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
