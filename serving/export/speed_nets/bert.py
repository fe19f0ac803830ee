"""BERT (Devlin et al. 2018) in two sizes: the base with a classifier on its first token, and MiniLM's six narrow layers, pooled.

Written as PyTorch's exporter writes transformers' BertModel with plain attention: LayerNormalization, MatMul and Add, GELU by
Erf, MatMul / Softmax / MatMul under an additive mask; batch and sequence are dynamic. Weights are named as in transformers,
with matrices as [in, out]. No calibration is needed: every layer ends in a normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import TensorProto, numpy_helper

from serving.export.exported_model import Arrays
from serving.export.speed_nets.graph import BIAS_DEVIATION, Net, NetBuilder, check_alive
from serving.repository import CLASSIFICATION, EMBEDDING, Tensor

IDS = Tensor("input_ids", "INT64", (-1,))
MASK = Tensor("attention_mask", "INT64", (-1,))
EPSILON = 1e-12  # of BERT's LayerNorm
EMBEDDING_DEVIATION = 0.02  # BERT's own initializer_range
NUM_CLASSES = 2
MAX_TOKENS = 512  # positions that it knows
FIRST_WORD = 1000  # of the vocabulary: below lie special tokens and single characters
NUM_EXAMPLES = 4
NUM_TOKENS = 128  # of an example where nothing else is said
MIN_TOKENS = 16  # of a padded example


@dataclass(frozen=True, slots=True)
class BertShape:
    name: str
    num_layers: int
    width: int
    num_heads: int
    is_pooled: bool  # the mean over tokens, of length 1; otherwise a classifier on the first token
    vocabulary: int = 30522

    @property
    def output(self) -> Tensor:
        if self.is_pooled:
            return Tensor("sentence_embedding", "FP32", (self.width,))
        return Tensor("scores", "FP32", (NUM_CLASSES,))


BASE = BertShape("bert-base", 12, 768, 12, is_pooled=False)
MINILM = BertShape("minilm-untrained", 6, 384, 12, is_pooled=True)


def build(shape: BertShape, seed: int, opset: int) -> bytes:
    """The FP32 file. Raises EnvironmentFault where its activations turn out dead."""
    graph = NetBuilder(shape.name, [IDS, MASK], seed=seed, opset=opset)
    _draw(graph, shape)
    model = graph.model([shape.output])
    check_alive(shape.name, model, examples(shape, NUM_EXAMPLES, seed, 2 * MIN_TOKENS))
    return model


def examples(shape: BertShape, count: int, seed: int, num_tokens: int | None = None) -> Arrays:
    """int64 [count, num_tokens] each: random words, every other row shorter than that and padded."""
    length = num_tokens or NUM_TOKENS
    generator = np.random.default_rng(seed)
    words = generator.integers(min(FIRST_WORD, shape.vocabulary // 2), shape.vocabulary, (count, length), np.int64)
    lengths = generator.integers(min(MIN_TOKENS, length), length + 1, count)
    lengths[::2] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {IDS.name: words * mask, MASK.name: mask}


def _net(shape: BertShape, max_batch_size: int, num_tokens: int) -> Net:
    task = EMBEDDING if shape.is_pooled else CLASSIFICATION
    named = (partial(build, shape), partial(examples, shape))
    return Net(shape.name, *named, (IDS, MASK), (shape.output,), task, max_batch_size, num_tokens)


# 8 rows of 128 tokens keep a BERT-base busy for a second on two cores; a MiniLM is asked in short sentences.
BASE_NET = _net(BASE, max_batch_size=8, num_tokens=128)
MINILM_NET = _net(MINILM, max_batch_size=32, num_tokens=32)


def _draw(graph: NetBuilder, shape: BertShape) -> None:
    batch = graph.node("Shape", [IDS.name], "batch", start=0, end=1)
    tokens = graph.node("Shape", [IDS.name], "tokens", start=1, end=2)
    head_size = graph.constant("heads", [shape.num_heads, shape.width // shape.num_heads], np.int64)
    graph.node("Concat", [batch, tokens, head_size], "split", axis=0)
    width = graph.constant("width", [shape.width], np.int64)
    graph.node("Concat", [batch, tokens, width], "joined", axis=0)
    _draw_mask(graph)
    x = _embedded(graph, shape)
    for index in range(shape.num_layers):
        x = _layer(graph, shape, f"encoder.layer.{index}", x)
    (_draw_pooled if shape.is_pooled else _draw_classified)(graph, shape, x)


def _draw_mask(graph: NetBuilder) -> None:
    """0 where a token is, the lowest FP32 number where none is: float32 [batch, 1, 1, tokens]."""
    rows = graph.node("Unsqueeze", [MASK.name, graph.constant("mask.axes", [1, 2], np.int64)], "mask.rows")
    is_token = graph.node(
        "Cast",
        [
            rows,
        ],
        "mask.is_token",
        to=TensorProto.BOOL,
    )
    zero = graph.constant("mask.zero", 0, np.float32)
    lowest = graph.constant("mask.lowest", np.finfo(np.float32).min, np.float32)
    graph.node("Where", [is_token, zero, lowest], "mask")


def _embedded(graph: NetBuilder, shape: BertShape) -> str:
    tables = {"word": shape.vocabulary, "position": MAX_TOKENS, "token_type": 2}
    for kind, size in tables.items():
        graph.weight(f"embeddings.{kind}_embeddings.weight", (size, shape.width), EMBEDDING_DEVIATION)
    words = graph.node("Gather", ["embeddings.word_embeddings.weight", IDS.name], "words")
    graph.node("Shape", [IDS.name], "ids.shape")
    zero = numpy_helper.from_array(np.zeros(1, np.int64))
    types = graph.node("ConstantOfShape", ["ids.shape"], "token_type_ids", value=zero)
    types = graph.node("Gather", ["embeddings.token_type_embeddings.weight", types], "types")
    x = graph.node("Add", [words, types], "typed")
    graph.constant("position_ids", np.arange(MAX_TOKENS)[None], np.int64)
    graph.constant("first", [0], np.int64)
    graph.constant("axis.tokens", [1], np.int64)
    used = graph.node("Slice", ["position_ids", "first", "tokens", "axis.tokens"], "positions.used")
    positions = graph.node("Gather", ["embeddings.position_embeddings.weight", used], "positions")
    placed = graph.declare(Tensor(graph.node("Add", [x, positions], "placed"), "FP32", (-1, shape.width)))
    return _normalised(graph, shape, "embeddings.LayerNorm", placed)


def _layer(graph: NetBuilder, shape: BertShape, name: str, source: str) -> str:
    width = shape.width
    attended = _dense(graph, f"{name}.attention.output.dense", _attention(graph, shape, name, source), width, width)
    x = graph.node("Add", [attended, source], f"{name}.attention.sum")
    x = _normalised(graph, shape, f"{name}.attention.output.LayerNorm", x)
    inside = _gelu(graph, name, _dense(graph, f"{name}.intermediate.dense", x, width, 4 * width))
    out = _dense(graph, f"{name}.output.dense", inside, 4 * width, width)
    return _normalised(graph, shape, f"{name}.output.LayerNorm", graph.node("Add", [out, x], f"{name}.sum"))


def _attention(graph: NetBuilder, shape: BertShape, name: str, source: str) -> str:
    """[batch, tokens, width] -> the same, before its output layer."""

    def heads(kind: str, order: list[int]) -> str:
        flat = _dense(graph, f"{name}.attention.self.{kind}", source, shape.width, shape.width)
        split = graph.node("Reshape", [flat, "split"], f"{name}.{kind}.split")
        return graph.node("Transpose", [split], f"{name}.{kind}", perm=order)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    products = graph.node("MatMul", [query, key], f"{name}.products")
    scale = graph.constant("attention.scale", (shape.width // shape.num_heads) ** -0.5, np.float32)
    scores = graph.node("Mul", [products, scale], f"{name}.scores")
    masked = graph.node("Add", [scores, "mask"], f"{name}.masked")
    shares = graph.node("Softmax", [masked], f"{name}.shares", axis=-1)
    mixed = graph.node("MatMul", [shares, value], f"{name}.mixed")
    together = graph.node("Transpose", [mixed], f"{name}.together", perm=[0, 2, 1, 3])
    attended = graph.node("Reshape", [together, "joined"], f"{name}.attended")
    return graph.declare(Tensor(attended, "FP32", (-1, shape.width)))


def _dense(graph: NetBuilder, name: str, source: str, width_in: int, width_out: int) -> str:
    weight = graph.weight(f"{name}.weight", (width_in, width_out), float(1 / np.sqrt(width_in)))  # keeps the scale
    bias = graph.weight(f"{name}.bias", (width_out,), BIAS_DEVIATION)
    return graph.node("Add", [graph.node("MatMul", [source, weight], f"{name}.product"), bias], name)


def _gelu(graph: NetBuilder, name: str, source: str) -> str:
    root = graph.constant("gelu.root", np.sqrt(2), np.float32)
    one = graph.constant("gelu.one", 1, np.float32)
    half = graph.constant("gelu.half", 0.5, np.float32)
    erf = graph.node("Erf", [graph.node("Div", [source, root], f"{name}.divided")], f"{name}.erf")
    share = graph.node("Mul", [half, graph.node("Add", [erf, one], f"{name}.raised")], f"{name}.share")
    return graph.node("Mul", [source, share], f"{name}.gelu")


def _normalised(graph: NetBuilder, shape: BertShape, name: str, source: str) -> str:
    scale = graph.constant(f"{name}.weight", 1 + graph.random(f"{name}.weight", (shape.width,), BIAS_DEVIATION))
    bias = graph.weight(f"{name}.bias", (shape.width,), BIAS_DEVIATION)
    return graph.node("LayerNormalization", [source, scale, bias], name, axis=-1, epsilon=EPSILON)


def _draw_classified(graph: NetBuilder, shape: BertShape, source: str) -> None:
    graph.constant("first.token", 0, np.int64)
    first = graph.node("Gather", [source, "first.token"], "sentence", axis=1)
    pooled = graph.node("Tanh", [graph.linear("pooler.dense", first, shape.width, shape.width)], "pooled")
    graph.linear("classifier", pooled, shape.width, NUM_CLASSES, output=shape.output.name)


def _draw_pooled(graph: NetBuilder, shape: BertShape, source: str) -> None:
    """The mean over the tokens that are there, divided by its length."""
    graph.constant("axis.last", [-1], np.int64)
    counted = graph.node("Cast", [MASK.name], "counted", to=TensorProto.FLOAT)
    share = graph.node("Unsqueeze", [counted, "axis.last"], "share")
    kept = graph.node("Mul", [source, share], "kept")
    total = graph.node("ReduceSum", [kept, "axis.tokens"], "total", keepdims=0)
    number = graph.node("ReduceSum", [share, "axis.tokens"], "number", keepdims=0)
    mean = graph.node("Div", [total, number], "mean")
    length = graph.node("ReduceL2", [mean, "axis.last"], "length", keepdims=1)
    graph.node("Div", [mean, length], shape.output.name)
