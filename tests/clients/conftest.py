"""A gateway before an embedded Triton, as `tandem up` starts it, for clients that know nothing of Tandem.

Runs in the clients' own environment: nothing here imports the project, which is started by its own interpreter. Asked over the network
only. Two gateways: one that lets everybody in, and one with API keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
LIMIT_S = 90.0  # the two servers are ready after four seconds, on a busy machine ten times that
SAMPLE = json.loads((ROOT / "model_repo" / "digits-fp32" / "sample.json").read_text())["inputs"][0]
LABEL = 2  # of the sample


@dataclass(frozen=True, slots=True)
class Gateway:
    """Addresses as clients take them, host:port."""

    http: str
    grpc: str
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.http}"


@dataclass(frozen=True, slots=True)
class Keys:
    """What clients send: keys for inference, for metrics alone, for digits alone, and one that was revoked."""

    file: Path
    infer: str
    metrics: str
    of_digits: str
    revoked: str


def pytest_configure() -> None:
    if not PYTHON.exists():
        raise pytest.UsageError(f"{PYTHON} is missing: run `make test-clients`, which makes it")


def run(*arguments: str) -> str:
    done = subprocess.run([PYTHON, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@contextlib.contextmanager
def up(folder: Path, repository: Path, *options: str) -> Iterator[Gateway]:
    http, grpc = free_ports(2)
    command = [PYTHON, "-m", "serving", "up", "--model-repository", repository, "--no-measure", "--port", str(http)]
    command += ["--grpc-port", str(grpc), *options]
    log = folder / "up.log"
    environment = {**os.environ, "TANDEM_STATE": str(folder / "state")}
    with log.open("wb") as output:
        program = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
    try:
        wait_until_ready(program, log)
        yield Gateway(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", program.pid)
    finally:
        program.terminate()
        program.wait(LIMIT_S)


def wait_until_ready(program: subprocess.Popen[bytes], log: Path) -> None:
    """That every model is served is what `tandem up` says; /health/ready is content with the first."""
    deadline = time.monotonic() + LIMIT_S
    while "ready in " not in (said := log.read_text()):
        assert program.poll() is None, said
        assert time.monotonic() < deadline, f"not ready after {LIMIT_S} s: {said}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    run("tests/clients/repository.py", str(folder))
    return folder


@pytest.fixture(scope="session")
def gateway(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with up(tmp_path_factory.mktemp("gateway"), repository) as running:
        yield running


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("keys") / "keys.json"

    def made(*options: str) -> str:
        return run("-m", "serving", "keys", "add", "--keys", str(file), "--name", "tests", *options).strip()

    infer, metrics = made("--scope", "infer"), made("--scope", "metrics")
    of_digits, revoked = made("--scope", "infer", "--model", "digits"), made("--scope", "infer")
    run("-m", "serving", "keys", "revoke", "--keys", str(file), revoked.split("_")[1])
    return Keys(file, infer, metrics, of_digits, revoked)


@pytest.fixture(scope="session")
def keyed(repository: Path, keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With keys, and `words` takes token ids."""
    folder = tmp_path_factory.mktemp("keyed")
    config = folder / "tandem.yaml"
    config.write_text("version: 1\npools: {cpu: {device: cpu}}\nmodels: {words: {token_ids: true}}\n")
    with up(folder, repository, "--keys", str(keys.file), "--config", str(config)) as running:
        yield running
