"""Variants of what torch's exporter really writes: small BERT, ResNet, EfficientNet and ViT with random weights."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from serving.export import onnx_session
from serving.export.exported_model import Arrays, SourceOptions
from serving.export.onnx_parts import MAX_IR_VERSION
from serving.export.recipes import minilm
from serving.export.sources import hugging_face
from serving.export.variants import candidates
from serving.export.variants.as_on_gpu import as_on_gpu

from ..sources import tiny
from . import nets

pytestmark = [pytest.mark.models, pytest.mark.thorough]

BATCH, LENGTH = "batch", "length"


def exported(module: Any, example: Arrays, output: str, dynamic: dict[str, dict[int, str]]) -> bytes:
    from serving.export.sources.torch_export import to_onnx

    return to_onnx(module.eval(), example, [output], dynamic, 18, lambda *_: None)


def texts(num_rows: int = 4, length: int = 11, is_last_empty: bool = False, seed: int = 0) -> dict[str, NDArray[Any]]:
    made = nets.texts(num_rows, length, is_last_empty, seed)
    return {**made, "token_type_ids": np.zeros_like(made["input_ids"])}


def images(num_rows: int = 4, seed: int = 0, size: int = 64) -> dict[str, NDArray[Any]]:
    return {"pixel_values": np.random.default_rng(seed).standard_normal((num_rows, 3, size, size)).astype(np.float32)}


@pytest.fixture(scope="module")
def bert() -> bytes:
    import torch
    from transformers import BertConfig, BertModel

    class Embedder(torch.nn.Module):
        """Mean pooling and normalisation inside, as for sentence vectors."""

        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(
                vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
            )
            self.bert = BertModel(config, add_pooling_layer=False)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
            weights = attention_mask.unsqueeze(-1).to(states.dtype)
            mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=-1)

    torch.manual_seed(0)
    axes = {name: {0: BATCH, 1: LENGTH} for name in ("input_ids", "attention_mask", "token_type_ids")}
    return exported(Embedder(), texts(), "vector", axes)


def network(kind: str) -> bytes:
    import torch
    import transformers

    torch.manual_seed(0)
    if kind == "resnet":
        config = transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic", num_labels=10
        )
        model = transformers.ResNetForImageClassification(config)
    elif kind == "efficientnet":
        config = transformers.EfficientNetConfig(
            image_size=64, hidden_dim=640, width_coefficient=0.5, depth_coefficient=0.3, num_labels=10
        )
        model = transformers.EfficientNetForImageClassification(config)
    else:
        config = transformers.ViTConfig(
            image_size=64, patch_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128, num_labels=10,
        )  # fmt: skip
        model = transformers.ViTForImageClassification(config)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values=pixel_values).logits

    with torch.no_grad():  # fresh ones let values fade away layer by layer, until FP16 has none of them
        for part in model.modules():
            if isinstance(part, torch.nn.Conv2d | torch.nn.Linear):
                torch.nn.init.kaiming_normal_(part.weight, nonlinearity="linear")
            if isinstance(part, torch.nn.BatchNorm2d):
                torch.nn.init.ones_(part.weight)
        model.train()  # for statistics of batch norms that fit
        for seed in range(5):
            model(pixel_values=torch.from_numpy(images(16, seed)["pixel_values"]))
    return exported(Logits(), images(), "logits", {"pixel_values": {0: BATCH}})


@pytest.fixture(scope="module", params=["resnet", "efficientnet", "vit"])
def image_net(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    return request.param, network(request.param)


def kinds(model: bytes) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load_from_string(model).graph.node)


def test_fp16_of_bert_is_near_fp32_for_all_lengths_and_batches(bert: bytes) -> None:
    [candidate] = candidates("fp16", bert, texts())
    for inputs in (texts(), texts(1, 5), texts(7, 30, seed=2), texts(3, 6, is_last_empty=True)):
        assert nets.difference(bert, as_on_gpu(candidate.model), **inputs) < 0.01
        assert np.isfinite(nets.answers(candidate.model, **inputs)[0]).all()


def test_fp16_of_bert_casts_few_values_and_keeps_its_interface(bert: bytes) -> None:
    [candidate] = candidates("fp16", bert, None)
    before, after = onnx.load_from_string(bert), onnx.load_from_string(candidate.model)
    onnx.checker.check_model(after, full_check=True)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert after.ir_version <= MAX_IR_VERSION
    norms = kinds(bert)["LayerNormalization"] + kinds(bert)["Softmax"]
    assert kinds(candidate.model)["Cast"] - kinds(bert)["Cast"] <= 2 * norms + 4
    assert len(candidate.model) < 0.7 * len(bert)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_what_transformers_exports_of_an_encoder_is_fused_whole(kind: str, tmp_path: Path) -> None:
    tiny.sentences(tmp_path, kind)
    exported = hugging_face.load(str(tmp_path), SourceOptions(), lambda *_: None)
    rows = {key: values for key, values in texts().items() if key in exported.example}
    first, second = candidates("fp16", exported.model, rows, fuses=True)
    assert dict(first.fused) == {"Attention": 1, "BiasGelu": 1, "SkipLayerNormalization": 2}
    for candidate in (first, second):
        assert nets.difference(exported.model, as_on_gpu(candidate.model), **rows) < 0.01


def test_the_real_minilm_is_fused_whole_and_nearer_to_fp32_than_the_plain_fp16() -> None:
    exported = minilm.load(SourceOptions(), lambda *_: None)
    rows = minilm.gate_data(exported).inputs
    first, second = candidates("fp16", exported.model, minilm.calibration(exported), fuses=True)
    assert dict(first.fused) == {"Attention": 6, "BiasGelu": 6, "SkipLayerNormalization": 12}
    reference, *others = (
        onnx_session.answers(model, rows, 32)[0]
        for model in (exported.model, as_on_gpu(first.model), as_on_gpu(second.model))
    )
    fused, plain = (np.abs(vectors - reference).max() for vectors in others)
    assert 0 < fused < plain < 0.001


def test_int8_of_bert_is_dynamic_and_near_fp32(bert: bytes) -> None:
    for candidate in candidates("int8", bert, None):
        assert candidate.how.startswith("dynamic, MatMul")
        assert kinds(candidate.model)["MatMulInteger"] == 12  # six of each layer
        for inputs in (texts(), texts(1, 5), texts(7, 30, seed=2)):
            vectors, low = nets.answers(bert, **inputs)[0], nets.answers(candidate.model, **inputs)[0]
            assert (vectors * low).sum(1).min() > 0.99  # cosines, for both have length one


def test_a_second_try_of_bert_leaves_products_in_fp32(bert: bytes) -> None:
    hows = [candidate.how for candidate in candidates("int8", bert, texts(8), second_try=True)]
    assert [how.rpartition(" of 12 layers")[0].rpartition(" ")[2] for how in hows] == ["2", "3", "6", "9"]


def test_bert_for_tensorrt_is_symmetric_and_its_masks_spoil_no_scale(bert: bytes) -> None:
    candidate = next(candidates("int8", bert, texts(64, 30, seed=5), is_for_tensorrt=True))
    for inputs in (texts(8, 20), texts(2, 7, seed=9)):
        vectors, low = nets.answers(bert, **inputs)[0], nets.answers(as_on_gpu(candidate.model), **inputs)[0]
        assert (vectors * low).sum(1).min() > 0.98


def test_fp16_of_an_image_net_is_near_fp32(image_net: tuple[str, bytes]) -> None:
    _, fp32 = image_net
    [candidate] = candidates("fp16", fp32, images())
    for num_rows in (1, 5):
        assert nets.difference(fp32, as_on_gpu(candidate.model), **images(num_rows, seed=3)) < 0.02
    assert len(candidate.model) < 0.6 * len(fp32)


def test_int8_of_an_image_net_is_made_as_its_weights_say(image_net: tuple[str, bytes]) -> None:
    name, fp32 = image_net
    found = list(islice(candidates("int8", fp32, images(32, seed=1)), 2))
    assert {candidate.how.split()[0].rstrip(",") for candidate in found} == {"dynamic" if name == "vit" else "static"}
    best = min(nets.difference(fp32, candidate.model, **images(8, seed=3)) for candidate in found)
    assert best < (0.1 if name != "efficientnet" else 0.4)  # Swish in 8 bits, untrained
    if name == "vit":
        return
    assert kinds(found[0].model)["ReduceMean"] == 0  # which has no INT8 kernel
    assert kinds(found[0].model)["GlobalAveragePool"] >= 1
