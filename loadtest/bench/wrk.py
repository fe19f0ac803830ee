"""One burst of load by `wrk`, a generator in C that is cheap enough to share two cores with what it measures.

Closed loop: each connection sends its next request when the answer is there. A burst with a single failed request measures nothing.
`Series` keeps what bursts gave round by round, whoever sent them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.verdicts import spread_text
from loadtest.errors import CannotMeasure
from serving.measure.rounds import spread

MISSING = "make bench needs the load generator wrk: apt-get install wrk"
SCRIPT = """
local body = assert(io.open([[{body}]], "rb"))
wrk.method = "POST"
wrk.body = body:read("*a")
{headers}
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("burst %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    e.connect + e.read + e.write + e.timeout, e.status))
end
"""


@dataclass(frozen=True, slots=True)
class Burst:
    num_requests: int
    duration_s: float
    latency_p50_s: float

    @property
    def rate_rps(self) -> float:
        return self.num_requests / self.duration_s


@dataclass(slots=True)
class Series:
    """One target with one kind of request, round by round; the median latency is that of one connection alone."""

    rate_rps: list[float] = field(default_factory=list)
    latency_p50_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # per request, with all connections

    def take_turn(self, fire: Callable[[int], Burst], num_connections: int, cpu_s: Callable[[], float]) -> None:
        """`fire` sends a burst over so many connections; `cpu_s` is what those whose cost counts have taken so far."""
        before_s = cpu_s()
        busy = fire(num_connections)
        self.cpu_us.append((cpu_s() - before_s) * 1e6 / busy.num_requests)
        self.rate_rps.append(busy.rate_rps)
        self.latency_p50_s.append(fire(1).latency_p50_s)

    def cells(self, digits: int = 0) -> tuple[str, str, str]:
        """Requests a second, milliseconds of the median, and CPU microseconds, each with its ends."""
        return (
            spread_text(spread(self.rate_rps), digits),
            spread_text(spread(self.latency_p50_s), 3, 1000),
            spread_text(spread(self.cpu_us), digits),
        )

    def to_json(self, cpu: str = "cpu_us_per_request", times: float = 1.0) -> dict[str, list[float]]:
        """`cpu`: the key of the CPU time; `times`: what one microsecond is in its unit."""
        cost = self.cpu_us if times == 1.0 else [one * times for one in self.cpu_us]
        return {"rate_rps": self.rate_rps, "latency_p50_s": self.latency_p50_s, cpu: cost}


def find() -> str:
    """The program's path. Raises CannotMeasure."""
    if path := shutil.which("wrk"):
        return path
    raise CannotMeasure(MISSING)


def write_script(file: Path, body: bytes, headers: dict[str, str]) -> Path:
    """Writes the script to `file`, and the body beside it, because a Lua literal cannot hold every byte."""
    data = file.with_suffix(".body")
    data.write_bytes(body)
    lines = "\n".join(f"wrk.headers[{_quoted(name)}] = {_quoted(value)}" for name, value in headers.items())
    file.write_text(SCRIPT.format(body=data, headers=lines))
    return file


def fire(program: str, script: Path, url: str, *, num_connections: int, duration_s: int) -> Burst:
    """wrk takes whole seconds only. Raises CannotMeasure when any request failed."""
    command = [program, "-t1", f"-c{num_connections}", f"-d{duration_s}s", "-s", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=duration_s + 30, check=False)
    return read(done.stdout, url)


def firing(program: str, script: Path, url: str, *, busy_s: int, lone_s: int = 1) -> Callable[[int], Burst]:
    """For a series: bursts over many connections last `busy_s`, over one `lone_s`."""

    def fire_over(num_connections: int) -> Burst:
        duration_s = busy_s if num_connections > 1 else lone_s
        return fire(program, script, url, num_connections=num_connections, duration_s=duration_s)

    return fire_over


def read(output: str, url: str) -> Burst:
    line = next((line for line in output.splitlines() if line.startswith("burst ")), None)
    if line is None:
        raise CannotMeasure(f"wrk did not say what it measured at {url}; try it by hand")
    requests, duration_us, median_us, broken, refused = map(int, line.split()[1:])
    if broken or refused or not requests:
        raise CannotMeasure(f"{url}: of {requests} requests {refused} were refused and {broken} got no answer")
    return Burst(requests, duration_us / 1e6, median_us / 1e6)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
