"""Tells a user how far an export is, and silences the chatter of libraries.

The caller decides what progress looks like: lines here, bars in `command`, whose package is not in every image. Rule: every step ends
with done == total, so that its bar can be closed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator

Progress = Callable[[str, int, int], None]  # step, done, total
Warn = Callable[[str], None]


def silent(step: str, done: int, total: int) -> None:
    """Says nothing."""


def lines(step: str, done: int, total: int) -> None:
    """Prints a line on stderr when a step ends; what has no steps (0 of 0) is news, and printed as it is."""
    if done == total:
        print(f"{step}: done" if total else step, file=sys.stderr)


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallows what libraries print, log and warn of in the block; whatever fails comes as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
