"""Fuses a transformer's attention, norms and GELU into ONNX Runtime's own operators, for the file that a card gets.

GELU and biases are fused by ONNX Runtime's tool (`onnxruntime.transformers`). Attention and the sums before norms are found here: the tool
knows neither the masks of torch's exporter nor, where lengths are open, the shapes. Rule: a product becomes Attention only where its mask
was tried and hides padding alone; whatever does not fit stays as it is, and what came of it is for the gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.export import onnx_session
from serving.export.exported_model import Arrays
from serving.export.onnx_parts import MS_DOMAIN, captured_names, checked, in_order, unused, uses
from serving.export.progress import quiet
from serving.export.variants.candidate import translated
from serving.export.variants.graph import opened, read

OLDEST_OPSET = 17  # of LayerNormalization, and later than axes as inputs
_LEAST_MASK = -1e4  # a value that hides: exp of it is zero in FP16 and FP32
_TRIES = ((2, 5), (3, 4))  # batch and length of made-up masks
_HEADS, _TURNED, _SWAPPED = [0, 2, 1, 3], [0, 2, 3, 1], [0, 1, 3, 2]  # perm of Transpose
_SAME_SHAPE = frozenset({"Gelu", "BiasGelu", "FastGelu", "LayerNormalization", "SkipLayerNormalization", "Attention"})


@dataclass(frozen=True, slots=True)
class Fusion:
    """`operators`: which of ONNX Runtime's own the file holds, and how many of each."""

    model: bytes
    operators: Mapping[str, int]


def fused(fp32: bytes, also_left: frozenset[str] = frozenset()) -> Fusion | None:
    """None where nothing is found to fuse. `also_left`: names of nodes, as `opened` gives them, that no Attention may swallow.

    Raises NotMade where a tool fails on the net, or ONNX Runtime's CPU provider does not load what was made.
    """
    with translated("fp16", "fusing operators"):
        graph = read(opened(fp32))
        has_own = any(node.domain == MS_DOMAIN for node in graph.nodes)  # its maker fused it already
        if has_own or graph.opset < OLDEST_OPSET or not any(node.op_type in ("Softmax", "Erf") for node in graph.nodes):
            return None
        model = _with_norms(_by_tool(_with_attention(graph.model, graph.ranks, also_left)), graph.ranks)
        operators = Counter(node.op_type for node in model.graph.node if node.domain == MS_DOMAIN)
        if not operators:
            return None
        made = checked(in_order(model))
        onnx_session.opened(made)
        return Fusion(made, dict(sorted(operators.items())))


class _Net:
    """A graph that is being changed: who makes each value and who reads it, constants as arrays."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.nodes = model, list(model.graph.node)
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._kept = {value.name for value in model.graph.output} | captured_names(model.graph)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.taken = {name for node in self.nodes for name in (*node.input, *node.output, node.name)}
        self.taken |= self._constants.keys()

    def maker(self, name: str, *kinds: str) -> onnx.NodeProto | None:
        node = self.makers.get(name)
        return node if node is not None and node.op_type in kinds and not node.domain else None

    def only_reader(self, name: str, kind: str) -> onnx.NodeProto | None:
        """The node that alone reads a value, if it is of this kind."""
        readers = self._readers.get(name, [])
        is_alone = len(readers) == 1 and name not in self._kept
        return readers[0] if is_alone and readers[0].op_type == kind and not readers[0].domain else None

    def is_constant(self, name: str, rank: int) -> bool:
        """Says whether it is one of FP32 with that many dimensions."""
        tensor = self._constants.get(name)
        return tensor is not None and tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == rank

    def constant(self, name: str) -> NDArray[Any]:
        return numpy_helper.to_array(self._constants[name])

    def is_stored(self, name: str) -> bool:
        return name in self._constants

    def number(self, name: str) -> float | None:
        """A constant of one number."""
        if name not in self._constants or int(np.prod(self._constants[name].dims)) != 1:
            return None
        return float(self.constant(name).ravel()[0])

    def store(self, name: str, values: NDArray[Any]) -> str:
        made = unused(name, self.taken)
        self.model.graph.initializer.append(numpy_helper.from_array(values, made))
        return made

    def replace(self, old: onnx.NodeProto, *new: onnx.NodeProto) -> None:
        place = next(index for index, node in enumerate(self.nodes) if node is old)
        self.nodes[place : place + 1] = new

    def written(self) -> onnx.ModelProto:
        """The model without the nodes and constants that nothing reads any more, with the types of what others cannot infer."""
        graph = self.model.graph
        needed = {value.name for value in graph.output}
        kept = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(uses(node))
        constants = [tensor for tensor in graph.initializer if tensor.name in needed]
        own = [name for node in kept if node.domain == MS_DOMAIN for name in node.output if name]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(reversed(kept))
        graph.initializer.extend(constants)
        graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(own))
        if own and all(entry.domain != MS_DOMAIN for entry in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(MS_DOMAIN, 1))
        return self.model


def _by_tool(model: onnx.ModelProto) -> onnx.ModelProto:
    """GELU in its forms, with the bias before it."""
    from onnxruntime.transformers.fusion_options import (  # type: ignore[import-untyped, unused-ignore]
        FusionOptions,
    )
    from onnxruntime.transformers.optimizer import (  # type: ignore[import-untyped, unused-ignore]
        optimize_by_fusion,
    )

    inputs, producer = list(model.graph.input), (model.producer_name, model.producer_version)
    options = FusionOptions("bert")
    options.enable_attention = options.enable_embed_layer_norm = options.enable_rotary_embeddings = False
    options.enable_skip_layer_norm = options.enable_bias_skip_layer_norm = options.enable_qordered_matmul = False
    options.enable_shape_inference = False  # its own, which fails on open lengths and prints that
    with quiet():
        made: onnx.ModelProto = optimize_by_fusion(model, "bert", optimization_options=options).model
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    made.producer_name, made.producer_version = producer
    return _Net(opened(made.SerializeToString())).written()


# -- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Projection:
    """Values split into heads: `source` times `weight` [width, width], plus `bias`."""

    source: str
    weight: str
    bias: str | None
    head_size: int


def _with_attention(model: onnx.ModelProto, ranks: Mapping[str, int], also_left: frozenset[str]) -> onnx.ModelProto:
    net = _Net(model)
    masks: dict[
        str, tuple[str, float] | None
    ] = {}  # what is added to scores -> the input that hides tokens, and the value
    whole: dict[str, str] = {}  # mask -> the same as INT32
    for softmax in [node for node in net.nodes if node.op_type == "Softmax"]:
        found = _Match(net, softmax, also_left)
        if found.last is None or ranks.get(found.query.source, 3) != 3:
            continue
        inputs = [found.query.source, *_packed(net, softmax.name, (found.query, found.key, found.value))]
        size = found.query.head_size
        settings: dict[str, Any] = {"num_heads": net.constant(found.query.weight).shape[1] // size}
        if not np.isclose(found.scale, size**-0.5, rtol=1e-5):
            settings["scale"] = found.scale
        if found.mask:
            if found.mask not in masks:
                masks[found.mask] = _padding_mask(net.model, found.mask)
            if (mask := masks[found.mask]) is None:
                continue
            if mask[0] not in whole:
                whole[mask[0]] = unused(f"{mask[0]}_int32", net.taken)
                net.nodes.insert(
                    0, helper.make_node("Cast", [mask[0]], [whole[mask[0]]], f"{whole[mask[0]]}_cast", to=_INT32)
                )
            inputs.append(whole[mask[0]])
            settings["mask_filter_value"] = mask[1]
        name = unused(f"{softmax.name}_attention", net.taken)
        node = helper.make_node("Attention", inputs, [found.last.output[0]], name, domain=MS_DOMAIN, **settings)
        net.replace(found.last, node)
    return net.written()


class _Match:
    """The attention around a Softmax. `last` None: it is none, or not one that the operator computes."""

    last: onnx.NodeProto | None = None
    query: _Projection
    key: _Projection
    value: _Projection
    scale = 1.0
    mask = ""  # what is added to the scores

    def __init__(self, net: _Net, softmax: onnx.NodeProto, also_left: frozenset[str]) -> None:
        self._net, self._seen = net, [softmax]
        axis = next((attribute.i for attribute in softmax.attribute if attribute.name == "axis"), -1)
        mixed = net.only_reader(softmax.output[0], "MatMul")
        turned = mixed and net.only_reader(mixed.output[0], "Transpose")
        joined = turned and net.only_reader(turned.output[0], "Reshape")
        if axis not in (-1, 3) or mixed is None or turned is None or joined is None or _perm(turned) != _HEADS:
            return
        if mixed.input[0] != softmax.output[0] or (product := self._scores(softmax.input[0])) is None:
            return
        value = self._heads(mixed.input[1], _HEADS)
        query, key = self._heads(product.input[0], _HEADS), self._heads(product.input[1], _TURNED)
        if value is None or query is None or key is None or len({one.source for one in (query, key, value)}) > 1:
            return
        shapes = {(*net.constant(one.weight).shape, one.head_size) for one in (query, key, value)}
        if len(shapes) > 1 or also_left.intersection(node.name for node in (*self._seen, mixed)):
            return
        self.query, self.key, self.value, self.last = query, key, value, joined

    def _scores(self, name: str) -> onnx.NodeProto | None:
        """The product of queries and keys, under a mask or none."""
        net = self._net
        if (added := net.maker(name, "Add")) is None:
            return self._product(name)
        self._seen.append(added)
        for scores, mask in (added.input, reversed(added.input)):
            if (product := self._product(scores)) is not None:
                self.mask = mask
                return product
        return None

    def _product(self, name: str) -> onnx.NodeProto | None:
        inner, scale = self._unscaled(name)
        if (product := self._net.maker(inner, "MatMul")) is not None:
            self.scale *= scale
            self._seen.append(product)
        return product

    def _unscaled(self, name: str) -> tuple[str, float]:
        """What is multiplied by a number, or divided by one, and by which."""
        net, node = self._net, self._net.maker(name, "Mul", "Div")
        if node is None:
            return name, 1.0
        for place in (1, 0) if node.op_type == "Mul" else (1,):
            if number := net.number(node.input[place]):
                self._seen.append(node)
                return node.input[1 - place], number if node.op_type == "Mul" else 1 / number
        return name, 1.0

    def _heads(self, name: str, perm: list[int]) -> _Projection | None:
        net = self._net
        name, scale = self._unscaled(name)
        self.scale *= scale
        turned = net.maker(name, "Transpose")
        if turned is not None and perm == _TURNED and _perm(turned) == _SWAPPED:
            turned, perm = net.maker(turned.input[0], "Transpose"), _HEADS
        split = net.maker(turned.input[0], "Reshape") if turned is not None and _perm(turned) == perm else None
        if split is None or turned is None:
            return None
        flat, bias = split.input[0], None
        if (added := net.maker(flat, "Add")) is not None:
            places = [place for place in (0, 1) if net.is_constant(added.input[place], 1)]
            if not places:
                return None
            flat, bias = added.input[1 - places[0]], added.input[places[0]]
        product = net.maker(flat, "MatMul")
        if product is None or not net.is_constant(product.input[1], 2):
            return None
        width = net.constant(product.input[1]).shape[1]
        size = self._head_size(split.input[1], width)
        if size <= 0 or width % size or (bias is not None and net.constant(bias).shape != (width,)):
            return None
        self._seen += [node for node in (turned, split, added, product) if node is not None]
        return _Projection(product.input[0], product.input[1], bias, size)

    def _head_size(self, shape: str, width: int) -> int:
        """Of a shape [batch, length, heads, size], either of whose last two may be -1; 0 where nobody knows."""
        net = self._net
        joined = net.maker(shape, "Concat")
        parts = [shape] if joined is None else list(joined.input)
        known = [net.constant(name).ravel().tolist() if net.is_stored(name) else [None] for name in parts]
        sizes = [size for part in known for size in part]
        if len(sizes) != 4 or sizes[2] is None or sizes[3] is None:
            return 0
        heads, size = int(sizes[2]), int(sizes[3])
        return size if size > 0 else width // heads if heads > 0 else 0


def _perm(node: onnx.NodeProto) -> list[int]:
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), [])


def _packed(net: _Net, name: str, projections: Sequence[_Projection]) -> tuple[str, str]:
    """Weights [width, 3 × width] and bias [3 × width] of queries, keys and values beside each other."""
    weights = [net.constant(one.weight) for one in projections]
    zeros = np.zeros(weights[0].shape[1], np.float32)
    biases = [zeros if one.bias is None else net.constant(one.bias) for one in projections]
    packed = np.ascontiguousarray(np.concatenate(weights, axis=1))
    return net.store(f"{name}_qkv_weight", packed), net.store(f"{name}_qkv_bias", np.concatenate(biases))


def _padding_mask(model: onnx.ModelProto, bias: str) -> tuple[str, float] | None:
    """The input [batch, length] whose zeros alone are hidden by what is added to scores, and the value that hides.

    Tried on made-up masks: how exporters compute it changes from version to version. None where it does more, as a causal mask does.
    """
    try:
        session = onnx_session.opened(_up_to(model, bias))
        found: set[tuple[str, float]] | None = None
        for batch, length in _TRIES:
            random = np.random.default_rng(length)
            inputs = {one.name: random.integers(0, 2, _sizes(one.shape, batch, length)) for one in session.get_inputs()}
            fed: Arrays = {one.name: inputs[one.name].astype(_NUMPY[one.type]) for one in session.get_inputs()}
            [added] = session.run(None, fed)
            fits = {(name, float(added.min())) for name, mask in inputs.items() if _hides(added, mask)}
            found = fits if found is None else found & fits
    except (
        Exception
    ):  # ONNX Runtime's classes share no root of their own; what does not run by itself is no padding mask
        return None
    return min(found) if found else None


def _hides(added: NDArray[Any], mask: NDArray[Any]) -> bool:
    if mask.ndim != 2 or mask.all() or not mask.any() or added.ndim != 4 or not -np.inf < added.min() <= _LEAST_MASK:
        return False
    wanted = np.where(mask != 0, np.float32(0), added.min())[:, None, None, :]
    return added.shape[1] == 1 and added.shape[3] == mask.shape[1] and bool((added == wanted).all())


_INT32 = TensorProto.INT32
_NUMPY = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(float)": np.float32}


def _sizes(shape: Sequence[Any], batch: int, length: int) -> list[int]:
    """An open first dimension is the batch, every other one the length."""
    return [size if isinstance(size, int) else (length if place else batch) for place, size in enumerate(shape)]


def _up_to(model: onnx.ModelProto, name: str) -> bytes:
    """The part of a net that one value is computed by."""
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    needed, nodes = {name}, []
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(uses(node))
    part.graph.node.extend(reversed(nodes))
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    part.graph.input.extend(value for value in model.graph.input if value.name in needed)
    part.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    part.graph.name = "mask"
    return bytes(part.SerializeToString())


# -- norms ------------------------------------------------------------------------------------------------------------


def _with_norms(model: onnx.ModelProto, ranks: Mapping[str, int]) -> onnx.ModelProto:
    """Fuses a norm with the sum before it, where both sides of the sum are known to have one shape."""
    net = _Net(in_order(model))
    origins, fused_sums = _origins(net), set[str]()
    for norm in [node for node in net.nodes if node.op_type == "LayerNormalization" and len(node.output) == 1]:
        added = net.maker(norm.input[0], "Add")
        axis = next((attribute.i for attribute in norm.attribute if attribute.name == "axis"), -1)
        if added is None or added.name in fused_sums or axis != -1 or len(norm.input) != 3:
            continue
        sides = list(added.input)
        origin = origins.get(sides[0], sides[0])
        has_weights = all(net.is_constant(name, 1) for name in norm.input[1:])
        if origin != origins.get(sides[1], sides[1]) or ranks.get(origin) != 3 or not has_weights:
            continue
        inputs = [*sides, *norm.input[1:]]
        for place, name in enumerate(sides):
            before = net.maker(name, "Add")
            if before is not None and net.only_reader(name, "Add") is not None and net.is_constant(before.input[1], 1):
                inputs[place] = before.input[0]
                inputs.append(before.input[1])
                break
        is_read = net.only_reader(added.output[0], "LayerNormalization") is None
        outputs = [norm.output[0], *(["", "", added.output[0]] if is_read else [])]
        name = unused(f"{norm.name}_with_sum", net.taken)
        node = helper.make_node("SkipLayerNormalization", inputs, outputs, name, domain=MS_DOMAIN)
        node.attribute.extend(attribute for attribute in norm.attribute if attribute.name == "epsilon")
        fused_sums.add(added.name)
        net.replace(added, node)
        net.nodes = [one for one in net.nodes if one is not norm]
    return net.written()


def _origins(net: _Net) -> Mapping[str, str]:
    """Value -> the value it has its shape from, but for the last dimension. What is not in it has its own."""
    found: dict[str, str] = {}
    for node in net.nodes:
        floats = [name for name in node.input if name and not net.is_constant(name, 1) and net.number(name) is None]
        if node.op_type in _SAME_SHAPE or (node.op_type == "MatMul" and net.is_constant(node.input[1], 2)):
            source = node.input[0]
        elif node.op_type in ("Add", "Mul", "Div", "Sub", "Relu", "Tanh", "Erf") and floats:
            source = floats[0]
            if any(found.get(name, name) != found.get(source, source) for name in floats):
                continue
        else:
            continue
        found[node.output[0]] = found.get(source, source)
    return found
