"""`tandem up`: a Triton per pool and the gateways before them, until Ctrl-C, or in the background until `tandem stop`.

It prepares what takes long, starts `tandem triton` and `tandem gateway` as children with their output in log files, waits
until the gateways are ready, and stops the gateways first, so that no accepted request is lost. Keep: whatever fails, one
line says why, and nothing stays running; children leave by themselves when this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serving.control.document import parse
from serving.control.stores import CONFIGMAP, FileStore, Store, store_at
from serving.documents.nearest import nearest
from serving.errors import EnvironmentFault, TandemError, UserError
from serving.gateway.fleet.variants import read_failures
from serving.keys.key import OWN_KEY, make_own
from serving.keys.key_file import read
from serving.local.causes import require_files
from serving.local.console import (
    LoadFailure,
    Progress,
    Terminal,
    base_url,
    http_status,
    not_loaded,
    print_changes,
    read_index,
    read_status,
    welcome,
)
from serving.local.detach import Parent
from serving.local.devices import device_name, gpu_name
from serving.local.logs import LogFile, Output, run_folder
from serving.local.pool_options import Pool, UpConfig, for_gateway, overrides_of, read_pools
from serving.local.processes import Nursery
from serving.local.recycling import IN_VAIN
from serving.local.runs import Run, announce, found
from serving.local.services import Service, Services
from serving.local.triton import prepare
from serving.ports import free_ports, hold, require_free
from serving.repository import Repository, Variant, default_repository
from serving.settings import is_loopback, require_keys_where_others_reach

PROGRAM = (sys.executable, "-m", "serving")  # the command line of `tandem`, whatever is on PATH
READY_POLL_S = 0.05  # how late we may notice that it is ready
STILL_WAITING_S = 10.0  # a plain line that often, so that a log shows it is alive
TRITON_EXIT_TIMEOUT_S = 5  # the gateway has left by then, so that nothing is in flight but what went past it
STOP_S = (
    15.0  # that, or the gateway's limits.drain_s of 10 s, the kill after it, and a busy machine (guess, not measured)
)
REMOTE_SEEN_S = 10.0  # the gateway asks a Triton twice a second, and sees one that serves at once (guess, not measured)
SEEN_S = (
    60.0  # of one that was started just now, by a gateway that starts beside it on a busy machine (guess, not measured)
)
LOAD_S = 1800.0  # the largest models take minutes to be proven and loaded; what takes longer stands still (guess, not measured)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `tandem up` is asked to do. `pools` are `--pool` values; empty: cpu, and gpu where a card is found.

    `emulate` are NAME=FILE: pools whose times follow a file. `config` is a tandem.yaml: prices, objectives and limits. `grpc_port` None:
    the one after `port`, where that is free.
    """

    model_repository: Path | None = None
    config: Path | None = None
    pools: tuple[str, ...] = ()
    emulate: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int | None = None
    gateways: int = 1
    keys: Path | None = None
    control: str | None = None  # where the control document is
    insecure_no_auth: bool = False
    allowed_hosts: tuple[str, ...] = ()
    may_measure: bool = True
    allow_missing: bool = False
    triton_words: bool = False
    tried: str | None = None  # the model whose request is printed
    parent: Parent | None = None  # that waits for it to serve, of one in the background
    hand_teller: Callable[[Callable[[str], None]], object] | None = (
        None  # gets what writes into the log, for what follows the repository
    )


@dataclass(frozen=True, slots=True)
class Grpc:
    """Where gRPC is spoken, or why it is not."""

    port: int | None
    line: str  # in the welcome

    @staticmethod
    def of(options: UpOptions) -> Grpc:
        """Raises UserError where the port that was asked for is taken."""
        port = options.port + 1 if options.grpc_port is None else options.grpc_port
        if port > 65535:
            return Grpc(None, f"gRPC is off: there is no port after {options.port}: choose one with --grpc-port")
        try:
            require_free(options.host, port, "--grpc-port")
        except UserError as error:
            if options.grpc_port is not None:
                raise
            return Grpc(None, f"gRPC is off: {error}")
        if not hold(port) and options.grpc_port is None:
            return Grpc(
                None, f"gRPC is off: another process of Tandem's keeps port {port}: choose one with --grpc-port"
            )
        return Grpc(port, f"gRPC: {base_url(options.host, port).removeprefix('http://')}")


def run(options: UpOptions) -> int:
    """Serves until stopped. Returns 0 after Ctrl-C or SIGTERM; raises TandemError where it cannot serve."""
    began_s = time.monotonic()
    require_files()
    console = Terminal(highlight=False, soft_wrap=True)
    with Progress(console) as progress:
        config = UpConfig(options.config)
        values = config.values(options.pools, options.emulate)
        pools = read_pools(values, has_gpu=gpu_name() is not None, emulate=options.emulate)
        settings = config.settings(pools)
        require_keys_where_others_reach(
            {"--host": options.host}, has_keys=options.keys is not None, insecure_no_auth=options.insecure_no_auth
        )
        if options.keys is not None:
            read(options.keys)  # what is wrong with it is told before anything is started
        if options.control is not None and not options.control.startswith(CONFIGMAP):
            _require_document(store_at(options.control))
        repository = (options.model_repository or default_repository()).absolute()
        if options.tried is not None:
            _require_model(options.tried, repository)
        _require_port(options)
        grpc = Grpc.of(options)
        for pool in pools:
            if pool.is_local:
                prepare(
                    pool.name,
                    repository,
                    progress.say,
                    may_measure=options.may_measure,
                    emulate=pool.curves,
                    overrides=overrides_of(settings, pool.name),
                )
        session = Session(options, grpc, config, pools, repository, console, progress, began_s)
        return asyncio.run(session.run())


def _require_document(store: Store) -> None:
    """Raises UserError where a file is missing or wrong. What is elsewhere may be away for now, which gateways wait for."""
    if isinstance(store, FileStore) and (current := store.current()) is not None:
        parse(current.text, store.name)


def _require_model(name: str, repository: Path) -> None:
    """Raises UserError where no request of it can be printed."""
    models = {variant.record.model for variant in Repository(repository).readable()[0]}
    if name not in models:
        raise UserError(f"--try {name}: {repository} has no model {name!r}{nearest(name, models)}")


def _require_port(options: UpOptions) -> None:
    """Raises UserError where it is taken: by whom, where that is a `tandem up` of ours."""
    try:
        require_free(options.host, options.port, "--port")
        hold(options.port)  # or one of our own servers might be given it
    except UserError:
        for other in found():
            if other.is_alive and other.run.port == options.port:
                raise UserError(
                    f"port {options.port} is served by a `tandem up` already (process {other.run.process.pid}, {other.run.repository}): "
                    f"end it with `tandem stop --port {options.port}`, or choose another port with --port"
                ) from None
        raise


class Session:
    """One run of `tandem up`."""

    def __init__(
        self,
        options: UpOptions,
        grpc: Grpc,
        config: UpConfig,
        pools: list[Pool],
        repository: Path,
        console: Terminal,
        progress: Progress,
        began_s: float,
    ) -> None:
        self._options = options
        self._grpc = grpc
        self._config = config
        self._pools = pools
        self._repository = repository
        self._console = console
        self._progress = progress
        self._began_s = began_s
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._url = base_url(options.host, options.port)
        is_alone_here = options.gateways == 1 and is_loopback(options.host)
        self._admin_ports = [] if is_alone_here else free_ports(options.gateways)
        # Of each gateway; what comes to the clients' port, any of them answers.
        self._admin_urls = [base_url("127.0.0.1", port) for port in self._admin_ports] or [self._url]
        self._gateways: list[Service] = []
        self._key: str | None = None  # with which we ask our gateway, if it wants keys
        self._for_gateway: dict[str, str] = {}
        if options.keys is not None:
            self._key, self._for_gateway[OWN_KEY] = make_own()
        self._folder = run_folder()
        self._log = LogFile(self._folder / "up.log", self._print)
        if options.hand_teller is not None:
            options.hand_teller(self._say)
        self._started: list[str] = []  # addresses of our Tritons
        self._is_ready = False
        self._unread: str | None = None  # why a gateway has read no control document yet, without which it is not ready
        self._not_loaded: list[LoadFailure] | None = None
        self._served: set[str] = set()  # variants, as the gateway saw them

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled)
        urls = tuple(self._admin_urls) if self._options.gateways > 1 else ()
        run = Run(str(self._repository), self._admin_urls[0], self._url, gateway_urls=urls)
        with Nursery() as nursery, announce(self._folder, run):
            self._services = Services(
                nursery, Path(), self._say, is_served_elsewhere=any(pool.urls for pool in self._pools)
            )
            serving: list[asyncio.Task[None]] = []
            try:
                await self._check_remote()
                self._start()
                serving = [asyncio.create_task(self._services.keep()), asyncio.create_task(self._serve())]
                stopped = asyncio.create_task(self._stop.wait())
                ends: list[asyncio.Task[Any]] = [*serving, stopped]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                if not self._stop.is_set():
                    next(task for task in serving if task.done()).result()
            except TandemError as error:
                self._log.write(f"tandem: {error}")
                raise
            finally:
                for task in serving:
                    task.cancel()
                self._progress.done()
                await self._services.stop(STOP_S, self._hurry)
        return 0

    async def _serve(self) -> None:
        """Until it is cancelled. Raises TandemError where nothing can be served."""
        await self._wait_ready()
        self._progress.done()
        for line in self._welcome():
            self._say(line)
        if self._options.parent is not None:
            self._options.parent.let_go(0 if self._is_ready else 1)
        await print_changes(self._serving_urls, self._settings, self._say, self._key)

    def _serving_urls(self) -> list[str]:
        """Of the gateways that run."""
        return [url for url, gateway in zip(self._admin_urls, self._gateways, strict=True) if gateway.serves]

    def _say(self, line: str) -> None:
        """To whoever watches, and into a log, so that it can be read later."""
        self._print(line)
        self._log.write(line)

    def _print(self, line: str) -> None:
        """On a terminal that is gone, or in a file on a full disk, it is lost."""
        with contextlib.suppress(OSError):
            self._console.print(line, markup=False)

    def _signalled(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    # -- starting -----------------------------------------------------------------------------------------------------

    async def _check_remote(self) -> None:
        for pool in self._pools:
            for url in pool.urls:
                if await http_status(f"{url}/v2/health/live") != 200:
                    raise UserError(f"--pool {pool.name}={url}: no Triton answers there")

    def _start(self) -> None:
        started: dict[str, str] = {}
        settings = self._config.settings(self._pools)
        for pool in self._pools:
            if pool.is_local:
                http, grpc, metrics = free_ports(3)
                started[pool.name] = f"http://127.0.0.1:{http}"
                name, log = f"{pool.name} pool", self._folder / f"triton-{pool.name}.log"
                command = [*PROGRAM, "triton", "--pool", pool.name, "--model-repository", str(self._repository)]
                command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
                command += ["--exit-timeout-s", str(TRITON_EXIT_TIMEOUT_S)]
                command += ["--ready-file", str(_ready_file(log))]
                command += [] if self._options.may_measure else ["--no-measure"]
                command += ["--emulate", str(pool.curves)] if pool.curves else []
                command += overrides_of(settings, pool.name).flags()
                command += [] if settings.otel is None else ["--otel-endpoint", settings.otel.endpoint]
                self._services.start(
                    Service(
                        name, command, os.environ, log, self._output(log, name, IN_VAIN), _ready_file(log), is_pool=True
                    )
                )
        self._started = list(started.values())
        self._settings = for_gateway(self._config.settings(self._pools, started))
        if self._options.allow_missing:
            self._settings = self._settings.model_copy(update={"allow_missing": True})
        if self._options.triton_words:
            self._settings = self._settings.model_copy(update={"triton_words": True})
        config = self._folder / "tandem.yaml"
        text = yaml.safe_dump(self._settings.model_dump(mode="json", exclude_unset=True), sort_keys=False)
        try:
            config.write_text(text)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {config}: {error.strerror}; set TANDEM_STATE to another folder"
            ) from None
        for number in range(self._options.gateways):
            self._start_gateway(config, number)

    def _start_gateway(self, config: Path, number: int) -> None:
        name = "gateway" if self._options.gateways == 1 else f"gateway-{number + 1}"
        log = self._folder / f"{name}.log"
        command = [*PROGRAM, "gateway", "--config", str(config)]
        command += ["--host", self._options.host, "--port", str(self._options.port)]
        command += ["--model-repository", str(self._repository)]
        command += ["--admin-port", str(self._admin_ports[number])] if self._admin_ports else []
        command += ["--shared-port"] if self._options.gateways > 1 else []
        command += [] if self._grpc.port is None else ["--grpc-port", str(self._grpc.port)]
        command += [] if self._options.keys is None else ["--keys", str(self._options.keys)]
        command += ["--insecure-no-auth"] if self._options.insecure_no_auth else []
        command += [f"--allowed-hosts={','.join(self._options.allowed_hosts)}"] if self._options.allowed_hosts else []
        environment = os.environ | self._for_gateway
        if self._options.control is not None:  # it may hold a password, and all users see the words of a command
            environment["TANDEM_CONTROL"] = self._options.control
        command += ["--ready-file", str(_ready_file(log))]
        marks = [] if (access_log := self._settings.access_log) is None else [access_log.cannot_write]
        gateway = Service(
            name, command, environment, log, self._output(log, name, *marks), _ready_file(log), is_pool=False
        )
        self._gateways.append(gateway)
        self._services.start(gateway)

    def _output(self, log: Path, name: str, *marks: str) -> Output:
        return Output.into(log, self._say, name=name, marks=marks)

    async def _wait_ready(self) -> None:
        """Raises TandemError where it does not become ready; what ends meanwhile is `services.py`'s to tell."""
        said_s = time.monotonic()
        loaded_s: float | None = None  # when everything was loaded that can be
        while True:
            loaded_s = (loaded_s or time.monotonic()) if self._all_loaded() else None
            if loaded_s is not None and await self._all_served():
                health = [await http_status(f"{url}/health/ready") for url in self._admin_urls]
                self._is_ready = all(status == 200 for status in health)
                seen = [await asyncio.to_thread(self._failures_seen_by_gateway, url) for url in self._admin_urls]
                self._not_loaded = None if None in seen else seen[0]
                misses = not self._settings.allow_missing and any(f.is_missed for f in self._not_loaded or ())
                if self._not_loaded is not None and (self._is_ready or misses):
                    return
            now_s = time.monotonic()
            if self._unread is not None:
                loaded_s = None  # it is away, and may come
            if loaded_s is not None and now_s - loaded_s > (SEEN_S if self._started else REMOTE_SEEN_S):
                raise await asyncio.to_thread(self._nothing_routable)
            if now_s - self._began_s > LOAD_S:
                raise self._not_loading()
            names = ", ".join(service.name for service in self._services)
            why = "" if self._unread is None else f": {self._unread}"
            self._progress.waiting(f"starting: {names} ({now_s - self._began_s:.0f} s){why}")
            if now_s - said_s > STILL_WAITING_S and not self._progress.is_live:
                said_s = now_s
                self._progress.say(f"still starting{why}; logs: {self._folder}")
            await asyncio.sleep(READY_POLL_S)

    def _not_loading(self) -> EnvironmentFault:
        waiting = [service for service in self._services if not service.is_up]
        words = "; ".join(f"{s.name}: {(s.output.last() or ['it said nothing'])[-1]} (log: {s.log})" for s in waiting)
        return EnvironmentFault(
            f"not ready after {LOAD_S / 60:.0f} minutes, so this is given up: {self._unread or words}"
        )

    def _nothing_routable(self) -> TandemError:
        """Why no model gets a request although its Triton runs: the gateway knows."""
        try:
            pools = read_status(self._admin_urls[0], self._key)["pools"]
        except (OSError, ValueError) as error:
            return EnvironmentFault(f"the gateway does not answer: {error} (log: {self._gateways[0].log})")
        refused = {
            name: why
            for pool in pools.values()
            for server in pool["servers"]
            for name, why in (server["refused"] | server["not_loaded"]).items()
        }
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(refused.items())) or "it serves no model"
        return UserError(
            f"nothing to route to: {reasons}. Let it serve a repository that Tandem made, with its own --model-config-name"
        )

    def _all_loaded(self) -> bool:
        """Whether each Triton of ours has loaded what it can, and the gateways, which are to see it, listen."""
        return all(service.serves for service in self._services)

    def _loaded(self) -> set[str]:
        """Names of the models that our Tritons have. Raises OSError where one died after it served, and is being started again."""
        files = [service.ready_file for service in self._services if service.is_pool]
        return {name for file in files for name in file.read_text().split()}

    async def _all_served(self) -> bool:
        """Whether a gateway has seen all that was loaded."""
        try:
            names = self._loaded()
        except OSError:
            return False
        urls = [f"{self._url}/v2/models/{name}/ready" for name in sorted(names)]
        return all([await http_status(url, key=self._key) == 200 for url in urls])

    def _failures_seen_by_gateway(self, url: str) -> list[LoadFailure] | None:
        """What could not be loaded. None as long as this gateway has not seen all of it, or sees nothing that is served."""
        try:
            status = read_status(url, self._key)
            for triton in self._started:
                servers = [s for pool in status["pools"].values() for s in pool["servers"] if s["url"] == triton]
                if not servers or read_failures(read_index(triton)).keys() != servers[0]["not_loaded"].keys():
                    return None
            loaded = self._loaded()
        except (OSError, ValueError):
            return None
        control = status["control"]
        self._unread = control["problem"] if control is not None and control["revision"] is None else None
        self._served = {v["name"] for model in status["models"].values() for v in model["variants"]}
        if len(self._admin_urls) > 1 and loaded - self._served:  # what another gateway has seen
            return None
        is_any_served = any(model["public"] for model in status["models"].values())
        return not_loaded(status) if is_any_served else None

    def _welcome(self) -> list[str]:
        described = [(pool.name, self._describe(pool)) for pool in self._pools]
        took_s = time.monotonic() - self._began_s
        return welcome(
            self._url,
            described,
            self._variants(),
            self._folder,
            took_s,
            grpc=self._grpc.line,
            pages=[f"{url}/" for url in self._admin_urls],
            wants_key=self._key is not None,
            is_ready=self._is_ready,
            not_loaded=[str(failure) for failure in self._not_loaded or []],
            end="Ctrl-C stops it"
            if self._options.parent is None
            else f"stop it: tandem stop --port {self._options.port}",
        )

    def _describe(self, pool: Pool) -> str:
        what = f"no device, times of {pool.curves}" if pool.curves else device_name(pool.name)
        here = [what] if pool.is_local else []
        return ", ".join([*here, *pool.urls])

    def _variants(self) -> list[Variant]:
        """What the samples come from; a repository that is not served from here need not exist."""
        with contextlib.suppress(TandemError):
            served = [v for v in Repository(self._repository).readable()[0] if v.name in self._served]
            return sorted(served, key=lambda variant: variant.record.model != self._options.tried)
        return []


def _ready_file(log: Path) -> Path:
    return log.with_suffix(".ready")
