"""Which pools does `tandem up` serve from, whose Tritons are they, and how are they set? Reads `--pool` and tandem.yaml; starts nothing.

`cpu` and `gpu` are started here, `cpu=http://HOST:8000` is a Triton that runs already. Without any: cpu, and gpu where a
card is found. A pool's name is its device kind, because the gateway checks that every instance in it has that kind; but
names that begin with `emulated` are free. Those pools follow a file (`--emulate NAME=FILE`), and are never there unasked.
In a tandem.yaml a pool without `urls` is started here, and `device` may be left out; the rest is `serving/settings.py`'s to check.
Rule: nothing in that file is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from serving.documents.nearest import nearest
from serving.documents.reader import Document, read_document
from serving.errors import UserError
from serving.settings import (
    EMULATED,
    NAME,
    OF_A_TRITON,
    GatewaySettings,
    PoolSettings,
    require_nothing_started,
    settings_of,
)

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


# -- a tandem.yaml -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TritonOverrides:
    """What is asked of a Triton by hand, for every model that it serves; None is as without it. Threads are an instance's.

    `batch_buckets`: "auto", or sizes as "1,8"; `bucket_lengths` as "32,128". `cuda`: (name, value) of provider options.
    """

    instances: int | None = None
    threads: int | None = None
    queue_delay_us: int | None = None
    max_batch: int | None = None
    batch_buckets: str | None = None
    bucket_lengths: str | None = None
    cuda: tuple[tuple[str, str], ...] = ()
    versions: int | None = None  # of each model, the newest ones
    max_memory_mb: int | None = None  # of all its processes, past which it wants a new start

    def __post_init__(self) -> None:
        if self.captures_graphs and self.batch_buckets is None:
            raise UserError(
                "enable_cuda_graph needs batch_buckets, because a graph replays batches of one size: batch_buckets: auto"
            )
        if self.bucket_lengths is not None and self.batch_buckets is None:
            raise UserError("bucket_lengths are of batch_buckets, and there are none: batch_buckets: auto")

    @property
    def captures_graphs(self) -> bool:
        return dict(self.cuda).get(GRAPHS) == "1"

    def flags(self) -> list[str]:
        """As options of `tandem triton`."""
        given = [(name, value) for name, value in asdict(self).items() if value is not None and name != "cuda"]
        given += [("cuda_option", f"{name}={value}") for name, value in self.cuda]
        return [word for name, value in given for word in (f"--{name.replace('_', '-')}", str(value))]


GRAPHS = "enable_cuda_graph"
NO_OVERRIDES = TritonOverrides()


def whole_numbers(text: str | None, option: str) -> str | None:
    """`1,8,32` as it is. Raises UserError."""
    if text is None or text == "auto" or all(part.strip().isdecimal() and int(part) > 0 for part in text.split(",")):
        return text
    raise UserError(f"{option} {text}: not whole numbers with commas between them, as 1,8,32")


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

    def unstarted(self) -> GatewaySettings:
        """All that the file says, a gateway's or one of `tandem up`, where nothing is started by it. Raises UserError."""
        pools = {
            name: {"device": Pool(name, True, ()).device, **pool, "urls": pool.get("urls") or [PLACE]}
            for name, pool in (self._pools or {"cpu": {}}).items()
        }
        return settings_of(replace(self._document, data={**self._document.data, "pools": pools}))

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
    said = settings.pools[pool]
    given = {name: getattr(said, name) for name in OF_A_TRITON}
    for name in ("batch_buckets", "bucket_lengths"):
        if isinstance(given[name], tuple):
            given[name] = ",".join(map(str, given[name]))
    return TritonOverrides(**{**given, "cuda": said.cuda.pairs() if said.cuda is not None else ()})


def for_gateway(settings: GatewaySettings) -> GatewaySettings:
    """Without what is for the Tritons, which a gateway does not start, and with a place of usage that its own folder does not change."""
    pools = {}
    for name, pool in settings.pools.items():
        said = pool.model_dump(mode="json", exclude_unset=True, exclude=set(OF_A_TRITON))
        pools[name] = PoolSettings.model_validate(said)
    kept = settings.usage
    if kept is not None and "://" not in kept.place:
        kept = kept.model_copy(update={"place": str(Path(kept.place).absolute())})
    return settings.model_copy(update={"pools": pools, **({} if kept is None else {"usage": kept})})
