"""A container as the API server stored it, run as a process of this machine: its command, its variables, its probes, its way to leave.

Only addresses and places change: a pod's 0.0.0.0:8000 is a free port on loopback, its /models the committed repository. What a kubelet
would do by itself (restarts, timing of probes) is not imitated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.bed.api import Object, until

ROOT = Path(__file__).resolve().parents[2]
END_S = 60.0
PROGRAMS = {"tandem": [sys.executable, "-m", "serving"], "python": [sys.executable]}


@dataclass(frozen=True, slots=True)
class Here:
    """What stands in for a pod's places: a folder for /tmp and /etc, and a port for each of the container's."""

    folder: Path
    ports: Mapping[int, int]

    def word(self, word: str) -> str:
        name, eq, value = word.partition("=")
        if eq and value.isdigit() and int(value) in self.ports and name.endswith("port"):
            return f"{name}={self.ports[int(value)]}"
        places = {
            "0.0.0.0": "127.0.0.1",
            "/opt/tandem/model_repo": str(ROOT / "model_repo"),
            "/models": str(ROOT / "model_repo"),
        }
        places |= {"/tmp/": f"{self.folder}/", "/etc/tandem/": f"{self.folder}/"}
        for there, here in places.items():
            if (value if eq else word).startswith(there):
                return word.replace(there, here, 1)
        return word

    def command(self, words: list[str]) -> list[str]:
        first, *rest = words
        return [*PROGRAMS.get(first, [first]), *map(self.word, rest)]


@dataclass(frozen=True, slots=True)
class Stored:
    """The first container of a Deployment's pods."""

    pod: Object
    here: Here

    @property
    def container(self) -> Object:
        container: Object = self.pod["containers"][0]
        return container

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **{it["name"]: it["value"] for it in self.container.get("env", []) if "value" in it}}

    @property
    def pre_stop_s(self) -> float:
        return float(self.container["lifecycle"]["preStop"]["sleep"]["seconds"])

    @property
    def grace_s(self) -> float:
        return float(self.pod["terminationGracePeriodSeconds"])

    def answers(self, probe: str) -> bool:
        """Whether one try of the probe succeeds."""
        it = self.container[probe]
        if "exec" in it:
            return subprocess.run(self.here.command(it["exec"]["command"]), capture_output=True).returncode == 0
        (port,) = [of["containerPort"] for of in self.container["ports"] if of["name"] == it["httpGet"]["port"]]
        url = f"http://127.0.0.1:{self.here.ports[port]}{it['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=it.get("timeoutSeconds", 1)) as answer:
                return bool(200 <= answer.status < 400)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Startup, then readiness and liveness, within the time that a kubelet would give it to start."""
        startup = self.container["startupProbe"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            until(
                lambda probe=probe: process.poll() is not None or self.answers(probe),
                probe,
                startup["periodSeconds"] * startup["failureThreshold"],
            )
            assert process.poll() is None, f"ended with {process.returncode} before its {probe} succeeded"

    @contextmanager
    def running(
        self, command: list[str], environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        log = self.here.folder / f"{self.container['name']}.log"
        with log.open("ab") as into:
            process = subprocess.Popen(command, stdout=into, stderr=into, env=environment or self.environment)
        try:
            yield process
        except BaseException:
            print(log.read_text(errors="replace")[-3000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            finally:
                process.kill()
                process.wait()

    def leave(self, process: subprocess.Popen[bytes]) -> float:
        """Seconds from the pod's delete to its process's end: the sleep of preStop, which is only added, then a real SIGTERM."""
        began = time.monotonic()
        process.terminate()
        process.wait(self.grace_s + END_S)
        return self.pre_stop_s + time.monotonic() - began
