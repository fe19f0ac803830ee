"""What is left of an engine's rows per second behind Triton and the gateway? Served and in process in alternating rounds.

Both sides: the same file and ONNX Runtime; in process one session with all cores (or the card), served as the generated configuration says.
The client runs on the same cores. Rule: a pool that is not here is said to be not here, and nothing is taken for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest.claims.values import Findings, Served
from loadtest.nets import Net, in_process_rps, request_to, served_rps
from loadtest.stack import stack
from serving.decisions.engines import POOL, EnginePython
from serving.export.scratch import scratch
from serving.measure.rounds import in_turn

PIXELS = {"digits": "digits", "resnet50": "random"}


@dataclass(frozen=True, slots=True)
class ServedCase:
    """`repository`: where the model's variants lie. `is_share`: in process, too."""

    model: str
    variant: str
    engine: str
    repository: Path
    is_share: bool

    @property
    def pool(self) -> str:
        return POOL[self.engine]

    @property
    def title(self) -> str:
        return f"{self.model} {self.variant} on the {self.pool} pool"


@dataclass(frozen=True, slots=True)
class Timing:
    batch_sizes: tuple[int, ...]
    seconds: float
    num_rounds: int
    num_outstanding: int
    num_threads: int


def measure(
    asked: ServedCase, engines: Mapping[str, EnginePython], timing: Timing, say: Callable[[str], None]
) -> Findings:
    """Raises CannotMeasure where it should have worked."""
    say(f"serving {asked.title}")
    with scratch("served") as folder:
        repository = folder / "models"
        for variant in sorted(asked.repository.glob(f"{asked.model}-{asked.variant}")):
            shutil.copytree(variant, repository / variant.name, copy_function=_link)
        if not repository.is_dir():
            reason = f"there is no {asked.model}-{asked.variant} in the repository"
            return Findings(served=(Served(asked.model, asked.variant, asked.pool, 1, reason=reason),))
        with stack(repository, folder, pool=asked.pool, device=asked.pool) as running:
            found = []
            for size in timing.batch_sizes:
                say(f"{asked.title}: batch {size}")
                net = Net(asked.model, repository, PIXELS[asked.model], size, asked.variant)
                request = request_to(net, running.gateway)
                sides = {
                    "served": partial(served_rps, request, running.gateway, timing.seconds, timing.num_outstanding)
                }
                if asked.is_share:
                    sides["alone"] = partial(_alone_rps, net, engines[asked.engine], timing)
                rates = {
                    side: tuple(rate * size for rate in taken)
                    for side, taken in in_turn(sides, timing.num_rounds).items()
                }
                served, alone = rates["served"], rates.get("alone", ())
                found.append(Served(asked.model, asked.variant, asked.pool, size, served, alone))
    return Findings(served=tuple(found))


def _alone_rps(net: Net, engine: EnginePython, timing: Timing) -> float:
    return in_process_rps(net, engine, timing.seconds, num_threads=timing.num_threads)[1]


def _link(source: str, target: str) -> None:
    """A link where both are on one disk: BERT-base has 438 MB."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
