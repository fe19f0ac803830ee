"""The variants of an untrained net with their records: made, found finite, told how far from FP32, and judged by nothing.

No accuracy is gated, because there is nothing to be right about, and no speed, because whoever makes these is about to time
them. `tandem export speed:NET` does both with the same nets. Rule: every record made here says `untrained: speed only`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serving.decisions.engines import PLAIN
from serving.export import pool_gates
from serving.export.exported_model import ExportedModel
from serving.export.gates import accuracy
from serving.export.progress import Progress, silent
from serving.export.recording import ProvenVariant
from serving.export.speed_nets import net
from serving.export.speed_nets.alive import run
from serving.export.speed_nets.graph import SEED
from serving.export.variants import candidates
from serving.repository import PASSED, UNTRAINED, PoolGate

VARIANTS = ("fp32", "fp16", "int8")  # BF16 has no file of its own
NUM_ROWS = 4  # that calibrate, and others that are compared: speed depends on neither


def proven(
    name: str, exported: ExportedModel, wanted: Sequence[str], progress: Progress = silent
) -> list[ProvenVariant]:
    """In the order wanted. Raises GateRefused for a variant that answers NaN or infinity, or whose rows depend on their batch."""
    chosen = net(name)
    inputs = {key: values[:NUM_ROWS] for key, values in exported.example.items()}
    reference = run(exported.model, inputs)
    calibration = chosen.examples(NUM_ROWS, SEED + 2, chosen.num_tokens)
    made = []
    for variant in wanted:
        full_name = f"{chosen.model}-{variant}"
        progress(f"making {full_name}", 0, 1)
        candidate = next(candidates.candidates(variant, exported.model, calibration))
        made.append(
            ProvenVariant(
                variant=variant,
                model=candidate.model,
                how="" if variant == "fp32" else candidate.how,
                gate=accuracy.untrained(full_name, candidate.model, reference, inputs, exported.max_batch_size),
                pools=pools(variant),
                speed=(),
                needs=tuple(sorted(candidate.needs)),
            )
        )
        progress(f"making {full_name}", 1, 1)
    return made


def pools(variant: str) -> Mapping[str, PoolGate]:
    """Where its precision is computed at all."""
    return {
        pool: pool_gates.refusal(variant, pool) or PoolGate(PASSED, engine, UNTRAINED) for pool, engine in PLAIN.items()
    }
