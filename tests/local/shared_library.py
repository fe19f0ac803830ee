"""Makes a small real shared library that is linked with others, so that the real loader says what is missing."""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence
from pathlib import Path

LOAD, DYNAMIC, READ_WRITE = 1, 2, 6
NEEDED, HASH, STRTAB, SYMTAB, STRSZ, SYMENT = 1, 4, 5, 6, 10, 11
SHARED = 3
MACHINES = {"x86_64": 62, "aarch64": 183}


def write(path: Path, needed: Sequence[str], texts: Sequence[str] = ()) -> Path:
    """ELF for this machine, without code. `texts` stand behind it, each between zeros, as names of options do in a provider's library."""
    names, where = b"\0", []
    for name in needed:
        where.append(len(names))
        names += name.encode() + b"\0"
    symbols = 64 + 2 * 56  # behind the head and two program headers
    hashes = symbols + 24
    strings = hashes + 20
    names += bytes(-(strings + len(names)) % 16)
    dynamic = strings + len(names)
    entries = [(NEEDED, at) for at in where]
    entries += [(HASH, hashes), (STRTAB, strings), (SYMTAB, symbols), (STRSZ, len(names)), (SYMENT, 24), (0, 0)]
    size = dynamic + 16 * len(entries)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", SHARED, MACHINES[platform.machine()], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    parts = struct.pack("<IIQQQQQQ", LOAD, READ_WRITE, 0, 0, 0, size, size, 4096)
    parts += struct.pack(
        "<IIQQQQQQ", DYNAMIC, READ_WRITE, dynamic, dynamic, dynamic, 16 * len(entries), 16 * len(entries), 8
    )
    table = struct.pack("<IIIII", 1, 1, 0, 0, 0)  # one bucket, one symbol: the empty one
    body = bytes(24) + table + names + b"".join(struct.pack("<qQ", *entry) for entry in entries)
    path.write_bytes(head + parts + body + b"\0" + b"".join(text.encode() + b"\0" for text in texts))
    return path
