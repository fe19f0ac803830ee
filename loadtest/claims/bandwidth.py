"""How many bytes per second does each device's memory move? A copy and a triad of arrays far beyond every cache, on all cores.

As STREAM counts: bytes read and bytes written both count, what a cache fetches before it writes does not. The triad runs as two passes of
NumPy, so it moves five arrays and not three. On a card ONNX Runtime's CUDA provider copies from the card to the card.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.claims.values import Bandwidth
from serving.decisions.engines import EnginePython
from serving.export.scratch import scratch
from serving.export.speed_nets.graph import SEED, NetBuilder
from serving.repository import Tensor

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
TIMES_CACHE = 8  # of the largest cache: STREAM asks for four
LEAST_BYTES = 256 * 2**20  # where the cache's size is not told
MOST_PART = 8  # an array takes at most this part of the memory that is free
SCRIPT = Path(__file__).with_name("card_copy.py")
CARD_ROW = 2**20  # values of a row of what is copied
CARD_TIMEOUT_S = 120.0
Floats = NDArray[np.float32]


def cpu(num_rounds: int, num_threads: int, array_bytes: int | None = None) -> Bandwidth:
    size = array_bytes or _array_bytes()
    a, b, c = (np.full(size // 4, value, np.float32) for value in (0.0, 1.0, 2.0))
    parts = [slice(index * len(a) // num_threads, (index + 1) * len(a) // num_threads) for index in range(num_threads)]

    def copy(part: slice) -> None:
        np.copyto(a[part], b[part])

    def triad(part: slice) -> None:
        np.multiply(c[part], np.float32(3), out=a[part])
        np.add(a[part], b[part], out=a[part])

    with ThreadPoolExecutor(num_threads) as pool:  # NumPy computes without the interpreter's lock
        seconds = {kind: [_seconds(pool, kind, parts) for _ in range(num_rounds + 1)][1:] for kind in (copy, triad)}
    moved = {copy: 2 * a.nbytes, triad: 5 * a.nbytes}
    copied, computed = (tuple(moved[kind] / one for one in seconds[kind]) for kind in (copy, triad))
    return Bandwidth("cpu", f"NumPy on {num_threads} threads", a.nbytes, copied, computed)


def _seconds(pool: ThreadPoolExecutor, kind: Callable[[slice], None], parts: list[slice]) -> float:
    start = time.perf_counter()
    list(pool.map(kind, parts))
    return time.perf_counter() - start


def _array_bytes() -> int:
    """At least eight times the largest cache, as far as memory allows."""
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")] if CACHES.is_dir() else []
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    largest = max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(TIMES_CACHE * largest, LEAST_BYTES), max(free // MOST_PART, 2**20))


def card(engine: EnginePython, num_rounds: int, device: str = "cuda", num_rows: int = 256) -> Bandwidth:
    """By an ONNX graph that does nothing but copy. `device` cpu: to try it where no card is."""
    how = f"ONNX Runtime copies on {device}"
    with scratch("copy") as folder:
        file = folder / "copy.onnx"
        graph = NetBuilder("copy", [Tensor("x", "FP32", (CARD_ROW,))], seed=SEED, opset=18)
        graph.node("Identity", ["x"], "y")
        file.write_bytes(graph.model([Tensor("y", "FP32", (CARD_ROW,))]))
        command = [str(engine.python), "-I", str(SCRIPT), str(file), device, str(num_rows), str(num_rounds)]
        result = _result_of(command)
    if isinstance(result, str):
        return Bandwidth("gpu", how, reason=result)
    size = num_rows * CARD_ROW * 4
    return Bandwidth("gpu", how, size, tuple(2 * size / one for one in result["seconds"]))


def _result_of(command: list[str]) -> Any | str:
    """The script's result, or a sentence on what went wrong."""
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=CARD_TIMEOUT_S, check=True).stdout
        return json.loads(output.strip().splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return "the copy failed: " + (error.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        return f"the copy failed: {type(error).__name__}"
