"""When does a container count as started, ready and alive? The spec's own probes, asked as a kubelet does, counted as it counts."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from tests.cluster.bed.api import Object

Words = Callable[[list[str]], list[str]]


def ask(probe: Object, container: Object, ip: str, words: Words) -> bool:
    """One try; `words` makes a command of the spec one of this machine."""
    timeout_s = probe.get("timeoutSeconds", 1)
    if "exec" in probe:
        try:
            done = subprocess.run(words(probe["exec"]["command"]), capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0
    port = probe["httpGet"]["port"]
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    try:
        url = f"http://{ip}:{ports.get(port, port)}{probe['httpGet']['path']}"
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(200 <= answer.status < 400)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


class Probing:
    """The probes of one container since it was started. `look` asks what is due and says whether anything is another thing now."""

    def __init__(self, container: Object, once: Callable[[Object], bool]) -> None:
        self._container, self._once = container, once
        now = time.monotonic()
        self._due = {
            kind: now + container[kind].get("initialDelaySeconds", 0)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
            if kind in container
        }
        self._failed = dict.fromkeys(self._due, 0)
        self.is_started = "startupProbe" not in container
        self.is_ready = self.is_started and "readinessProbe" not in container
        self.is_dead = False

    def look(self) -> bool:
        before = self.is_started, self.is_ready, self.is_dead
        for kind in ("readinessProbe", "livenessProbe") if self.is_started else ("startupProbe",):
            if kind in self._due and self._due[kind] <= time.monotonic():
                self._try(kind)
        return before != (self.is_started, self.is_ready, self.is_dead)

    def _try(self, kind: str) -> None:
        probe = self._container[kind]
        succeeded = self._once(probe)
        self._due[kind] = time.monotonic() + probe.get("periodSeconds", 10)
        self._failed[kind] = 0 if succeeded else self._failed[kind] + 1
        has_failed = self._failed[kind] >= probe.get("failureThreshold", 3)
        if kind == "startupProbe":
            if succeeded:
                self.is_started = True
                self.is_ready = "readinessProbe" not in self._container
                self._due = dict.fromkeys(self._due, time.monotonic())  # the others begin at once
            self.is_dead |= has_failed
        elif kind == "readinessProbe":
            self.is_ready = (self.is_ready or succeeded) and not has_failed
        else:
            self.is_dead |= has_failed
