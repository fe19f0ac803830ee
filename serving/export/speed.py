"""How fast is one ONNX file beside another, on this processor, with what certainty?

    python speed.py BASE.onnx CANDIDATE.onnx --batch-sizes 1,8,32 --threads 1 --seconds 1 --json

The two run in turns, so that whatever else the machine does hits both; each pair of turns gives one ratio, and the
answer is their median with a bootstrap interval. Sessions are made afresh several times and the interval resamples
these rounds too, because where their memory happens to lie shifts a session's speed for as long as it lives. Rule:
standard library, NumPy (1.26 or 2) and ONNX Runtime only, nothing of this project, because it also runs as a plain
script inside the server's own environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]

TURN_S = (
    0.002  # one turn: long against a timer call (0.1 µs) and a scheduler tick's edge, short against a neighbour's burst
)
NUM_ROUNDS = 5  # new sessions: 3 would leave the interval to luck, each one costs a load and a warm-up
MIN_PAIRS = 4  # per round, so 20 ratios at least, however slow the model
NUM_RESAMPLES = 1000  # of the bootstrap: 25 beyond each end of the interval
CONFIDENCE = 0.95

Source = str | Path | bytes
Run = Callable[[], object]
Pairs = Any  # float64 [2, pairs]; NumPy's own types are not imported, to stay readable by 1.26 and 2 alike


@dataclass(frozen=True, slots=True)
class Measurement:
    """ratio = base's latency / candidate's: above 1, the candidate is faster."""

    batch_size: int
    ratio: float
    ratio_low: float
    ratio_high: float
    latency_s: float
    fp32_latency_s: float


def compare(
    base: Source,
    candidate: Source,
    *,
    batch_sizes: Sequence[int] = (1, 8, 32),
    num_threads: int = 1,
    seconds: float = 1.0,
    allow_spinning: bool = False,
    provider: str = "CPUExecutionProvider",
    inputs: Mapping[str, Any] | None = None,
) -> list[Measurement]:
    """One measurement per batch size, `seconds` each. `inputs` (arrays [n, …]) stand in for random numbers in 0..1."""
    rounds: list[list[Pairs]] = [[] for _ in batch_sizes]
    for _ in range(NUM_ROUNDS):
        first, second = (_session(source, num_threads, allow_spinning, provider) for source in (base, candidate))
        for done, size in zip(rounds, batch_sizes, strict=True):
            done.append(_pairs(first, second, _feed(first, size, inputs), seconds / NUM_ROUNDS))
    return [_measurement(size, done) for size, done in zip(batch_sizes, rounds, strict=True)]


def ratio_interval(rounds: Sequence[Any], *, seed: int = 0) -> tuple[float, float, float]:
    """Median of all ratios with the ends of its interval. `rounds`: per round, its ratios, float64 [pairs].

    The bootstrap draws rounds, and then ratios within each of them, both with replacement.
    """
    rng = np.random.default_rng(seed)
    medians = []
    for _ in range(NUM_RESAMPLES):
        drawn = [rounds[i] for i in rng.integers(0, len(rounds), len(rounds))]
        medians.append(
            np.median(np.concatenate([ratios[rng.integers(0, len(ratios), len(ratios))] for ratios in drawn]))
        )
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    middle = float(np.median(np.concatenate(list(rounds))))
    return middle, min(float(low), middle), max(float(high), middle)


def _measurement(batch_size: int, rounds: Sequence[Pairs]) -> Measurement:
    ratio, low, high = ratio_interval([pairs[0] / pairs[1] for pairs in rounds])
    base_s, candidate_s = np.median(np.concatenate(rounds, axis=1), axis=1)
    return Measurement(batch_size, ratio, low, high, float(candidate_s), float(base_s))


def _pairs(base: Any, candidate: Any, feed: Mapping[str, Any], seconds: float) -> Pairs:
    """Seconds per run, float64 [2, pairs]: the base's and the candidate's."""
    runs: tuple[Run, Run] = (lambda: base.run(None, feed), lambda: candidate.run(None, feed))
    repeats = [_repeats(run) for run in runs]
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < MIN_PAIRS or time.perf_counter() < end:
        first = len(times[0]) % 2  # who begins changes, so that neither always inherits the other's caches
        for which in (first, 1 - first):
            times[which].append(_turn(runs[which], repeats[which]))
    return np.array(times, np.float64)


def _turn(run: Run, repeats: int) -> float:
    """Seconds per run."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _repeats(run: Run) -> int:
    """Runs that fill a turn; the first ones warm up."""
    _turn(run, 3)
    return max(1, round(TURN_S / max(_turn(run, 3), 1e-9)))


def _session(source: Source, num_threads: int, allow_spinning: bool, provider: str) -> Any:
    if provider not in ort.get_available_providers():  # ONNX Runtime would only warn and run on the CPU
        raise RuntimeError(f"{provider} is not there; ONNX Runtime {ort.__version__} has {_available()}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if allow_spinning else "0")
    session = ort.InferenceSession(str(source) if isinstance(source, Path) else source, options, providers=[provider])
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"{provider} did not start, though it is among {_available()}")
    return session


def _available() -> str:
    return ", ".join(ort.get_available_providers())


def _feed(session: Any, batch_size: int, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    if inputs is not None:
        return {name: np.resize(values, (batch_size, *values.shape[1:])) for name, values in inputs.items()}
    rng = np.random.default_rng(0)
    return {node.name: _random(rng, node, batch_size) for node in session.get_inputs()}


def _random(rng: np.random.Generator, node: Any, batch_size: int) -> Any:
    shape = [size if isinstance(size, int) else (1 if axis else batch_size) for axis, size in enumerate(node.shape)]
    if node.type in ("tensor(float)", "tensor(float16)", "tensor(double)"):
        kind = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}[node.type]
        return rng.random(shape).astype(kind)
    if node.type in ("tensor(int64)", "tensor(int32)"):
        return np.ones(shape, np.int64 if node.type == "tensor(int64)" else np.int32)  # a valid token id everywhere
    raise ValueError(f"input {node.name!r} is {node.type}, for which there are no made-up numbers")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time one ONNX file beside another, in turns.")
    parser.add_argument("base", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--batch-sizes", default="1,8,32", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--threads", default=1, type=int)
    parser.add_argument("--seconds", default=1.0, type=float, help="per batch size")
    parser.add_argument("--allow-spinning", action="store_true")
    parser.add_argument("--provider", default="CPUExecutionProvider")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    for path in (asked.base, asked.candidate):
        if not path.is_file():
            print(f"there is no file {path}", file=sys.stderr)
            return 2
    measurements = compare(
        asked.base,
        asked.candidate,
        batch_sizes=asked.batch_sizes,
        num_threads=asked.threads,
        seconds=asked.seconds,
        allow_spinning=asked.allow_spinning,
        provider=asked.provider,
    )
    if asked.json:
        print(json.dumps([asdict(measurement) for measurement in measurements]))
        return 0
    for m in measurements:
        times = f"{m.latency_s * 1e6:.1f} µs beside {m.fp32_latency_s * 1e6:.1f} µs"
        print(f"batch {m.batch_size}: ratio {m.ratio:.3f} ({m.ratio_low:.3f}..{m.ratio_high:.3f}), {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
