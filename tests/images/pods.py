"""Starts built images as a pod of Kubernetes would, without a container runtime: what namespaces and mounts give, and no more.

A pod is a network namespace with nothing but its loopback. A container in it is process 1 of a process namespace of its own, as
the image's user without capabilities, on the image's files mounted read-only; /tmp, /dev/shm and what the test names are folders
outside, so that the test sees what is left in them. Not here: cgroup limits, seccomp, an image's own volumes. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0  # Triton takes a second or two here; a busy machine more

# Run by root inside new namespaces; what it becomes is process 1. $1 root, $2 user; then TARGET=FOLDER[:ro]… -- COMMAND…
ENTER = """
set -eu
root=$1 user=$2; shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for device in null zero full random urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir "$root/dev/shm"
while [ "$1" != -- ]; do
  target=${1%%=*} folder=${1#*=}
  case $folder in *:ro) how=ro folder=${folder%:ro} ;; *) how=rw ;; esac
  mount --bind "$folder" "$root$target"; mount -o "remount,bind,nosuid,nodev,$how" "$root$target"
  shift
done
shift
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """What a registry would tell of it, and where its files lie."""

    name: str
    root: Path
    config: Mapping[str, Any]  # Docker's: Env, Entrypoint, Cmd, User, Labels, Healthcheck
    size_bytes: int  # of its layers, uncompressed

    @property
    def command(self) -> list[str]:
        return [*self.config["Entrypoint"], *self.config["Cmd"]]


@contextlib.contextmanager
def opened(name: str) -> Iterator[Image]:
    """The image's files as a folder, until the end of the block."""
    container = said("buildah", "from", "--pull=false", name)
    try:
        told = json.loads(said("buildah", "inspect", "--type", "image", name))
        size = sum(layer["size"] for layer in json.loads(told["Manifest"])["layers"])
        root = Path(said("buildah", "mount", container))
        yield Image(name, root, told["Docker"]["config"], size)
    finally:
        said("buildah", "rm", container)


def said(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Pod:
    """`keeper` is a process of ours that holds the network namespace."""

    keeper: int

    @contextlib.contextmanager
    def container(
        self, image: Image, command: Sequence[str], mounts: Mapping[str, str], log: Path
    ) -> Iterator[Container]:
        """Runs it until the end of the block; `mounts`: place in the image -> folder or file outside, `:ro` for read-only."""
        for place, outside in mounts.items():
            _mount_point(image.root / place.lstrip("/"), Path(outside.removesuffix(":ro")))
        user = image.config["User"].partition(":")[0]
        given = [f"{place}={outside}" for place, outside in mounts.items()]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *("nsenter", f"--net=/proc/{self.keeper}/ns/net", "unshare", "--mount", "--pid", "--ipc", "--uts"),
                    *("--fork", "--kill-child", "sh", "-c", ENTER, "enter", str(image.root), user, *given, "--"),
                    *("env", "-i", f"--chdir={image.config['WorkingDir']}", *image.config["Env"], *command),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        it = Container(image, process, log)
        try:
            yield it
        finally:
            if process.poll() is None:
                it.kill()

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """A program of this machine in the pod's network."""
        entered = ["nsenter", f"--net=/proc/{self.keeper}/ns/net", *command]
        return subprocess.run(entered, capture_output=True, text=True, timeout=START_S, check=False, **options)

    def python(self, program: str, *arguments: str) -> str:
        done = self.run([sys.executable, "-c", program, *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout


@dataclass(frozen=True, slots=True)
class Container:
    image: Image
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def first(self) -> int:
        """Process 1, by its number outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def status(self, field: str) -> str:
        lines = Path(f"/proc/{self.first}/status").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command beside process 1, as a health check is run."""
        user = self.image.config["User"].partition(":")[0]
        return subprocess.run(
            [
                *("nsenter", "--target", str(self.first), "--all", f"--root=/proc/{self.first}/root"),
                *("setpriv", "--reuid", user, "--regid", user, "--clear-groups"),
                *("env", "-i", *self.image.config["Env"], *command),
            ],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    def check_health(self) -> bool:
        kind, *command = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.execute(*command).returncode == 0

    def wait_for(self, *command: str) -> None:
        """Until the command succeeds beside process 1."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up:
            assert self.process.poll() is None, f"{self.image.name} ended:\n{self.log.read_text()}"
            with contextlib.suppress(OSError, IndexError):  # process 1 is not there yet
                if self.execute(*command).returncode == 0:
                    return
            time.sleep(0.2)
        raise AssertionError(f"{command} failed for {START_S:.0f} s in {self.image.name}:\n{self.log.read_text()}")

    def wait_healthy(self) -> None:
        self.wait_for(*self.image.config["Healthcheck"]["Test"][1:])

    def kill(self) -> None:
        """Process 1, which takes the others along: killed alone, unshare would leave it, because it has become another user since."""
        with contextlib.suppress(OSError, IndexError, subprocess.TimeoutExpired):
            os.kill(self.first, signal.SIGKILL)
            self.process.wait(timeout=START_S)
        self.process.kill()
        self.process.wait()

    def terminate(self, within_s: float) -> tuple[int, float]:
        """Sends SIGTERM to process 1; its exit code, and how long it took."""
        started = time.monotonic()
        os.kill(self.first, signal.SIGTERM)
        code = self.process.wait(timeout=within_s)
        return code, time.monotonic() - started


@contextlib.contextmanager
def pod() -> Iterator[Pod]:
    """A network namespace with its loopback up, and nothing that leads outside."""
    hold = [
        "unshare",
        "--net",
        "sh",
        "-c",
        f"ip link set lo up && echo up && exec {shlex.quote(sys.executable)} -c 'input()'",
    ]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "up\n"
        try:
            yield Pod(keeper.pid)
        finally:
            keeper.kill()


def _mount_point(place: Path, like: Path) -> None:
    """What a container runtime makes by itself: something to mount on. In the container's own layer, not in the image."""
    if like.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
