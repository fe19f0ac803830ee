"""Runs a graph by ONNX Runtime's own CPU provider: does it load, does it run, and does a row care about its neighbours?

Runs on made-up inputs are bounded in memory and time. Rule: nothing here changes a graph.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.onnx_session import is_out_of_memory, opened, why_not_loaded, why_not_run

_SAME = 1e-3  # of an output's scale: threads may add in another order, random numbers do far more
MAX_BYTES = 2 * 2**30  # of memory for made-up inputs: what nobody chose must not take the machine (guess)
MAX_RUN_S = 60.0  # of one run of them (guess)
_POLL_S = 0.02
BATCH = 3  # neither 1 nor a power of two, which kernels may treat as special


class RunFailed(Exception):
    """The graph loads but does not run on these inputs. The message is one line."""


class Trial:
    """One loaded graph."""

    def __init__(self, model: bytes, name: str, *, is_bounded: bool = False) -> None:
        """Raises UserError where ONNX Runtime cannot load the graph. `name` is what messages call it.

        `is_bounded`: the inputs are made up, and a run that takes too much memory or time is ended.
        """
        self._name, self._is_bounded = name, is_bounded
        self.bytes_per_row = 0  # that running one row at a time took, roughly
        try:
            self._session = opened(model)
        except Exception as error:  # its errors share no base class
            raise UserError(f"{name}: {why_not_loaded(error)}") from None
        self._start_bytes = _resident_bytes()
        self.outputs: tuple[str, ...] = tuple(output.name for output in self._session.get_outputs())

    def run(self, inputs: Arrays) -> list[NDArray[Any]]:
        """All outputs. Raises RunFailed, and UserError where they take too much."""
        options, ended = onnxruntime.RunOptions(), list[str]()
        try:
            with self._bounded(options, ended):
                found = self._session.run(None, dict(inputs), options)
        except Exception as error:
            if ended or is_out_of_memory(error):
                raise self._too_large(inputs, ended[0] if ended else "more memory than there is") from None
            raise RunFailed(why_not_run(error)) from None
        return [np.asarray(values) for values in found]

    def _too_large(self, inputs: Arrays, what: str) -> UserError:
        tried = ", ".join(f"{name} {list(values.shape)}" for name, values in inputs.items())
        if not self._is_bounded:
            return UserError(f"{self._name} takes {what} to run on {tried}: give smaller inputs")
        return UserError(
            f"{self._name} takes {what} to run on made-up inputs ({tried}): give real ones with --data or --example"
        )

    @contextmanager
    def _bounded(self, options: Any, ended: list[str]) -> Iterator[None]:
        """Watches the run in the block from a second thread, which ends it between two operators."""
        if not self._is_bounded:
            yield
            return
        is_done, until = threading.Event(), time.monotonic() + MAX_RUN_S

        def watch() -> None:
            while not is_done.wait(_POLL_S):
                if _resident_bytes() - self._start_bytes > MAX_BYTES:
                    ended.append(f"more than {MAX_BYTES / 2**30:g} GB of memory")
                elif time.monotonic() > until:
                    ended.append(f"more than {MAX_RUN_S:g} s")
                if ended:
                    options.terminate = True
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_done.set()
            watcher.join()

    def changing(self, inputs: Arrays) -> str | None:
        """An output that is another one when the same inputs come again. Raises RunFailed."""
        first, second = self.run(inputs), self.run(inputs)
        pairs = zip(self.outputs, first, second, strict=True)
        return next((name for name, one, other in pairs if not _are_close(one, other, _SAME)), None)

    def mixing(self, rows: Arrays, tolerance: float) -> str | None:
        """Why the graph's first dimension is no batch: None where three rows together answer as each alone.

        `tolerance` is relative to the largest value of an output.
        """
        batch = {name: values[:BATCH] for name, values in rows.items()}
        try:
            alone = [self.run({name: values[row : row + 1] for name, values in batch.items()}) for row in range(BATCH)]
            self.bytes_per_row = max(0, _resident_bytes() - self._start_bytes)
            together = self.run(batch)
        except RunFailed as error:
            return str(error)
        for index, name in enumerate(self.outputs):
            if together[index].ndim == 0 or len(together[index]) != BATCH:
                return f"output {name!r} has shape {list(together[index].shape)} for {BATCH} rows"
            for row in range(BATCH):
                if not _are_close(together[index][row : row + 1], alone[row][index], tolerance):
                    return f"output {name!r} of a row depends on the rows beside it"
        return None


def _resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _are_close(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "OUSb" or (a.dtype.kind in "iu" and tolerance < 0.01):
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    scale = max(1e-6, float(np.abs(y[finite]).max(initial=0.0)))
    return bool(np.all(np.abs(x[finite] - y[finite]) <= tolerance * scale))
