"""How fast is a model file inside this very process, without a server: the most that serving it could reach.

    PYTHON in_process.py MODEL.onnx --provider cpu|cuda [--batch-size 1 --batch-size 8] [--seconds 2]
        [--threads 2] [--no-spinning] > result.json

One file that needs ONNX Runtime and NumPy alone, so that it runs inside Triton's own environments, too. A session that lands on
another provider than the one asked for ends with exit code 3: a CPU is never timed in a GPU's name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
WARMUP_RUNS = 5  # cuDNN chooses its algorithms, arenas grow


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--provider", choices=sorted(PROVIDERS), required=True)
    parser.add_argument("--batch-size", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=0, help="0: ONNX Runtime's own default")
    parser.add_argument("--no-spinning", action="store_true", help="waiting threads sleep, as they do behind Triton")
    options = parser.parse_args()
    if options.provider == "cuda" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    try:
        how = session_options(options.threads, allow_spinning=not options.no_spinning)
        session = ort.InferenceSession(options.model, how, providers=[PROVIDERS[options.provider]])
    except Exception as error:  # whatever the provider's library raises
        print(f"tandem: no session on {options.provider}: {error}", file=sys.stderr)
        return 3
    found = session.get_providers()[0]
    if found != PROVIDERS[options.provider]:
        print(f"tandem: asked for {PROVIDERS[options.provider]}, the session runs on {found}", file=sys.stderr)
        return 3
    results = [measure(session, size, options.seconds) for size in options.batch_size or (1, 8)]
    print(json.dumps({"version": 1, "provider": found, "onnxruntime": ort.__version__, "results": results}, indent=1))
    return 0


def session_options(num_threads: int, *, allow_spinning: bool) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if allow_spinning else "0")
    return options


def measure(session: Any, batch_size: int, seconds: float) -> dict[str, float]:
    """Host memory in, host memory out, as a server must do it."""
    (given,) = session.get_inputs()
    image = np.random.default_rng(0).random((batch_size, *given.shape[1:]), dtype=np.float32)
    for _ in range(WARMUP_RUNS):
        session.run(None, {given.name: image})
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not latencies:
        start = time.perf_counter()
        session.run(None, {given.name: image})
        latencies.append(time.perf_counter() - start)
    return {
        "batch_size": batch_size,
        "num_runs": len(latencies),
        "latency_p50_s": statistics.median(latencies),
        "rate_per_s": batch_size * len(latencies) / sum(latencies),
    }


if __name__ == "__main__":
    sys.exit(main())
