"""The BERT-shaped nets: masks, dynamic lengths, and the fusions that ONNX Runtime finds in a real export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from serving.errors import EnvironmentFault
from serving.export.exported_model import SourceOptions
from serving.export.speed_nets import bert, load
from serving.export.speed_nets.graph import run
from tests.export.speed_nets.conftest import num_parameters

CLASSIFIER = bert.BertShape("small", 2, 64, 4, is_pooled=False, vocabulary=200)
POOLED = bert.BertShape("small", 2, 64, 4, is_pooled=True, vocabulary=200)
SHAPES = pytest.mark.parametrize("shape", [CLASSIFIER, POOLED], ids=["classifier", "pooled"])


@SHAPES
def test_padding_changes_nothing(shape: bert.BertShape) -> None:
    model = bert.build(shape, 1, 18)
    words = np.random.default_rng(2).integers(1, 200, (3, 9))
    plain = run(model, {"input_ids": words, "attention_mask": np.ones((3, 9), np.int64)})[0]
    for filler in (0, 7):
        padded = np.concatenate([words, np.full((3, 14), filler)], axis=1)
        mask = (np.arange(23) < 9).astype(np.int64)[None].repeat(3, axis=0)
        np.testing.assert_allclose(run(model, {"input_ids": padded, "attention_mask": mask})[0], plain, atol=1e-5)


@SHAPES
@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 1), (1, 512), (5, 3)])
def test_batch_and_sequence_are_free(shape: bert.BertShape, num_rows: int, num_tokens: int) -> None:
    inputs = bert.examples(shape, num_rows, 3, num_tokens)
    answers = run(bert.build(shape, 1, 18), inputs)[0]
    assert answers.shape == (num_rows, *shape.output.shape)
    assert np.isfinite(answers).all()


def test_more_tokens_than_positions_are_an_error_and_no_answer() -> None:
    with pytest.raises(Exception, match=r"513|broadcast|BroadcastIterator"):
        run(bert.build(POOLED, 1, 18), bert.examples(POOLED, 1, 3, 513))


def test_order_and_words_matter() -> None:
    model = bert.build(POOLED, 1, 18)
    words = np.random.default_rng(2).integers(1, 200, (1, 12))
    mask = np.ones((1, 12), np.int64)
    (plain,) = run(model, {"input_ids": words, "attention_mask": mask})[0]
    (turned,) = run(model, {"input_ids": words[:, ::-1].copy(), "attention_mask": mask})[0]
    (others,) = run(model, {"input_ids": words[:, ::2].repeat(2, axis=1), "attention_mask": mask})[0]
    assert np.abs(plain - turned).max() > 1e-4
    assert np.abs(plain - others).max() > 1e-4


def test_vectors_have_length_1() -> None:
    vectors = run(bert.build(POOLED, 1, 18), bert.examples(POOLED, 6, 3, 32))[0]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_examples_are_real_words_of_the_vocabulary_and_every_other_row_is_padded() -> None:
    inputs = bert.examples(bert.BASE, 8, 1, 64)
    words, mask = inputs["input_ids"], inputs["attention_mask"]
    lengths = mask.sum(axis=1)
    assert words.max() < 30522
    assert (words[mask == 1] >= 1000).all()
    assert (words[mask == 0] == 0).all()
    assert (lengths[::2] == 64).all()
    assert lengths.min() >= 16
    assert len(set(lengths[1::2])) > 1


# What ONNX Runtime 1.31 makes of transformers' BertForSequenceClassification with attn_implementation="eager", two layers,
# exported by torch 2.15: where one of these is missing, an untrained net would be slower or faster than a real one.
FUSED = {"SkipLayerNormalization": 4, "LayerNormalization": 1, "FusedMatMul": 2, "FusedGemm": 1, "Gemm": 1}
PLAIN = {"MatMul": 14, "Softmax": 2, "Erf": 2, "Div": 2, "Mul": 4, "Add": 14, "Transpose": 8, "Reshape": 8}


def test_onnx_runtime_fuses_what_it_fuses_in_a_real_export(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(bert.build(CLASSIFIER, 1, 18), options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert {kind: kinds[kind] for kind in FUSED | PLAIN} == FUSED | PLAIN


def test_a_bert_whose_words_are_all_alike_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "EMBEDDING_DEVIATION", 0.0)
    with pytest.raises(EnvironmentFault, match=r"random.*answers"):
        bert.build(CLASSIFIER, 1, 18)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(300)  # 440 MB of random numbers, on a machine with other work
def test_bert_base_has_as_many_parameters_as_the_real_one_and_lives() -> None:
    exported = load("bert-base", SourceOptions(max_length=16))
    assert num_parameters(exported.model) / 1e6 == pytest.approx(109.482, rel=0.001)
    assert exported.max_batch_size == 8
