"""What does serving cost where the net itself is the work: images per second served, over images per second inside ONNX Runtime.

Both sides: the same file, ONNX Runtime build (Triton's environment), thread count, spinning and batch size, in alternating rounds on
the same cores. Served: client → gateway → Triton, binary tensors, a fixed number of requests outstanding so that the net never waits;
the client runs on these cores too. The rate is taken between completions, so that neither end of a round counts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.verdicts import spread_text
from loadtest.nets import Net, in_process_rps, request_to, served_rps
from loadtest.processes import TANDEM, run_command
from loadtest.profile.server import ModelSetup, setup_of
from loadtest.stack import stack
from loadtest.target import Gateway
from serving.decisions.engines import EnginePython
from serving.measure.rounds import Spread, in_turn, ratio, spread

NUM_OUTSTANDING = 2  # one computes, one waits; more would only wait, and could be batched together
BUILD_TIMEOUT_S = 300.0  # 15 s on two cores


@dataclass(frozen=True, slots=True)
class Compute:
    """Images per second, round by round."""

    net: Net
    setup: ModelSetup
    engine: str
    served: tuple[float, ...]
    alone: tuple[float, ...]

    @property
    def ratio(self) -> Spread:
        return ratio(self.served, self.alone)

    def describe(self) -> str:
        threads = f"{self.setup.settings.num_instances} instance × {self.setup.settings.num_threads} threads"
        spinning = "spinning" if self.setup.allow_spinning else "no spinning"
        return (
            f"{self.net.served_name}, batch {self.net.batch_size}, {self.engine} on both sides, {threads}, {spinning}: "
            f"served {spread_text(spread(self.served))} images/s with {NUM_OUTSTANDING} binary requests outstanding, "
            f"in process {spread_text(spread(self.alone))}"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "model": self.net.served_name,
            "batch_size": self.net.batch_size,
            "engine": self.engine,
            "num_instances": self.setup.settings.num_instances,
            "num_threads": self.setup.settings.num_threads,
            "allow_spinning": self.setup.allow_spinning,
            "num_outstanding": NUM_OUTSTANDING,
            "served_images_per_s": list(self.served),
            "in_process_images_per_s": list(self.alone),
            "ratio": self.ratio.to_json(),
        }


def resnet50(folder: Path, batch_size: int) -> Net:
    """A ResNet-50 with random weights in a repository of its own. Raises CannotMeasure."""
    command = [sys.executable, "-m", "serving.export.speed_nets", str(folder)]
    command += ["--net", "resnet50", "--variant", "fp32", "--max-batch-size", str(batch_size)]
    run_command(command, "the ResNet-50 could not be made", BUILD_TIMEOUT_S)
    return Net("resnet50", folder, "random", batch_size)


def compare(net: Net, folder: Path, *, num_rounds: int, round_s: float) -> Compute:
    """Alternates the two sides. Raises CannotMeasure."""
    python = EnginePython("cpu", _triton_python(), "")
    versions = set[str]()
    with stack(net.repository, folder) as running:
        request = request_to(net, running.gateway)
        setup = setup_of(Gateway(running.gateway.url).get_json(f"/v2/models/{net.served_name}/config"))

        def alone() -> float:
            version, rate = in_process_rps(
                net, python, round_s, num_threads=setup.settings.num_threads, allow_spinning=setup.allow_spinning
            )
            versions.add(version)
            return rate

        sides = {"served": lambda: served_rps(request, running.gateway, round_s, NUM_OUTSTANDING), "alone": alone}
        rates = {
            side: tuple(rate * net.batch_size for rate in found) for side, found in in_turn(sides, num_rounds).items()
        }
    return Compute(net, setup, f"ONNX Runtime {' and '.join(versions)}", rates["served"], rates["alone"])


def _triton_python() -> Path:
    """The interpreter of Triton's environment, where the ONNX Runtime that serves is."""
    output = run_command([*TANDEM, "environment", "cpu"], "Triton's environment could not be made", 900.0)
    folder = Path(output.strip().splitlines()[-1].rpartition(": ")[0])
    return folder / "bin" / "python"
