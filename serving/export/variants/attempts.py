"""Which INT8 files were tried of a net, within which time, and what came of each: kept in the cache, so that a second run is quick.

An attempt is known by all that decides its file and its verdict: net, calibration rows, settings, judging rows, limits, ONNX Runtime and
processor. Refused ones are not made again, of those that passed the file is kept. Rule: what is kept may be deleted at any time, and a
file that is not what its digest says is made anew.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

_MAX_BYTES = 2 * 2**30  # of the whole cache of attempts; the oldest goes first (a guess)


@dataclass(frozen=True, slots=True)
class _Known:
    how: str
    refusal: str | None
    digest: str


class Attempts:
    """Of one search. `refusals`: words -> why, in the order of the attempts.

    `folder`: its own, beside those of other searches, of which the oldest are removed; None: nothing is remembered.
    """

    def __init__(self, folder: Path | None, budget_s: float, say: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._say = folder, say
        self._budget_s, self._began_s = budget_s, time.monotonic()
        self.refusals: dict[str, str] = {}
        self.losses: Mapping[str, float] = {}  # of each layer, where they were measured
        self.made: dict[str, bytes] = {}  # files that others are made of
        self.num_left_out = 0
        self.share = 1.0  # of the budget that may be over before the next attempt
        self._number = 0
        self._last_began_s, self._longest_s = self._began_s, 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def is_over(self) -> bool:
        """The first attempt is always made. None is begun that might take from what a share leaves to others."""
        reserve_s = self._longest_s if self.share < 1 else 0.0
        return self._number > 0 and self.elapsed_s + reserve_s >= self._budget_s * self.share

    def skips(self, key: str, how: str) -> bool:
        """Says whether the attempt need not be made: it was refused before, or the time is over."""
        known, now_s = self._known(key), time.monotonic()
        if self._number:
            self._longest_s = max(self._longest_s, now_s - self._last_began_s)
        self._last_began_s = now_s
        if known is not None and known.refusal is not None:
            self.refusals[how] = known.refusal
            self._say(f"{how}: refused before: {known.refusal}")
            return True
        if self.is_over:
            self.num_left_out += 1
            return True
        self._number += 1
        self._say(f"try {self._number}, {self.elapsed_s:.0f} of {self._budget_s:.0f} s: {how}")
        return False

    def file(self, key: str) -> bytes | None:
        """The file of an attempt that passed before."""
        known = self._known(key)
        if known is None or known.refusal is not None or self._folder is None:
            return None
        with suppress(OSError):
            content = (self._folder / f"{_short(key)}.onnx").read_bytes()
            if sha256(content).hexdigest() == known.digest:
                return content
        return None

    def note(self, key: str, how: str, model: bytes, refusal: str | None) -> None:
        """Remembers the verdict. A cache that cannot be written costs time alone."""
        if refusal is not None:
            self.refusals[how] = refusal
        self._say(f"{how}: {refusal or 'passed'}")
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            if refusal is None:
                _write(self._folder / f"{_short(key)}.onnx", model)
            words = {"how": how, "refusal": refusal, "digest": sha256(model).hexdigest()}
            _write(self._folder / f"{_short(key)}.json", json.dumps(words).encode())
            _prune(self._folder.parent, self._folder)

    def note_same(self, key: str, how: str, model: bytes, other: str) -> None:
        """Notes that an attempt made the same file as another one, whose verdict it has."""
        if other in self.refusals:
            self.note(key, how, model, self.refusals[other])

    def measure_losses(self, key: str, measure: Callable[[], Mapping[str, float]]) -> None:
        """Sets `losses`, of which a search of the same net before knows."""
        path = None if self._folder is None else self._folder / f"losses-{_short(key)}.json"
        with suppress(OSError, ValueError):
            self.losses = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        if self.losses:
            return
        self._say("looking for the layers that lose most")
        self.losses = measure()
        with suppress(OSError):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, json.dumps(dict(self.losses)).encode())

    def _known(self, key: str) -> _Known | None:
        if self._folder is None:
            return None
        try:
            return _Known(**json.loads((self._folder / f"{_short(key)}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def _short(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:16]


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    beside.write_bytes(content)
    beside.rename(path)


def _prune(root: Path, kept: Path) -> None:
    """Removes the oldest searches where all of them are too many bytes."""
    folders = sorted((one for one in root.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in folders}
    for folder in folders:
        if sum(sizes.values()) <= _MAX_BYTES:
            return
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)
            del sizes[folder]
