"""What is measured on: the card, the Pythons of its engines and its energy counter; or a stand-in without one, for rehearsals.

A stand-in's CUDA provider is ONNX Runtime's CPU provider under its name (`stand_in.py`), its pool is a second CPU pool. Rule: whatever a
stand-in measures says so, and is never published.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.gpu.libraries import NEEDED
from serving.decisions.engines import EnginePython
from serving.measure import energy
from serving.measure.machine import cards

STAND_IN = Path(__file__).with_name("stand_in.py")
LIBRARIES = Path(__file__).with_name("libraries.py")
DRIVER, TENSORRT = "libcuda.so.1", "libnvinfer.so.10"  # what ONNX Runtime 1.31.1 is linked with
STAND_IN_W = 100.0
PROBE_TIMEOUT_S = 60.0  # importing ONNX Runtime and loading 1 GB of libraries (guess, not measured)
Counter = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Card:
    """`facts`: name, driver and memory, as the driver gives them. `pool`: that it serves."""

    facts: str
    engines: Mapping[str, EnginePython]
    pool: str = "gpu"
    is_stand_in: bool = False

    @property
    def name(self) -> str:
        return self.facts.partition(", driver ")[0]

    def energy_of(self, engine: str) -> Counter | None:
        """Joules so far of what the engine computes on; None where nothing tells them."""
        if engine == "cpu":
            return energy.of_processor()
        if self.is_stand_in:
            return lambda: STAND_IN_W * time.monotonic()
        return energy.of_card()


def this_card(work: Path, *, is_stand_in: bool) -> Card:
    """With the ONNX Runtime of this very Python. Raises CannotMeasure where there is no card."""
    here = Path(sys.executable)
    version = _output([str(here), "-I", "-c", "import onnxruntime; print(onnxruntime.__version__)"]).strip()
    cpu = EnginePython("cpu", here, version)
    if is_stand_in:
        python = work / "stand-in-python"
        python.write_text(f'#!/bin/sh\nexec "{here}" "{STAND_IN}" "$@"\n')
        python.chmod(0o755)
        return Card(
            "stand-in, driver none, no memory", {"cpu": cpu, "cuda": EnginePython("cuda", python, version)}, "cpu", True
        )
    found = cards()
    if not found:
        raise CannotMeasure(
            "no NVIDIA card with a driver here (nvidia-smi finds none); --stand-in rehearses without one"
        )
    engines = {"cpu": cpu, "cuda": EnginePython("cuda", here, version)}
    if loaded(here, (TENSORRT,))[TENSORRT] is None:
        engines["tensorrt"] = EnginePython("tensorrt", here, version)
    return Card(found[0], engines)


def loaded(python: Path, names: tuple[str, ...] = (DRIVER, *NEEDED)) -> dict[str, str | None]:
    """Library -> why it does not load; None where it does. Raises CannotMeasure."""
    found = json.loads(_output([str(python), "-I", str(LIBRARIES), "--load", *names]))
    return {name: found[name] for name in names}


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        raise CannotMeasure(f"{command[0]}: {(error.stderr.strip().splitlines() or ['it said nothing'])[-1]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMeasure(f"{command[0]}: {error}") from None
    return done.stdout
