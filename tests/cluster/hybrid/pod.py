"""One pod's life as real processes: volumes, init containers, containers, probes, restarts, and the way out.

A thread owns the pod from its address to its end. Leaving is a kubelet's: the sleep of preStop, SIGTERM, SIGKILL when the grace period
is over, and only then is the object finally deleted. No probe is asked of a pod that leaves.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from tests.cluster.bed.api import Answered, Api, Object
from tests.cluster.hybrid import container as planned
from tests.cluster.hybrid.container import NotImitated, Places
from tests.cluster.hybrid.probe import Probing, ask
from tests.cluster.hybrid.status import Seen, now, status

TICK_S = 0.1
BACK_OFF_S = (0.0, 10.0, 20.0, 40.0)  # before the next start, as a kubelet's
ANOTHER = (404, 409, 422)  # the object is gone, or another one has its name by now
AGAIN_S = 0.5  # an API server that has just started refuses some more
PATIENCE_S = 30.0  # with an API server that is away, for the last word

Say = Callable[[str], None]


class Left(Exception):
    """The pod is to go."""


class Pod(threading.Thread):
    def __init__(self, api: Api, first: Object, folder: Path, image_models: Path, curves: Path, say: Say) -> None:
        super().__init__(name=first["metadata"]["name"], daemon=True)
        self._api, self._folder, self._image_models, self._curves, self._say = api, folder, image_models, curves, say
        self._object = first
        self._changed = threading.Event()
        self._is_gone = False  # the object: nothing is left to be said about it
        self._is_lost = False  # its node: nobody is there to say it
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._init = [Seen(it["name"], it["image"]) for it in first["spec"].get("initContainers", [])]
        self._seen = [Seen(it["name"], it["image"]) for it in first["spec"]["containers"]]
        self._is_initialized = False

    @property
    def object(self) -> Object:
        return self._object

    @property
    def node(self) -> str:
        return str(self._object["spec"].get("nodeName", ""))

    @property
    def ip(self) -> str:
        return str(self._object["status"].get("podIP", ""))

    def processes(self) -> list[psutil.Process]:
        """All of its containers': a container's die with its first one, which here is for whoever kills it to do."""
        first = [psutil.Process(it.pid) for it in self._processes.values() if it.poll() is None]
        return [*first, *(child for it in first for child in it.children(recursive=True))]

    def update(self, it: Object, is_gone: bool) -> None:
        self._object, self._is_gone = it, is_gone
        self._changed.set()

    def lose(self) -> None:
        """As when the machine under it stops: nothing is said to anybody."""
        self._is_lost = True
        self._kill()

    # -- from start ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._wait_for_image()
            self._live()
        except Left:
            self._leave()
        except NotImitated as error:
            self._say(f"{self.name}: {error}")
            for it in self._seen:
                it.waits_for = "ErrImagePull"
            self._tell()
        except Exception:
            self._say(f"{self.name}: {traceback.format_exc()}")
        finally:
            self._kill()

    def _wait_for_image(self) -> None:
        while "podIP" not in self._object["status"]:
            self._pause(1.0)
        began = datetime.fromisoformat(self._object["status"]["startTime"]).timestamp()
        annotations = self._object["metadata"]["annotations"]
        while (left_s := began + float(annotations.get("bed/pull", 1)) - time.time()) > 0:
            self._pause(left_s)
        self._say(f"{self.name}: pulled, {self._object['status']['podIP']} on {self.node}")

    def _live(self) -> None:
        self._places = Places(self._folder, self._object["status"]["podIP"], self._image_models, self._curves)
        planned.make_volumes(self._object, self._places, self._look, self._token)
        for spec, seen in zip(self._object["spec"].get("initContainers", []), self._init, strict=True):
            while seen.exit_code != 0:
                self._launch(spec, seen)
                while (code := self._processes[seen.name].poll()) is None:
                    self._pause(TICK_S)
                seen.exit_code = code
                self._tell()
                if code != 0:
                    self._say(
                        f"{self.name}: init container {seen.name} ended with {code}: {self._last_lines(seen.name)}"
                    )
                    self._back_off(seen)
        self._is_initialized = True
        probing = {seen.name: self._begin(spec, seen) for spec, seen in self._containers()}
        self._tell()
        while True:
            self._pause(TICK_S)
            for spec, seen in self._containers():
                self._look_after(spec, seen, probing)

    def _containers(self) -> list[tuple[Object, Seen]]:
        return list(zip(self._object["spec"]["containers"], self._seen, strict=True))

    def _look_after(self, spec: Object, seen: Seen, probing: dict[str, Probing]) -> None:
        it, process = probing[seen.name], self._processes[seen.name]
        if process.poll() is None:
            if it.look():
                seen.is_started, seen.is_ready = it.is_started, it.is_ready
                self._say(f"{self.name}: {'ready' if it.is_ready else 'started' if it.is_started else 'not started'}")
                self._tell()
            if not it.is_dead:
                return
            self._say(f"{self.name}: {seen.name} is killed: its probe failed")
            self._end(spec, time.monotonic() + self._object["spec"]["terminationGracePeriodSeconds"])
        seen.exit_code = process.wait()
        self._say(f"{self.name}: {seen.name} ended with {seen.exit_code}: {self._last_lines(seen.name)}")
        self._tell()
        self._back_off(seen)
        probing[seen.name] = self._begin(spec, seen)
        self._tell()

    def _back_off(self, seen: Seen) -> None:
        wait_s = BACK_OFF_S[min(seen.restarts, len(BACK_OFF_S) - 1)]
        seen.restarts += 1
        if wait_s:
            seen.waits_for = "CrashLoopBackOff"
            self._tell()
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            self._pause(left_s)

    def _begin(self, spec: Object, seen: Seen) -> Probing:
        self._launch(spec, seen)
        words = partial(planned.here, container=spec, places=self._places)
        return Probing(spec, lambda probe: ask(probe, spec, self._places.ip, words))

    def _launch(self, spec: Object, seen: Seen) -> None:
        words = planned.command(self._object, spec, self._places)
        variables = planned.environment(self._object, spec, self._look, self._api.address)
        with (self._folder / f"{seen.name}.log").open("ab") as log:
            self._processes[seen.name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd=planned.ROOT,
                start_new_session=True,
            )  # fmt: skip
        seen.waits_for, seen.exit_code, seen.started_at = "", None, now()
        seen.is_started = seen.is_ready = False

    def _last_lines(self, name: str) -> str:
        return "\n".join((self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-6:])

    # -- what others know ------------------------------------------------------------------------------------------------

    def _look(self, kind: str, name: str) -> Object:
        return self._api.get(f"/api/v1/namespaces/{self._object['metadata']['namespace']}/{kind}/{name}")

    def _token(self, wanted: Object) -> str:
        """One of its service account's that ends with the pod, as a kubelet asks for it."""
        about = self._object["metadata"]
        account = (
            f"/api/v1/namespaces/{about['namespace']}/serviceaccounts/{self._object['spec']['serviceAccountName']}"
        )
        of = {"kind": "Pod", "apiVersion": "v1", "name": about["name"], "uid": about["uid"]}
        spec = {key: it for key, it in wanted.items() if key == "expirationSeconds"} | {"boundObjectRef": of}
        return str(self._api.create(f"{account}/token", {"spec": spec})["status"]["token"])

    @property
    def _path(self) -> str:
        about = self._object["metadata"]
        return f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"

    def _tell(self) -> None:
        def tell() -> None:
            patch = status(self._object, self._init, self._seen, is_initialized=self._is_initialized)
            uid = self._object["metadata"]["uid"]
            self._api.merge(f"{self._path}/status", {"metadata": {"uid": uid}, "status": patch})

        self._until_heard(tell, lambda: self._is_gone or self._is_lost)

    def _until_heard(self, say: Callable[[], object], is_over: Callable[[], bool]) -> None:
        """Until the API server has heard it, says that this pod is no more, or it need not be said."""
        while not is_over():
            try:
                say()
                return
            except Answered as error:
                if error.status in ANOTHER:
                    return
                self._say(f"{self.name}: {error}")
                time.sleep(AGAIN_S)
            except OSError:  # the API server is away
                time.sleep(AGAIN_S)

    def _pause(self, longest_s: float) -> None:
        """Raises Left once the pod is to go."""
        self._changed.wait(longest_s)
        self._changed.clear()
        if self._is_gone or self._is_lost or "deletionTimestamp" in self._object["metadata"]:
            raise Left

    # -- to the end ------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self._is_gone or self._is_lost:
            return
        about = self._object["metadata"]
        grace_s = float(about.get("deletionGracePeriodSeconds") or 0)
        began = time.monotonic()
        for spec in self._object["spec"]["containers"]:
            self._end(spec, began + grace_s)
        self._say(f"{self.name}: left after {time.monotonic() - began:.1f} s of {grace_s:.0f} s")
        self._finish(about["uid"])

    def _end(self, spec: Object, kill_at: float) -> None:
        process = self._processes.get(spec["name"])
        if process is None or process.poll() is not None:
            return
        sleep_s = spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        until = min(time.monotonic() + sleep_s, kill_at)
        while time.monotonic() < until and not (self._is_gone or self._is_lost):
            time.sleep(TICK_S)
        process.terminate()  # the first process alone, as a container's
        while process.poll() is None and time.monotonic() < kill_at and not (self._is_gone or self._is_lost):
            time.sleep(TICK_S / 2)
        if process.poll() is None:
            self._say(f"{self.name}: {spec['name']} did not end in time and is killed")
        self._kill()

    def _kill(self) -> None:
        for it in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                it.kill()
        for process in self._processes.values():
            process.wait()

    def _finish(self, uid: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        self._until_heard(
            lambda: self._api.call("DELETE", self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}),
            lambda: self._is_gone or time.monotonic() >= give_up,
        )
