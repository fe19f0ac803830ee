"""Measures a model on this machine's embedded Triton: the ladder of every variant side by side, then the highest rates, then cold starts.

`measure` is the one entry; an interruption keeps what was found. How each thing is measured is its own module's; here is the order, and
which process serves what. Rule: no process outlives the call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.processes import Moment
from loadtest.profile.climb import LadderSetup, climb
from loadtest.profile.cold_start import start_often
from loadtest.profile.load import LoadTarget, default_objective_s, inputs_file, max_rate
from loadtest.profile.options import Encoding, ProfileOptions, Shape
from loadtest.profile.selection import (
    EMULATED,
    ProfilePayload,
    check_batch_sizes,
    check_engines,
    inputs_for,
    linked,
    variants_of,
)
from loadtest.profile.server import Server, server_of
from loadtest.profile.wording import BUSY_RATIO, notes
from loadtest.progress import Progress
from loadtest.report.summaries import milliseconds
from loadtest.sending.bodies import encode
from loadtest.stack import Stack, stack
from loadtest.target import Gateway
from serving.decisions.profile import Profile, Rung
from serving.local.devices import installed, require_gpu
from serving.measure.machine import this_machine, versions

Say = Callable[[str], None]
LOOK_S = 0.5  # at the other work before anything starts: 50 of the kernel's ticks
RUNG_OF: dict[Encoding, Rung] = {"binary": "gateway_binary", "json": "gateway_json"}


class Interrupted(Exception):
    """Ctrl-C, or a request to end. `profile` is what was measured, None where nothing was."""

    def __init__(self, profile: Profile | None) -> None:
        super().__init__("interrupted")
        self.profile = profile


def measure(options: ProfileOptions, say: Say, progress: Progress | None = None) -> Profile:
    """Raises UserError, CannotMeasure, and Interrupted with what there is."""
    study = Study(options, say, progress or Progress())
    try:
        with tempfile.TemporaryDirectory(prefix="tandem-profile-") as name:
            study.run(Path(name))
    except KeyboardInterrupt:
        is_something = any(server.has_ladder for server in study.servers)
        raise Interrupted(study.profile(is_partial=True) if is_something else None) from None
    return study.profile()


class Study:
    """One call of `measure`: what is served, one setting after the other, and what was found."""

    def __init__(self, options: ProfileOptions, say: Say, progress: Progress) -> None:
        self.options, self.say, self.progress = options, say, progress
        self.pace = options.pace
        if options.pool == "gpu":
            require_gpu()
        check_engines(options, list(installed()))
        self.variants = variants_of(options)
        check_batch_sizes(options, self.variants)
        self.sent: ProfilePayload = inputs_for(self.variants, options.data)
        self.servers: list[Server] = []
        self.versions = versions()
        self.machine = this_machine()
        self.started = datetime.now().astimezone()
        self.began = Moment.now()
        self.asides: list[str] = []

    def run(self, folder: Path) -> None:
        self._tell_if_busy()
        ways = [(s, engine) for s in self.options.settings or (None,) for engine in self.options.engines or (None,)]
        for number_of, (shape, engine) in enumerate(ways):
            triton = self._triton_options(shape, engine)
            try:
                self._one_setting(folder / f"setting-{number_of}", shape, triton)
            except CannotMeasure as error:  # what others gave is worth keeping
                if number_of + 1 == len(ways) and not any(server.has_ladder for server in self.servers):
                    raise
                self._aside(f"with {' '.join(triton)}: {error}" if triton else str(error))

    def _tell_if_busy(self) -> None:
        before = Moment.now()
        time.sleep(LOOK_S)
        others_ratio = before.others_ratio(Moment.now(), self.machine.num_cores)
        if others_ratio > BUSY_RATIO:
            self.say(f"other work takes {others_ratio:.0%} of the cores now: wait for it, or do not trust the figures")

    def profile(self, *, is_partial: bool = False) -> Profile:
        others_ratio = self.began.others_ratio(Moment.now(), self.machine.num_cores)
        points = [point for server in self.servers for point in server.load]
        priorities = [point.is_real_time for point in points if point.is_real_time is not None]
        said = notes(self.options, self.machine.num_cores, others_ratio, self.asides, priorities, is_partial=is_partial)
        return Profile(
            model=self.options.model,
            provenance="emulated" if self.options.pool.startswith(EMULATED) else "measured",
            date=self.started.isoformat(timespec="seconds"),
            command=self.options.command,
            machine=self.machine,
            servers=tuple(server.profile() for server in self.servers if server.has_ladder),
            versions=self.versions,
            data=f"{self.sent.what}; the search sends {self.options.encoding} tensors",
            note=said,
            others_ratio=others_ratio,
        )

    # -- one setting -------------------------------------------------------------------------------------------------

    def _one_setting(self, folder: Path, shape: Shape | None, triton: Sequence[str]) -> None:
        repository = linked(folder / "repository", self.variants)
        (folder / "logs").mkdir()
        label = "" if shape is None else f", {shape.words}"
        self.say(f"starting Triton and a gateway for {', '.join(v.name for v in self.variants)}{label}")
        with stack(repository, folder / "logs", pool=self.options.pool, device=self._device, options=triton) as served:
            gateway = Gateway(served.gateway.url, has_key=True)
            self.versions |= gateway.versions()
            here = self._served(gateway, served)
            if not here:
                raise CannotMeasure(f"nothing of {self.options.model} is served here: {'; '.join(self.asides)}")
            self.servers += here
            ground = LadderSetup(self.options, self.sent, served, folder, self.say, self._aside)
            self.versions |= climb(here, ground)
            if self.options.has_search:
                self._search(here, served, folder)
        if self.options.has_cold_start:
            self._cold_starts(here, folder, triton)

    @property
    def _device(self) -> str:
        return EMULATED if self.options.pool.startswith(EMULATED) else self.options.pool

    def _triton_options(self, shape: Shape | None, engine: str | None) -> list[str]:
        given = ["--emulate", str(self.options.emulate.absolute())] if self.options.emulate else []
        if engine is not None:
            given += ["--engine", engine]
        if shape is not None:
            given += shape.triton_options
        return given

    def _served(self, gateway: Gateway, served: Stack) -> list[Server]:
        """Those that the gateway answers for; says why others are left out."""
        found, body = [], encode(self.sent.signature, self.sent.batch(1), (), "binary")
        for variant in self.variants:
            one = server_of(variant, self.options, gateway, served.triton.url, body)
            if isinstance(one, str):
                self._aside(f"{variant.name} is not measured: {one}")
            else:
                found.append(one)
        return found

    def _aside(self, line: str) -> None:
        self.asides.append(line)
        self.say(line)

    # -- the highest rates -------------------------------------------------------------------------------------------

    def _search(self, servers: Sequence[Server], served: Stack, folder: Path) -> None:
        sizes = self.options.rate_batch_sizes or (min(self.options.batch_sizes),)
        rung = RUNG_OF[self.options.encoding]
        alone_s: dict[tuple[str, int], float] = {}
        for server in servers:
            for size in sizes:
                try:
                    alone_s[server.variant.name, size] = server.median_s(rung, size) or server.guessed_s(size)
                except CannotMeasure as error:
                    self._aside(f"the highest rate of {server.variant.name} is not measured: {error}")
        objectives_s = self.options.objectives_s
        if not objectives_s and alone_s:
            objectives_s = (default_objective_s(list(alone_s.values())),)
            self.say(f"no --p99 was given: the rate is searched for p99 within {milliseconds(objectives_s[0])} ms")
        for server in servers:
            for size in (size for size in sizes if (server.variant.name, size) in alone_s):
                place = folder / f"{server.variant.name}-{size}"
                self.sent.for_batches(size).write(inputs_file(place))
                for objective_s in objectives_s:
                    aim = LoadTarget(
                        gateway=served.gateway.url,
                        model=self.options.model,
                        variant=server.variant.record.variant,
                        pool=self.options.pool,
                        encoding=self.options.encoding,
                        batch_size=size,
                        objective_s=objective_s,
                        run_s=self.pace.run_s,
                        warmup_s=self.pace.warmup_s,
                        folder=place,
                        triton_pid=served.triton.pid,
                    )
                    label, alone = server.profile().label, alone_s[server.variant.name, size]
                    try:
                        most = max_rate(aim, label, alone, self.pace, server.load, self.progress, self.say)
                    except CannotMeasure as error:  # the ladder is worth keeping
                        self._aside(f"the highest rate of {server.variant.name} is not measured: {error}")
                        continue
                    server.max_rates.append(most)

    # -- cold starts -------------------------------------------------------------------------------------------------

    def _cold_starts(self, servers: Sequence[Server], folder: Path, triton: Sequence[str]) -> None:
        options = [*triton, "--pool", self.options.pool]
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
