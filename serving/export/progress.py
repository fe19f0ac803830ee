"""How a long step tells how far it is. The caller decides what that looks like: a bar on a terminal, lines elsewhere.

Rule: every step ends with done == total, so that a bar can be closed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # step, done, total


def silent(step: str, done: int, total: int) -> None:
    """Says nothing."""


def lines(step: str, done: int, total: int) -> None:
    """A line on stderr when a step ends."""
    if done == total:
        print(f"{step}: done", file=sys.stderr)
