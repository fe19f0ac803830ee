"""A ResNet-50 with random weights and living activations: the weight of a real photograph classifier, for timing only.

    python -m serving.export.resnet50 REPOSITORY [--variant fp32 --variant fp16 --variant int8] [--max-batch-size 32]

Written with onnx and NumPy, without torch. Every convolution is followed by the normalisation that its own activations on random
inputs ask for (folded into its weights), because random weights alone let activations fade into denormals, which computers
multiply slowly. Its answers mean nothing: records say `untrained: speed only`, and no accuracy is gated.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.errors import EnvironmentFault, TandemError, exit_code
from serving.export.precision import MAX_IR_VERSION, to_fp16, to_int8
from serving.export.proof import BASELINE_POOLS, POOLS
from serving.export.publish import publish, writing
from serving.repository import MODEL_FILE, NOT_ALLOWED, Gate, PoolGate, Record, Tensor

NAME = "resnet50"
UNTRAINED = "untrained: speed only"
INPUT, OUTPUT = "image", "scores"
SHAPE = (3, 224, 224)
NUM_CLASSES = 1000
OPSET = 18
SEED = 50
# (blocks, channels inside, stride of the first block): He et al. 2015, with the stride on the 3x3 convolution as everybody has it now
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EPSILON = 1e-5
NUM_CALIBRATION = 4  # images: 4 x 7 x 7 values per channel in the last stage, enough for a mean and a deviation

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Conv:
    name: str
    source: str
    channels_in: int
    channels_out: int
    kernel: int
    stride: int


class _Graph:
    """Nodes and weights in the making. `statistics` None: normalise by the batch at hand and give its statistics as outputs."""

    def __init__(self, weights: dict[str, Floats], statistics: dict[str, tuple[Floats, Floats]] | None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights = weights
        self.statistics = statistics
        self.initializers: list[TensorProto] = []
        self.measured: list[str] = []

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"{kind}_{output}", **attributes))
        return output

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, conv: Conv) -> str:
        """Convolution and normalisation."""
        weight = self.weights[f"{conv.name}.weight"]
        pad = conv.kernel // 2
        form = {"kernel_shape": [conv.kernel] * 2, "strides": [conv.stride] * 2, "pads": [pad] * 4}
        if self.statistics is not None:
            mean, variance = self.statistics[conv.name]
            scale = 1 / np.sqrt(variance + EPSILON)
            folded = self.constant(f"{conv.name}.weight", weight * scale.reshape(-1, 1, 1, 1))
            bias = self.constant(f"{conv.name}.bias", -mean * scale)
            return self.node("Conv", [conv.source, folded, bias], conv.name, **form)
        raw = self.node("Conv", [conv.source, self.constant(f"{conv.name}.weight", weight)], f"{conv.name}.raw", **form)
        return self._normalised(conv.name, raw)

    def _normalised(self, name: str, raw: str) -> str:
        axes = self.constant(f"{name}.axes", np.array([0, 2, 3], np.int64))
        mean = self.node("ReduceMean", [raw, axes], f"{name}.mean")
        centred = self.node("Sub", [raw, mean], f"{name}.centred")
        square = self.node("Mul", [centred, centred], f"{name}.square")
        variance = self.node("ReduceMean", [square, axes], f"{name}.variance")
        self.measured += [mean, variance]
        epsilon = self.constant(f"{name}.epsilon", np.array(EPSILON, np.float32))
        deviation = self.node("Sqrt", [self.node("Add", [variance, epsilon], f"{name}.padded")], f"{name}.deviation")
        return self.node("Div", [centred, deviation], name)

    def relu(self, source: str) -> str:
        return self.node("Relu", [source], f"{source}.relu")


def _layers(graph: _Graph) -> str:
    """The whole net; returns the name of its output."""
    x = graph.relu(graph.conv(Conv("stem", INPUT, 3, 64, 7, 2)))
    x = graph.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, (num_blocks, inside, first_stride) in enumerate(STAGES):
        for block in range(num_blocks):
            x = _block(graph, f"stage{stage}.block{block}", x, width, inside, first_stride if block == 0 else 1)
            width = inside * 4
    pooled = graph.node("Flatten", [graph.node("GlobalAveragePool", [x], "average")], "features")
    weight = graph.constant("scores.weight", graph.weights["scores.weight"])
    bias = graph.constant("scores.bias", np.zeros(NUM_CLASSES, np.float32))
    return graph.node("Gemm", [pooled, weight, bias], OUTPUT)


def _block(graph: _Graph, name: str, source: str, width: int, inside: int, stride: int) -> str:
    x = graph.relu(graph.conv(Conv(f"{name}.reduce", source, width, inside, 1, 1)))
    x = graph.relu(graph.conv(Conv(f"{name}.spatial", x, inside, inside, 3, stride)))
    x = graph.conv(Conv(f"{name}.expand", x, inside, inside * 4, 1, 1))
    shortcut = source
    if width != inside * 4:
        shortcut = graph.conv(Conv(f"{name}.shortcut", source, width, inside * 4, 1, stride))
    return graph.relu(graph.node("Add", [x, shortcut], f"{name}.sum"))


class _Weights(dict[str, Floats]):
    """Random weights by name, drawn when a layer first asks. He's scale, so that no layer starts far from 1."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)
        self.shapes = _shapes()

    def __missing__(self, name: str) -> Floats:
        shape = self.shapes[name]
        spread = np.sqrt(2 / np.prod(shape[1:]) if len(shape) == 4 else 1 / shape[0])
        self[name] = self._random.standard_normal(shape, dtype=np.float32) * np.float32(spread)
        return self[name]


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"stem.weight": (64, 3, 7, 7), "scores.weight": (2048, NUM_CLASSES)}
    width = 64
    for stage, (num_blocks, inside, _) in enumerate(STAGES):
        for block in range(num_blocks):
            name = f"stage{stage}.block{block}"
            shapes[f"{name}.reduce.weight"] = (inside, width, 1, 1)
            shapes[f"{name}.spatial.weight"] = (inside, inside, 3, 3)
            shapes[f"{name}.expand.weight"] = (inside * 4, inside, 1, 1)
            shapes[f"{name}.shortcut.weight"] = (inside * 4, width, 1, 1)
            width = inside * 4
    return shapes


def build(seed: int = SEED) -> bytes:
    """The FP32 file. Raises EnvironmentFault where its activations turn out dead, so that nobody times a lie."""
    weights = _Weights(seed)
    images = random_images(NUM_CALIBRATION, seed)
    probe = _Graph(weights, None)
    _layers(probe)
    measured = _run(_model(probe, probe.measured), images, probe.measured)
    values = dict(zip(probe.measured, (v.reshape(-1) for v in measured), strict=True))
    names = [name.removesuffix(".mean") for name in probe.measured if name.endswith(".mean")]
    final = _Graph(weights, {name: (values[f"{name}.mean"], values[f"{name}.variance"]) for name in names})
    _layers(final)
    model = _model(final, [OUTPUT])
    check_alive(model, images)
    return model


def _model(graph: _Graph, outputs: Sequence[str]) -> bytes:
    def declared(name: str) -> onnx.ValueInfoProto:
        shape: list[str | int | None] = ["batch", NUM_CLASSES] if name == OUTPUT else [1, None, 1, 1]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    image = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *SHAPE])
    made = helper.make_graph(graph.nodes, NAME, [image], [declared(name) for name in outputs], graph.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=MAX_IR_VERSION, producer_name="tandem")
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def random_images(count: int, seed: int) -> Floats:
    """float32 [count, 3, 224, 224] in 0..1, as the load test sends them."""
    return np.random.default_rng(seed).random((count, *SHAPE), dtype=np.float32)


def _run(model: bytes, images: Floats, outputs: Sequence[str], *, flush_denormals: bool = False) -> list[Floats]:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1" if flush_denormals else "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(list(outputs), {INPUT: images}))


def check_alive(model: bytes, images: Floats) -> None:
    """Sane output, and no denormals inside: flushing them to zero must change nothing."""
    (plain,) = _run(model, images, [OUTPUT])
    (flushed,) = _run(model, images, [OUTPUT], flush_denormals=True)
    deviation = float(plain.std())
    if not np.isfinite(plain).all() or not 0.05 < deviation < 50:
        raise EnvironmentFault(f"the random {NAME} is dead: its scores deviate by {deviation:g}; take another seed")
    if not np.array_equal(plain, flushed):
        raise EnvironmentFault(f"the random {NAME} computes with denormals, which would be timed; take another seed")


def records(variants: Sequence[str], fp32: bytes, max_batch_size: int) -> list[tuple[Record, bytes]]:
    """The record and the file of each variant."""
    images = random_images(NUM_CALIBRATION, SEED + 1)
    (reference,) = _run(fp32, images, [OUTPUT])
    made = []
    for variant in variants:
        file = _converted(variant, fp32)
        (scores,) = _run(file, images, [OUTPUT])
        made.append((_record(variant, _gate(scores, reference, images), max_batch_size), file))
    return made


def _converted(variant: str, fp32: bytes) -> bytes:
    if variant == "fp16":
        return to_fp16(fp32)
    return to_int8(fp32, {INPUT: random_images(NUM_CALIBRATION, SEED + 2)}) if variant == "int8" else fp32


def _gate(scores: Floats, reference: Floats, images: Floats) -> Gate:
    """No accuracy: there is nothing to be right about. Only what is true of any net: finite, and near FP32's answers."""
    if not np.isfinite(scores).all():
        raise EnvironmentFault(f"a variant of the random {NAME} gives NaN or infinity; take another seed")
    return Gate(
        metric=UNTRAINED,
        value=0.0,
        fp32_value=0.0,
        max_drop=0.0,
        max_probability_difference=float(np.abs(_softmax(scores) - _softmax(reference)).max()),
        max_probability_difference_allowed=1.0,
        non_finite=0,
        num_samples=len(images),
        dataset="random numbers",
        dataset_digest=sha256(images.tobytes()).hexdigest(),
        batch_sizes=(len(images),),
        max_row_difference=0.0,
        max_row_difference_allowed=0.0,
    )


def _softmax(scores: Floats) -> NDArray[np.float64]:
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _record(variant: str, gate: Gate, max_batch_size: int) -> Record:
    rules = BASELINE_POOLS if variant == "fp32" else POOLS[variant]
    pools = {n: p if p.status == NOT_ALLOWED else PoolGate(p.status, p.engine, UNTRAINED) for n, p in rules.items()}
    return Record(
        model=NAME,
        variant=variant,
        created=datetime.date.today().isoformat(),
        source=f"random weights, seed {SEED}; {UNTRAINED}",
        toolchain={name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime", "numpy")},
        max_batch_size=max_batch_size,
        inputs=(Tensor(INPUT, "FP32", SHAPE),),
        outputs=(Tensor(OUTPUT, "FP32", (NUM_CLASSES,)),),
        labels=None,
        sample=None,
        gate=gate,
        pools=pools,
        speed=(),
        files={},
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m serving.export.resnet50", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("--variant", action="append", choices=["fp32", "fp16", "int8"])
    parser.add_argument("--max-batch-size", type=int, default=32)
    options = parser.parse_args(arguments)
    variants = options.variant or ["fp32", "fp16", "int8"]
    if "int8" in variants and importlib.util.find_spec("sympy") is None:
        variants.remove("int8")
        print(f"{NAME}-int8 is not made: ONNX Runtime's quantiser needs sympy, which is not installed", file=sys.stderr)
    try:
        made = records(variants, build(), options.max_batch_size)
        with writing(options.repository):
            for record, file in made:
                variant = publish(options.repository, record, {MODEL_FILE: file})
                print(f"{variant.directory}: {len(file) / 1e6:.0f} MB, {UNTRAINED}")
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
