"""Rebuilds the folder of results from the lines of a log. Pure but for `unpack`, which writes it.

The other end is `pod_program`. Lines may come twice, in two readings of one log, or not at all: the result is the very bytes that were
sent, or an error that says what is missing. Rule: nothing is written before the digest is right.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import lzma
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from serving.errors import EnvironmentFault

MARK = "tandem-results "
# Why only the later part of a log came.
CUT = "as in a log that its node began anew, which it should at 10 MiB and not before (containerLogMaxSize)"
MAX_UNPACKED_BYTES = 4 * 2**30  # twice what the pod's volume holds


class Incomplete(EnvironmentFault):
    """The results did not come whole."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line. `code`: the campaign's exit code; `left_out`: files that were too large for a log."""

    code: int
    num_lines: int
    sha256: str
    left_out: tuple[str, ...]


@dataclass(slots=True)
class Frames:
    """The pieces so far; `take` is given every line of the log, in any order, possibly more than once."""

    head: Head | None = None
    pieces: dict[int, bytes] = field(default_factory=dict)

    def take(self, line: str) -> bool:
        """Whether the line belongs to the results, and is not for the user."""
        if not line.startswith(MARK):
            return False
        number, _, rest = line[len(MARK) :].partition(" ")
        if number == "begin":
            self.head = _head(rest) or self.head
        elif number.isdigit():
            with suppress(binascii.Error):  # cut off; another reading of the log may bring it whole
                self.pieces[int(number)] = base64.b64decode(rest, validate=True)
        return True

    @property
    def is_complete(self) -> bool:
        return self.head is not None and all(number in self.pieces for number in range(self.head.num_lines))

    def archive(self) -> bytes:
        """Raises Incomplete."""
        if self.head is None:
            raise Incomplete(
                f"the results lack their beginning, {CUT}" if self.pieces else "the log ends before the results"
            )
        if not self.is_complete:
            num_there = sum(number in self.pieces for number in range(self.head.num_lines))
            raise Incomplete(f"{num_there} of the {self.head.num_lines} lines that hold the results came, {CUT}")
        found = b"".join(self.pieces[number] for number in range(self.head.num_lines))
        if hashlib.sha256(found).hexdigest() != self.head.sha256:
            raise Incomplete("the results came, but with another digest than the pod computed")
        return found


def _head(text: str) -> Head | None:
    try:
        it = json.loads(text)
        return Head(int(it["code"]), int(it["lines"]), str(it["sha256"]), tuple(map(str, it["left_out"])))
    except (ValueError, KeyError, TypeError):
        return None  # cut off


def unpack(archive: bytes, folder: Path) -> tuple[str, ...]:
    """Writes the files; returns their names. Raises Incomplete for what is no archive of plain files, OSError."""
    if not archive:
        return ()
    try:
        with lzma.open(io.BytesIO(archive)) as unpacking, tarfile.open(fileobj=unpacking, mode="r|") as tar:
            return tuple(_written(tar, folder))
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise Incomplete(f"the results cannot be unpacked ({error})") from None


def _written(tar: tarfile.TarFile, folder: Path) -> list[str]:
    names, room_bytes = [], MAX_UNPACKED_BYTES
    for it in tar:
        room_bytes -= it.size
        inside = Path(it.name)
        if not it.isfile() or inside.is_absolute() or ".." in inside.parts or room_bytes < 0:
            raise Incomplete(f"the results hold {it.name!r}, which no campaign writes")
        to = folder / inside
        to.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(it)
        assert content is not None  # of a file
        with content, to.open("wb") as file:
            while chunk := content.read(2**20):
                file.write(chunk)
        names.append(it.name)
    return names
