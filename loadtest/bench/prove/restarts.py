"""What happens, and how soon, when Triton dies, a model's process dies, or Tandem is told to stop, under load?

A real `tandem up`, its real processes, SIGKILL and SIGTERM; clients in a closed loop. The judging is pure: an honest refusal is a 503 that
says when to come back (Retry-After) and what it is (Tandem-Error); whatever else is not a 200 is dishonest. A request that found no
listener was never taken, so it is not lost; one that was sent and got no whole answer is.
Rule: nothing is killed but children of the `tandem up` that was started here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, TANDEM, Process, family, running, still_there
from loadtest.sending.link import Request
from loadtest.sending.sender import infer, paused_clients
from loadtest.sending.sent_request import Shot
from loadtest.stack import START_TIMEOUT_S
from loadtest.target import Gateway
from serving.local.launch import region_prefix_of
from serving.ports import free_ports


@dataclass(frozen=True, slots=True)
class Outage:
    """`first_refusal_s` and `recovered_s` count from the kill; None: it did not come (a refusal need not)."""

    num_answered: int
    num_refused: int
    first_refusal_s: float | None
    recovered_s: float | None
    longest_s: float
    wrong: Counter[str]  # everything that is neither a 200 nor an honest 503, by what it was

    @property
    def num_wrong(self) -> int:
        return self.wrong.total()


def outage(shots: Iterable[Shot], killed_s: float) -> Outage:
    """Only what ended after the kill counts. Recovered: the first 200 after which nothing but 200 came."""
    after = sorted((a for a in shots if a.ended_s >= killed_s), key=lambda shot: shot.ended_s)
    refusals = [shot for shot in after if shot.is_honest]
    wrong = Counter(str(shot) for shot in after if not (shot.is_answered or shot.is_honest))
    return Outage(
        num_answered=sum(shot.is_answered for shot in after),
        num_refused=len(refusals),
        first_refusal_s=refusals[0].ended_s - killed_s if refusals else None,
        recovered_s=_recovered(after, killed_s),
        longest_s=max((shot.took_s for shot in after), default=0.0),
        wrong=wrong,
    )


def _recovered(after: Sequence[Shot], killed_s: float) -> float | None:
    """None while the last word was not a 200."""
    good_since: float | None = None
    for shot in after:
        if not shot.is_answered:
            good_since = None
        elif good_since is None:
            good_since = shot.ended_s
    return None if good_since is None else good_since - killed_s


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Requests around a server's orderly stop."""

    num_answered: int  # whole answers after the signal
    num_turned_away: int
    lost: Counter[str]
    longest_s: float

    @property
    def num_lost(self) -> int:
        return self.lost.total()


def shutdown(shots: Iterable[Shot], signal_s: float) -> Shutdown:
    """Only what ended after the signal counts. An honest refusal is an answer: it says that the work was not taken."""
    after = [shot for shot in shots if shot.ended_s >= signal_s]
    taken = [shot for shot in after if shot.is_answered or shot.is_honest]
    return Shutdown(
        num_answered=len(taken),
        num_turned_away=sum(not shot.is_sent for shot in after),
        lost=Counter(str(shot) for shot in after if shot.is_sent and not (shot.is_answered or shot.is_honest)),
        longest_s=max((shot.took_s for shot in taken), default=0.0),
    )


MODEL = "digits"
STEADY_S = 1.0  # of load before something is done, so that connections are open and batches form
SETTLED_S = 2.0  # of nothing but 200 after which an outage counts as over
GIVE_UP_S = 20.0  # on an outage that does not end
NUM_STOPS = 3  # a race that loses a request shows itself in some stops only

FIRST_REFUSAL = AtMost(1.0, "s")
TRITON_BACK = AtMost(
    5.0, "s"
)  # 0.6 s to start and load digits, gRPC's import, and a poll each of ours; a guess at the rest
STUB_BACK = AtMost(2.5, "s")  # Triton itself holds requests to a dead stub for 1 s; then it is loaded again
LONGEST = AtMost(2.0, "s")  # what a person still takes for slow and not for broken (guess, not measured)
LONGEST_STUB = AtMost(
    2.5, "s"
)  # the batch that ran and the one that waited: Triton gives up on one after the other, 1 s each
STOPPED = AtMost(5.0, "s")
READY = AtMost(10.0, "s")
NONE = AtMost(0)


@dataclass(frozen=True, slots=True)
class RunningTandem:
    """A `tandem up` that is ready."""

    process: subprocess.Popen[bytes]
    port: int
    grpc_port: int
    ready_s: float

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.authority}"

    def one(self, what: str, is_it: Callable[[Process], bool]) -> Process:
        """The one process below it that is meant. Raises CannotMeasure."""
        found = [process for process in family(self.process.pid) if is_it(process)]
        if len(found) != 1:
            raise CannotMeasure(f"{len(found)} processes below tandem up look like {what}; one was expected")
        return found[0]


@contextmanager
def up(folder: Path, number: int, *options: str, repository: Path = MODEL_REPOSITORY) -> Iterator[RunningTandem]:
    """`tandem up` with a pool cpu on free ports until the block ends. Raises CannotMeasure."""
    port, grpc_port = free_ports(2)
    command = [*TANDEM, "up", "--port", str(port), "--grpc-port", str(grpc_port), "--pool", "cpu"]
    command += ["--model-repository", str(repository), *options]
    variables = {"TANDEM_STATE": str(folder / f"state-{number}")}
    began_s = time.monotonic()

    log = folder / f"up-{number}.log"

    def is_ready() -> bool:
        return log.exists() and "\nready in " in f"\n{log.read_text()}"

    with running(command, log, is_ready, START_TIMEOUT_S, variables) as process:
        yield RunningTandem(process, port, grpc_port, time.monotonic() - began_s)


def kill_server(here: RunningTandem, name: str) -> list[Verdict]:
    victim = here.one("tritonserver", lambda process: process.program == "tritonserver")
    result = _kill(here, victim)
    return [
        Verdict(f"{name}: first honest 503", result.first_refusal_s, FIRST_REFUSAL),
        *_verdicts(name, result, TRITON_BACK, LONGEST),
    ]


def kill_stub(here: RunningTandem, name: str) -> list[Verdict]:
    """Without a verdict on refusals: none need come where the model is back before Triton gives up a request."""
    served = f"/{_served_name(here)}/"

    def is_it(process: Process) -> bool:
        return process.program == "triton_python_backend_stub" and served in process.command[1]

    return _verdicts(name, _kill(here, here.one(f"the stub of {served.strip('/')}", is_it)), STUB_BACK, LONGEST_STUB)


def _verdicts(name: str, result: Outage, back: AtMost, longest: AtMost) -> list[Verdict]:
    counts = f"{result.num_answered} answered, {result.num_refused} refused honestly"
    return [
        Verdict(f"{name}: 200 again, for good", result.recovered_s, back),
        Verdict(f"{name}: longest request", result.longest_s, longest),
        Verdict(
            f"{name}: answers that are neither 200 nor honest", result.num_wrong, NONE, _listed(result.wrong) or counts
        ),
    ]


def _kill(here: RunningTandem, victim: Process) -> Outage:
    """SIGKILL under load, and what the clients saw until it was over."""
    with paused_clients(_request(here)) as clients:
        time.sleep(STEADY_S)
        if any(not shot.is_answered for shot in clients.so_far()):
            raise CannotMeasure("requests failed before anything was killed; see the log of tandem up")
        killed_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        while not _is_over(clients.so_far(), killed_s) and time.monotonic() - killed_s < GIVE_UP_S:
            time.sleep(0.05)
    return outage(clients.so_far(), killed_s)


def _is_over(shots: list[Shot], killed_s: float) -> bool:
    """Whether answers have been good for a while, long enough for a held request to have come back."""
    recovered_s = outage(shots, killed_s).recovered_s
    return recovered_s is not None and time.monotonic() - killed_s > recovered_s + SETTLED_S


def stop(here: RunningTandem, name: str) -> list[Verdict]:
    """SIGTERM under load."""
    members = family(here.process.pid)
    with paused_clients(_request(here)) as clients:
        time.sleep(STEADY_S)
        signal_s = time.monotonic()
        here.process.send_signal(signal.SIGTERM)
        try:
            here.process.wait(2 * STOPPED.limit + 1)
        except subprocess.TimeoutExpired:
            stopped_s = None
        else:
            stopped_s = time.monotonic() - signal_s
    result = shutdown(clients.so_far(), signal_s)
    left = [f"process {process.pid} {process.program}" for process in still_there(members)]
    left += [f"/dev/shm/{segment}" for segment in segments(members)]
    counts = f"{result.num_answered} answered, {result.num_turned_away} found no listener"
    return [
        Verdict(f"{name}: accepted requests lost", result.num_lost, NONE, _listed(result.lost) or counts),
        Verdict(f"{name}: longest request", result.longest_s, LONGEST),
        Verdict(f"{name}: has ended", stopped_s, STOPPED),
        Verdict(f"{name}: processes and segments left", len(left), NONE, ", ".join(left)),
    ]


def segments(members: Sequence[Process]) -> list[str]:
    """Shared memory named after one of these."""
    prefixes = tuple(region_prefix_of(process.pid) for process in members)
    return sorted(path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(prefixes))


def _request(here: RunningTandem) -> Request:
    body = (MODEL_REPOSITORY / f"{MODEL}-fp32" / "sample.json").read_bytes()
    return infer(f"http://{here.authority}", MODEL, body)


def _served_name(here: RunningTandem) -> str:
    """The variant that the public name stands for on this machine."""
    public = ((Gateway(f"http://{here.authority}").status() or {}).get("models") or {}).get(MODEL, {}).get("public")
    if not public:
        raise CannotMeasure(f"the gateway does not say which variant serves {MODEL}")
    return f"{MODEL}-{public['variant']}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × {what}" for what, count in counts.most_common(4))


def restarts(folder: Path) -> Iterator[Verdict]:
    """One after the other, as they are known. Raises CannotMeasure."""
    with up(folder, 0) as first:  # makes what only a first start makes
        yield from kill_server(first, "SIGKILL of tritonserver")
        yield from kill_stub(first, "SIGKILL of the model's stub")
    for number in range(1, NUM_STOPS + 1):
        with up(folder, number) as here:
            if number == 1:
                yield Verdict("tandem up: ready, second start", here.ready_s, READY)
            yield from stop(here, f"SIGTERM of tandem up, {number} of {NUM_STOPS}")
