"""One way to make a variant, made. Whether it is any good is for `gates`, whether it pays for `speed`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    precision: str
    model: bytes
    how: str  # in words, for progress, refusals and the record
    needs: frozenset[str] = frozenset()  # where alone its answers are right: {"vnni"} of a processor, {"tensorrt"}
