"""How fast do gradient-boosted trees answer on the CPU, in process? Trained here and now; without scikit-learn they are not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loadtest.claims import speeds
from loadtest.claims.speeds import Timing
from loadtest.claims.values import TREES, Findings
from serving.decisions.engines import EnginePython
from serving.export.scratch import scratch
from serving.export.speed import Entrant, contest

NAME = "trees"  # of the experiment
MISSING = "scikit-learn and skl2onnx are not installed here, so no trees could be trained"


def measure(engines: Mapping[str, EnginePython], timing: Timing, say: Callable[[str], None]) -> Findings:
    try:
        from serving.export import speed_trees
    except ModuleNotFoundError:
        return Findings(not_run={NAME: MISSING})
    say("training boosted trees on handwritten digits")
    with scratch("trees") as folder:
        trees = speed_trees.write(folder)
        say(f"timing {trees.num_trees} trees, accuracy {trees.accuracy:.1%} on digits held out")
        entrant = Entrant("fp32", "cpu", trees.file)
        results = contest(
            [entrant],
            engines=engines,
            batch_sizes=timing.batch_sizes,
            inputs=trees.held_out,
            num_threads=timing.num_threads,
            seconds=timing.seconds,
            max_seconds=timing.max_seconds,
            num_rounds=timing.num_rounds,
        )
        return speeds.findings(TREES, [entrant], results, timing.batch_sizes)
