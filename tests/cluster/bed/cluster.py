"""A bed: one control plane from start to stop, and the ways in. `with Bed(build()) as bed: bed.kubectl("get", "nodes")`.

Parts can be stopped and started again one by one; a bed's folder goes with it. Nothing here judges what a cluster holds.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import yaml

from serving.ports import free_ports
from tests.cluster.bed.api import Answered, Api, Object, trusting, until
from tests.cluster.bed.build import Programs
from tests.cluster.bed.parts import MANIFESTS, Layout, Part, Ports, parts
from tests.cluster.bed.process import Broken, Process

ALIVE, JUST_MADE_S = "alive", 60  # a folder is a moment older than its lock
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATHS = {
    "Node": "/api/v1/nodes",
    "Service": "/api/v1/namespaces/kube-system/services",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices",
}
COMMAND_S = 300.0  # the longest `helm --wait` of a test takes half a minute on free cores


class Failed(Exception):
    """A kubectl or helm that was expected to work; the message is what it said."""


class Bed:
    def __init__(self, programs: Programs, say: Callable[[str], None] = lambda _: None) -> None:
        sweep()
        self.layout = Layout(Path(tempfile.mkdtemp(prefix="bed-")), programs, Ports(*free_ports(len(fields(Ports)))))
        self._alive = held(self.layout.folder / ALIVE)
        self.seconds: dict[str, float] = {}  # of each part, and in all
        self._say = say
        self._parts = parts(self.layout)
        self._running: dict[str, Process] = {}

    def __enter__(self) -> Bed:
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()

    # -- parts -----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Starts a part that was stopped, and waits until it is ready."""
        self._launch(name)
        self._await(name)

    def stop(self, name: str, *, kindly: bool = False) -> None:
        """Kills a part; kindly, an API server takes 20 s for the watches that are open."""
        self._running.pop(name).stop(kindly=kindly)

    def pids(self) -> dict[str, int]:
        return {name: it.pid for name, it in self._running.items()}

    def log(self, name: str) -> str:
        return (self.layout.folder / f"{name}.log").read_text(errors="replace")

    def down(self) -> None:
        """At once: its state is thrown away."""
        for process in self._running.values():
            process.stop(kindly=False)
        self._running.clear()
        self._alive.close()
        shutil.rmtree(self.layout.folder, ignore_errors=True)

    def _up(self) -> None:
        began = time.monotonic()
        at = self.layout
        at.certificates.mkdir()
        subprocess.run([at.programs.controlplane, "certificates", at.certificates], check=True)
        at.kubeconfig.write_text(json.dumps(self.kubeconfig_of({**self._admin()})))
        self.api, self._context = Api(at.api, at.certificates), trusting(at.certificates)
        self._tell("certificates", began)
        for name in ("etcd", "kube-apiserver"):
            self.start(name)
        together = ("kube-controller-manager", "kube-scheduler", "kwok", "metrics")
        for name in together:
            self._launch(name)
        applied = time.monotonic()
        self._create_kinds()
        self._create_objects()
        self._tell("objects", applied)
        for name in together:
            self._await(name)
        until(self._has_kinds, "kinds established")
        self.start("karpenter")
        waited = time.monotonic()
        until(self._is_complete, "nodes Ready and the metrics APIs available")
        self._tell("nodes ready", waited)
        self._tell("in all", began)

    def _launch(self, name: str) -> None:
        self._running[name] = Process(self._parts[name], self.layout.folder / f"{name}.log")

    def _await(self, name: str) -> None:
        began = time.monotonic()
        self._running[name].wait_until_ready(self._context)
        self._tell(name, began)

    def _tell(self, what: str, began: float) -> None:
        self.seconds[what] = time.monotonic() - began
        self._say(f"bed: {what:<24} {self.seconds[what]:5.1f} s")

    def _create_kinds(self) -> None:
        definitions = [json.loads(path.read_text()) for path in sorted(self.layout.programs.crds.iterdir())]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda it: self.api.create(KINDS, it), definitions))

    def _create_objects(self) -> None:
        """Not by kubectl, which first asks for all kinds that there are."""
        until(self._has_kube_system, "the namespace kube-system, which the API server makes after it is ready")
        authority = base64.b64encode((self.layout.certificates / "ca.crt").read_bytes()).decode()
        for name in ("metrics.yaml", "nodes.yaml"):
            text = (MANIFESTS / name).read_text().replace("CA_BUNDLE", authority)
            for it in yaml.safe_load_all(text.replace("PORT", str(self.layout.ports.metrics))):
                self.api.create(PATHS[it["kind"]], it)

    def _has_kube_system(self) -> bool:
        return any(it["metadata"]["name"] == "kube-system" for it in self.api.items("/api/v1/namespaces"))

    def _has_kinds(self) -> bool:
        return all(is_true(it, "Established") for it in self.api.items(KINDS))

    def _is_complete(self) -> bool:
        try:
            nodes = self.api.items("/api/v1/nodes")
            services = self.api.items("/apis/apiregistration.k8s.io/v1/apiservices")
        except Answered:
            return False
        return all(is_true(it, "Ready") for it in nodes) and all(is_true(it, "Available") for it in services)

    # -- ways in ---------------------------------------------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What it printed; Failed with what it said where it fails."""
        return self._run(self.layout.programs.kubectl, words, stdin, kubeconfig)

    def helm(self, *words: str, kubeconfig: Path | None = None) -> str:
        return self._run(self.layout.programs.helm, words, None, kubeconfig)

    def _run(self, program: Path, words: tuple[str, ...], stdin: str | None, kubeconfig: Path | None) -> str:
        home = self.layout.folder / "home"  # kubectl and helm keep caches of one server's kinds
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig or self.layout.kubeconfig),
        }
        done = subprocess.run(
            [program, *words], input=stdin, stdin=None if stdin else subprocess.DEVNULL, capture_output=True, text=True,
            timeout=COMMAND_S, env=environment,
        )  # fmt: skip
        if done.returncode != 0:
            raise Failed(f"{program.name} {' '.join(words)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def kubeconfig_of(self, user: Object, *, authority: str = "ca.crt", namespace: str = "default") -> Object:
        """For `user` as in a kubeconfig's `users`: {"token": ...}."""
        cluster = {"server": self.layout.api, "certificate-authority": str(self.layout.certificates / authority)}
        context = {"cluster": "bed", "user": "user", "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "bed", "context": context}],
        }

    def _admin(self) -> dict[str, str]:
        admin = self.layout.certificates / "admin"
        return {"client-certificate": f"{admin}.crt", "client-key": f"{admin}.key"}

    def set_external_metric(self, name: str, value: float | None, **labels: str) -> None:
        self._put(f"/external/{name}?{'&'.join(f'{key}={it}' for key, it in labels.items())}", value)

    def set_cpu_use(self, namespace: str, selector: str, ratio: float | None) -> None:
        """How much of their CPU request the running pods use that a HorizontalPodAutoscaler selects by just this `a=b,c=d`."""
        self._put(f"/cpu/{namespace}?{selector.replace(',', '&')}", ratio)

    def _put(self, path: str, value: float | None) -> None:
        address = f"https://127.0.0.1:{self.layout.ports.metrics}"
        self.api.call("PUT", address + path, "none" if value is None else value)


def held(path: Path) -> TextIO:
    """A lock that ends with this process, however it ends."""
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def sweep() -> None:
    """Removes the folders of beds whose tests were killed, a hundred MB each."""
    for path in Path(tempfile.gettempdir()).glob(f"bed-*/{ALIVE}"):
        with suppress(OSError), path.open("r+") as file:  # BlockingIOError: it lives
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - path.stat().st_mtime > JUST_MADE_S:
                shutil.rmtree(path.parent, ignore_errors=True)


def is_true(it: Object, condition: str) -> bool:
    conditions: list[Any] = it.get("status", {}).get("conditions") or []  # null of a kind that is new
    return any(of["type"] == condition and of["status"] == "True" for of in conditions)


__all__ = ["Answered", "Bed", "Broken", "Failed", "Part"]
