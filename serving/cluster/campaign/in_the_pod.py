"""Runs a campaign in its pod, then writes the results to the log: `python -c THIS RESULTS tandem campaign run …`.

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
import subprocess
import sys
import tarfile
from collections.abc import Iterator

MARK = "tandem-results"
LINE_BYTES = 3000  # 4,000 letters; the runtimes cut lines at 16 KiB
# Of the archive: 10 MiB of log (a kubelet's containerLogMaxSize), less a third for base64 and 2 % for the lines' heads, less 1 MiB that the
# campaign may have said before.
MAX_BYTES = 6 * 2**20
REPORTS = ("manifest.json", "report.json", "report.html")  # the last to be left out


def main(words: list[str]) -> int:
    results, command = pathlib.Path(words[0]), words[1:]
    process = subprocess.Popen(command)
    # The first process of a container gets no signal but those it asks for; the campaign keeps what ran when it is told to stop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
    code = process.wait()
    code = 128 - code if code < 0 else code
    for line in lines(results, code):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return code


def lines(results: pathlib.Path, code: int, max_bytes: int = MAX_BYTES) -> Iterator[str]:
    """The whole of a folder as lines of a log. `code`: the campaign's exit code."""
    files = sorted(path for path in results.rglob("*") if path.is_file())
    archive, left_out = fitting(results, files, max_bytes)
    pieces = [archive[at : at + LINE_BYTES] for at in range(0, len(archive), LINE_BYTES)]
    told = {"code": code, "lines": len(pieces), "sha256": hashlib.sha256(archive).hexdigest(), "left_out": left_out}
    yield f"{MARK} begin {json.dumps(told)}"
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
