"""Makes wheels smaller for a narrow link: ONNX Runtime's without its code for other cards, and all compressed as Python can.

    python3 wheels.py FOLDER [--architecture 90]     writes the wheels in FOLDER anew; pip installs them as any other

A shared library with CUDA code holds containers of it ("fat binaries"), in each the same kernels for several architectures. Those for
others than the named one become zeros, which compress to nothing; every other byte stays where it is. Rules: a container without code for
that architecture stays whole, because the driver may compile what it has (PTX); the digests in a wheel stay true. Exit code 2: no library
has code for that architecture. The standard library alone, as `parts.py`.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

MAGIC = b"\x50\xed\x55\xba"  # of a container
HEADER = struct.Struct("<4sHHQ")  # magic, version, bytes of this header, bytes after it
ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, bytes of this header, of code, …, architecture
BINARY = 2  # kind of an entry; 1 is PTX, which the driver compiles
ENGINE = "onnxruntime_gpu-"  # the one wheel whose code was left out and run so, on an H200 (2026-11-26)
LARGE = 10**6  # bytes of a wheel; smaller ones stay as they are


def without_others(library: bytearray, architecture: int) -> set[int]:
    """Zeroes the code for other architectures, in place. Returns all of which there was binary code."""
    found, place = set[int](), -1
    while (place := library.find(MAGIC, place + 1)) >= 0:
        if place + HEADER.size > len(library):
            break
        _, version, header, size = HEADER.unpack_from(library, place)
        entries = entries_of(library, place + header, place + header + size) if (version, header) == (1, 16) else []
        found |= {of for kind, of, _, _ in entries if kind == BINARY}
        if any((kind, of) == (BINARY, architecture) for kind, of, _, _ in entries):
            for kind, of, first, end in entries:
                if (kind, of) != (BINARY, architecture):
                    library[first:end] = bytes(end - first)
    return found


def entries_of(library: bytearray, first: int, end: int) -> list[tuple[int, int, int, int]]:
    """Kind, architecture, and where the code begins and ends, of each; none where it is no container after all."""
    entries = []
    while first < end <= len(library):
        if first + ENTRY.size > end:
            return []
        kind, _, header, size, architecture = ENTRY.unpack_from(library, first)
        if header < ENTRY.size or first + header + size > end:
            return []
        entries.append((kind, architecture, first + header, first + header + size))
        first += header + size
    return entries


def smaller(wheel: Path, architecture: int | None) -> set[int]:
    """Writes it anew; returns the architectures that its libraries had binary code for."""
    fresh, found, digests = wheel.with_suffix(".new"), set[int](), dict[str, tuple[str, int]]()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(fresh, "w", zipfile.ZIP_LZMA) as new:
        for entry in sorted(old.infolist(), key=lambda one: one.filename.endswith(".dist-info/RECORD")):
            data = bytearray(old.read(entry))
            if architecture is not None and ".so" in entry.filename and (there := without_others(data, architecture)):
                found |= there
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                digests[entry.filename] = f"sha256={digest}", len(data)
            if entry.filename.endswith(".dist-info/RECORD"):
                data = bytearray(_record(data.decode(), digests).encode())
            entry.compress_type = zipfile.ZIP_LZMA
            new.writestr(entry, bytes(data))
    fresh.replace(wheel)
    return found


def _record(text: str, digests: dict[str, tuple[str, int]]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(
        (name, *digests.get(name, rest)) for name, *rest in csv.reader(text.splitlines())
    )
    return output.getvalue()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="wheels.py", description="Makes wheels smaller for a narrow link.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", type=int, help="of the card's compute capability: 90 is 9.0")
    options = parser.parse_args(arguments)
    found = set[int]()
    for wheel in sorted(options.folder.rglob("*.whl")):
        if wheel.stat().st_size >= LARGE:
            before = wheel.stat().st_size
            found |= smaller(wheel, options.architecture if wheel.name.startswith(ENGINE) else None)
            print(f"{wheel.name}: {before / 1e6:.0f} MB, now {wheel.stat().st_size / 1e6:.0f}", file=sys.stderr)
    if options.architecture is not None and options.architecture not in found:
        had = ", ".join(map(str, sorted(found))) or "none"
        print(f"tandem: no library has code for {options.architecture}; they have it for: {had}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
