"""`tandem doctor`: can this machine serve, and what mends it where it cannot?

`collect` looks, `findings` judges and is pure. Nothing is made, started or fetched. Rule: required is only what `tandem up` needs; what it
makes by itself, or does without, is optional.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from serving.cores import usable_cores
from serving.documents.findings import Finding, State
from serving.errors import EnvironmentFault, TandemError, UserError
from serving.local import runs
from serving.local.backends.onnxruntime.cuda_libraries import LEAST_DRIVER
from serving.local.causes import FEWEST_FILES
from serving.local.devices import gpu_name, processor_name
from serving.local.environments import ENGINES, GLIBC, PYTHONS, Host, check_host, find, this_host
from serving.local.folders import cache_dir, state_dir
from serving.local.launch import SHARED_MEMORY
from serving.ports import require_free
from serving.repository import Repository, default_repository

WANTED_SHARED_MB = 256  # of /dev/shm, as docs/images.md gives a container; docker's own 64 MB hold a few small models
LOGS_MB = 100  # free for what a run writes (guess, not measured)
NVIDIA = "0x10de"  # the vendor's number on the PCI bus
CUDA = 13  # what the gpu environment brings


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's environment. `version`: of its ONNX Runtime, None where it is not there."""

    name: str
    folder: Path
    size_mb: int
    version: str | None
    is_broken: bool  # there is a folder, but half made, or its interpreter has gone


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that is written to. `free_mb` None: it cannot be written."""

    what: str
    folder: Path
    free_mb: int | None
    variable: str | None  # that moves it


@dataclass(frozen=True, slots=True)
class Facts:
    host: Host
    processor: str
    num_cores: int
    memory_mb: int | None
    engines: tuple[Engine, ...]
    card: str | None
    has_card_on_bus: bool
    driver: str | None  # its version
    ports: tuple[tuple[int, str | None], ...]  # the port, and why it cannot be had
    own_ports: frozenset[int]  # that a `tandem up` of ours serves
    places: tuple[Place, ...]
    shared_memory_mb: int | None
    max_files: int
    repository: str | None  # what is in it, or
    repository_fault: str | None


def collect(port: int, root: Path = Path("/")) -> Facts:
    """Looks at this machine."""
    repository = fault = None
    try:
        place = default_repository()
        variants, unreadable = Repository(place).readable()
        repository = f"{len(variants)} variants in {place}"
        fault = f"{len(unreadable)} variants in {place} cannot be read: {', '.join(unreadable)}" if unreadable else None
    except TandemError as error:
        fault = str(error)
    return Facts(
        host=this_host(),
        processor=processor_name(),
        num_cores=usable_cores(),
        memory_mb=_memory_mb(root / "proc/meminfo"),
        engines=tuple(_engine(name) for name in ENGINES),
        card=gpu_name(),
        has_card_on_bus=_has_card_on_bus(root / "sys/bus/pci/devices"),
        driver=_driver(root / "sys/module/nvidia/version"),
        ports=tuple((it, _why_taken(it)) for it in (port, port + 1)),
        own_ports=frozenset(it.run.port for it in runs.found() if it.is_alive and it.run.port is not None),
        places=(
            Place("environments and measured speeds", cache_dir(), _free_mb(cache_dir()), "TANDEM_CACHE"),
            Place("logs", state_dir(), _free_mb(state_dir()), "TANDEM_STATE"),
            Place("temporary files", Path(tempfile.gettempdir()), _free_mb(Path(tempfile.gettempdir())), "TMPDIR"),
        ),
        shared_memory_mb=_free_mb(SHARED_MEMORY),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        repository=repository,
        repository_fault=fault,
    )


def findings(facts: Facts) -> tuple[Finding, ...]:
    """In the order in which somebody would mend them."""
    return (
        *_of_host(facts),
        *_of_files(facts),
        *_of_engines(facts),
        *_of_card(facts),
        *_of_ports(facts),
        _of_repository(facts),
    )


# -- what was found ---------------------------------------------------------------------------------------------------


def _of_host(facts: Facts) -> Iterator[Finding]:
    memory = "" if facts.memory_mb is None else f", {facts.memory_mb / 1000:.1f} GB of memory are free"
    yield Finding("machine", State.OK, f"{facts.processor}, {facts.num_cores} cores for this process{memory}")
    host = facts.host
    good = Host("Linux", "x86_64", GLIBC, host.python if host.python in PYTHONS else PYTHONS[0], True, True)
    glibc = ".".join(map(str, host.glibc or ()))
    for name, found, one in (
        ("system", f"{host.system} {host.machine}", replace(good, system=host.system, machine=host.machine)),
        ("C library", f"glibc {glibc}", replace(good, glibc=host.glibc)),
        ("Python", ".".join(map(str, host.python)), replace(good, python=host.python)),
        ("venv module", "there", replace(good, has_venv=host.has_venv)),
        ("Python's shared library", "libpython is found", replace(good, has_libpython=host.has_libpython)),
    ):
        try:
            check_host(one)
            yield Finding(name, State.OK, found)
        except EnvironmentFault as error:
            yield _missing(name, str(error))


def _missing(name: str, message: str) -> Finding:
    """Out of a message that says what is wrong and then the way out."""
    wrong, _, fix = message.partition(". " if ". " in message else ": ")
    return Finding(name, State.MISSING, wrong, fix)


def _of_files(facts: Facts) -> Iterator[Finding]:
    files = "any number" if facts.max_files == resource.RLIM_INFINITY else str(facts.max_files)
    if facts.max_files == resource.RLIM_INFINITY or facts.max_files >= FEWEST_FILES:
        yield Finding("open files", State.OK, f"{files} are allowed")
    else:
        yield Finding(
            "open files", State.MISSING, f"{files} are allowed, serving needs {FEWEST_FILES}", "raise `ulimit -n`"
        )
    unmade_mb = sum(it.size_mb for it in facts.engines if it.name == "cpu" and it.version is None)
    for place in facts.places:
        needed_mb = LOGS_MB + (unmade_mb if place.variable == "TANDEM_CACHE" else 0)
        move = f"set {place.variable} to another folder"
        if place.free_mb is None:
            yield Finding(place.what, State.MISSING, f"{place.folder} cannot be written", move)
        elif place.free_mb < needed_mb:
            found = f"{place.folder} has {place.free_mb} MB left, {needed_mb} MB are needed"
            yield Finding(place.what, State.MISSING, found, f"free some, or {move}")
        else:
            yield Finding(place.what, State.OK, f"{place.free_mb / 1000:.1f} GB left for {place.folder}")
    shared_mb = facts.shared_memory_mb
    if shared_mb is None:
        yield Finding(
            "shared memory",
            State.MISSING,
            f"{SHARED_MEMORY} cannot be written",
            f"mount it: mount -t tmpfs tmpfs {SHARED_MEMORY}",
        )
    elif shared_mb < WANTED_SHARED_MB:
        found = f"{SHARED_MEMORY} has {shared_mb} MB left, too little for many or large models"
        yield Finding("shared memory", State.MISSING, found, "docker run --shm-size 256m, or more", is_required=False)
    else:
        yield Finding("shared memory", State.OK, f"{shared_mb} MB left in {SHARED_MEMORY}")


def _of_engines(facts: Facts) -> Iterator[Finding]:
    for engine in facts.engines:
        name = f"environment {engine.name}"
        if engine.version is not None:
            yield Finding(name, State.OK, f"ONNX Runtime {engine.version} in {engine.folder}")
            continue
        if engine.name == "gpu" and facts.card is None:
            continue
        found = f"{engine.folder} is half made, or its Python has gone" if engine.is_broken else "not made yet"
        by_itself = "" if engine.name == "openvino" else ", as `tandem up` does by itself"
        fix = f"`tandem environment {engine.name}` makes it ({engine.size_mb} MB){by_itself}"
        yield Finding(name, State.MISSING, found, fix, is_required=False)


def _of_card(facts: Facts) -> Iterator[Finding]:
    if facts.card is None and not facts.has_card_on_bus:
        yield Finding("NVIDIA card", State.OK, "none, so the CPU serves", is_required=False)
    elif facts.card is None:
        fix = "install NVIDIA's driver; in a container, start it with --gpus all (NVIDIA Container Toolkit)"
        yield Finding("NVIDIA card", State.MISSING, "there is a card, but no driver for it", fix, is_required=False)
    else:
        yield Finding("NVIDIA card", State.OK, facts.card, is_required=False)
        least, driver = LEAST_DRIVER[CUDA], facts.driver
        if driver is None:
            yield Finding(
                "driver", State.UNKNOWN, "its version is not told here", "look: nvidia-smi", is_required=False
            )
        elif int(driver.partition(".")[0]) < least:
            found = f"{driver}, CUDA {CUDA} needs {least} or newer"
            yield Finding("driver", State.MISSING, found, "install a newer one of NVIDIA's", is_required=False)
        else:
            yield Finding("driver", State.OK, driver, is_required=False)


def _of_ports(facts: Facts) -> Iterator[Finding]:
    for number, (port, why) in enumerate(facts.ports):
        name = f"port {port}"
        if port in facts.own_ports or (port - number in facts.own_ports and why is not None):
            yield Finding(name, State.OK, "served by a `tandem up` that runs: tandem status")
        elif why is None:
            yield Finding(name, State.OK, "free")
        elif number == 0:
            yield Finding(name, State.MISSING, why, "end what listens there, or choose another: tandem up --port PORT")
        else:
            yield Finding(name, State.MISSING, why, "gRPC needs another: tandem up --grpc-port PORT", is_required=False)


def _of_repository(facts: Facts) -> Finding:
    if facts.repository_fault is not None:
        fix = "name another with --model-repository, or export a model into it: tandem export"
        return Finding("model repository", State.MISSING, facts.repository_fault, fix, is_required=False)
    return Finding("model repository", State.OK, facts.repository or "", is_required=False)


# -- looking ----------------------------------------------------------------------------------------------------------


def _engine(name: str) -> Engine:
    engine = ENGINES[name]
    found, folder = find(engine), engine.venv.folder
    version = None if found is None else found.engine_version
    return Engine(name, folder, engine.installed_mb, version, is_broken=version is None and folder.exists())


def _free_mb(folder: Path) -> int | None:
    """Of the folder, or of the nearest one above it that exists, where it is to be made. None where nothing can be written."""
    place = next((it for it in (folder, *folder.parents) if it.exists()), None)
    if place is None or not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return None
    return shutil.disk_usage(place).free // 10**6


def _memory_mb(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) // 1000 for line in lines if line.startswith("MemAvailable:")), None)


def _has_card_on_bus(devices: Path) -> bool:
    """A display or 3D controller of NVIDIA's, whether a driver knows it or not."""
    for vendor in devices.glob("*/vendor"):
        try:
            if vendor.read_text().strip() == NVIDIA and vendor.with_name("class").read_text().startswith("0x03"):
                return True
        except OSError:
            continue
    return False


def _driver(version: Path) -> str | None:
    try:
        return version.read_text().strip() or None
    except OSError:
        return None


def _why_taken(port: int) -> str | None:
    try:
        require_free("127.0.0.1", port, "--port")
    except UserError as error:
        return str(error).partition(": ")[0]
    return None
