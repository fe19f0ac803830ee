"""How does the whole thing run without touching the machine? In namespaces of its own for network, mounts and process ids.

The addresses of all pods belong to its loopback, its resolver asks `names`, and when its first process ends, the kernel ends all others;
that one ends with the process that started it. Root is not needed where the kernel lets users make namespaces.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.hybrid.container import ACCOUNT

PODS = "10.244.0.0/16"  # what kwok gives its pods, tests/cluster/bed/parts.py
NAMESERVER = "127.0.0.1"
INSIDE = "TANDEM_HYBRID_INSIDE"
PR_SET_PDEATHSIG = 1


class NotAlone(Exception):
    """Said to the user as it is."""


def go_inside(module: str, arguments: list[str]) -> None:
    """Becomes the same program inside; returns there, and only there."""
    if INSIDE in os.environ:
        return
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            raise NotAlone(f"{program} is not here; Debian has it in util-linux and iproute2")
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # outlives the exec
    if os.getppid() != parent:
        sys.exit(1)
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    words += [] if os.getuid() == 0 else ["--map-root-user"]
    os.environ[INSIDE] = "1"
    os.execvp(words[0], [*words, sys.executable, "-m", module, *arguments])


def settle(folder: Path, namespace: str) -> None:
    """Loopback with the pods' addresses, a resolver as a pod of that namespace has it, and a place for a pod's token."""
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "route", "add", "local", PODS, "dev", "lo")
    resolver = Path("/etc/resolv.conf")
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")  # all of it, so that nothing is made on the machine's
    Path(ACCOUNT).mkdir(parents=True)
    if not resolver.exists() and resolver.is_symlink():  # to what was in /run
        resolver.resolve().parent.mkdir(parents=True, exist_ok=True)
        resolver.resolve().touch()
    search = f"search {namespace}.svc.cluster.local svc.cluster.local cluster.local"
    _lay_over(folder, resolver, f"nameserver {NAMESERVER}\n{search}\noptions ndots:5\n")
    _lay_over(folder, Path("/etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")


def _lay_over(folder: Path, there: Path, text: str) -> None:
    if not there.exists():
        raise NotAlone(f"{there} is not here, so that nothing can be laid over it")
    ours = folder / there.name
    ours.write_text(text)
    _run("mount", "--bind", str(ours), str(there.resolve()))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotAlone(f"{' '.join(words)}: {done.stderr.strip()}")
