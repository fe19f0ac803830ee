"""Does a random net compute with living numbers? Only then is its speed that of a trained one.

Random weights alone let activations fade into denormals, which processors multiply slowly, or to one answer for every input:
an untended EfficientNet-B2 ran at 2.7 images a second with an output deviation of 0. Denormals are counted in every value
inside, because few of them reach the answer; ONNX Runtime's switch that flushes them would tell less, and only the first
session of a process sets it. Rule: a net that is not checked here is not timed anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]

from serving.errors import EnvironmentFault
from serving.export.exported_model import Arrays
from serving.export.speed_nets.graph import Floats

DEVIATIONS = (
    0.01,
    100.0,
)  # of the first output. Normalised vectors have 0.05, scores 0.3..10; a dead net 0, a burst one 1e9
# How far rows differ, in deviations of all values. Living nets show 0.1 and more, one that answers all inputs alike 0.
MIN_ROWS_RATIO = 0.02
# Of one layer's values. A denormal costs some 150 cycles instead of one: more than this would show in the time.
MAX_DENORMAL_RATIO = 1e-4
NUM_ROWS_INSIDE = 2  # whose inner values are looked at: 60 million each in an EfficientNet
NUM_LAYERS_AT_ONCE = 64  # whose values are held in memory together


def check_alive(name: str, model: bytes, inputs: Arrays) -> None:
    """Raises EnvironmentFault for a dead net. `inputs`: different rows, [n, …] with n of 2 or more."""
    answers = run(model, inputs)[0].astype(np.float64)
    if not np.isfinite(answers).all():
        raise EnvironmentFault(f"the random {name} has burst: it answers NaN or infinity; take another seed")
    deviation = float(answers.std())
    if not DEVIATIONS[0] < deviation < DEVIATIONS[1]:
        raise EnvironmentFault(f"the random {name} is dead: its answers deviate by {deviation:g}; take another seed")
    if not float(answers.std(axis=0).mean()) > MIN_ROWS_RATIO * deviation:
        raise EnvironmentFault(f"the random {name} is dead: it answers every input alike; take another seed")
    layer, ratio = most_denormals(model, {key: values[:NUM_ROWS_INSIDE] for key, values in inputs.items()})
    if ratio > MAX_DENORMAL_RATIO:
        raise EnvironmentFault(
            f"the random {name} computes with denormals, which would be timed: {ratio:.2%} of {layer}; take another seed"
        )


def most_denormals(model: bytes, inputs: Arrays) -> tuple[str, float]:
    """(value, share of denormals in it), of the value inside the net that has most; ("", 0.0) if none has any."""
    proto = onnx.load_from_string(model)
    names = [output for node in proto.graph.node for output in node.output]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)  # ONNX Runtime infers the types
    session = _session(proto.SerializeToString())
    del proto
    worst = ("", 0.0)
    for start in range(0, len(names), NUM_LAYERS_AT_ONCE):
        chosen = names[start : start + NUM_LAYERS_AT_ONCE]
        for name, values in zip(chosen, session.run(chosen, dict(inputs)), strict=True):
            worst = max(worst, (name, denormal_ratio(values)), key=lambda found: found[1])
    return worst


def denormal_ratio(values: Floats) -> float:
    """0 for anything but FP32."""
    if values.dtype != np.float32 or not values.size:
        return 0.0
    magnitudes = np.abs(values)
    return float(np.count_nonzero((magnitudes > 0) & (magnitudes < np.finfo(np.float32).tiny)) / values.size)


def run(model: bytes, inputs: Arrays, outputs: Sequence[str] | None = None) -> list[Floats]:
    """The named outputs, or all."""
    return list(_session(model).run(None if outputs is None else list(outputs), dict(inputs)))


def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors only
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
