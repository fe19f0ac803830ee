"""Lists which INT8 files of a net are worth trying, the most promising first. How one is made is in `quantiser`.

The graph decides: convolutions are quantised statically, transformers and recurrent nets dynamically, perceptrons either way.
Channels, calibration and the list of operators are settled by measurement: several candidates come, gates and timings choose.

The range of the weights is not: it is 7 bits unless asked otherwise. Without VNNI, sums of two U8S8 products are kept in 16
bits and saturate with 8-bit weights, so that a full-range file is wrong there in silence, wherever it was made. The
instructions, and so the speed, are the same with 7; what 8 bits buy is accuracy. A full-range file therefore is made only on
request, only where the gates can see it computed rightly, and says that it `needs` VNNI. Files for TensorRT have 8 bits, and
need TensorRT: `as_on_gpu` has answers for the gates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import onnx

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.onnx_parts import subgraphs
from serving.export.variants import quantiser, rounding
from serving.export.variants.attempts import Attempts
from serving.export.variants.candidate import CalibrationMissing, Candidate, NothingToQuantise, NotMade, translated
from serving.export.variants.graph import Graph, opened, read
from serving.export.variants.losses import dynamic_losses, static_losses
from serving.export.variants.quantiser import Dynamic, Static
from serving.measure.machine import has_instructions, processor_key

RANGES = ("7bit", "full")
VNNI, TENSORRT = "vnni", "tensorrt"

# What ONNX Runtime's CPU provider turns into integer kernels when all around is quantised, as its optimised graphs show, or
# passes on as it is. Relu and Clip become limits of the range before them, a Pad goes into its convolution. It has a kernel
# for Softmax too, but probabilities in steps of 1/256 are no bargain. For the rest (HardSigmoid, Tanh, norms) it has none.
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_PASSES = ("Relu", "Clip", "MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Pad")
_JOINS = ("Add", "Mul", "Sigmoid", "LeakyRelu", "Concat", "Split", "Resize", "AveragePool", "GlobalAveragePool")
EVERYTHING = _PRODUCTS + _PASSES + _JOINS
PRODUCTS_ONLY = _PRODUCTS + _PASSES  # for nets whose gates (Swish, squeeze and excite) lose too much in 8 bits
# TensorRT fuses around products and residual sums; a scale on anything else only breaks its fusions.
_TENSORRT = ("Conv", "Gemm", "MatMul", "Add", "MaxPool", "AveragePool", "GlobalAveragePool")


def candidates(
    fp32: bytes,
    calibration: Arrays | None,
    *,
    weights: str = "7bit",
    is_for_tensorrt: bool = False,
    attempts: Attempts | None = None,
) -> Iterator[Candidate]:
    """Makes candidates one by one as they are asked for, none twice. Passes over what the tool cannot make, if it can make any.

    `attempts`: says which need not be made, and has the files of some.
    """
    check_range(weights)
    attempts = attempts or Attempts(None, math.inf)
    graph = graph_of(fp32)
    models: dict[bytes, str] = {}
    failed: NotMade | None = None
    for settings, make in _recipes(graph, fp32, calibration, weights == "full", is_for_tensorrt):
        key, how = repr(settings), str(settings)
        if attempts.skips(key, how):
            continue
        try:
            model = attempts.file(key) or make(settings)
        except NotMade as error:
            failed = failed or error
            continue
        if model in models:
            attempts.note_same(key, how, model, models[model])
        else:
            models[model] = how
            if isinstance(settings, Static) and settings.is_compensated:
                attempts.made[key] = model
            yield Candidate("int8", model, how, needs(settings), isinstance(settings, Static), key)
    if failed and not models:
        raise failed


def _recipes(
    graph: Graph, fp32: bytes, calibration: Arrays | None, is_full_range: bool, is_for_tensorrt: bool
) -> Iterator[tuple[Static | Dynamic, Callable[[Any], bytes]]]:
    for way in ["static"] if is_for_tensorrt else ways(graph, calibration is not None):
        if way == "dynamic":
            yield from ((settings, partial(_dynamic, fp32)) for settings in dynamic_settings(graph, is_full_range))
            continue
        if calibration is None:
            raise CalibrationMissing("INT8 for TensorRT" if is_for_tensorrt else "a net of convolutions")
        if not any(weights_of(graph, kind) for kind in _PRODUCTS):
            raise NothingToQuantise("int8", _reason(graph))
        net = quantiser.prepared(fp32)
        tries = tensorrt_settings() if is_for_tensorrt else static_settings(is_full_range)
        yield from ((settings, partial(_static, net, calibration)) for settings in tries)


def _static(net: bytes, calibration: Arrays, settings: Static) -> bytes:
    return quantiser.static(net, calibration, settings)


def _dynamic(fp32: bytes, settings: Dynamic) -> bytes:
    return quantiser.dynamic(fp32, settings)


def tensorrt_settings() -> list[Static]:
    return [Static(_TENSORRT, method, is_symmetric=True) for method in ("MinMax", "Percentile", "Entropy")]


def static_settings(is_full_range: bool) -> list[Static]:
    """MinMax keeps every value and is right where nothing is far out; the others give up the rare ones for finer steps."""
    return [
        Static(EVERYTHING, "MinMax", is_full_range=is_full_range),
        Static(PRODUCTS_ONLY, "MinMax", is_full_range=is_full_range),
        Static(EVERYTHING, "MinMax", is_full_range=is_full_range, is_compensated=True),
        Static(EVERYTHING, "Percentile", is_full_range=is_full_range),
        Static(EVERYTHING, "Entropy", is_full_range=is_full_range),
        Static(EVERYTHING, "MinMax", is_per_channel=False, is_full_range=is_full_range),
    ]


def dynamic_settings(graph: Graph, is_full_range: bool) -> list[Dynamic]:
    takes = tuple(kind for kind in ("MatMul", "LSTM") if kind == "MatMul" or weights_of(graph, kind))
    return [Dynamic(takes, is_per_channel, is_full_range) for is_per_channel in (True, False)]


def needs(settings: Static | Dynamic) -> frozenset[str]:
    if isinstance(settings, Static) and settings.is_symmetric:
        return frozenset({TENSORRT})
    return frozenset({VNNI}) if settings.is_full_range else frozenset()


def ways(graph: Graph, has_calibration: bool) -> list[str]:
    """ "static" and "dynamic", in the order to try."""
    convolutions, lstm = weights_of(graph, "Conv"), weights_of(graph, "LSTM")
    products = weights_of(graph, "MatMul") + weights_of(graph, "Gemm")
    if convolutions + lstm + products == 0:
        raise NothingToQuantise("int8", _reason(graph))
    if convolutions >= products + lstm:
        return ["static"]
    if lstm or _has_attention(graph) or not has_calibration:
        return ["dynamic"]
    return ["static", "dynamic"]


def is_static(fp32: bytes) -> bool:
    """Says whether calibration data would be used."""
    try:
        return "static" in ways(read(opened(fp32)), has_calibration=True)
    except NothingToQuantise:
        return False


def weights_of(graph: Graph, kind: str) -> int:
    """Counts the constant weights of the nodes of this type."""
    stays = quantiser.not_to_be_rounded(graph)
    nodes = (node for node in graph.nodes if node.op_type == kind and node.name not in stays)
    weights = [graph.constants[node.input[1]] for node in nodes if node.input[1] in graph.largest]
    return sum(int(np.prod(tensor.dims)) for tensor in weights)


def _has_attention(graph: Graph) -> bool:
    """Says whether there are products of two activations."""
    return any(
        node.op_type == "Attention"
        or (node.op_type in ("MatMul", "Einsum") and graph.constants.keys().isdisjoint(node.input))
        for node in graph.nodes
    )


def graph_of(fp32: bytes) -> Graph:
    with translated("int8", "reading the net"):
        return read(opened(fp32))


def check_range(weights: str) -> None:
    if weights not in RANGES:
        raise UserError(f"unknown range of INT8 weights {weights!r}{nearest(weights, RANGES)}")
    if weights == "full" and not has_instructions(VNNI):
        raise UserError(
            f"weights of the full 8 bits are computed wrongly on this processor ({processor_key()}, no VNNI), so that "
            "no gate here could judge them; leave out --int8-range full, or export on a processor with VNNI"
        )


def _reason(graph: Graph) -> str:
    kinds = sorted({node.op_type for node in graph.nodes})
    if any(node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for node in graph.nodes):
        return "this net is quantised already"
    if recurrent := {"GRU", "RNN"}.intersection(kinds):
        return f"ONNX Runtime has no INT8 kernel for {min(recurrent)}, and there is nothing else to quantise"
    if any(any(subgraphs(node)) for node in graph.nodes):
        return "its arithmetic is inside the bodies of If, Loop or Scan, which are left as they are"
    return f"no convolution or matrix product has constant weights (its operators are {', '.join(kinds[:5])})"


_SHARES = (0.10, 0.25, 0.50)
# Of the noise that may be left: decisions that turn fall with its root, by a half, to a quarter and to an eighth.
_NOISE_LEFT = (1 / 4, 1 / 16, 1 / 64)
_MOST = 0.75  # of the layers: what is left of the speed beyond is not worth a file
_NUM_NAMED = 3
_GATES = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "Mul")


def second_tries(
    fp32: bytes,
    calibration: Arrays | None,
    *,
    weights: str = "7bit",
    is_for_tensorrt: bool = False,
    attempts: Attempts | None = None,
) -> Iterator[Candidate]:
    """Makes files whose worst layers stay FP32, few of them first. Notes the worst layers in `attempts`."""
    check_range(weights)
    attempts = attempts or Attempts(None, math.inf)
    if attempts.is_over:
        return
    is_full_range = weights == "full"
    graph = graph_of(fp32)
    if is_for_tensorrt or ways(graph, calibration is not None)[0] == "static":
        if calibration is None:
            raise CalibrationMissing("a net of convolutions")
        settings = tensorrt_settings()[0] if is_for_tensorrt else _compensated(is_full_range)
        yield from _static_second_tries(fp32, calibration, settings, attempts)
        return
    of_dynamic = dynamic_settings(graph, is_full_range)[0]
    attempts.measure_losses(repr(of_dynamic), lambda: dynamic_losses(graph, calibration, is_full_range))
    for names, words in _worst(attempts.losses):
        key, how = f"{of_dynamic!r} {sorted(names)}", f"{of_dynamic}, {words}"
        if not attempts.skips(key, how):
            model = attempts.file(key) or quantiser.dynamic(fp32, of_dynamic, names)
            yield Candidate("int8", model, how, needs(of_dynamic), key=key)


def _compensated(is_full_range: bool) -> Static:
    return next(one for one in static_settings(is_full_range) if one.is_compensated)


def _static_second_tries(fp32: bytes, calibration: Arrays, settings: Static, attempts: Attempts) -> Iterator[Candidate]:
    net = quantiser.prepared(fp32)
    # Sums and means beside layers in FP32 would still be rounded: what they lose is then most of what is lost.
    shown = settings if settings.is_symmetric else replace(settings, takes=PRODUCTS_ONLY)
    plain = replace(shown, is_compensated=False)

    @cache
    def full() -> bytes:
        """The file with all layers in INT8; it was made before, if it was not remembered as refused."""
        return attempts.made.get(repr(settings)) or quantiser.static(net, calibration, settings)

    attempts.measure_losses(repr(settings), lambda: static_losses(net, full(), calibration))
    for names, words in _worst(attempts.losses):
        key, how = f"{shown!r} {sorted(names)}", f"{shown}, {words}"
        if not attempts.skips(key, how):
            left = names | _gates_behind(net, names)
            model = attempts.file(key)
            if model is None:
                model = rounding.with_weights_of(full(), quantiser.static(net, calibration, plain, left))
            yield Candidate("int8", model, how, needs(settings), is_calibrated=True, key=key)


def _gates_behind(net: bytes, names: frozenset[str]) -> frozenset[str]:
    """What computes on a layer's answer value by value: quantised, it would still round what the layer gives."""
    nodes = onnx.load_from_string(net).graph.node
    answers = {name for node in nodes if node.name in names for name in node.output}
    return frozenset(node.name for node in nodes if node.op_type in _GATES and not answers.isdisjoint(node.input))


def _worst(losses: Mapping[str, float]) -> Iterator[tuple[frozenset[str], str]]:
    order = sorted(losses, key=lambda name: (-losses[name], name))
    counts = {math.ceil(share * len(order)) for share in _SHARES}
    left = np.cumsum([losses[name] for name in reversed(order)])[::-1]  # noise of a layer and all that lose less
    counts |= {int((left > share * left[0]).sum()) for share in _NOISE_LEFT if order}
    for count in sorted(counts):
        if 0 < count <= max(1, _MOST * len(order)) and count < len(order):
            named = ", ".join(order[: min(count, _NUM_NAMED)]) + (", …" if count > _NUM_NAMED else "")
            yield frozenset(order[:count]), f"{count} of {len(order)} layers left in FP32: {named}"
