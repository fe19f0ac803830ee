"""Where are the bed's programs? Builds them once for each state of their sources, into a cache outside the clone.

`python -m tests.cluster.bed.build` builds what lacks and prints the folder: programs and the kinds of others (CRDs). A build
appears whole or not at all, and of two that start at once one waits. Only a change of the sources or of Go pays it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import yaml

HERE = Path(__file__).resolve().parent
SOURCE, CRDS = HERE / "controlplane", HERE / "crds.txt"
KUBERNETES, HELM = "1.35.0", "3.20.2"  # what they call themselves; go.mod has the same versions
PATIENCE_S = 2700  # of one compilation from nothing: 9 minutes on two busy cores, 25 where ten others compute there too
TOLD_EVERY_S = 30.0  # while it is at work, so that what waits does not look like what hangs


class NotBuilt(Exception):
    """Said to the user as it is."""


@dataclass(frozen=True, slots=True)
class Programs:
    folder: Path

    @property
    def controlplane(self) -> Path:
        return self.folder / "controlplane"

    @property
    def helm(self) -> Path:
        return self.folder / "helm"

    @property
    def kubectl(self) -> Path:
        return self.folder / "kubectl"

    @property
    def crds(self) -> Path:
        return self.folder / "crds"


def built() -> Programs:
    """The programs, if they are there; tests never wait for a compiler."""
    folder = _folder()
    if not folder.is_dir():
        raise NotBuilt("the cluster's programs are not built: make test-cluster, or python -m tests.cluster.bed.build")
    return Programs(folder)


def build() -> Programs:
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("a+") as lock:
        _wait_for(lock)
        if not folder.is_dir():
            _make(folder)
    return Programs(folder)


def _wait_for(lock: TextIO) -> None:
    """Until no other build runs, whose process it names. The file holds the number of the one that has it."""
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            print(f"bed: waits for another build, process {holder}, {time.monotonic() - began:.0f} s", flush=True)
            time.sleep(min(TOLD_EVERY_S, 1.0 + time.monotonic() - began))
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tandem" / "cluster-bed" / _digest()


def _digest() -> str:
    digest = hashlib.sha256(_go_version().encode())
    for path in [Path(__file__), CRDS, *sorted(SOURCE.iterdir())]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _go_version() -> str:
    wanted = re.search(r"^go (\S+)$", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    needed = f"Go {wanted[1] if wanted else ''} or newer (https://go.dev/dl, or any Go since 1.21, which fetches the newer one)"
    if shutil.which("go") is None:
        raise NotBuilt(f"there is no Go here: the cluster's programs are compiled with {needed}")
    done = subprocess.run(["go", "env", "GOVERSION"], cwd=SOURCE, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotBuilt(
            f"this Go is too old or cannot fetch a newer one; needed is {needed}: {done.stderr.strip()[-200:]}"
        )
    return done.stdout.strip()


def _make(folder: Path) -> None:
    """Into a folder beside, which takes its name when it is complete."""
    beside = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        print(f"bed: building into {folder}; from an empty Go cache it takes 7 to 9 minutes", flush=True)
        version = "k8s.io/component-base/version"
        names = {
            f"{version}.gitVersion": f"v{KUBERNETES}",
            **_major_minor(f"{version}.gitMajor", f"{version}.gitMinor"),
        }
        _timed("controlplane", _go_build(beside / "controlplane", ".", names))
        # Told nothing, helm takes the cluster of `helm template` and `helm lint` for Kubernetes 1.20.
        helm = "helm.sh/helm/v3"
        names = {f"{helm}/internal/version.version": f"v{HELM}"}
        for package in ("pkg/lint/rules", "pkg/chartutil"):
            names |= _major_minor(f"{helm}/{package}.k8sVersionMajor", f"{helm}/{package}.k8sVersionMinor")
        _timed("helm", _go_build(beside / "helm", f"{helm}/cmd/helm", names))
        (beside / "kubectl").symlink_to("controlplane")
        _copy_crds(beside / "crds")
        beside.chmod(0o755)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _major_minor(major: str, minor: str) -> dict[str, str]:
    numbers = KUBERNETES.split(".")
    return {major: numbers[0], minor: numbers[1]}


def _go_build(into: Path, package: str, names: dict[str, str]) -> list[str]:
    flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in names.items())])
    return ["go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(into), package]


@dataclass(slots=True)
class Progress:
    """What Go says while it builds (`-v`): modules that it fetches, packages as each is compiled, and whatever is wrong."""

    num_packages: int = 0
    last: str = ""
    is_fetching: bool = False
    words: list[str] = field(default_factory=list)  # neither of the two

    def read(self, lines: Iterable[str]) -> None:
        for line in map(str.strip, lines):
            if line.startswith("go: "):
                self.is_fetching, self.last = True, line.removeprefix("go: ")
            elif PACKAGE.fullmatch(line):
                self.is_fetching, self.last = False, line
                self.num_packages += 1
            elif line:
                self.words.append(line)

    def __str__(self) -> str:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        busy = f"; {load:.0f} processes want {cores} cores" if load > 2 * cores else ""
        doing = (
            f"{self.last} (waits for the network)"
            if self.is_fetching
            else f"{self.num_packages} packages compiled, last {self.last}"
        )
        return f"{doing if self.last else 'nothing yet'}{busy}"


PACKAGE = re.compile(r"[\w.-]+(/[\w.~-]+)*")


def _timed(what: str, command: list[str]) -> str:
    """What it prints. Says every half minute how far it is, or what it waits for."""
    began, progress = time.monotonic(), Progress()
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(command, cwd=SOURCE, stdout=printed, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        reader = threading.Thread(target=progress.read, args=(process.stderr,), daemon=True)
        reader.start()
        while (took_s := time.monotonic() - began) < PATIENCE_S:
            try:
                code = process.wait(TOLD_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                print(f"bed: {what:<14} {time.monotonic() - began:6.0f} s: {progress}", flush=True)
        else:
            process.kill()
            raise NotBuilt(
                f"{what} is not built after {took_s:.0f} s ({progress}); Go keeps what it has compiled: try again"
            )
        reader.join()
        if code != 0:
            raise NotBuilt("\n".join([f"{what} could not be built", *progress.words[-20:]]))
        print(
            f"bed: {what:<14} {time.monotonic() - began:6.1f} s, {progress.num_packages} packages compiled", flush=True
        )
        printed.seek(0)
        return printed.read()


def _copy_crds(into: Path) -> None:
    into.mkdir()
    lines = [line.split() for line in CRDS.read_text().splitlines() if line and not line.startswith("#")]
    modules: dict[str, Path] = {}
    for module, version, checksum, folder, files in lines:
        if module not in modules:
            answer = json.loads(
                _timed(module.rpartition("/")[2], ["go", "mod", "download", "-json", f"{module}@{version}"])
            )
            if answer["Sum"] != checksum:
                raise NotBuilt(f"{module} {version} has the checksum {answer['Sum']}, not {checksum} as crds.txt says")
            modules[module] = Path(answer["Dir"])
        found = sorted((modules[module] / folder).glob(files))
        if not found:
            raise NotBuilt(f"{module} {version} has no {folder}/{files}")
        for path in found:
            for index, document in enumerate(yaml.load_all(path.read_text(), yaml.CSafeLoader)):
                if document:  # as JSON: parsing YAML of this size takes seconds, at every start of a bed
                    (into / f"{path.stem}-{index}.json").write_text(json.dumps(document))


if __name__ == "__main__":
    try:
        print(f"bed: programs are in {build().folder}")
    except NotBuilt as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(3)
