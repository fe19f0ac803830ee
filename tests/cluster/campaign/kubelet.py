"""A node of the bed whose pods really run: as processes of this machine, with logs that the API server fetches from here.

What a kubelet does for one container and a campaign needs: takes pods of its node, gives them ConfigMap, secret and volumes, starts the stored
command, serves its output as a log with stamps, writes how it ended, and sends SIGTERM when the pod is deleted. Images are not pulled.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.cluster.bed.api import Answered, Object
from tests.cluster.bed.cluster import Bed

MERGE = "application/strategic-merge-patch+json"
POLL_S = 0.1
BEAT_S = 5.0


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Container:
    """One that was started. `log`: stamped lines; `is_over`: nothing more comes."""

    process: subprocess.Popen[bytes]
    log: list[tuple[str, bytes]] = field(default_factory=list)
    is_over: bool = False
    is_told: bool = False  # to end

    def read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                at = time.time_ns()
                stamp = datetime.fromtimestamp(at // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
                self.log.append((f"{stamp}.{at % 10**9:09d}Z", line))
        self.process.wait()
        self.is_over = True


class Kubelet:
    """`places`: what stands in for words of the stored command, as the gateway's URL. `folder` holds what containers see."""

    def __init__(self, bed: Bed, name: str, folder: Path, places: Mapping[str, str]) -> None:
        self.bed, self.name, self.folder, self.places = bed, name, folder, places
        self.running: dict[str, Container] = {}
        self.cut_after: int | None = None  # lines of one answer, after which the connection is dropped once
        self._beaten_at = 0.0
        self._stop = threading.Event()
        self._server = self._serve()
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(POLL_S,)),
            threading.Thread(target=self._loop),
        ]

    def __enter__(self) -> Kubelet:
        node = {
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}},
            "status": {
                "capacity": {"cpu": "16", "memory": "64Gi", "pods": "10"},
                "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "10"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now()}],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_port}},
            },
        }
        self.bed.api.create("/api/v1/nodes", node)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()
        for it in self.running.values():
            it.process.kill()
            it.process.wait()
        self.bed.api.delete(f"/api/v1/nodes/{self.name}")

    # -- pods ------------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                self._beat()
                for pod in self.bed.api.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}"):
                    self._tend(pod)
            except (OSError, Answered):
                pass  # the API server is away, or a pod is

    def _beat(self) -> None:
        """Or the node would be called unreachable after 40 s, and tainted."""
        if time.monotonic() - self._beaten_at > BEAT_S:
            self._beaten_at = time.monotonic()
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now(), "reason": "KubeletReady"}
            path = f"/api/v1/nodes/{self.name}/status"
            self.bed.api.call("PATCH", path, {"status": {"conditions": [ready]}}, MERGE)

    def _tend(self, pod: Object) -> None:
        name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase", "Pending")
        container = self.running.get(name)
        if container is None:
            if phase == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                self.running[name] = self._start(pod)
                self._say(pod, "Running", {"running": {"startedAt": now()}})
            return
        if "deletionTimestamp" in pod["metadata"] and not container.is_over and not container.is_told:
            container.is_told = True  # once, as a kubelet
            container.process.send_signal(signal.SIGTERM)
        if container.is_over and phase == "Running":
            code = container.process.returncode
            ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": now()}
            self._say(pod, "Succeeded" if code == 0 else "Failed", {"terminated": ended})
        elif container.is_over and "deletionTimestamp" in pod["metadata"]:
            self.bed.api.call("DELETE", self._path(pod), {"gracePeriodSeconds": 0})

    def evict(self, pod: str, namespace: str, message: str) -> None:
        """As a node that runs short: the process is killed, and the pod fails as a whole."""
        self.running[pod].process.kill()
        status = {"phase": "Failed", "reason": "Evicted", "message": message}
        self.bed.api.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": status}, MERGE)

    def _say(self, pod: Object, phase: str, state: Object) -> None:
        (container,) = pod["spec"]["containers"]
        told = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**told, "ready": phase == "Running", "state": state}]}
        self.bed.api.call("PATCH", f"{self._path(pod)}/status", {"status": status}, MERGE)

    def _path(self, pod: Object) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    def _start(self, pod: Object) -> Container:
        (container,) = pod["spec"]["containers"]
        home = self.folder / pod["metadata"]["name"]
        for mount in container["volumeMounts"]:
            (volume,) = [it for it in pod["spec"]["volumes"] if it["name"] == mount["name"]]
            self._fill(home / mount["mountPath"].lstrip("/"), volume, pod)
        environment = {**os.environ, **dict(self._variable(it, pod) for it in container["env"])}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        words = [self._word(it, home, container) for it in container["command"]]
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started = Container(process)
        threading.Thread(target=started.read, daemon=True).start()
        return started

    def _word(self, word: str, home: Path, container: Object) -> str:
        for there, here in self.places.items():
            word = word.replace(there, here)
        mounts = "|".join(it["mountPath"] for it in container["volumeMounts"])
        # A place at a word's begin or behind its `=`; the program itself names none.
        return re.sub(rf"^(|--\w+=)({mounts})(?=/|$)", rf"\g<1>{home}\g<2>", word)

    def _fill(self, folder: Path, volume: Object, pod: Object) -> None:
        folder.mkdir(parents=True)
        if "configMap" not in volume:
            return
        of = volume["configMap"]
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps/{of['name']}"
        found = None
        while found is None:
            try:
                found = self.bed.api.get(path)
            except Answered:
                time.sleep(POLL_S)  # as a kubelet, which tries again
        for it in of["items"]:
            to = folder / it["path"]
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(b64decode(found["binaryData"][it["key"]]))

    def _variable(self, it: Object, pod: Object) -> tuple[str, str]:
        if "value" in it:
            return it["name"], it["value"]
        of: Any = it["valueFrom"]["secretKeyRef"]
        found = self.bed.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets/{of['name']}")
        return it["name"], b64decode(found["data"][of["key"]]).decode()

    # -- logs ------------------------------------------------------------------------------------------------------------

    def _serve(self) -> ThreadingHTTPServer:
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                _, kind, _, pod, _ = parts.path.split("/")
                container = kubelet.running.get(pod)
                if kind != "containerLogs" or container is None:
                    self.send_error(404)
                    return
                asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                with contextlib.suppress(OSError):  # who reads it may go
                    kubelet.write(self, container, asked)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        at = self.bed.layout.certificates
        context.load_cert_chain(at / "server.crt", at / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        return server

    def write(self, to: BaseHTTPRequestHandler, container: Container, asked: Mapping[str, str]) -> None:
        since, number, num_written = asked.get("sinceTime", "")[:19], 0, 0
        while not self._stop.is_set():
            while number < len(container.log):
                stamp, line = container.log[number]
                number += 1
                if stamp[:19] < since:
                    continue
                if self.cut_after is not None and num_written == self.cut_after:
                    self.cut_after = None
                    return
                to.wfile.write(f"{stamp} ".encode() + line)
                num_written += 1
            to.wfile.flush()
            if asked.get("follow") != "true" or (container.is_over and number == len(container.log)):
                return
            time.sleep(POLL_S)
