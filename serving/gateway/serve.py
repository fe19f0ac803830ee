"""Runs the gateway: listening sockets, a server for each listener, and a stop that loses no request that was taken.

On SIGTERM or SIGINT readiness drops and every answer asks its client to close; a moment later, when clients that were busy have
moved on, the sockets close and what is in flight is waited for. A second signal hurries.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import uvloop

from serving.control.stores import Store
from serving.errors import UserError
from serving.gateway import ready_file
from serving.gateway.app import Gateway
from serving.gateway.control_watch import ControlWatch
from serving.gateway.http.connection import Intake
from serving.gateway.http.door import Door
from serving.gateway.http.origin import VARY, AllowedOrigins, OriginPolicy
from serving.gateway.http.server import LAST_S, Server
from serving.gateway.key_watch import KeyWatch
from serving.gateway.listeners import begin, let_nobody_in, listen_all, raise_file_limit
from serving.gateway.models.metadata import all_routable
from serving.keys.key import OWN_KEY, own_key
from serving.settings import GatewaySettings, host_name, is_loopback, read_settings, require_keys_where_others_reach

if TYPE_CHECKING:
    from serving.gateway.grpc.server import GrpcServer

log = logging.getLogger(__name__)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)
OWN_PAGES_BYTES = 4 * 2**20  # of one allocation: a batch of images stays below it, and is given again without new pages
KEPT_BYTES = 8 * 2**20
OWN_FILES = 1024  # beside clients' connections: those to Tritons, models' files; a guess, not measured
SEEN_S = 5.0  # from when every Triton was asked once until this gateway answers for those that serve nothing yet (guess, not measured)
ASKED_S = 60.0  # for that at most: a name that cannot be looked up is never asked (guess, not measured)
LINGER_S = 0.5  # how long a stopping gateway still takes requests: a busy client needs one answer to learn that it should close


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `tandem gateway`. `admin_port` is None where there is no admin listener, `grpc_port` where no gRPC is spoken.

    `keys` is the file of API keys, None where everybody may everything; `model_repository` where preprocessing, tokenizers and labels lie.
    `shared_port`: other gateways of this user listen on `port` and `grpc_port`, too; the admin listener stays its own.
    """

    config: Path
    host: str = "127.0.0.1"
    port: int = 8080
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    grpc_port: int | None = None
    keys: Path | None = None
    model_repository: Path | None = None
    insecure_no_auth: bool = False
    allowed_hosts: tuple[str, ...] = ()  # beside those of the settings
    ready_file: Path | None = None  # is made once every port is listened to
    shared_port: bool = False
    control: Store | None = None  # of the control document


def run(options: Options) -> int:
    """Serves until told to stop. Raises UserError for a configuration or an address that cannot be used."""
    ready_file.forget(options.ready_file)
    settings = _with_allowed_hosts(read_settings(options.config), options.allowed_hosts)
    hosts = {"--host": options.host} | ({} if options.admin_port is None else {"--admin-host": options.admin_host})
    require_keys_where_others_reach(hosts, has_keys=options.keys is not None, insecure_no_auth=options.insecure_no_auth)
    if settings.allowed_origins and options.keys is None:
        raise UserError(
            "allowed_origins lets pages of other sites ask with an API key, and there are none: name a file with --keys, or leave it out"
        )
    own = own_key()
    if options.keys is None and own is not None:
        raise UserError(f"{OWN_KEY} is set and there is no --keys; take it out of the environment")
    keys = None if options.keys is None else KeyWatch(options.keys, own)
    control = None if options.control is None else ControlWatch(options.control, _name(options))
    _give_large_memory_back()
    _allow_connections(settings.limits.max_connections)
    uvloop.run(_serve(options, settings, keys, control, *_listeners(options)))
    return 0


def _name(options: Options) -> str:
    """By which others know this gateway: one that is started again in its place has it, too."""
    port = options.port if options.admin_port is None else options.admin_port
    shared = f":{os.getpid()}" if options.shared_port and options.admin_port is None else ""
    return f"{socket.gethostname()}:{port}{shared}"


def _give_large_memory_back() -> None:
    """At once when it is freed. By itself glibc keeps up to 32 MiB of each after the first, and twice as much at the end of each arena."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # another C library, which has its own ways
        libc.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _allow_connections(most: int) -> None:
    """Who is refused by the bound on connections hears it; who finds no descriptor left does not."""
    if (num_files := raise_file_limit(most + OWN_FILES)) < most + OWN_FILES:
        log.warning(
            "this process may open %d files, fewer than max_connections (%d) and its own %d: connections beyond are dropped "
            "without a word; raise `ulimit -n`",
            num_files,
            most,
            OWN_FILES,
        )


def _listeners(options: Options) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
    """The clients', over HTTP and gRPC, and the operator's. Raises UserError."""
    with contextlib.ExitStack() as failed:
        grpc = []
        is_shared = options.shared_port
        if options.grpc_port is not None:
            found = listen_all(options.host, options.grpc_port, "--grpc-port", is_shared=is_shared)
            grpc = [failed.enter_context(one) for one in found]
        public = [failed.enter_context(one) for one in listen_all(options.host, options.port, is_shared=is_shared)]
        admin = []
        if options.admin_port is not None:
            admin = listen_all(options.admin_host, options.admin_port, "--admin-port")
        failed.pop_all()
    return public, grpc, admin


def _with_allowed_hosts(settings: GatewaySettings, more: tuple[str, ...]) -> GatewaySettings:
    """Raises UserError for one that cannot be a name."""
    try:
        return settings.model_copy(update={"allowed_hosts": (*settings.allowed_hosts, *map(host_name, more))})
    except ValueError as error:
        raise UserError(f"--allowed-hosts: {error}") from None


def server_of(
    gateway: Gateway,
    settings: GatewaySettings,
    origin: OriginPolicy | None = None,
    *,
    is_operator: bool = False,
) -> Server:
    """Of the clients' listener, or the operator's."""
    limits = settings.limits
    connections = gateway.connections[is_operator]
    if is_operator:
        return Server(gateway.admin, None, Intake(limits, gateway.memory, connections, origin), limits.drain_s)
    origins = AllowedOrigins(settings.allowed_origins) if settings.allowed_origins else None
    door = Door(gateway.inference, limits.max_body_bytes, [] if origins is None else VARY)
    intake = Intake(limits, gateway.memory, connections, origin, door, origins)
    return Server(gateway.public, gateway.endpoints, intake, limits.drain_s)


async def _serve(
    options: Options,
    settings: GatewaySettings,
    keys: KeyWatch | None,
    control: ControlWatch | None,
    public: list[socket.socket],
    grpc_listeners: list[socket.socket],
    admin: list[socket.socket],
) -> None:
    gateway = Gateway(
        settings,
        admin_here=is_loopback(options.host),
        repository=options.model_repository,
        keys=keys,
        control=control,
    )

    def origin(host: str) -> OriginPolicy:
        return OriginPolicy(host, settings.allowed_hosts, has_keys=keys is not None)

    servers = [(server_of(gateway, settings, origin(options.host)), public)]
    if admin:
        servers.append((server_of(gateway, settings, origin(options.admin_host), is_operator=True), admin))
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    grpc = _grpc_server(gateway, options, settings, grpc_listeners)
    gateway.start()
    if options.shared_port:  # others answer until this one can
        await _first(stop.wait(), _until_routable(gateway, list(settings.models)), _until_given_up(gateway))
        for listeners, option in ((public, "--port"), (grpc_listeners, "--grpc-port")):
            for listener in listeners:
                begin(listener, option)
    if grpc is not None:
        await grpc.start()
    gc.collect()
    gc.freeze()  # what was made so far stays: looking through all of it took 40 ms, in which nobody was answered
    tasks = [asyncio.create_task(server.serve(listeners)) for server, listeners in servers]
    listening = asyncio.gather(*(server.listening.wait() for server, _ in servers))
    listening.add_done_callback(partial(_tell_ready, options.ready_file))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    gateway.close()
    await _first(hurry.wait(), asyncio.sleep(LINGER_S))
    for listener in public:
        let_nobody_in(listener)
    if grpc is not None:
        grpc.let_nobody_in()
    await _first(hurry.wait(), asyncio.sleep(LAST_S))
    for server, _ in servers:
        server.stop()
    if grpc is not None:
        tasks.append(asyncio.create_task(grpc.stop(settings.limits.drain_s)))
    await _first(_hurry(hurry, [server for server, _ in servers], grpc), asyncio.wait(tasks))
    await asyncio.gather(*tasks)
    await gateway.stop()


async def _until_routable(gateway: Gateway, models: list[str]) -> None:
    while not (gateway.state.is_informed() and all_routable(gateway.catalogue, models, may_sleep=True)):  # noqa: ASYNC110 - once in the life of a process
        await asyncio.sleep(SEEN_S / 100)


async def _until_given_up(gateway: Gateway) -> None:
    """However busy the machine is: a Triton that was not asked yet may serve."""
    loop, catalogue = asyncio.get_running_loop(), gateway.catalogue
    give_up_at = loop.time() + ASKED_S
    while loop.time() < give_up_at and not all(map(catalogue.is_known, catalogue.pools)):  # noqa: ASYNC110 - once in the life of a process
        await asyncio.sleep(SEEN_S / 100)
    await asyncio.sleep(SEEN_S)


def _tell_ready(file: Path | None, listening: asyncio.Future[list[Literal[True]]]) -> None:
    if file is not None and not listening.cancelled():
        ready_file.write(file, "", log.warning)


def _grpc_server(
    gateway: Gateway, options: Options, settings: GatewaySettings, listeners: list[socket.socket]
) -> GrpcServer | None:
    if not listeners:
        return None
    from serving.gateway.grpc.server import GrpcServer  # its messages take 0.4 s to import

    return GrpcServer(gateway, settings, listeners, admin_here=is_loopback(options.host))


async def _hurry(hurry: asyncio.Event, servers: list[Server], grpc: GrpcServer | None) -> None:
    """A second signal, whenever it comes, ends the wait for requests in flight: each is told that the gateway is stopping."""
    await hurry.wait()
    if grpc is not None:
        await grpc.stop(0)
    while True:
        for server in servers:
            server.force()
        await asyncio.sleep(LAST_S)  # for one that came in just then


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
