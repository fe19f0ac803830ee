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
from loadtest.estimates import estimate
from loadtest.machine import this_machine, versions
from loadtest.profile import search
from loadtest.profile.asking import InProcess, Way, asked, grpc_channel, opened, over_grpc, over_http, write_rows
from loadtest.profile.cold_start import start_often
from loadtest.profile.inputs import Sent, inputs_for
from loadtest.profile.ladder import Step, in_turns, ladder
from loadtest.profile.load import Aim, inputs_file, open_run
from loadtest.profile.notes import notes
from loadtest.profile.options import Encoding, ProfileOptions, Shape
from loadtest.profile.places import EMULATED, accuracy, check_batch_sizes, linked, variants_of
from loadtest.profile.statistics import Running, counting, running_of
from loadtest.progress import Progress
from loadtest.summaries import milliseconds, number
from loadtest.target import Gateway
from serving.export.speed.process import WorkerLost, WorkerProcess
from serving.local.engines import installed
from serving.planning.profile import LoadPoint, MaxRate, Phase, Profile, Rung, ServerProfile
from serving.repository.layout import Variant

Say = Callable[[str], None]
DEFAULT_OBJECTIVES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
OBJECTIVE_MEDIANS = (
    4.0  # times the slowest variant's median, where nobody names an objective (a guess: room for a queue)
)
MIN_RATE_RPS = 0.2
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

    def profile(self) -> ServerProfile:
        return ServerProfile(
            variant=self.variant.record.variant,
            engine=self.running.engine,
            device=self.device,
            device_name=self.running.device_name,
            digest=self.variant.digest,
            settings=self.running.settings,
            ladder=ladder(self.steps, self.variant.name),
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
            found.append(Server(variant, running, self._device_of(config)))
        return found

    def _device_of(self, config: dict[str, object]) -> str:
        parameters = config.get("parameters")
        emulated = parameters.get("tandem_emulated") if isinstance(parameters, dict) else None
        return f"{EMULATED}-{emulated['string_value']}" if isinstance(emulated, dict) else self.options.pool

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

            self.say(f"ladder: {len(steps)} ways to ask, one request at a time, {self.pace.num_rounds} rounds in turns")
            in_turns(steps, self.pace.num_rounds, self.pace.slice_s, tell)
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
        objectives_s = self.options.objectives_s or self._default_objective(servers, max(sizes))
        for server in servers:
            for size in sizes:
                place = folder / f"{server.variant.name}-{size}"
                self.sent.for_batches(size).write(inputs_file(place))
                for objective_s in objectives_s:
                    self._one_search(
                        server,
                        Aim(
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
                        ),
                    )

    def _default_objective(self, servers: Sequence[Server], size: int) -> tuple[float, ...]:
        """A round time that leaves every variant room for a queue."""
        medians = [m for s in servers if (m := s.median_s("gateway_binary", size)) is not None]
        wanted_s = OBJECTIVE_MEDIANS * max(medians)
        chosen = next((one for one in DEFAULT_OBJECTIVES_S if one >= max(wanted_s, 0.02)), DEFAULT_OBJECTIVES_S[-1])
        self.say(
            f"no --p99 was given: {milliseconds(chosen)} ms, a round time above {OBJECTIVE_MEDIANS:g} times the slowest median"
        )
        return (chosen,)

    def _one_search(self, server: Server, aim: Aim) -> None:
        alone_s = server.median_s(RUNG_OF[aim.encoding], aim.batch_size) or aim.objective_s
        floor_rps = max(MIN_RATE_RPS, 0.05 / alone_s)
        start_rps = floor_rps if alone_s > aim.objective_s else max(floor_rps, search.START_RATIO / alone_s)
        title = f"{server.profile().label}, batch {aim.batch_size}, p99 within {milliseconds(aim.objective_s)} ms"
        plan = search.Search(start_rps, floor_rps, self.pace.precision_ratio, self.pace.num_repeats, self.pace.max_runs)

        def run(rate_rps: float) -> search.Outcome:
            seen = open_run(aim, rate_rps, len(server.load), self.progress, f"{title}: {number(rate_rps)}/s")
            server.load.append(seen.point)
            point = seen.point
            late = f"{point.num_late_or_lost:,} of {point.num_due:,} late or lost"
            outcome = f"void: {point.void}" if point.void else ("met" if point.is_met else "missed")
            why = f"; {seen.growing}" if seen.growing and not point.void else ""
            self.say(f"{title}: {number(rate_rps)}/s: {outcome} ({late}{why})")
            return "void" if point.void else ("met" if point.is_met else "missed")

        found = search.find(plan, run)
        told = estimate(found.estimates)
        server.max_rates.append(
            MaxRate(
                objective_s=aim.objective_s,
                batch_size=aim.batch_size,
                rate_rps=found.rate_rps,
                low_rps=told.low if told else None,
                high_rps=told.high if told else None,
                runs=found.estimates,
                is_bounded_by_generator=found.is_bounded_by_generator,
            )
        )

    # -- cold starts -------------------------------------------------------------------------------------------------

    def _cold_starts(self, servers: Sequence[Server], folder: Path, shape: Shape | None) -> None:
        options = [*self._triton_options(shape), "--pool", self.options.pool]
        body = encode(self.sent.signature, self.sent.batch(1), (), "binary")
        for server in servers:
            name = server.variant.name
            alone = linked(folder / f"alone-{name}", [server.variant])

            def tell(start: int, name: str = name) -> None:
                self.say(f"cold start of {name}: {start} of {self.pace.cold_starts}")

            server.cold_start = start_often(alone, name, body, options, folder, self.pace.cold_starts, tell)
