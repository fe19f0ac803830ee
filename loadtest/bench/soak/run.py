"""One soak: a real `tandem up`, a second server beside it, requests, and what happens to them by the plan.

Keep: nothing is killed but processes that were started here.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench import made_models
from loadtest.bench.prove.restarts import RunningTandem, outage, segments, up
from loadtest.bench.soak import mix
from loadtest.bench.soak.fates import Kill, Losses
from loadtest.bench.soak.growth import THIS, Growth, watched
from loadtest.bench.soak.plan import FLOOD_LASTS, Event, Kind, Victim, arrivals, events
from loadtest.errors import CannotMeasure
from loadtest.processes import TANDEM, Process, family, running, still_there
from loadtest.sending.sender import Load, closed_loop, open_load, open_loop
from loadtest.sending.sent_request import Shot
from loadtest.stack import START_TIMEOUT_S
from loadtest.target import Gateway
from serving.decisions.simulate.outcome import Latencies
from serving.export.publish import publish_all, writing
from serving.http_client import Connection, request_bytes
from serving.ports import free_ports
from serving.repository import RECORD_FILE, Repository

GRPC_SHARE = 0.2  # of the requests
SURGE_TIMES = 6.0  # as many requests a second around a kill
NUM_CLIENTS, CLOSED_S = 32, 3.0  # that find out how much is answered
MAX_FLOODING = 512  # requests of one client under way: a program that floods has connections for so many (guess)
GONE_S = 5.0  # in which what got SIGKILL is gone
RELOAD_LIMIT_S = 60.0
SAMPLES_EVERY_S = 5.0
AGAIN_S = 30.0  # for whatever is killed next to be there: it was killed two periods ago at the latest


@dataclass(frozen=True, slots=True)
class Setting:
    """`flood_times`: how many times what is answered to a closed loop, by a client in an open one."""

    duration_s: float
    period_s: float = 60.0
    rate_rps: float = 60.0
    flood_times: float = 3.0


@dataclass(slots=True)
class SoakTally:
    """What happened, counted while it does. `left`: processes and segments after the end."""

    mix: Losses = field(default_factory=Losses)
    flood: Losses = field(default_factory=Losses)
    took: Latencies = field(default_factory=Latencies)  # answers of the mix
    lag: Latencies = field(default_factory=Latencies)  # of its generators
    outages_s: dict[str, list[float | None]] = field(default_factory=dict)  # of each kill, by victim
    kills: list[Kill] = field(default_factory=list)
    growth: Growth = field(default_factory=Growth)
    reloads: list[tuple[float, int | None]] = field(default_factory=list)  # seconds, and the status
    slow: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)  # what was to be done and could not be
    left: list[str] = field(default_factory=list)
    surfaces: list[str] = field(default_factory=list)
    flood_rps: float = 0.0
    num_dropped: int = 0  # of the flood, by its client

    def count(self, shots: Sequence[Shot]) -> None:
        """Requests of the mix that ended after the last kill, in their order in time, and before the next."""
        self.mix.add(shots, self.kills)
        for shot in shots:
            self.lag.add(shot.lag_s, 1)
            if shot.is_answered:
                self.took.add(shot.took_s, 1)
        if self.kills:
            kill = self.kills[-1]
            found = outage((shot for shot in shots if not shot.is_refused), kill.at_s).recovered_s
            self.outages_s.setdefault(kill.victim.value, []).append(found)

    def longest_outages_s(self) -> Mapping[str, float | None]:
        """By victim: from a kill until nothing but answers came, refusals of overload left out; None: it did not come before the next."""
        return {
            who: None if None in times else max(t for t in times if t is not None)
            for who, times in self.outages_s.items()
        }


@dataclass(slots=True)
class Soak:
    """While it runs. `other` is the pid of the second server's `tandem triton`."""

    setting: Setting
    here: RunningTandem
    other: int
    repository: Path
    found: SoakTally
    metadata: dict[str, object]
    loads: list[Load] = field(default_factory=list)
    began_s: float = 0.0
    threads: list[threading.Thread] = field(default_factory=list)

    def do(self, event: Event) -> None:
        """Kills at once; what lasts goes on beside."""
        self._say(event.kind.name.lower() + (f" {event.victim.value}" if event.victim else ""))
        if event.kind is Kind.KILL and event.victim is not None:
            self._kill(event.victim)
            return
        work = {Kind.RELOAD: self._reload, Kind.FLOOD: self._flood, Kind.SLOW: self._slow}[event.kind]

        def guarded() -> None:
            try:
                work()
            except (CannotMeasure, OSError) as error:
                self.found.missed.append(f"{event.kind.name.lower()} at {event.at_s:.0f} s: {error}")

        thread = threading.Thread(target=guarded)
        thread.start()
        self.threads.append(thread)

    def _kill(self, victim: Victim) -> None:
        process = self._victim(victim)
        if process is None:
            self.found.missed.append(f"{victim.value}: it was not there to be killed")
            return
        self.count()
        at_s = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        while still_there([process]) and time.monotonic() - at_s < GONE_S:
            time.sleep(0.001)
        self.found.kills.append(Kill(at_s, time.monotonic(), victim))

    def count(self) -> None:
        """Once a period, so that no more than a period's requests are kept; and says how it stands."""
        shots = [shot for load in self.loads for shot in load.take()]
        self.found.count(sorted(shots, key=lambda shot: shot.ended_s))
        mix, roles = self.found.mix, self.found.growth.roles
        fates = ", ".join(f"{count} {one.name.lower().replace('_', ' ')}" for one, count in mix.fates.items())
        held = f", {mix.held} of them held by the gateway" if mix.held else ""
        last = [(name, roles[name].latest()) for name in ("gateway", THIS) if name in roles]
        memory = ", ".join(f"{name} {sample.memory_bytes / 1e6:.0f} MB" for name, sample in last)
        self._say(f"{mix.num_sent} sent: {fates}{held}; {memory}")

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self.began_s:7.1f} s  {what}", file=sys.stderr, flush=True)

    def _victim(self, victim: Victim) -> Process | None:
        is_other = victim in (Victim.OTHER_SERVER, Victim.OTHER_MODEL)
        end_s = time.monotonic() + AGAIN_S
        while time.monotonic() < end_s:
            members = family(self.other if is_other else self.here.process.pid)
            for process in members:
                if _is(process, victim):
                    return process
            time.sleep(0.1)
        return None

    def _reload(self) -> None:
        """The model in its next version, with other files, as an export leaves it; then it is asked for by name."""
        number = len(self.found.reloads) + 2
        variants = [v for v in Repository(self.repository).readable()[0] if v.record.model == mix.MODEL]
        publications = []
        for variant in variants:
            record = replace(variant.record, model_version=number)
            generated = {RECORD_FILE, *variant.config_files()}
            files = {
                path: (variant.directory / path).read_bytes() for path in variant.record.files if path not in generated
            }
            # An unknown field, which protobuf passes over: another digest, the same answers.
            files[record.model_file] = files.pop(variant.record.model_file) + bytes([0xFA, 0x7F, 0x01, number % 128])
            publications.append((record, files))
        with writing(self.repository):
            publish_all(self.repository, publications)
        began_s = time.monotonic()
        connection = Connection(self.here.url, RELOAD_LIMIT_S)
        request = request_bytes("POST", self.here.url, f"/v2/repository/models/{mix.MODEL}/load", {}, b"{}")
        status = None
        while status in (None, 503) and time.monotonic() - began_s < RELOAD_LIMIT_S:  # not ready: as a script would
            try:
                status = connection.send(request).status
            except OSError:
                status = None
                time.sleep(1.0)
        connection.close()
        self.found.reloads.append((time.monotonic() - began_s, status))

    def _flood(self) -> None:
        self.found.growth.floods.append(time.monotonic())
        requests = mix.flood(self.here.url, self.metadata)
        arrivals = schedule(Arrivals("poisson", self.found.flood_rps), self.setting.period_s * FLOOD_LASTS, seed=1)
        load = open_loop(requests, arrivals, MAX_FLOODING)
        self.found.flood.add(load.shots, self.found.kills)
        self.found.num_dropped += load.num_dropped

    def _slow(self) -> None:
        lasting_s = self.setting.period_s / 3
        body = mix.large(self.metadata)
        reading = threading.Thread(target=partial(mix.read_slowly, self.here.url, body, lasting_s))
        reading.start()
        told = mix.write_slowly(self.here.url, body, lasting_s)
        reading.join()
        self.found.slow["slow writers that the gateway cut short" if told else "slow writers that left"] += 1
        self.found.slow["slow readers"] += 1


def _is(process: Process, victim: Victim) -> bool:
    if victim in (Victim.SERVER, Victim.OTHER_SERVER):
        return process.program == "tritonserver"
    if victim in (Victim.MODEL, Victim.OTHER_MODEL):
        return process.program == "triton_python_backend_stub" and f"/{mix.MODEL}-" in process.command[1]
    word = "gateway" if victim is Victim.GATEWAY else "triton"
    return process.command[1:4] == ("-m", "serving", word)


def _metadata(here: RunningTandem) -> dict[str, object]:
    """Raises CannotMeasure."""
    found = Gateway(here.url).metadata(mix.MODEL)
    if found is None:
        raise CannotMeasure(f"the gateway does not say what {mix.MODEL} takes")
    return found


@contextmanager
def _server(repository: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """A `tandem triton` that no `tandem up` started: its URL and its process."""
    http, grpc, metrics = free_ports(3)
    ready = folder / "other.ready"
    command = [*TANDEM, "triton", "--pool", "cpu", "--model-repository", str(repository), "--no-measure"]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    command += ["--exit-timeout-s", "2", "--ready-file", str(ready)]
    with running(command, folder / "other.log", ready.exists, START_TIMEOUT_S) as process:
        yield f"http://127.0.0.1:{http}", process.pid


def soak(setting: Setting, folder: Path, models: Path) -> SoakTally:
    """Raises CannotMeasure."""
    found = SoakTally()
    repository = folder / "repository"
    shutil.copytree(models, repository)
    if mix.text_model(repository) is None:
        made_models.write(repository, (made_models.BASE, made_models.WORDS.onnx(), made_models.BESIDE))
    plan = events(setting.duration_s, setting.period_s)
    with _server(repository, folder) as (other_url, other):
        options = ["--no-measure", "--pool", f"cpu={other_url}"]
        with up(folder, 0, *options, repository=repository) as here:
            _soak(Soak(setting, here, other, repository, found, _metadata(here)), plan, folder)
            members = family(here.process.pid)
        members += list(found.growth.seen.values())
    found.left = [f"process {process.pid} {process.program}" for process in still_there(members)]
    found.left += [f"/dev/shm/{segment}" for segment in segments(members)]
    return found


def _soak(now: Soak, plan: list[Event], folder: Path) -> None:
    setting, here, found = now.setting, now.here, now.found
    by_surface = mix.surfaces(here.url, now.metadata, now.repository)
    found.surfaces = [*by_surface, "gRPC"]
    closed = closed_loop(by_surface["json"], NUM_CLIENTS, CLOSED_S, in_turn=True)
    found.flood_rps = setting.flood_times * len(closed.shots) / CLOSED_S
    kills_s = [event.at_s for event in plan if event.kind is Kind.KILL]

    def due(share: float, seed: int) -> Iterator[float]:
        rate_rps = setting.rate_rps * share
        return arrivals(setting.duration_s, rate_rps, rate_rps * SURGE_TIMES, kills_s, seed)

    with ExitStack() as running_now:
        found.growth = running_now.enter_context(
            watched([here.process.pid, now.other], [folder / "state-0"], SAMPLES_EVERY_S, time.monotonic)
        )
        authority = f"127.0.0.1:{here.grpc_port}"
        now.loads.append(running_now.enter_context(open_load(mix.mixed(by_surface), due(1 - GRPC_SHARE, 1))))
        now.loads.append(
            running_now.enter_context(mix.calls(authority, mix.messages(now.metadata), due(GRPC_SHARE, 2)))
        )
        now.began_s = now.loads[0].began_s
        for event in plan:
            time.sleep(max(0.0, now.began_s + event.at_s - time.monotonic()))
            now.do(event)
    for thread in now.threads:
        thread.join()
    now.count()
