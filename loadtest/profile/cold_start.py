"""How long does a server of one variant take from nothing to its first good answer, and where does the time go?

A Triton is started for the variant alone, several times, and looked at every 20 ms. Its warm-up is part of `load`: Triton calls a model
ready only after it. A machine that has just served it has the files in memory, so that a first start after boot takes longer. Rule: what
a cluster adds before, a node and an image, is not measured here and not made up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.processes import TANDEM, running
from loadtest.sending.bodies import Body
from loadtest.stack import START_TIMEOUT_S, answers
from serving.decisions.profile import Phase
from serving.http_client import Connection, request_bytes
from serving.ports import free_ports

PHASES = ("process", "load", "first_answer")
ANSWER_TIMEOUT_S = 60.0


@dataclass(slots=True)
class StartWatch:
    """The moments at which a server reached each stage, in seconds since its start."""

    url: str
    name: str
    began_s: float
    live_s: float | None = None
    ready_s: float | None = None

    def look(self) -> bool:
        """Whether the model is ready."""
        authority = self.url.removeprefix("http://")
        if self.live_s is None:
            if not answers(authority, "/v2/health/live"):
                return False
            self.live_s = time.monotonic() - self.began_s
        if answers(authority, f"/v2/models/{self.name}/ready"):
            self.ready_s = time.monotonic() - self.began_s
        return self.ready_s is not None


def start_once(repository: Path, name: str, body: Body, options: Sequence[str], log: Path) -> tuple[float, ...]:
    """Seconds of each of PHASES. `repository` holds this variant alone. Raises CannotMeasure."""
    http, grpc, metrics = free_ports(3)
    command = [*TANDEM, "triton", *options, "--model-repository", str(repository), "--no-measure"]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    watched = StartWatch(f"http://127.0.0.1:{http}", name, time.monotonic())
    with running([*command, "--exit-timeout-s", "2"], log, watched.look, START_TIMEOUT_S):
        assert watched.live_s is not None
        assert watched.ready_s is not None
        connection = Connection(watched.url, ANSWER_TIMEOUT_S)
        try:
            request = request_bytes("POST", watched.url, f"/v2/models/{name}/infer", body.headers, body.data)
            asked_s = time.monotonic() - watched.began_s
            answer = connection.send(request)
            answered_s = time.monotonic() - watched.began_s
        except OSError as error:
            raise CannotMeasure(f"{name} gave no first answer: {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise CannotMeasure(f"the first answer of {name} was {answer.status}")
        return watched.live_s, watched.ready_s - watched.live_s, answered_s - asked_s


def phases(starts: Sequence[tuple[float, ...]]) -> tuple[Phase, ...]:
    """The median of each phase."""
    if not starts:
        return ()
    return tuple(Phase(name, statistics.median(start[at] for start in starts)) for at, name in enumerate(PHASES))


def start_often(
    repository: Path,
    name: str,
    body: Body,
    options: Sequence[str],
    folder: Path,
    times: int,
    tell: Callable[[int], None],
) -> tuple[Phase, ...]:
    starts = []
    for number in range(times):
        tell(number + 1)
        starts.append(start_once(repository, name, body, options, folder / f"cold-{name}.log"))
    return phases(starts)
