"""`tandem cluster scaler`: builds everything once, and stops at once on SIGTERM or SIGINT.

Stopping loses nothing: autoscalers change nothing until the next scaler has read the gateways. One replica is enough, and two do no harm,
because they read and publish the same. With `apply` a scaler sets replicas itself; then two are better, and one leads (`leader`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

from serving.cluster.objects.fields import there_are
from serving.cluster.scaler.apply import Applier
from serving.cluster.scaler.cluster_state import ClusterState
from serving.cluster.scaler.gateways import Endpoint, GatewayNames
from serving.cluster.scaler.http_server import HttpServer
from serving.cluster.scaler.keda import ExternalScaler
from serving.cluster.scaler.leader import Leader, LeaderSnapshot
from serving.cluster.scaler.reconcile import Reconciler
from serving.cluster.scaler.record import Record
from serving.cluster.scaler.state import ScalerState, bills_of
from serving.decisions.sizes import WARM, sizes_of
from serving.errors import UserError
from serving.settings import read_settings
from serving.usage.stores import store_at


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `grpc_port` None: there is no listener for KEDA. `release` None: any in the namespace.

    `apply`: pools whose replicas it sets itself, the one of several scalers that holds `lease`.
    """

    config: Path
    gateways: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 9091
    grpc_port: int | None = None
    key_file: Path | None = None
    namespace: str | None = None
    context: str | None = None
    release: str | None = None
    apply: tuple[str, ...] = ()
    lease: str = "tandem-scaler"


GIVE_BACK_S = 3.0  # for an API server that does not answer; whoever follows waits for the Lease to end then


def run(options: Options) -> int:
    """Until SIGTERM or SIGINT. Raises UserError for options that cannot be used."""
    settings = read_settings(options.config)
    names = GatewayNames([_checked(url) for url in options.gateways])
    key = _key_reader(options.key_file)
    key()
    if options.port == options.grpc_port:
        raise UserError(f"--port and --grpc-port are both {options.port}; gRPC needs a port of its own")
    sizes = sizes_of(settings)
    fewest = {name: it.min_replicas for name, it in sizes.supplies.items()} | {WARM + name: 0 for name in sizes.warm}
    if unknown := [name for name in options.apply if name not in fewest]:
        raise UserError(f"--apply {unknown[0]}: {options.config} has no such pool; {there_are(list(fewest))}")
    usage = None if settings.usage is None else store_at(settings.usage.place)
    cluster = ClusterState(settings.pools, _say, options.context, options.namespace, options.release)

    async def serve() -> None:
        state = ScalerState(tuple(settings.pools), bills_of(settings.pools))
        pages = HttpServer(state, options.host, options.port)
        external = None if options.grpc_port is None else ExternalScaler(state, options.host, options.grpc_port)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        applier = _applier(options, state, {name: fewest[name] for name in options.apply})
        cluster.start()
        pages.start()
        if applier is not None:
            applier.start()
        if external is not None:
            await external.start()
        _say(f"ready: metrics on http://{Endpoint(options.host, options.port).text}/metrics")
        reconciling = asyncio.create_task(Reconciler(names, cluster, sizes, state, key, _say, settings.scaling).run())
        stopping = asyncio.create_task(stop.wait())
        record = None if usage is None else Record(usage, state, _say)
        if record is not None:
            record.start()
        await asyncio.wait([reconciling, stopping], return_when=asyncio.FIRST_COMPLETED)
        if reconciling.done():
            reconciling.result()  # raises: a scaler that no longer reconciles is to be restarted
        reconciling.cancel()
        if record is not None:
            await record.stop()
        if applier is not None:
            applier.stop(GIVE_BACK_S)
        pages.stop()
        cluster.stop()
        if external is not None:
            await external.stop()

    asyncio.run(serve())
    return 0


def _applier(options: Options, state: ScalerState, least: Mapping[str, int]) -> Applier | None:
    if not options.apply:
        return None

    def publish(leader: LeaderSnapshot, note: str | None) -> None:
        state.leader, state.note = leader, note

    leader = Leader(options.lease, f"{socket.gethostname()}_{token_hex(4)}")  # a container that restarts is another
    state.leader = LeaderSnapshot()
    where = options.context, options.namespace, options.release
    return Applier(least, leader, state.replicas, publish, _say, state.note_of_bursts, *where)


def _checked(url: str) -> str:
    """Raises UserError. Only `http://HOST:PORT`: the admin listener has no usual port that could be meant."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        is_good = False
    if not is_good or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise UserError(f"--gateways '{url}' is not of the form http://HOST:PORT")
    return url


def _key_reader(file: Path | None) -> Callable[[], str | None]:
    """Returns a reader of the key for gateways, which reads anew each round, because a secret may be replaced. Raises UserError."""
    if file is None:
        given = os.environ.get("TANDEM_API_KEY")
        key = _key(given, "TANDEM_API_KEY") if given else None
        return lambda: key
    last: list[str] = []

    def read() -> str:
        try:
            last[:] = [_key(file.read_text(encoding="utf-8"), str(file))]
        except (OSError, UnicodeDecodeError) as error:
            if not last:
                raise UserError(f"cannot read the key in {file}: {getattr(error, 'strerror', None) or error}") from None
        except UserError:
            if not last:
                raise
        return last[0]

    return read


def _key(text: str, where: str) -> str:
    """Raises UserError for a text that no header can carry."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UserError(f"{where} does not hold one API key on one line (tandem keys add makes one)")
    return key


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # where there is no room for it, it is lost
        print(line, flush=True)
