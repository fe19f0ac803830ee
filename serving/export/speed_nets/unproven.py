"""The variants of an untrained net with their records: made, found finite, told how far from FP32, and judged by nothing.

No accuracy is gated, because there is nothing to be right about, and no speed, because whoever makes these is about to time
them. `tandem export speed:NET` does both with the same nets. Rule: every record made here says `untrained: speed only`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np

from serving.errors import EnvironmentFault
from serving.export import variants
from serving.export.exported import Arrays, Exported
from serving.export.progress import Progress, silent
from serving.export.recording import Proven
from serving.export.speed_nets import net
from serving.export.speed_nets.alive import run
from serving.export.speed_nets.graph import SEED, Floats
from serving.repository import NOT_ALLOWED, PASSED, UNTRAINED, Check, Gate, PoolGate

VARIANTS = ("fp32", "fp16", "int8")  # BF16 has no file of its own
NUM_CALIBRATION = 4  # rows, for INT8's ranges: speed does not depend on them

_UNTRAINED = PoolGate(PASSED, "cpu", UNTRAINED)
_ON_CARD = PoolGate(PASSED, "cuda", UNTRAINED)
POOLS: Mapping[str, Mapping[str, PoolGate]] = {
    "fp32": {"cpu": _UNTRAINED, "gpu": _ON_CARD},
    "fp16": {
        "cpu": PoolGate(
            NOT_ALLOWED, "cuda", "ONNX Runtime has few FP16 kernels for CPUs: it would run slower than FP32"
        ),
        "gpu": _ON_CARD,
    },
    "int8": {
        "cpu": _UNTRAINED,
        "gpu": PoolGate(NOT_ALLOWED, "tensorrt", "ONNX Runtime's CUDA provider has no INT8 kernels, only TensorRT has"),
    },
}


def proven(name: str, exported: Exported, wanted: Sequence[str], progress: Progress = silent) -> list[Proven]:
    """In the order wanted. Raises EnvironmentFault for a variant that answers NaN or infinity."""
    chosen = net(name)
    reference = run(exported.model, exported.example)[0]
    calibration = chosen.examples(NUM_CALIBRATION, SEED + 2, chosen.num_tokens)
    made = []
    for variant in wanted:
        full_name = f"{chosen.model}-{variant}"
        progress(f"making {full_name}", 0, 1)
        candidate = next(variants.candidates(variant, exported.model, calibration))
        gate = _gate(full_name, run(candidate.model, exported.example)[0], reference, exported.example)
        made.append(
            Proven(
                variant=variant,
                model=candidate.model,
                how=candidate.how,
                gate=gate,
                pools=POOLS[variant],
                speed=(),
                needs=tuple(sorted(candidate.needs)),
            )
        )
        progress(f"making {full_name}", 1, 1)
    return made


def _gate(name: str, answers: Floats, reference: Floats, inputs: Arrays) -> Gate:
    """Only what is true of any net: finite, and near FP32's answers, in deviations of these."""
    if not np.isfinite(answers).all():
        raise EnvironmentFault(f"the untrained {name} gives NaN or infinity; take another seed")
    difference = float(np.abs(answers - reference).max() / reference.std())
    told = Check("difference", float(f"{difference:.3g}"), None, False, None, True)
    digest = sha256(b"".join(name.encode() + np.ascontiguousarray(inputs[name]).tobytes() for name in sorted(inputs)))
    return Gate(
        basis=UNTRAINED,
        reference="fp32",
        checks=(told,),
        num_samples=len(answers),
        dataset="random numbers",
        dataset_digest=digest.hexdigest(),
        batch_sizes=(len(answers),),
    )
