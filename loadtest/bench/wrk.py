"""One burst of load by `wrk`, a generator in C that is cheap enough to share two cores with what it measures.

Closed loop: each connection sends its next request when the answer is there. A burst with a single failed request measures nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import CannotMeasure

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


def find() -> str:
    """The program's path. Raises CannotMeasure."""
    if path := shutil.which("wrk"):
        return path
    raise CannotMeasure(MISSING)


def write_script(file: Path, body: bytes, headers: dict[str, str]) -> Path:
    """`file`: where to; the body lies beside it, because Lua has no literal for any byte."""
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
