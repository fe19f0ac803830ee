"""Runs a campaign in its pod, then writes the results to the log: `python -c THIS RESULTS URL tandem campaign run …`.

Sent along with each Job, so that both ends are of one version whatever the image is; that is why nothing of Tandem is imported here. A
log is text, may be cut or read twice, and a kubelet begins a new file at 10 MiB: so lines carry a number, the first one says what all
of them make, and what would not fit is left out by name, the rows of the longest runs first.
"""

import base64
import hashlib
import io
import json
import lzma
import pathlib
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.parse
from collections.abc import Iterator

MARK = "tandem-results"
LINE_BYTES = 3000  # 4,000 letters; the runtimes cut lines at 16 KiB
# Of the archive: 10 MiB of log (a kubelet's containerLogMaxSize), less a third for base64 and 2 % for the lines' heads, less 1 MiB that the
# campaign may have said before.
MAX_BYTES = 6 * 2**20
# A network policy that was made with the pod lets nothing through until the node has it, mostly within a second or two; a guess.
WAIT_S = 30.0
CONNECT_S = 3.0
INTERRUPTED = 130
REPORTS = ("manifest.json", "report.json", "report.html")  # the last to be left out


def main(words: list[str]) -> int:
    results, url, command = pathlib.Path(words[0]), words[1], words[2:]
    code = run(url, command)
    for line in lines(results, code):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return code


def run(url: str, command: list[str], wait_s: float = WAIT_S) -> int:
    """The campaign's exit code; 3 where there is no way to the gateway, 130 where it is told to stop before it began."""
    signals: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        for process in running:
            process.send_signal(signal.SIGTERM)

    # The first process of a container gets no signal but those it asks for; the campaign keeps what ran when it is told to stop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if problem := no_way(url, signals, wait_s):
        print(
            f"tandem: nothing answers at {url} for {wait_s:.0f} s ({problem}); a NetworkPolicy that is not of the release?",
            flush=True,
        )
        return 3
    if signals:
        return INTERRUPTED
    running.append(subprocess.Popen(command))
    if signals:  # meanwhile
        running[0].send_signal(signal.SIGTERM)
    # Not wait(): a signal that comes just before it would be handled only when the campaign has ended.
    while (code := running[0].poll()) is None:
        time.sleep(0.05)
    return 128 - code if code < 0 else code


def no_way(url: str, signals: list[int], wait_s: float) -> str:
    """What keeps us from the gateway after `wait_s`; nothing where something listens there, or where a signal came."""
    parts = urllib.parse.urlsplit(url)
    give_up = time.monotonic() + wait_s
    while not signals:
        try:
            with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=CONNECT_S):
                return ""
        except OSError as error:
            if time.monotonic() > give_up:
                return error.strerror or str(error)
        time.sleep(0.5)
    return ""


def lines(results: pathlib.Path, code: int, max_bytes: int = MAX_BYTES) -> Iterator[str]:
    """The whole of a folder as lines of a log. `code`: the campaign's exit code."""
    files = sorted(path for path in results.rglob("*") if path.is_file())
    archive, left_out = fitting(results, files, max_bytes)
    pieces = [archive[at : at + LINE_BYTES] for at in range(0, len(archive), LINE_BYTES)]
    head = {"code": code, "lines": len(pieces), "sha256": hashlib.sha256(archive).hexdigest(), "left_out": left_out}
    yield f"{MARK} begin {json.dumps(head)}"
    for number, piece in enumerate(pieces):
        yield f"{MARK} {number} {base64.b64encode(piece).decode('ascii')}"
    yield f"{MARK} end"


def fitting(results: pathlib.Path, files: list[pathlib.Path], max_bytes: int) -> tuple[bytes, list[str]]:
    """The archive of as many files as fit, and the names of the others."""
    kept = list(files)
    left_out: list[str] = []
    while True:
        archive = packed(results, kept) if kept else b""
        if len(archive) <= max_bytes:
            return archive, left_out
        # By what they take before they are packed: rows pack alike. An eighth at a time, or many runs would be packed many times.
        largest = sorted(kept, key=lambda path: (path.name in REPORTS, -path.stat().st_size))
        gone = largest[: max(1, len(kept) // 8)]
        kept = [path for path in kept if path not in gone]
        left_out = sorted([*left_out, *(path.relative_to(results).as_posix() for path in gone)])


def packed(results: pathlib.Path, files: list[pathlib.Path]) -> bytes:
    into = io.BytesIO()
    with lzma.open(into, "wb", preset=1) as packing, tarfile.open(fileobj=packing, mode="w") as tar:
        for path in files:
            tar.add(path, path.relative_to(results).as_posix(), recursive=False)
    return into.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
