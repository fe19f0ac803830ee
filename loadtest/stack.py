"""An embedded Triton and a gateway before it, each a process of its own, so that both can be asked directly and counted apart."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.processes import TANDEM, running
from serving.http_client import Connection, request_bytes
from serving.ports import free_ports

CONFIG = "tandem.yaml"
ELSEWHERE = "127.1"  # loopback by a name by which the gateway does not know that Triton is on this machine
START_TIMEOUT_S = 900.0  # the first one on a machine makes Triton's environment out of 200 MB of wheels
START_S = 60.0  # of a small Python process: one second, more on a busy machine (guess, not measured)
ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where one answers, and its process where its CPU time matters."""

    name: str
    authority: str
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.authority}"


@dataclass(frozen=True, slots=True)
class Stack:
    """`grpc`: Triton's authority for gRPC."""

    triton: Server
    gateway: Server
    grpc: str


@contextmanager
def stack(
    repository: Path,
    folder: Path,
    *,
    pool: str = "cpu",
    device: str = "cpu",
    options: Sequence[str] = (),
    gateway_options: Sequence[str] = (),
) -> Iterator[Stack]:
    """Serves a repository until the block ends; `folder` takes the logs, `options` are Triton's. Raises CannotMeasure."""
    http, grpc, metrics, public = free_ports(4)
    triton_url, gateway_url = f"127.0.0.1:{http}", f"127.0.0.1:{public}"
    config = folder / CONFIG
    config.write_text(json.dumps({"version": 1, "pools": {pool: {"urls": [f"http://{triton_url}"], "device": device}}}))
    triton = [*TANDEM, "triton", *options, "--pool", pool, "--model-repository", str(repository), "--no-measure"]
    triton += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    triton += ["--exit-timeout-s", "2"]
    gateway = [*TANDEM, "gateway", "--config", str(config), "--port", str(public), *gateway_options]
    loaded = folder / "triton.ready"
    triton += ["--ready-file", str(loaded)]
    with (
        running(triton, folder / "triton.log", loaded.exists, START_TIMEOUT_S) as below,
        running(gateway, folder / "gateway.log", lambda: answers(gateway_url, "/health/ready"), START_S) as above,
    ):
        yield Stack(
            Server("Triton direct", triton_url, below.pid),
            Server("gateway", gateway_url, above.pid),
            f"127.0.0.1:{grpc}",
        )


@contextmanager
def beside(
    folder: Path, name: str = "second gateway", *, over_socket: bool = False, variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Another gateway before the Triton of `stack`, whose `folder` this is. `over_socket`: it hands over nothing in shared memory.

    Raises CannotMeasure.
    """
    (port,) = free_ports(1)
    authority, stem = f"127.0.0.1:{port}", "-".join(name.split())
    text = (folder / CONFIG).read_text()
    config = folder / f"{stem}.yaml"
    config.write_text(text.replace("http://127.0.0.1:", f"http://{ELSEWHERE}:") if over_socket else text)
    command = [*TANDEM, "gateway", "--config", str(config), "--port", str(port)]

    def is_ready() -> bool:
        return answers(authority, "/health/ready")

    with running(command, folder / f"{stem}.log", is_ready, START_S, variables) as process:
        yield Server(name, authority, process.pid)


@contextmanager
def quick_server(folder: Path) -> Iterator[Server]:
    """One that answers at once: what is measured against it is whoever asks. Raises CannotMeasure."""
    (port,) = free_ports(1)
    authority = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "loadtest.bench.quick_server", "--port", str(port)]
    with running(command, folder / "quick-server.log", lambda: answers(authority, "/v2"), START_S) as process:
        yield Server("quick server", authority, process.pid)


def answers(authority: str, path: str, *, method: str = "GET") -> bool:
    """Whether it says 200."""
    connection = Connection(f"http://{authority}", ANSWER_TIMEOUT_S)
    try:
        return connection.send(request_bytes(method, f"http://{authority}", path, {})).status == 200
    except OSError:
        return False
    finally:
        connection.close()
