"""A SavedModel and a TFLite file in the environment that `--yes` makes, through the gates beside TensorFlow and a real Triton."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.repository import Repository

from ..conftest import ROOT

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(1800, func_only=True)]

MAKE = """
import tensorflow as tf
tf.keras.utils.set_random_seed(0)
image = tf.keras.Input((8, 8, 3), name="image")
inner = tf.keras.layers.Conv2D(4, 3, activation="relu")(image)
kinds = tf.keras.layers.Dense(3, activation="softmax")(tf.keras.layers.Flatten()(inner))
tf.keras.Model(image, kinds).export("saved")
open("net.tflite", "wb").write(tf.lite.TFLiteConverter.from_saved_model("saved").convert())
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tensorflow")
    subprocess.run([ROOT / "scripts" / "setup.sh", folder / "venv", "local"], check=True, timeout=300)
    yield folder
    shutil.rmtree(folder)


def export(fresh: Path, *words: str) -> subprocess.CompletedProcess[str]:
    quick = ("--precision", "fp32", "--engine", "cpu", "--seconds", "0.01", "--trust", "--yes")
    return subprocess.run(
        [fresh / "venv" / "bin" / "tandem", "export", *words, *quick, "--model-repository", fresh / "models"],
        env={**os.environ, "TANDEM_CACHE": str(fresh / "cache")},
        cwd=fresh,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_model_of_tensorflow_is_one_command(fresh: Path) -> None:
    rows = np.random.default_rng(0).random((32, 8, 8, 3), np.float32)
    np.savez(fresh / "data.npz", image=rows)
    (fresh / "empty").mkdir()
    (fresh / "empty" / "saved_model.pb").touch()
    done = export(fresh, "tensorflow:empty", "--data", "data.npz")
    assert (done.returncode, "TensorFlow cannot read empty" in done.stderr) == (2, True), done.stderr
    [marker] = (fresh / "cache" / "environments").glob("tensorflow-*/complete.json")
    subprocess.run([marker.parent / "bin" / "python3", "-c", MAKE], cwd=fresh, check=True, timeout=600)
    for source, model in (("saved", "saved"), ("net.tflite", "net")):
        done = export(fresh, f"tensorflow:{source}", "--data", "data.npz")
        assert done.returncode == 0, done.stderr
        record = Repository(fresh / "models").variant(f"{model}-fp32").record
        assert record.gate.reference == "tensorflow"
        assert record.load_check.startswith("triton 2.")
