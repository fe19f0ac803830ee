"""Small models that are made in a moment, as an export leaves them: an ONNX file with a record, and for texts a tokenizer.

The embeddings model gives a text the mean of its tokens' rows in a table, of length 1, so that NumPy can say what is right. For benches,
fuzzers and tests, where a trained model would take torch. Needs onnx and tokenizers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, checker, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from loadtest.processes import ROOT
from serving.export.publish import publish_all, writing
from serving.repository import EMBEDDING, PASSED, UNTRAINED, Gate, PoolGate, Record, Tensor
from serving.repository.preprocessing import TextPreprocessing, to_json

SIZE = 8
MAX_LENGTH = 32
MAX_ROWS = 8
SENTENCES = (ROOT / "loadtest" / "payloads" / "sentences.txt").read_text(encoding="utf-8").splitlines()
INPUTS = ("input_ids", "attention_mask")
PREPROCESSING = TextPreprocessing(
    tokenizer="tokenizer.json",
    inputs={name: name for name in INPUTS},
    max_length=MAX_LENGTH,
    pad_token_id=0,
    pooling="mean",
    is_normalised=True,
)


def make_tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(SENTENCES[:60], trainers.WordPieceTrainer(vocab_size=400, special_tokens=marks))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


TOKENIZER = make_tokenizer()


@dataclass(frozen=True, slots=True)
class Words:
    """A model's table, float32 [ids, SIZE]."""

    table: NDArray[np.float32]

    @classmethod
    def drawn(cls, seed: int) -> Words:
        shape = (TOKENIZER.get_vocab_size(), SIZE)
        return cls(np.random.default_rng(seed).normal(size=shape).astype(np.float32))

    def vector(self, ids: list[int]) -> NDArray[np.float32]:
        mean = self.table[ids].mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean), np.float32)

    def of_text(self, text: str) -> NDArray[np.float32]:
        return self.vector(TOKENIZER.encode(text).ids)

    def onnx(self, *, output: str = "sentence_vector", integer: int = TensorProto.INT64) -> bytes:
        """`output` "token_vectors": one for each token, not pooled."""
        is_pooled = output == "sentence_vector"
        nodes = [
            helper.make_node("Gather", ["table", "input_ids"], ["rows" if is_pooled else output]),
            helper.make_node("Cast", ["attention_mask"], ["there"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["there", "last"], ["wide"]),
        ]
        if is_pooled:
            nodes += [
                helper.make_node("Mul", ["rows", "wide"], ["kept"]),
                helper.make_node("ReduceSum", ["kept", "along"], ["sum"], keepdims=0),
                helper.make_node("ReduceL2", ["sum", "along"], ["norm"], keepdims=1),
                helper.make_node("Div", ["sum", "norm"], [output]),
            ]
        constants = {"table": self.table, "last": np.array([2]), "along": np.array([1])}
        given = [helper.make_tensor_value_info(name, integer, ["n", "length"]) for name in INPUTS]
        shape: list[int | str] = ["n", SIZE] if is_pooled else ["n", "length", SIZE]
        made = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        arrays = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        model = helper.make_model(
            helper.make_graph(nodes, "words", given, [made], arrays),
            opset_imports=[helper.make_opsetid("", 18)],
            ir_version=10,
        )
        checker.check_model(model)
        return bytes(model.SerializeToString())


WORDS = Words.drawn(1)
OTHER_SPACE = Words.drawn(2)
BASE = Record(
    model="words",
    variant="fp32",
    model_version=1,
    created="2026-01-02",
    source="drawn",
    task=EMBEDDING,
    toolchain={},
    max_batch_size=MAX_ROWS,
    queue_delay_us=0,
    warmup_batch_sizes=(),
    inputs=tuple(Tensor(name, "INT64", (-1,)) for name in INPUTS),
    outputs=(Tensor("sentence_vector", "FP32", (SIZE,)),),
    labels=None,
    preprocessing="preprocessing.json",
    needs=(),
    space="words@1",
    sample=None,
    gate=Gate(UNTRAINED, "fp32", (), 1, "drawn", "0" * 64, ()),
    pools={"cpu": PoolGate(PASSED, "cpu", "the baseline")},
    speed=(),
    not_made={},
    files={},
)
BESIDE = {"tokenizer.json": str(TOKENIZER.to_str()).encode(), "preprocessing.json": to_json(PREPROCESSING).encode()}


def write(folder: Path, *entries: tuple[Record, bytes, dict[str, bytes]]) -> Path:
    """Writes these into a repository, which may be a new one: record, model file, files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder):
        publish_all(folder, [(record, {record.model_file: model, **beside}) for record, model, beside in entries])
    return folder
