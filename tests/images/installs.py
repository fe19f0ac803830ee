"""A gateway in front of a Triton, both from images, with an API key: what the tests of running images ask."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .pods import ROOT, Container, Image, Pod, pod

READY = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/ready', timeout=3)"
# Run by this machine's Python in the pod's network: URL KEY BODY -> [status, headers, body]
ASK = """
import json, sys, urllib.error, urllib.request
url, key, body = sys.argv[1:]
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
try:
    with urllib.request.urlopen(urllib.request.Request(url, open(body, "rb").read(), headers), timeout=30) as answer:
        print(json.dumps([answer.status, dict(answer.headers), json.load(answer)]))
except urllib.error.HTTPError as refused:
    print(json.dumps([refused.code, dict(refused.headers), json.load(refused)]))
"""
CONFIG = {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:8000"], "device": "cpu"}}}


@dataclass(frozen=True, slots=True)
class Install:
    """Both running; folders of theirs outside."""

    pod: Pod
    triton: Container
    gateway: Container
    key: str
    folder: Path

    def ask(self, path: str, body: object, key: str | None = None) -> tuple[int, dict[str, str], Any]:
        sent = self.folder / "body.json"
        sent.write_text(json.dumps(body))
        given = self.key if key is None else key
        status, headers, answer = json.loads(self.pod.python(ASK, f"http://127.0.0.1:8080{path}", given, str(sent)))
        return status, {name.lower(): value for name, value in headers.items()}, answer


def writable(folder: Path) -> str:
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    return str(folder)


def repository(gateway: Image, folder: Path) -> Path:
    """As the chart's init containers leave it: copied and verified by the gateway's image."""
    volume = folder / "models"
    mounts = {"/models": writable(volume), "/tmp": writable(folder / "tmp")}
    verify = ["tandem", "verify", "--model-repository=/models", "--digests-only"]
    with pod() as alone:
        for number, command in enumerate((["cp", "-R", "/opt/tandem/model_repo/.", "/models"], verify)):
            log = folder / f"{number}.log"
            with alone.container(gateway, command, mounts, log) as container:
                assert container.process.wait(timeout=60) == 0, log.read_text()
    return volume


@contextlib.contextmanager
def install(
    gateway: Image, triton: Image, models: Path, folder: Path, of_triton: Sequence[str] = ()
) -> Iterator[Install]:
    """`of_triton`: more options for `tandem triton`."""
    (folder / "etc").mkdir()
    (folder / "etc" / "tandem.yaml").write_text(json.dumps(CONFIG))
    keys = ["keys", "add", "--keys", str(folder / "etc" / "keys.json"), "--name", "test", "--scope", "infer"]
    command = [sys.executable, "-m", "serving", *keys]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    key = next(word for word in made.stdout.split() if word.startswith("tdm_"))
    (folder / "etc" / "keys.json").chmod(0o644)  # a Secret is mounted readable by the pod's group
    mounts = {
        "/models": f"{models}:ro",
        "/tmp": writable(folder / "triton-tmp"),
        "/dev/shm": writable(folder / "triton-shm"),
        "/opt/tandem/speeds": writable(folder / "speeds"),
    }
    of_gateway = {"/etc/tandem": f"{folder / 'etc'}:ro", "/tmp": writable(folder / "gateway-tmp")}
    with (
        pod() as shared,
        shared.container(triton, [*triton.command, *of_triton], mounts, folder / "triton.log") as first,
        shared.container(gateway, [*gateway.command, "--grpc-port=8081"], of_gateway, folder / "gateway.log") as second,
    ):
        first.wait_healthy()
        second.wait_healthy()
        second.wait_for("python", "-c", READY)
        yield Install(shared, first, second, key, folder)
