"""A real Triton with the committed digits and a gateway before it, as processes, for fuzzers that send requests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from serving.ports import free_ports

ROOT = Path(__file__).parents[2]
TANDEM = [sys.executable, "-m", "serving"]
SAMPLE = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
START_S = 120.0  # with the first environment of Triton on this machine, minutes; that is `make fuzz`'s own step
# Short, so that what never comes is refused while a fuzzer still waits for it.
LIMITS = {"head_timeout_s": 0.5, "body_pause_s": 0.5, "body_timeout_s": 1.5, "max_body_bytes": 2**20}


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    gateway: psutil.Process
    triton: psutil.Process  # `tandem triton`, whose children compute
    log: Path
    grpc_port: int = 0
    key: str = ""  # where the gateway wants one

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_well(self) -> bool:
        """Whether a request that is in order is answered."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(f"{self.url}/v2/models/digits/infer", SAMPLE, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(answer.status == 200)

    def num_connections(self) -> int:
        """Of clients, that are open."""
        return sum(
            one.status == psutil.CONN_ESTABLISHED and bool(one.laddr) and one.laddr.port == self.port
            for one in self.gateway.net_connections("tcp")
        )

    def memory_bytes(self) -> int:
        size = self.gateway.memory_info().rss
        assert isinstance(size, int)
        return size

    def forget_peak(self) -> None:
        Path(f"/proc/{self.gateway.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """The most memory since `forget_peak`."""
        status = Path(f"/proc/{self.gateway.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def triton_cpu_s(self) -> float:
        times = [one.cpu_times() for one in self.triton.children(recursive=True)]
        return float(sum(one.user + one.system for one in times))


@contextlib.contextmanager
def served(
    folder: Path,
    *options: str,
    key: str = "",
    limits: Mapping[str, float] = LIMITS,
    repository: Path = ROOT / "model_repo",
) -> Iterator[Served]:
    folder.mkdir(parents=True, exist_ok=True)
    http, grpc, metrics, port, own_grpc = free_ports(5)
    triton = [
        *TANDEM,
        "triton",
        "--model-repository",
        str(repository),
        "--no-measure",
        "--exit-timeout-s",
        "5",
    ]
    triton += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    pools = {"cpu": {"urls": [f"http://127.0.0.1:{http}"], "device": "cpu"}}
    config = folder / "tandem.yaml"
    config.write_text(json.dumps({"version": 1, "pools": pools, "limits": limits}))
    gateway = [*TANDEM, "gateway", "--config", str(config), "--port", str(port), "--grpc-port", str(own_grpc), *options]
    with _process(triton, folder / "triton.log") as below, _process(gateway, folder / "gateway.log") as process:
        here = Served(
            port, psutil.Process(process.pid), psutil.Process(below.pid), folder / "gateway.log", own_grpc, key
        )
        _wait(here, process)
        yield here


@contextlib.contextmanager
def served_with_keys(folder: Path) -> Iterator[tuple[Served, str]]:
    """The same where every path wants a key, and one that opens all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "keys.json"
    file.unlink(missing_ok=True)
    add = [*TANDEM, "keys", "add", "--keys", str(file), "--name", "fuzz"]
    add += [word for scope in ("infer", "admin", "metrics") for word in ("--scope", scope)]
    said = subprocess.run(add, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    key = next(word for word in said.split() if word.startswith("tdm_"))
    with served(folder, "--keys", str(file), key=key) as here:
        yield here, key


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
            process.terminate()  # the second signal: nobody is left whose requests it would let finish
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(here: Served, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            if here.is_well():
                return
        time.sleep(0.1)
    raise SystemExit(f"the gateway did not come up; {here.log} says why")
