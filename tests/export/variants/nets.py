"""Small nets that have what real ones have: masks, norms, gates, bodies. Written in ONNX's text form, weights drawn once.

`answers` runs one on ONNX Runtime's CPU provider.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper, parser

FLOAT32_MIN = float(np.finfo(np.float32).min)
WIDTH = 16


def net(signature: str, body: str, opset: int = 18, others: tuple[str, ...] = (), **weights: Any) -> bytes:
    """A shape draws weights of a sensible size, a float or an array is the constant itself, whole numbers are int64."""
    domains = "".join(f', "{domain}" : 1' for domain in others)
    text = f'<ir_version: 10, opset_import: ["" : {opset}{domains}]> net {signature} {{ {body} }}'
    model = parser.parse_model(text)
    random = np.random.default_rng(7)
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(_values(value, random), name))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _values(value: Any, random: np.random.Generator) -> NDArray[Any]:
    if isinstance(value, tuple):
        fan_in = max(1, int(np.prod(value[1:] if len(value) == 4 else value[:-1])))
        return (random.standard_normal(value) / np.sqrt(fan_in)).astype(np.float32)
    array = np.asarray(value)
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float32)


def answers(model: bytes, *, is_fused: bool = True, **inputs: NDArray[Any]) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    if not is_fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    found: list[NDArray[Any]] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
        None, inputs
    )
    return found


def difference(first: bytes, second: bytes, *, is_fused: bool = True, **inputs: NDArray[Any]) -> float:
    """The largest difference of the first answers, relative to the largest answer. NaN where either has one.

    Unless `is_fused`, quantised numbers are computed with as FP32, and the result is the same on every processor: integer kernels
    without VNNI add two products in 16 bits, which may saturate.
    """
    one, other = (answers(model, is_fused=is_fused, **inputs)[0] for model in (first, second))
    return float(np.abs(one - other).max() / np.abs(one).max())


# -- images -----------------------------------------------------------------------------------------------------------


def images(num_rows: int = 8, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_rows, 3, 16, 16)).astype(np.float32)


def swish() -> bytes:
    """As in EfficientNet: Swish, squeeze and excite with a mean over height and width, a residual sum."""
    return net(
        "(float[n, 3, 16, 16] image) => (float[n, 5] scores)",
        """
        a = Conv <pads = [1, 1, 1, 1]> (image, w1, b1)
        as = Sigmoid (a)
        b = Mul (a, as)
        squeezed = ReduceMean <keepdims = 1> (b, axes)
        c = Conv (squeezed, w2, b2)
        cs = Sigmoid (c)
        d = Mul (c, cs)
        e = Conv (d, w3, b3)
        gate = Sigmoid (e)
        f = Mul (b, gate)
        g = Conv (f, w4, b4)
        h = Add (g, b)
        means = ReduceMean <keepdims = 0> (h, axes)
        scores = Gemm (means, w5, b5)
        """,
        axes=[2, 3],
        w1=(WIDTH, 3, 3, 3), b1=(WIDTH,), w2=(4, WIDTH, 1, 1), b2=(4,), w3=(WIDTH, 4, 1, 1), b3=(WIDTH,),
        w4=(WIDTH, WIDTH, 1, 1), b4=(WIDTH,), w5=(WIDTH, 5), b5=(5,),
    )  # fmt: skip


# -- texts ------------------------------------------------------------------------------------------------------------

_ENCODER = """
    embedded = Gather (table, input_ids)
    x = LayerNormalization <axis = -1> (embedded, gain, shift)
    q = MatMul (x, wq)
    k = MatMul (x, wk)
    v = MatMul (x, wv)
    kt = Transpose <perm = [0, 2, 1]> (k)
    products = MatMul (q, kt)
    scaled = Mul (products, scale)
    {mask}
    masked = Add (scaled, mask)
    attention = Softmax <axis = -1> (masked)
    {guard}
    mixed = MatMul ({attention}, v)
    out = MatMul (mixed, wo)
    y0 = Add (x, out)
    y = LayerNormalization <axis = -1> (y0, gain, shift)
    h = MatMul (y, w1)
    h1 = Div (h, root2)
    h2 = Erf (h1)
    h3 = Add (h2, one)
    h4 = Mul (h, h3)
    h5 = MatMul (h4, w2)
    z0 = Add (y, h5)
    z = LayerNormalization <axis = -1> (z0, gain, shift)
    weight0 = Cast <to = 1> (attention_mask)
    weight = Unsqueeze (weight0, last)
    weighted = Mul (z, weight)
    total = ReduceSum <keepdims = 0> (weighted, middle)
    count0 = ReduceSum <keepdims = 0> (weight, middle)
    count = Clip (count0, tiny)
    mean = Div (total, count)
    norm0 = ReduceL2 <keepdims = 1> (mean, last)
    norm = Clip (norm0, tiny)
    vector = Div (mean, norm)
"""

MASKS = {
    # of BERT: one minus the mask, times the lowest number there is
    "product": (
        "m0 = Cast <to = 1> (attention_mask) m1 = Sub (one, m0) m2 = Unsqueeze (m1, middle) mask = Mul (m2, lowest)",
        {"lowest": FLOAT32_MIN},
    ),
    # of dynamo exports: where the mask is false
    "where": (
        "m0 = Cast <to = 9> (attention_mask) m1 = Unsqueeze (m0, middle) mask = Where (m1, zero, lowest)",
        {"lowest": FLOAT32_MIN, "zero": 0.0},
    ),
    # a constant spread to the shape of the batch
    "expand": (
        """m0 = Cast <to = 9> (attention_mask) m1 = Unsqueeze (m0, middle) size = Shape (m1)
        all = Expand (lowest, size) mask = Where (m1, zero, all)""",
        {"lowest": FLOAT32_MIN, "zero": 0.0},
    ),
    "constant of shape": (
        """m0 = Cast <to = 9> (attention_mask) m1 = Unsqueeze (m0, middle) size = Shape (m1)
        all = ConstantOfShape <value = float[1] {-3.4028234663852886e38}> (size) mask = Where (m1, zero, all)""",
        {"zero": 0.0},
    ),
    "infinity": (
        "m0 = Cast <to = 9> (attention_mask) m1 = Unsqueeze (m0, middle) mask = Where (m1, zero, lowest)",
        {"lowest": -np.inf, "zero": 0.0},
    ),
}


def encoder(mask: str = "product", guard: bool = False) -> bytes:
    """One layer of a transformer with mean pooling and normalisation. `guard`: as torch does, no NaN from masked rows."""
    text, constants = MASKS[mask]
    body = _ENCODER.format(
        mask=text,
        guard="bad = IsNaN (attention) safe = Where (bad, none, attention)" if guard else "",
        attention="safe" if guard else "attention",
    )
    if guard:
        constants = {**constants, "none": 0.0}
    square = (WIDTH, WIDTH)
    return net(
        f"(int64[n, m] input_ids, int64[n, m] attention_mask) => (float[n, {WIDTH}] vector)",
        body,
        table=np.random.default_rng(1).standard_normal((50, WIDTH)),
        gain=np.ones(WIDTH), shift=np.zeros(WIDTH), wq=square, wk=square, wv=square, wo=square,
        w1=(WIDTH, 4 * WIDTH), w2=(4 * WIDTH, WIDTH), scale=0.25, one=1.0, root2=2**0.5, tiny=1e-12,
        last=[-1], middle=[1], **constants,
    )  # fmt: skip


def texts(num_rows: int = 4, length: int = 7, is_last_empty: bool = False, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Rows of different lengths, padded."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, length + 1, num_rows)
    lengths[0] = length
    if is_last_empty:
        lengths[-1] = 0
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"input_ids": random.integers(0, 50, (num_rows, length)) * mask, "attention_mask": mask}


# -- others -----------------------------------------------------------------------------------------------------------


def perceptron() -> bytes:
    return net(
        "(float[n, 16] x) => (float[n, 5] y)",
        "a = Gemm <transB = 1> (x, w1, b1) b = Relu (a) c = Gemm (b, w2, b2) d = Relu (c) y = Gemm (d, w3, b3)",
        w1=(32, 16), b1=(32,), w2=(32, 32), b2=(32,), w3=(32, 5), b3=(5,),
    )  # fmt: skip


def branching() -> bytes:
    """An If whose branches use weights and values from outside."""
    return net(
        "(float[n, 16] x) => (float[n, 16] y)",
        """
        a = MatMul (x, w1)
        b = Relu (a)
        total = ReduceSum <keepdims = 0> (x)
        is_positive = Greater (total, zero)
        c = If (is_positive) <
            then_branch = above () => (float[n, 16] t) { t0 = MatMul (b, w1) t = Add (t0, a) },
            else_branch = below () => (float[n, 16] e) { e = Mul (b, minus) }
        >
        y = MatMul (c, w2)
        """,
        w1=(16, 16), w2=(16, 16), zero=0.0, minus=-1.0,
    )  # fmt: skip


def looping() -> bytes:
    """All products are inside a Loop's body."""
    return net(
        "(float[n, 16] x) => (float[n, 16] y)",
        """
        count = Constant <value = int64 {3}> ()
        yes = Constant <value = bool {1}> ()
        y = Loop (count, yes, x) <
            body = step (int64 i, bool going, float[n, 16] state) => (bool on, float[n, 16] next) {
                on = Identity (going) s = MatMul (state, w1) next = Tanh (s)
            }
        >
        """,
        w1=(16, 16),
    )


def overflowing() -> bytes:
    """Weights beyond FP16, taken back by the next layer's."""
    large = np.random.default_rng(2).standard_normal((16, 16)) * 1e6
    return net(
        "(float[n, 16] x) => (float[n, 4] y)",
        "a = MatMul (x, w1) b = Relu (a) c = Mul (b, small) d = MatMul (c, w2) e = Relu (d) y = MatMul (e, w3)",
        w1=large, small=1e-6, w2=(16, 16), w3=(16, 4),
    )  # fmt: skip


def swelling() -> bytes:
    """Ordinary weights, but values beyond FP16 between two layers, as only real inputs show."""
    return net(
        "(float[n, 16] x) => (float[n, 4] y)",
        "a = MatMul (x, w1) b = MatMul (a, w2) c = Mul (b, half) d = Mul (c, small) e = Relu (d) y = MatMul (e, w3)",
        w1=np.full((16, 16), 400.0), w2=np.full((16, 16), 400.0), half=0.5, small=1e-3, w3=(16, 4),
    )  # fmt: skip


def rotary() -> bytes:
    """Positions times frequencies, with Sin and Cos of them, as in rotary embeddings."""
    return net(
        "(float[n, m, 8] x) => (float[n, m, 8] y)",
        """
        size = Shape (x)
        length0 = Gather (size, one)
        length = Squeeze (length0)
        positions0 = Range (first, length, step)
        positions1 = Cast <to = 1> (positions0)
        positions = Unsqueeze (positions1, last)
        angles = MatMul (positions, frequencies)
        s = Sin (angles)
        c = Cos (angles)
        q = MatMul (x, w1)
        a = Mul (q, c)
        b = Mul (q, s)
        d = Add (a, b)
        y = MatMul (d, w2)
        """,
        one=[1], first=np.array(0), step=np.array(1), last=[-1],
        frequencies=10000.0 ** (-np.arange(8) / 8)[None, :], w1=(8, 8), w2=(8, 8),
    )  # fmt: skip


def recurrent(kind: str) -> bytes:
    """LSTM or GRU over [m, n, 16]."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    return net(
        "(float[m, n, 16] x) => (float[1, n, 16] y)",
        f"all, y = {kind} <hidden_size = 16> (x, w, r, b)",
        w=(1, gates * 16, 16), r=(1, gates * 16, 16), b=(1, gates * 32),
    )  # fmt: skip


def arithmetic() -> bytes:
    """Nothing to gain: no product."""
    return net("(float[n, 16] x) => (float[n, 16] y)", "a = Mul (x, x) y = Tanh (a)")


def outlying() -> bytes:
    """Its first layer reads one value 200 times as large as the others, of no weight: INT8's steps lose all others."""
    first = np.random.default_rng(3).standard_normal((16, 32)) / 4
    first[0] = 1e-5
    return net(
        "(float[n, 16] x) => (float[n, 8] y)",
        "a = MatMul (x, w1) b = Relu (a) c = MatMul (b, w2) d = Relu (c) e = MatMul (d, w3) f = Relu (e) y = MatMul (f, w4)",
        w1=first, w2=(32, 32), w3=(32, 32), w4=(32, 8),
    )  # fmt: skip


def outlying_rows(num_rows: int = 32, seed: int = 0) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((num_rows, 16)).astype(np.float32)
    rows[:, 0] = 200 * np.sign(rows[:, 0])
    return rows


def rows(num_rows: int = 32, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_rows, 16)).astype(np.float32)
