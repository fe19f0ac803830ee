"""Does README.md say what happens? Runs its fenced blocks in their order, word for word, as a stranger with a bare machine would.

    make test-readme                       root, debootstrap and port 8080 are needed; minutes
    make test-readme ARGS=--all            word for word what takes minutes too: else `SHORTER` says what is left out of it

The machine is a Debian 12 (scripts/images/base.sh) with Python and make, at first without the venv module and
Python's shared library; the clone is of HEAD. `make up` goes on while the other blocks run, as in another terminal.
`text` blocks are pictures. What must come of a block is in `EXPECTED`, by the block's first line; every other block
must only succeed. A comment behind `print(…)` is what it has to print.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
CLONE = "root/tandem"  # in the bare machine; `cd` begins in the home of its user
PORTS = (8080, 8081)
START_S = 600  # of `make up`, which fetches all it needs
OF_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert")
# Where no script of ours runs, a bare machine is: $1 root, $2 where pip keeps its downloads.
ENTER = """
set -eu
mount --make-rprivate /
mount -t proc proc "$1/proc"
for folder in dev sys; do mount --rbind "/$folder" "$1/$folder"; done
home=$1/root
mkdir -p "$home/.cache/pip"; mount --bind "$2" "$home/.cache/pip"
exec chroot "$1" env -i HOME=/root USER=root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
  DEBIAN_FRONTEND=noninteractive bash --norc
"""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.split("\n")[0].split("#")[0].strip()


@dataclass(frozen=True, slots=True)
class Ran:
    """What a block said, and the commands in it that failed with their exit codes."""

    said: str
    failed: tuple[tuple[int, str], ...] = ()

    def require(self, *words: str) -> None:
        for word in words:
            if word not in self.said:
                stop(f"no {word!r} in what it said")


def stop(message: str, code: int = 1) -> NoReturn:
    print(f"tandem: {message}", file=sys.stderr)
    sys.exit(code)


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [Block(language, text.rstrip()) for language, text in found]


class Machine:
    """A shell in the bare machine, one for all blocks, so that what one sets the next has."""

    def __init__(self, root: Path, downloads: Path) -> None:
        self._root = root
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "enter", root, downloads]
        self._shell = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )

    def run(self, text: str) -> Ran:
        """To its end. Its words are shown as they come."""
        # The last colon: where a command fails, it is that command's failure and not the block's as well.
        (self._root / "tmp" / "block").write_text(f"{text}\n:\n")
        catch = "set -E; trap 'echo \"@failed $? $BASH_COMMAND\"' ERR"
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{catch}; . /tmp/block < /dev/null; trap - ERR; echo; echo @done\n")
        self._shell.stdin.flush()
        said, failed = [], []
        for line in self._shell.stdout:
            if line == "@done\n":
                return Ran("".join(said), tuple(failed))
            if match := re.match(r"@failed (\d+) (.*)", line):
                failed.append((int(match[1]), match[2]))
                continue
            said.append(line)
            print(f"  | {line}", end="", flush=True)
        stop("its shell ended")

    def end(self) -> None:
        self._shell.kill()  # and so all that runs there
        self._shell.wait()


@dataclass(frozen=True, slots=True)
class Reader:
    """Who does what README says."""

    machine: Machine
    clone: Path
    is_all: bool

    def do(self, block: Block) -> None:
        if block.first == "make up":
            self.serve(block)
            return
        text = block.text
        if block.language == "python":
            (self.clone / ".git" / "block.py").write_text(f"{text}\n")
            text = ".venv/bin/python .git/block.py"
        elif not self.is_all:
            for words, shorter in SHORTER.items():
                text = text.replace(words, shorter)
        ran = self.machine.run(text)
        may_fail = [(1, "tandem verdict")] if "tandem verdict" in text else []  # 1: this machine is too slow for it
        if wrong := [it for it in ran.failed if not any(it[0] == code and it[1].startswith(w) for code, w in may_fail)]:
            stop(f"`{wrong[0][1]}` ended with exit code {wrong[0][0]}")
        ran.require(*re.findall(r"^print\(.*\)  # (.+)$", block.text, re.MULTILINE))
        for first, expected in EXPECTED.items():
            if block.first.startswith(first) and (self.is_all or first not in SHORTER):
                expected(ran)

    def serve(self, block: Block) -> None:
        """It goes on; its curl and its page are tried as they are printed."""
        self.machine.run(f"(\n{block.text}\n) > .git/up.log 2>&1 &")
        log, until_s = self.clone / ".git" / "up.log", time.monotonic() + START_S
        while "Ctrl-C stops it" not in (said := log.read_text() if log.exists() else ""):
            if time.monotonic() > until_s or re.search(r"^make: \*\*\*", said, re.MULTILINE):
                stop(f"`make up` does not serve:\n{said}")
            time.sleep(0.5)
        print(said)
        lines = said.splitlines()
        scores = json.loads(self.machine.run(lines[lines.index("try it:") + 1]).said)["outputs"][0]["data"]
        right = re.search(r"the largest score is number (\d+), counted from 0", said)
        if right is None or scores.index(max(scores)) != int(right[1]):
            stop(f"the curl that `make up` prints answers {scores}")
        [page] = [line.split()[-1] for line in lines if line.startswith("  page: ")]
        if self.machine.run(f"curl -sf {page} > /dev/null").failed:
            stop(f"no page at {page}")


def of_export(ran: Ran) -> None:
    if not re.search(r"^wine +1 +classification +fp32 +top1 ", ran.said, re.MULTILINE):
        stop("`tandem models` does not show that the model passed")


def of_verdict(ran: Ran) -> None:
    ran.require("200/s", "report: ")


def of_tests(ran: Ran) -> None:
    if not re.search(r"\d{4,} passed", ran.said):
        stop("thousands of tests were to pass")


# What CI does for every change: the tests are a stage of its own, and a verdict needs few runs to be tried.
SHORTER = {"make test": "make --dry-run test", "--p99 20ms": "--p99 20ms --quick"}
EXPECTED: dict[str, Callable[[Ran], None]] = {"PATH=": of_export, "tandem verdict": of_verdict, "make test": of_tests}


def pip_settings() -> dict[str, str]:
    """Of pip's settings here, what a bare machine behind the same mirror needs too; its CA is in the base."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = (line.partition("=") for line in said.stdout.splitlines())
    settings = {key.rpartition(".")[2]: value.strip("'") for key, _, value in lines}
    return {key: value for key, value in settings.items() if key in OF_PIP}


def prepared(root: Path) -> None:
    """A bare machine with the clone in it."""
    subprocess.run([ROOT / "scripts" / "images" / "base.sh", root], check=True)
    root.chmod(0o755)  # apt downloads as a user of its own
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc", name), root / "etc" / name)
    settings = configparser.ConfigParser(interpolation=None)
    settings["global"] = {"disable-pip-version-check": "true", **pip_settings()}
    with (root / "etc" / "pip.conf").open("w") as file:
        settings.write(file)
    clone = ["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(root / CLONE)]
    subprocess.run(clone, check=True)


def lacking_packages(machine: Machine, block: Block) -> None:
    """What `make up` says where packages are missing is to be enough: it is done then."""
    machine.run("apt-get -qq update && apt-get -qq install --no-install-recommends -y make curl > /dev/null")
    machine.run(
        "apt-get -qq purge --auto-remove -y python3-venv python3.11-venv libpython3.11 > /dev/null; cd ~/tandem"
    )
    ran = machine.run(block.text)
    named = re.search(r"apt-get install ([a-z0-9. -]+)", ran.said)
    if not ran.failed or named is None or set(named[1].split()) != {"python3-venv", "libpython3.11"}:
        stop("without the venv module and Python's shared library `make up` is to name the packages that bring them")
    done = machine.run(f"apt-get -qq install --no-install-recommends -y {named[1]} > /dev/null")
    if done.failed:
        stop("the packages that `make up` names do not install")


def ended(*_: object) -> NoReturn:
    """What was made is removed on the way, which a second signal does not interrupt."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop("told to end", 143)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.readme", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", dest="is_all", help="do what takes minutes word for word too")
    options = parser.parse_args(arguments)
    if os.getuid() != 0 or not shutil.which("debootstrap"):
        stop("this needs root and debootstrap (Debian, Ubuntu: apt-get install debootstrap)", 3)
    for port in PORTS:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                stop(f"port {port} is taken, and README speaks of it: end what listens there", 3)
    downloads = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    )
    cache = Path(downloads.stdout.strip())
    cache.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, ended)
    to_do = [block for block in blocks((ROOT / "README.md").read_text("utf-8")) if block.language != "text"]
    if lost := [first for first in ("make up", *EXPECTED) if not any(it.first.startswith(first) for it in to_do)]:
        stop(f"README.md has no block any more that begins with {lost[0]!r}")
    with tempfile.TemporaryDirectory(prefix="tandem-readme-") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder, "root")
        prepared(root)
        machine = Machine(root, cache)
        try:
            reader = Reader(machine, root / CLONE, options.is_all)
            lacking_packages(machine, to_do[0])
            for number, block in enumerate(to_do, 1):
                began_s = time.monotonic()
                print(f"\n-- block {number} of {len(to_do)}: {block.first}", flush=True)
                reader.do(block)
                print(f"-- block {number}: {time.monotonic() - began_s:.0f} s", flush=True)
        finally:
            machine.end()
    print(f"README.md says what happens: {len(to_do)} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
