"""Cuts files into parts that fit through a narrow link, and joins what has come of them, in any order.

    python3 parts.py cut FILES PARTS [--mb 60]     parts with an index of digests; FILES/GROUP/name is needed for GROUP
    python3 parts.py join PARTS FILES              writes every file that is whole, and says which part is missing for which group

The files stand end to end, those of the first group first, so that the first parts are of use while the others are under way. Exit code of
`join`: 0 all is there, 1 something is missing or damaged, 2 there is no index. Rules: the standard library alone, because it runs where
nothing else is; no file has its name before its digest was right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

INDEX = "index.json"
VERSION = 1
MB = 10**6
PART_MB = 60
BLOCK = 1 << 20


class NoIndex(Exception):
    """Without it nobody knows what the parts are of."""


@dataclass(frozen=True, slots=True)
class File:
    """`start`: where its bytes begin in the sequence of all. `group`: what it is needed for."""

    name: str
    group: str
    start: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    start: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    files: tuple[File, ...]
    parts: tuple[Part, ...]

    def parts_of(self, file: File) -> list[Part]:
        end = file.start + file.size
        return [part for part in self.parts if part.start < end and file.start < part.start + part.size]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(file.group for file in self.files))


@dataclass(frozen=True, slots=True)
class Assembly:
    """`missing`: file -> the parts that it waits for; `damaged`: parts whose digest is wrong."""

    index: Index
    whole: tuple[str, ...]
    missing: dict[str, list[str]]
    damaged: tuple[str, ...]

    def lacks(self, group: str) -> list[str]:
        """The parts that have to come before all of a group is there."""
        names = [name for file in self.index.files if file.group == group for name in self.missing.get(file.name, ())]
        return list(dict.fromkeys(names))


def cut(source: Path, target: Path, part_bytes: int) -> Index:
    """`source` has a folder for each group, in the order of their names; `target` is new or empty."""
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty")
    files: list[File] = []
    parts: list[Part] = []
    writer = _Writer(target, part_bytes, parts)
    start = 0
    for path in sorted(source.glob("*/*"), key=lambda one: (one.parent.name, one.stat().st_size, one.name)):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            for block in iter(lambda file=file: file.read(BLOCK), b""):  # type: ignore[misc]
                digest.update(block)
                writer.write(block)
        size = path.stat().st_size
        group = path.parent.name.partition("-")[2] or path.parent.name
        files.append(File(path.name, group, start, size, digest.hexdigest()))
        start += size
    writer.close()
    index = Index(tuple(files), tuple(parts))
    text = json.dumps({"version": VERSION, **asdict(index)}, indent=1) + "\n"
    (target / INDEX).write_text(text, encoding="utf-8")
    return index


class _Writer:
    """Fills one part after another."""

    def __init__(self, target: Path, part_bytes: int, parts: list[Part]) -> None:
        self._target, self._part_bytes, self._parts = target, part_bytes, parts
        self._file: BinaryIO | None = None
        self._digest, self._start, self._size = hashlib.sha256(), 0, 0

    def write(self, block: bytes) -> None:
        while block:
            if self._file is None:
                self._file = (self._target / self._name).open("wb")
            taken = block[: self._part_bytes - self._size]
            self._file.write(taken)
            self._digest.update(taken)
            self._size += len(taken)
            block = block[len(taken) :]
            if self._size == self._part_bytes:
                self.close()

    @property
    def _name(self) -> str:
        return f"part-{len(self._parts) + 1:03d}"

    def close(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._parts.append(Part(self._name, self._start, self._size, self._digest.hexdigest()))
        self._start += self._size
        self._file, self._digest, self._size = None, hashlib.sha256(), 0


def read_index(parts: Path) -> Index:
    """Raises NoIndex."""
    try:
        found = json.loads((parts / INDEX).read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise NoIndex(f"{parts / INDEX} is of version {found['version']}, want {VERSION}")
        return Index(tuple(File(**one) for one in found["files"]), tuple(Part(**one) for one in found["parts"]))
    except OSError:
        raise NoIndex(f"{parts} has no {INDEX}: carry it with the first part") from None
    except (ValueError, KeyError, TypeError):
        raise NoIndex(f"{parts / INDEX} is damaged: carry it again") from None


def join(parts: Path, target: Path) -> Assembly:
    """Writes each file of which all parts are there, unless it is there already. Raises NoIndex."""
    index = read_index(parts)
    target.mkdir(parents=True, exist_ok=True)
    there = {file.name for file in index.files if _size(target / file.name) == file.size}
    needed = {part.name for file in index.files if file.name not in there for part in index.parts_of(file)}
    come = [part for part in index.parts if part.name in needed and (parts / part.name).exists()]
    damaged = {part.name for part in come if _digest(parts / part.name) != part.sha256}
    usable = {part.name for part in come} - damaged
    whole, missing = [], {}
    for file in index.files:
        lacking = [part.name for part in index.parts_of(file) if part.name not in usable]
        if file.name not in there and lacking:
            missing[file.name] = lacking
            continue
        if file.name not in there:
            _write(file, index, parts, target)
        whole.append(file.name)
    return Assembly(index, tuple(whole), missing, tuple(sorted(damaged)))


def _write(file: File, index: Index, parts: Path, target: Path) -> None:
    fresh = target / f"{file.name}.new"
    digest = hashlib.sha256()
    with fresh.open("wb") as output:
        for block in _bytes(file, index, parts):
            digest.update(block)
            output.write(block)
    if digest.hexdigest() != file.sha256:
        fresh.unlink()
        raise NoIndex(f"{file.name} is not what was packed although its parts are: the index is of another set")
    fresh.replace(target / file.name)


def _bytes(file: File, index: Index, parts: Path) -> Iterator[bytes]:
    end = file.start + file.size
    for part in index.parts_of(file):
        with (parts / part.name).open("rb") as source:
            source.seek(max(0, file.start - part.start))
            left = min(end, part.start + part.size) - max(file.start, part.start)
            while left and (block := source.read(min(BLOCK, left))):
                left -= len(block)
                yield block


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(joined: Assembly) -> Iterator[str]:
    for name in joined.damaged:
        yield f"{name} is damaged: carry it again"
    for group in joined.index.groups:
        lacking = joined.lacks(group)
        num = sum(file.group == group for file in joined.index.files)
        yield f"{group}: waits for {', '.join(lacking)}" if lacking else f"{group}: all {num} files are there"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="parts.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=("cut", "join"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--mb", type=float, default=PART_MB, help="of a part, in 10^6 bytes (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if options.do == "cut":
            if not options.mb > 0:
                parser.error("--mb is more than 0")
            made = cut(options.source, options.target, int(options.mb * MB))
            total = sum(file.size for file in made.files) / MB
            print(f"{len(made.files)} files, {total:.1f} MB, in {len(made.parts)} parts in {options.target}")
            return 0
        joined = join(options.source, options.target)
    except (NoIndex, OSError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 2
    print("\n".join(describe(joined)))
    return 1 if joined.missing or joined.damaged else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
