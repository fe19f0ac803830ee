"""Is a variant good enough, and is it worth having? Measured, with the limits beside the values.

Accuracy: top-1 on held-out data, the largest change of any probability, no NaN or infinity anywhere, and the same rows in
every batch size as alone. Speed: `speed.py` beside FP32. Publishing is not here. Rule: a comparison with NaN in it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from serving.errors import GateRefused, UserError
from serving.export.data import Dataset
from serving.export.precision import MAX_IR_VERSION
from serving.export.speed import Measurement
from serving.repository import NOT_USEFUL, PASSED, Gate, Tensor

METRIC = "top1"


@dataclass(frozen=True, slots=True)
class Limits:
    max_drop: float = 0.01  # one point of top-1, the project's promise
    # Rounding moves an image on the border between two classes a long way, so that this only finds what is broken:
    # more than half of the whole probability moved, and a sure answer can turn. A guess, not measured.
    max_probability_difference: float = 0.5
    # Rows of a batch may be summed in another order: 1e-6 seen in FP32. A batch that leaks into its rows shows far more.
    max_row_difference: float = 1e-3

    def __post_init__(self) -> None:
        for limit in ("max_drop", "max_probability_difference", "max_row_difference"):
            if not 0 <= getattr(self, limit) <= 1:
                raise UserError(f"{limit} is {getattr(self, limit)}, want 0..1")


class NonFinite(GateRefused):
    """NaN or infinity in the weights or in an answer."""

    def __init__(self, name: str, where: str, count: int) -> None:
        super().__init__(
            f"{name} refused: {count} NaN or infinite values in {where}; make the file again from sound weights"
        )
        self.name, self.where, self.count = name, where, count


class AccuracyLost(GateRefused):
    """Fewer right answers than FP32, beyond the limit. Values are 0..1."""

    def __init__(self, name: str, value: float, fp32_value: float, max_drop: float) -> None:
        super().__init__(
            f"{name} refused: {METRIC} {value:.4f} is {fp32_value - value:.4f} below FP32's {fp32_value:.4f}, "
            f"more than {max_drop:g}; calibrate better, keep layers in FP32, or allow it with --max-drop"
        )
        self.name, self.value, self.fp32_value, self.max_drop = name, value, fp32_value, max_drop


class AnswersMoved(GateRefused):
    """A probability differs from FP32's beyond the limit."""

    def __init__(self, name: str, difference: float, allowed: float) -> None:
        super().__init__(
            f"{name} refused: a probability moved by {difference:.4f} from FP32's, more than {allowed:g}; "
            "keep the layers in FP32 that lose most"
        )
        self.name, self.difference, self.allowed = name, difference, allowed


class RowsDiffer(GateRefused):
    """A row's answer depends on the batch it came in."""

    def __init__(self, name: str, batch_size: int, problem: str) -> None:
        super().__init__(
            f"{name} refused: in a batch of {batch_size} {problem}; export it with a batch dimension that is free"
        )
        self.name, self.batch_size, self.problem = name, batch_size, problem


class Slower(GateRefused):
    """Clearly slower than FP32 at every batch size measured."""

    def __init__(self, name: str, processor: str, measurements: Sequence[Measurement]) -> None:
        super().__init__(
            f"{name} refused: slower than FP32 on {processor} at every batch size ({describe(measurements)}); "
            "publish it all the same, without default traffic, with --keep-slow"
        )
        self.name, self.processor, self.measurements = name, processor, tuple(measurements)


@dataclass(frozen=True, slots=True)
class Interface:
    """What every variant of a model must have alike."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int


def check_file(name: str, model: bytes, interface: Interface) -> None:
    """UserError if servers could not load the file as a variant; NonFinite for bad weights."""
    proto = _parsed(name, model)
    if proto.ir_version > MAX_IR_VERSION:
        raise UserError(
            f"{name}: IR version {proto.ir_version}, servers read at most {MAX_IR_VERSION}; save it with an older one"
        )
    for tensor in proto.graph.initializer:
        if count := _count_non_finite(onnx.numpy_helper.to_array(tensor)):
            raise NonFinite(name, f"weight {tensor.name!r}", count)
    session = _session(name, model)
    _check_tensors(name, "input", session.get_inputs(), interface.inputs)
    _check_tensors(name, "output", session.get_outputs(), interface.outputs)


def check_accuracy(
    name: str, model: bytes, reference: NDArray[Any], data: Dataset, interface: Interface, limits: Limits
) -> Gate:
    """The gate's record, or a refusal. `reference`: FP32's probabilities on the same data, float32 [n, classes]."""
    answers = run(name, model, data, interface)
    if count := _count_non_finite(answers):
        raise NonFinite(name, "its answers on the held-out data", count)
    value, fp32_value = top1(answers, data), top1(reference, data)
    if not fp32_value - value <= limits.max_drop:
        raise AccuracyLost(name, value, fp32_value, limits.max_drop)
    difference = float(np.abs(answers - reference).max())
    if not difference <= limits.max_probability_difference:
        raise AnswersMoved(name, difference, limits.max_probability_difference)
    batch_sizes = tuple(sorted({1, min(3, max(1, interface.max_batch_size)), max(1, interface.max_batch_size)}))
    row_difference = max(_row_difference(name, model, data, size, limits) for size in batch_sizes)
    return Gate(
        metric=METRIC,
        value=round(value, 6),
        fp32_value=round(fp32_value, 6),
        max_drop=limits.max_drop,
        max_probability_difference=_digits(difference),
        max_probability_difference_allowed=limits.max_probability_difference,
        non_finite=0,
        num_samples=data.num_samples,
        dataset=data.name,
        dataset_digest=data.digest,
        batch_sizes=batch_sizes,
        max_row_difference=_digits(row_difference),
        max_row_difference_allowed=limits.max_row_difference,
    )


def judge_speed(name: str, processor: str, measurements: Sequence[Measurement], *, keep_slow: bool) -> tuple[str, str]:
    """(status, reason) on the pool measured. Clearly slower everywhere is a refusal, unless `keep_slow`."""
    said = f"on {processor}: {describe(measurements)}"
    if any(m.ratio_low > 1 for m in measurements):
        return PASSED, f"faster than FP32 {said}"
    if not all(m.ratio_high < 1 for m in measurements):
        return NOT_USEFUL, f"no clear gain over FP32 {said}"
    if not keep_slow:
        raise Slower(name, processor, measurements)
    return NOT_USEFUL, f"slower than FP32 {said}"


def describe(measurements: Sequence[Measurement]) -> str:
    return ", ".join(
        f"batch {m.batch_size} {m.ratio:.2f}x ({m.ratio_low:.2f}..{m.ratio_high:.2f})" for m in measurements
    )


def run(name: str, model: bytes, data: Dataset, interface: Interface) -> NDArray[Any]:
    """The first output for every sample, in batches of the largest size, [n, …]."""
    session = _session(name, model)
    return _run_in_batches(name, session, data, data.num_samples, max(1, interface.max_batch_size))


def top1(answers: NDArray[Any], data: Dataset) -> float:
    """Share of samples whose most probable class is the right one, 0..1."""
    return float((answers.argmax(axis=1) == data.labels).mean())


def _parsed(name: str, model: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.load_from_string(model)
        elsewhere = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer)
        if not elsewhere:
            onnx.checker.check_model(proto)
    except Exception as error:  # protobuf and the checker raise half a dozen unrelated classes
        raise UserError(f"{name}: this is not a sound ONNX file: {_first_line(error)}") from None
    if elsewhere:
        raise UserError(f"{name}: its weights lie in another file; save it as one file (external_data=False)")
    return proto


def _row_difference(name: str, model: bytes, data: Dataset, batch_size: int, limits: Limits) -> float:
    """Largest difference between a row computed in a batch and alone, over two full batches or all the data."""
    session = _session(name, model)
    num_samples = min(data.num_samples, 2 * max(batch_size, 3))
    alone = _run_in_batches(name, session, data, num_samples, 1)
    together = _run_in_batches(name, session, data, num_samples, batch_size)
    if alone.shape != together.shape:
        raise RowsDiffer(name, batch_size, f"it answers {len(together)} rows for {len(alone)}")
    difference = float(np.abs(together - alone).max())
    if not difference <= limits.max_row_difference:
        raise RowsDiffer(name, batch_size, f"a row changes by {difference:.2g} (at most {limits.max_row_difference:g})")
    return difference


def _run_in_batches(name: str, session: Any, data: Dataset, num_samples: int, batch_size: int) -> NDArray[Any]:
    answers = []
    for start in range(0, num_samples, batch_size):
        rows = data.rows(start, min(start + batch_size, num_samples))
        try:
            answers.append(session.run([session.get_outputs()[0].name], rows)[0])
        except Exception as error:  # ONNX Runtime's classes share no root of their own
            raise RowsDiffer(name, len(next(iter(rows.values()))), f"it fails: {_first_line(error)}") from None
    return np.concatenate(answers)


def _session(name: str, model: bytes) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors only: what is wrong becomes our own message
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UserError(
            f"{name}: ONNX Runtime {ort.__version__} does not load the file: {_first_line(error)}"
        ) from None


def _check_tensors(name: str, what: str, nodes: Sequence[Any], wanted: tuple[Tensor, ...]) -> None:
    got = {node.name: (node.type, [d if isinstance(d, int) else -1 for d in node.shape]) for node in nodes}
    want = {tensor.name: (_ORT_TYPES.get(tensor.datatype, ""), list(tensor.shape)) for tensor in wanted}
    if set(got) != set(want):
        raise UserError(f"{name}: {what}s are {', '.join(got)}; FP32 has {', '.join(want)}, and variants share them")
    for key, (kind, shape) in want.items():
        if got[key][0] != kind or got[key][1][1:] != shape:
            raise UserError(f"{name}: {what} {key!r} is {got[key][0]} {got[key][1][1:]} a row; FP32 has {kind} {shape}")


_ORT_TYPES = {
    "BOOL": "tensor(bool)",
    "UINT8": "tensor(uint8)",
    "UINT16": "tensor(uint16)",
    "UINT32": "tensor(uint32)",
    "UINT64": "tensor(uint64)",
    "INT8": "tensor(int8)",
    "INT16": "tensor(int16)",
    "INT32": "tensor(int32)",
    "INT64": "tensor(int64)",
    "FP16": "tensor(float16)",
    "BF16": "tensor(bfloat16)",
    "FP32": "tensor(float)",
    "FP64": "tensor(double)",
    "BYTES": "tensor(string)",
}


def _count_non_finite(values: NDArray[Any]) -> int:
    if values.dtype.kind != "f":
        return 0
    return int(values.size - np.isfinite(values).sum())


def _digits(value: float) -> float:
    """Three significant digits: more of them is noise in a record that people read."""
    return float(f"{value:.3g}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
