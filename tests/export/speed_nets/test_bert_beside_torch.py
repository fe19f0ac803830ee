"""The same weights in transformers' BertModel and in ours give the same answers: ours is a BERT, not something like one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from serving.export.speed_nets import bert
from serving.export.speed_nets.graph import run

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.thorough]

SHAPE = bert.BertShape("small", 2, 64, 4, is_pooled=False, vocabulary=2000)


def test_our_bert_answers_as_transformers_does() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=SHAPE.vocabulary,
        num_hidden_layers=SHAPE.num_layers,
        hidden_size=SHAPE.width,
        num_attention_heads=SHAPE.num_heads,
        intermediate_size=4 * SHAPE.width,
        num_labels=bert.NUM_CLASSES,
    )
    theirs = transformers.BertForSequenceClassification(config).eval()
    model = bert.build(SHAPE, 1, 18)
    ours = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(model).graph.initializer}
    state = theirs.state_dict()
    for name, values in state.items():
        mine = ours[name.removeprefix("bert.")]
        is_turned = name.startswith("bert.encoder") and mine.ndim == 2  # a MatMul's matrix is [in, out]
        values.copy_(torch.from_numpy(np.array(mine.T if is_turned else mine)))
    inputs = bert.examples(SHAPE, 6, 2, 40)
    with torch.no_grad():
        wanted = theirs(**{name: torch.from_numpy(values) for name, values in inputs.items()}).logits.numpy()
    np.testing.assert_allclose(run(model, inputs)[0], wanted, atol=1e-5)
