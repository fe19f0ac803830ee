"""Measures a model on this machine's embedded Triton: the ladder of every variant side by side, then the highest rates, then cold starts.

`measure` is the one entry; whatever was found when it is interrupted is kept. How each thing is measured is its module's; here is what
comes after what, and which process serves it. Rule: no process outlives the call.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from loadtest.bench.processes import CannotMeasure, Moment
from loadtest.bench.stack import Stack, stack
from loadtest.bodies import encode
from loadtest.machine import this_machine, versions
from loadtest.profile.asking import InProcess, Way, asked, grpc_channel, opened, over_grpc, over_http, write_rows
from loadtest.profile.cold_start import start_often
from loadtest.profile.inputs import Sent, inputs_for
from loadtest.profile.ladder import Step, in_turns, ladder
from loadtest.profile.load import Aim, inputs_file
from loadtest.profile.notes import notes
from loadtest.profile.options import Encoding, ProfileOptions, Shape
from loadtest.profile.places import EMULATED, accuracy, check_batch_sizes, linked, variants_of
from loadtest.profile.rates import default_objective_s, max_rate
from loadtest.profile.statistics import Running, counting, running_of
from loadtest.progress import Progress
from loadtest.summaries import milliseconds
from loadtest.target import Gateway
from serving.export.speed.process import WorkerLost, WorkerProcess
from serving.local.devices import require_gpu
from serving.local.engines import installed
from serving.planning.profile import LoadPoint, MaxRate, Phase, Profile, Rung, ServerProfile, Timing
from serving.replay.curves import read_curves
from serving.repository.layout import Variant

Say = Callable[[str], None]
RUNG_OF: dict[Encoding, Rung] = {"binary": "gateway_binary", "json": "gateway_json"}


class Interrupted(Exception):
    """Ctrl-C, or a request to end. `profile` is what was measured, None where nothing was."""

    def __init__(self, profile: Profile | None) -> None:
        super().__init__("interrupted")
        self.profile = profile


@dataclass(slots=True)
class Server:
    """What is known so far of one variant under one setting."""

    variant: Variant
    running: Running
    device: str
    steps: list[Step] = field(default_factory=list)
    load: list[LoadPoint] = field(default_factory=list)
    max_rates: list[MaxRate] = field(default_factory=list)
    cold_start: tuple[Phase, ...] = ()
    by_file: tuple[Timing, ...] = ()  # of an emulated device: what its engine alone takes

    def profile(self) -> ServerProfile:
        return ServerProfile(
            variant=self.variant.record.variant,
            engine=self.running.engine,
            device=self.device,
            device_name=self.running.device_name,
            digest=self.variant.digest,
            settings=self.running.settings,
            ladder=ladder(self.steps, self.variant.name, self.by_file),
            load=tuple(self.load),
            max_rates=tuple(self.max_rates),
            cold_start=self.cold_start,
            accuracy=accuracy(self.variant),
            is_untrained=self.variant.record.is_untrained,
        )

    def median_s(self, rung: Rung, batch_size: int) -> float | None:
        return next(
            (t.latency_p50_s for t in self.profile().ladder if (t.rung, t.batch_size) == (rung, batch_size)), None
        )


def measure(options: ProfileOptions, say: Say, progress: Progress | None = None) -> Profile:
    """Raises UserError, CannotMeasure, and Interrupted with what there is."""
    study = Study(options, say, progress or Progress())
    try:
        with tempfile.TemporaryDirectory(prefix="tandem-profile-") as name:
            study.run(Path(name))
    except KeyboardInterrupt:
        raise Interrupted(study.profile(is_partial=True) if study.servers else None) from None
    return study.profile()


class Study:
    """One call of `measure`: what is served, one setting after the other, and what was found."""

    def __init__(self, options: ProfileOptions, say: Say, progress: Progress) -> None:
        self.options, self.say, self.progress = options, say, progress
        self.pace = options.pace
        if options.pool == "gpu":
            require_gpu()
        self.variants = variants_of(options)
        check_batch_sizes(options, self.variants)
        self.sent: Sent = inputs_for(self.variants, options.data)
        self.servers: list[Server] = []
        self.versions = versions()
        self.machine = this_machine()
        self.started = datetime.now().astimezone()
        self.began = Moment.now()
        self.asides: list[str] = []

    def run(self, folder: Path) -> None:
        for number_of, shape in enumerate(self.options.settings or (None,)):
            self._one_setting(folder / f"setting-{number_of}", shape)

    def profile(self, *, is_partial: bool = False) -> Profile:
        others_ratio = self.began.others_ratio(Moment.now(), self.machine.num_cores)
        said = notes(self.options, self.machine.num_cores, others_ratio, self.asides, is_partial=is_partial)
        return Profile(
            model=self.options.model,
            provenance="emulated" if self.options.pool.startswith(EMULATED) else "measured",
            date=self.started.isoformat(timespec="seconds"),
            command=self.options.command,
            machine=self.machine,
            servers=tuple(server.profile() for server in self.servers),
            versions=self.versions,
            data=f"{self.sent.what}; the search sends {self.options.encoding} tensors",
            note=said,
            others_ratio=others_ratio,
        )

    # -- one setting -------------------------------------------------------------------------------------------------

    def _one_setting(self, folder: Path, shape: Shape | None) -> None:
        repository = linked(folder / "repository", self.variants)
        (folder / "logs").mkdir()
        label = "" if shape is None else f", {shape.num_instances} × {shape.num_threads}"
        self.say(f"starting Triton and a gateway for {', '.join(v.name for v in self.variants)}{label}")
        logs, triton = folder / "logs", self._triton_options(shape)
        with stack(repository, logs, pool=self.options.pool, device=self._device, options=triton) as served:
            gateway = Gateway(served.gateway.url)
            self.versions |= gateway.versions()
            here = self._served(gateway, served)
            if not here:
                raise CannotMeasure(f"nothing of {self.options.model} is served here: {'; '.join(self.asides)}")
            self.servers += here
            self._ladder(here, served, folder)
            if self.options.has_search:
                self._search(here, served.gateway.url, folder)
        if self.options.has_cold_start:
            self._cold_starts(here, folder, shape)

    @property
    def _device(self) -> str:
        return EMULATED if self.options.pool.startswith(EMULATED) else self.options.pool

    def _triton_options(self, shape: Shape | None) -> list[str]:
        given = ["--emulate", str(self.options.emulate.absolute())] if self.options.emulate else []
        if shape is not None:
            given += ["--instances", str(shape.num_instances), "--threads", str(shape.num_threads)]
        return given

    def _served(self, gateway: Gateway, served: Stack) -> list[Server]:
        """Those that the gateway answers for; says why others are left out."""
        found, body = [], encode(self.sent.signature, self.sent.batch(1), (), "binary")
        for variant in self.variants:
            name, precision = variant.name, variant.record.variant
            config = Gateway(served.triton.url).get_json(f"/v2/models/{name}/config")
            if config is None:
                self._aside(f"{name} is not measured: this machine's {self.options.pool} pool does not serve it")
                continue
            running = running_of(config)
            if self.options.engines and running.engine not in self.options.engines:
                self._aside(f"{name} is not measured: it runs on {running.engine} here, which was not asked for")
                continue
            if (why := gateway.refusal(self.options.model, precision, self.options.pool, body)) is not None:
                self._aside(f"{name} is not measured: {why}")
                continue
            found.append(Server(variant, running, self._device_of(config), by_file=self._by_file(variant)))
        return found

    def _device_of(self, config: dict[str, object]) -> str:
        parameters = config.get("parameters")
        emulated = parameters.get("tandem_emulated") if isinstance(parameters, dict) else None
        return f"{EMULATED}-{emulated['string_value']}" if isinstance(emulated, dict) else self.options.pool

    def _by_file(self, variant: Variant) -> tuple[Timing, ...]:
        """The engine alone, where it is a file; no request was sent for it."""
        curve = read_curves(self.options.emulate).of(variant) if self.options.emulate else None
        if curve is None:
            return ()
        sizes = self.options.batch_sizes
        return tuple(Timing("in_process", size, 0, curve.seconds(size), None, None, None) for size in sizes)

    def _aside(self, line: str) -> None:
        self.asides.append(line)
        self.say(line)

    # -- the ladder --------------------------------------------------------------------------------------------------

    def _ladder(self, servers: Sequence[Server], served: Stack, folder: Path) -> None:
        with ExitStack() as closing:
            engines = set() if self._device == EMULATED else {server.running.engine for server in servers}
            workers = {engine: closing.enter_context(self._worker(engine)) for engine in sorted(engines)}
            channel = grpc_channel(served.grpc)
            closing.callback(channel.close)
            steps: list[Step] = []
            for server in servers:
                name = server.variant.name
                counts = counting(served.triton.url, name)
                for size in self.options.batch_sizes:
                    ways = self._ways(server, size, served, closing)
                    batch = self.sent.batch(size)
                    ways.append(over_grpc(channel, name, self.sent.signature, batch))
                    made = [Step(name, size, way, counts) for way in ways]
                    if (worker := workers.get(server.running.engine)) is not None:
                        rows = write_rows(folder / f"rows-{size}.npz", batch)
                        session = self._opened(worker, server, rows, size)
                        made.append(Step(name, size, InProcess(worker, session, size), None))
                    server.steps += made
                    steps += made

            def tell(done: int) -> None:
                self.say(f"ladder: round {done} of {self.pace.num_rounds}")

            self.say(f"ladder: {len(steps)} ways to ask, one request at a time, in up to {self.pace.num_rounds} rounds")
            in_turns(steps, self.pace.num_rounds, self.pace.slice_s, self.pace.ladder_s, tell)
        for server in servers:
            for size in self.options.batch_sizes:
                direct, whole = server.median_s("in_process", size), server.median_s("gateway_binary", size)
                inside = "" if direct is None else f"in process {milliseconds(direct)} ms, "
                if whole is not None:
                    self.say(
                        f"{server.profile().label}, batch {size}: {inside}through the gateway {milliseconds(whole)} ms"
                    )

    def _ways(self, server: Server, size: int, served: Stack, closing: ExitStack) -> list[Way]:
        pins = {"Tandem-Variant": server.variant.record.variant, "Tandem-Pool": self.options.pool}
        ways: list[Way] = []
        for kind in ("binary", "json"):
            try:
                body = encode(self.sent.signature, self.sent.batch(size), (), kind)
            except ValueError as error:
                if str(error) not in self.asides:
                    self._aside(str(error))
                continue
            direct: Rung = "triton_http_binary" if kind == "binary" else "triton_http_json"
            before: Rung = "gateway_binary" if kind == "binary" else "gateway_json"
            way, connection = over_http(direct, served.triton.url, server.variant.name, body, {})
            closing.callback(connection.close)
            ways.append(way)
            way, connection = over_http(before, served.gateway.url, self.options.model, body, pins)
            closing.callback(connection.close)
            ways.append(way)
        return ways

    @contextmanager
    def _worker(self, engine: str) -> Iterator[WorkerProcess]:
        """The Python that Triton's own engine lives in. Raises CannotMeasure."""
        found = installed()
        try:
            worker = WorkerProcess(found[engine] if engine in found else found["cuda"])  # TensorRT comes with CUDA's
        except WorkerLost as lost:
            raise CannotMeasure(f"the engine did not run in process: {lost}") from None
        try:
            self.versions[f"onnxruntime ({engine})"] = asked(worker, "hello")["onnxruntime"]
            yield worker
        finally:
            worker.end()

    def _opened(self, worker: WorkerProcess, server: Server, rows: Path, size: int) -> str:
        running, variant = server.running, server.variant
        return opened(
            worker,
            f"{variant.name} {size}",
            variant.model_path,
            rows,
            engine=running.engine,
            precision=variant.record.variant,
            num_threads=running.settings.num_threads,
            allow_spinning=running.allow_spinning,
        )

    # -- the highest rates -------------------------------------------------------------------------------------------

    def _search(self, servers: Sequence[Server], gateway: str, folder: Path) -> None:
        sizes = self.options.rate_batch_sizes or (min(self.options.batch_sizes),)
        rung = RUNG_OF[self.options.encoding]
        alone_s = {
            (s.variant.name, size): s.median_s(rung, size) or self._alone_s(s, size) for s in servers for size in sizes
        }
        objectives_s = self.options.objectives_s
        if not objectives_s:
            objectives_s = (default_objective_s(list(alone_s.values())),)
            self.say(f"no --p99 was given: the rate is searched for p99 within {milliseconds(objectives_s[0])} ms")
        for server in servers:
            for size in sizes:
                place = folder / f"{server.variant.name}-{size}"
                self.sent.for_batches(size).write(inputs_file(place))
                for objective_s in objectives_s:
                    aim = Aim(
                        gateway=gateway,
                        model=self.options.model,
                        variant=server.variant.record.variant,
                        pool=self.options.pool,
                        encoding=self.options.encoding,
                        batch_size=size,
                        objective_s=objective_s,
                        run_s=self.pace.run_s,
                        warmup_s=self.pace.warmup_s,
                        folder=place,
                    )
                    label, alone = server.profile().label, alone_s[server.variant.name, size]
                    try:
                        most = max_rate(aim, label, alone, self.pace, server.load, self.progress, self.say)
                    except CannotMeasure as error:  # the ladder is worth keeping
                        self._aside(f"the highest rate of {server.variant.name} is not measured: {error}")
                        continue
                    server.max_rates.append(most)

    def _alone_s(self, server: Server, size: int) -> float:
        """Of a batch size that is not in the ladder: as if rows took their time one after the other."""
        known = [t for t in server.profile().ladder if t.rung == "gateway_binary"]
        nearest = min(known, key=lambda timing: abs(timing.batch_size - size))
        return nearest.latency_p50_s * max(1.0, size / nearest.batch_size)

    # -- cold starts -------------------------------------------------------------------------------------------------

    def _cold_starts(self, servers: Sequence[Server], folder: Path, shape: Shape | None) -> None:
        options = [*self._triton_options(shape), "--pool", self.options.pool]
        body = encode(self.sent.signature, self.sent.batch(1), (), "binary")
        for server in servers:
            name = server.variant.name
            alone = linked(folder / f"alone-{name}", [server.variant])

            def tell(start: int, name: str = name) -> None:
                self.say(f"cold start of {name}: {start} of {self.pace.cold_starts}")

            try:
                server.cold_start = start_often(alone, name, body, options, folder, self.pace.cold_starts, tell)
            except CannotMeasure as error:  # the rest is worth keeping
                self._aside(f"the cold start of {name} is not measured: {error}")
