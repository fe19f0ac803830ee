"""`tandem triton`: one Triton of one pool, from start to stop.

It proves the repository's digests, starts tritonserver, loads each variant that passed its gate, and then stays: as the
parent that restarts a crashed server and reloads a model whose stub died (Triton does neither), and as PID 1 of a container.
Keep: whatever way it ends, no process and no segment in /dev/shm stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from serving.cores import usable_cores
from serving.cuda_options import cuda_options
from serving.decisions.engines import PLAIN
from serving.errors import UserError
from serving.export.scratch import scratch
from serving.gateway import ready_file
from serving.local.causes import require_files
from serving.local.devices import of_pool, require_gpu
from serving.local.environments import ENGINES, Environment, ensure, find
from serving.local.launch import BACKENDS, Launch, Ports, backend_directory
from serving.local.logs import Output, to_stderr
from serving.local.pool_options import (
    KINDS,
    NO_OVERRIDES,
    TritonOverrides,
    require_emulated,
    whole_numbers,
)
from serving.local.pool_plan import PoolPlan, plan_pool
from serving.local.processes import Nursery
from serving.local.recycling import bound
from serving.local.supervisor import Supervisor
from serving.local.venvs import Say
from serving.ports import require_free
from serving.repository import Repository, default_repository
from serving.settings import EMULATED, collector_url, is_otel_disabled

UNSAFE = re.compile(
    r"[\s'\"\\$`&|;<>()*?!#]"
)  # Triton starts its stubs by a shell line in which the path stands unquoted


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """What `tandem triton` is asked to do. `model_repository` None is the default one."""

    pool: str = "cpu"
    model_repository: Path | None = None
    host: str = "127.0.0.1"  # Triton 2.51 has known holes: nothing but loopback or a closed network
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    exit_timeout_s: int = 30
    may_measure: bool = True
    instances: int | None = None
    threads: int | None = None  # of an instance
    queue_delay_us: int | None = None
    max_batch: int | None = None
    batch_buckets: str | None = None  # "auto", or "1,8,32"
    bucket_lengths: str | None = None
    cuda_option: tuple[str, ...] = ()  # NAME=VALUE
    versions: int | None = None  # of each model that are served beside each other
    max_memory_mb: int | None = None  # of all its processes, past which it wants a new start
    engine: str | None = None  # that computes everything, instead of the fastest for each variant
    emulate: Path | None = None  # a file of service times that an emulated pool follows
    otel_endpoint: str | None = None  # of OpenTelemetry's collector
    ready_file: Path | None = None  # gets the names of the served models, a line each, once all that can be loaded are

    @property
    def overrides(self) -> TritonOverrides:
        if self.cuda_option and self.pool != "gpu":
            raise UserError(
                f"--cuda-option does nothing for the pool {self.pool}: options of a card are for --pool gpu"
            )
        return TritonOverrides(
            instances=self.instances,
            threads=self.threads,
            queue_delay_us=self.queue_delay_us,
            max_batch=self.max_batch,
            versions=self.versions,
            max_memory_mb=self.max_memory_mb,
            batch_buckets=whole_numbers(self.batch_buckets, "--batch-buckets"),
            bucket_lengths=whole_numbers(self.bucket_lengths, "--bucket-lengths"),
            cuda=cuda_options(self.cuda_option),
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """All that takes long the first time and nothing the second: the environment and what to serve."""

    environment: Environment
    repository: Repository
    plan: PoolPlan
    backends: Mapping[str, Path] = field(default_factory=lambda: BACKENDS)


def prepare(
    pool: str,
    model_repository: Path | None,
    say: Say,
    *,
    may_measure: bool = True,
    emulate: Path | None = None,
    overrides: TritonOverrides = NO_OVERRIDES,
    engine: str | None = None,
) -> Setup:
    """Raises before anything is started where this pool cannot be served here."""
    if emulate is not None:
        if engine is not None:
            raise UserError(f"pool {pool}: an emulated server computes on the processor; --engine does nothing for it")
        return _prepare_emulated(pool, emulate, _readable(model_repository), say, overrides)
    if pool not in KINDS:
        if pool.startswith(EMULATED):
            raise UserError(f"--pool {pool}: say whose times it follows with --emulate FILE")
        raise UserError(f"there is no pool '{pool}'; pools are: {', '.join(KINDS)}")
    if pool == "gpu":
        require_gpu()
    repository = _readable(model_repository)
    environment = ensure(ENGINES[pool], say)
    engines = of_pool(pool, environment)

    def made(*, may_measure: bool, below: Mapping[str, int] | None = None) -> PoolPlan:
        return plan_pool(
            repository,
            pool,
            engines,
            usable_cores(),
            may_measure=may_measure,
            say=say,
            overrides=overrides,
            engine=engine,
            below=below,
        )

    # Later exports were measured by themselves: to measure here would slow down what is being served.
    again = partial(made, may_measure=False)
    stamps = repository.stamps() or {}
    plan = made(may_measure=may_measure)
    plan = replace(
        plan,
        repository=repository,
        stamps=stamps,
        again=again,
        older=lambda below: made(may_measure=False, below=below),
    )
    return Setup(environment, repository, plan)


def _readable(model_repository: Path | None) -> Repository:
    """The repository, if Triton can serve from there. Raises UserError."""
    repository = Repository((model_repository or default_repository()).absolute())
    if found := UNSAFE.search(str(repository.path)):
        raise UserError(
            f"Triton cannot start its processes from {repository.path}: the path holds {found[0]!r}; move or link the repository "
            "to a path without spaces, quotes and the shell's own characters"
        )
    repository.readable()  # that there is none is told before the long part
    return repository


def _prepare_emulated(pool: str, file: Path, repository: Repository, say: Say, overrides: TritonOverrides) -> Setup:
    require_emulated(pool, f"--pool {pool}")
    if importlib.util.find_spec("serving.local.emulated") is None:  # left out of the wheel, see pyproject.toml
        raise UserError("--emulate is for proofs from a checkout of Tandem: it is in no package and in no image")
    from serving.decisions.curves import read_curves
    from serving.local import emulated

    if (overrides.instances, overrides.threads, overrides.versions) != (None, None, None):
        raise UserError(
            f"pool {pool}: an emulated server is one card by its file; instances, threads and versions do nothing for it"
        )
    curves = read_curves(file)
    environment = ensure(ENGINES["cpu"], say)
    engines = {name: engine for name, engine in of_pool("cpu", environment).items() if name == PLAIN["cpu"]}
    again = partial(emulated.plan_emulated, repository, pool, curves, engines, say, overrides)
    stamps = repository.stamps() or {}
    plan = replace(again(), repository=repository, stamps=stamps, again=again)
    return Setup(environment, repository, plan, {**BACKENDS, "emulated": emulated.BACKEND})


def run(options: TritonOptions) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP; a second signal ends it without draining. Returns the exit code."""
    require_files()
    if options.otel_endpoint is not None:
        try:
            options = replace(options, otel_endpoint=collector_url(options.otel_endpoint))
        except ValueError as error:
            raise UserError(f"--otel-endpoint: {error}") from None
    for port, option in _ports(options):
        require_free(options.host, port, option)
    ready_file.forget(options.ready_file)
    prepared = prepare(
        options.pool,
        options.model_repository,
        say,
        may_measure=options.may_measure,
        emulate=options.emulate,
        overrides=options.overrides,
        engine=options.engine,
    )
    with scratch("trials") as trials:
        launch = Launch(
            environment=prepared.environment,
            backends=backend_directory(prepared.environment, prepared.backends),
            model_repository=prepared.repository.path,
            pool=options.pool,
            host=options.host,
            ports=Ports(options.http_port, options.grpc_port, options.metrics_port),
            exit_timeout_s=options.exit_timeout_s,
            openvino=environment.site if (environment := find(ENGINES["openvino"])) else None,
            otel_endpoint=None if is_otel_disabled() else options.otel_endpoint,
            memory_bound_bytes=bound(options.max_memory_mb),
            trials=None if UNSAFE.search(str(trials)) else trials,
        )
        return asyncio.run(serve(launch, prepared.plan, options.ready_file))


def _ports(options: TritonOptions) -> list[tuple[int, str]]:
    return [
        (options.http_port, "--http-port"),
        (options.grpc_port, "--grpc-port"),
        (options.metrics_port, "--metrics-port"),
    ]


def say(line: str) -> None:
    to_stderr(f"tandem triton: {line}")


async def serve(launch: Launch, plan: PoolPlan, tell: Path | None = None) -> int:
    """`tell`: the file of --ready-file, which gets the names of the served models, a line each."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signalled)
    with Nursery() as nursery, contextlib.closing(Output(to_stderr)) as output:
        supervisor = Supervisor(launch, plan, nursery, output, say)

        def tell_served() -> None:
            if tell is not None:
                ready_file.write(tell, "".join(f"{model}\n" for model in supervisor.models()), say)

        try:
            started = asyncio.create_task(supervisor.start())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                started.cancel()
                await asyncio.wait({started})
            else:
                started.result()
                say(f"ready: {supervisor.summary()}")
                tell_served()
                await supervisor.watch(stop, tell_served)
            say("stopping")
        finally:
            await supervisor.stop(hurry)
    return 0
