"""scikit-learn on the CPU, honestly: trains a model, has it exported, gated and served, and times it beside itself in process.

python examples/wine.py [--port 8080]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import tritonclient.http as triton
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

TANDEM = [sys.executable, "-m", "serving"]


def median_ms(ask: Callable[[], object], times: int = 200) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        ask()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", default="8080", help="of the gateway; one is started where none runs")
    options = parser.parse_args()

    rows, labels = load_wine(return_X_y=True)
    rows = rows.astype(np.float32)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows[::2], labels[::2])
    with tempfile.TemporaryDirectory() as folder:
        source, held_out = Path(folder, "wine.joblib"), Path(folder, "held-out.npz")
        joblib.dump(model, source)
        np.savez(held_out, features=rows[1::2], labels=labels[1::2])  # it was not trained on these
        words = ["run", f"sklearn:{source}", "--data", str(held_out), "--trust", "--port", options.port]
        subprocess.run([*TANDEM, *words], check=True)
    status = subprocess.run([*TANDEM, "status", "--json"], capture_output=True, text=True, check=False)
    url = next(run["url"] for run in json.loads(status.stdout)["runs"] if "wine" in (run["models"] or {}))

    one = rows[1:2]
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        tensor = triton.InferInput("features", one.shape, "FP32")
        tensor.set_data_from_numpy(one)
        served = client.infer("wine", [tensor]).as_numpy("probabilities")
        print("largest difference:", f"{np.abs(served - model.predict_proba(one)).max():.1e}")
        in_process_ms = median_ms(lambda: model.predict_proba(one))
        served_ms = median_ms(lambda: client.infer("wine", [tensor]))
    print(f"one row, median: {in_process_ms:.2f} ms in process, {served_ms:.2f} ms served")
    print("A server pays where several programs ask one model, not where one program asks its own.")


if __name__ == "__main__":
    main()
