"""Builds the ladder of several servers behind one Triton, and climbs it: every way to ask, in turns, until all rounds are over.

How and in which order they ask is `ladder.py`'s. A rung that cannot be measured is left out with a note. Rule: whatever is
opened here, connections and the engines' own processes, is closed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.profile.ladder import (
    EngineRung,
    RungClient,
    Step,
    ask_worker,
    grpc_channel,
    in_turns,
    open_session,
    over_grpc,
    over_http,
    times_reader,
    write_rows,
)
from loadtest.profile.options import ProfileOptions
from loadtest.profile.selection import ProfilePayload
from loadtest.profile.server import Server
from loadtest.profile.wording import rows
from loadtest.report.summaries import milliseconds
from loadtest.sending.bodies import encode
from loadtest.stack import Stack
from loadtest.target import credentials
from serving.decisions.profile import Rung
from serving.export.speed.process import WorkerLost, WorkerProcess
from serving.local.devices import installed
from serving.settings import LimitSettings

Target = tuple[Rung, str, str, dict[str, str]]  # rung, URL, the model's name there, headers
MOST_BYTES = LimitSettings().max_body_bytes  # what a gateway takes where nobody says otherwise, as here


@dataclass(frozen=True, slots=True)
class LadderSetup:
    """What a ladder is measured with. `aside` takes notes for the readers of the profile."""

    options: ProfileOptions
    sent: ProfilePayload
    served: Stack
    folder: Path
    say: Callable[[str], None]
    aside: Callable[[str], None]


def climb(servers: Sequence[Server], ground: LadderSetup) -> dict[str, str]:
    """Fills the servers' steps; returns versions of the engines that ran in process. Raises CannotMeasure."""
    pace, said = ground.options.pace, {}
    with ExitStack() as closing:
        engines = set() if ground.options.emulate else {server.running.engine for server in servers}
        workers = {engine: closing.enter_context(_worker(engine)) for engine in sorted(engines)}
        for engine, worker in workers.items():
            said[f"onnxruntime ({engine})"] = str(ask_worker(worker, "hello")["onnxruntime"])
        for server in servers:
            for size in ground.options.batch_sizes:
                server.steps += _over_the_net(server, size, ground, closing)
                if (worker_of := workers.get(server.running.engine)) is not None:
                    server.steps += _alone(server, size, ground, worker_of)
        steps = [step for server in servers for step in server.steps]
        ground.say(f"ladder: {len(steps)} ways to ask, one request at a time, in up to {pace.num_rounds} rounds")
        in_turns(
            steps,
            pace.num_rounds,
            pace.slice_s,
            pace.ladder_s,
            lambda done: ground.say(f"ladder: round {done} of {pace.num_rounds}"),
            lambda step, error: ground.aside(f"{step.server} with {rows(step.batch_size)} is not measured by {error}"),
        )
    for server in servers:
        for size in ground.options.batch_sizes:
            ground.say(_summary(server, size))
    return said


def _summary(server: Server, size: int) -> str:
    direct, whole = server.median_s("in_process", size), server.median_s("gateway_binary", size)
    inside = "" if direct is None else f"in process {milliseconds(direct)} ms, "
    through = "not measured" if whole is None else f"{milliseconds(whole)} ms"
    return f"{server.profile().label}, batch {size}: {inside}through the gateway {through}"


def _over_the_net(server: Server, size: int, ground: LadderSetup, closing: ExitStack) -> list[Step]:
    served, model, name = ground.served, ground.options.model, server.variant.name
    channel = grpc_channel(served.grpc)
    closing.callback(channel.close)
    pins = {"Tandem-Variant": server.variant.record.variant, "Tandem-Pool": ground.options.pool}
    ways: list[RungClient] = [over_grpc(channel, name, ground.sent.signature, ground.sent.batch(size))]
    rungs: tuple[tuple[str, Rung, Rung], ...] = (
        ("binary", "triton_http_binary", "gateway_binary"),
        ("json", "triton_http_json", "gateway_json"),
    )
    for encoding, direct, through in rungs:
        try:
            body = encode(ground.sent.signature, ground.sent.batch(size), (), encoding)
        except ValueError as error:
            ground.aside(f"no JSON for {name} with {rows(size)}: {error}")
            continue
        to_triton: Target = (direct, served.triton.url, name, {})
        to_gateway: Target = (through, served.gateway.url, model, pins | credentials())
        if is_large := len(body.data) > MOST_BYTES:
            ground.aside(
                f"{name} with {rows(size)} is not measured by {through}: its request has {len(body.data):,} bytes, and the gateway takes "
                f"{MOST_BYTES:,}"
            )
        for rung, url, called, headers in (to_triton,) if is_large else (to_triton, to_gateway):
            way, connection = over_http(rung, url, called, body, headers)
            closing.callback(connection.close)
            ways.append(way)
    counts = times_reader(served.triton.url, name)
    return [Step(name, size, way, counts) for way in ways]


def _alone(server: Server, size: int, ground: LadderSetup, worker: WorkerProcess) -> list[Step]:
    """The engine in a process of its own; an empty list, with a note, where it does not run there."""
    running, variant = server.running, server.variant
    session = f"{variant.name} {size}"
    file = write_rows(ground.folder / f"rows-{size}.npz", ground.sent.batch(size))
    try:
        open_session(
            worker,
            session,
            variant.model_path,
            file,
            engine=running.engine,
            precision=variant.record.variant,
            num_threads=running.settings.num_threads,
            allow_spinning=running.allow_spinning,
        )
    except CannotMeasure as error:
        ground.aside(f"{variant.name} is not measured in process: {error}")
        return []
    return [Step(variant.name, size, EngineRung(worker, session, size), None)]


@contextmanager
def _worker(engine: str) -> Iterator[WorkerProcess]:
    """The Python that Triton's own engine lives in. Raises CannotMeasure."""
    found = installed()
    python = found.get(engine) or found.get("cuda")  # TensorRT comes with CUDA's
    if python is None:
        raise CannotMeasure(f"there is no {engine} outside Triton here: `tandem environment` makes it")
    try:
        worker = WorkerProcess(python)
    except WorkerLost as lost:
        raise CannotMeasure(f"the engine did not run in process: {lost}") from None
    try:
        yield worker
    finally:
        worker.end()
