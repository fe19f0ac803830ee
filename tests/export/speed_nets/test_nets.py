"""The untrained nets: the real architectures' size and layers, living activations, free batch dimensions, always the same."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import onnx
import pytest

from serving.errors import UserError
from serving.export import speed_nets
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.speed_nets import NETS, bert, load, mlp
from serving.export.speed_nets.graph import run
from tests.export.speed_nets.conftest import Made, num_parameters

pytestmark = pytest.mark.slow  # draws tens of millions of random numbers

SMALL = [name for name in NETS if name != "bert-base"]


@pytest.fixture(params=["a small mlp", *(pytest.param(name, marks=pytest.mark.thorough) for name in SMALL)])
def drawn(request: pytest.FixtureRequest, made: Made, monkeypatch: pytest.MonkeyPatch) -> ExportedModel:
    """Each net, which takes seconds to draw; in every run one of a hundredth of an mlp's weights."""
    if request.param in SMALL:
        return made(request.param)
    monkeypatch.setattr(mlp, "HIDDEN", (128, 128))
    return load("mlp")


# What the real ones have. Folding a normalisation into its convolution leaves one number per channel instead of two.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "millions"), [("resnet50", 25.557), ("efficientnet-b2", 9.110), ("minilm", 22.713), ("mlp", 25.077)]
)
def test_a_net_has_as_many_parameters_as_the_real_one(name: str, millions: float, made: Made) -> None:
    assert num_parameters(made(name).model) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SMALL)
def test_a_row_in_a_batch_is_the_row_alone_and_rows_answer_differently(name: str, made: Made) -> None:
    exported = made(name)
    together = run(exported.model, {key: values[:4] for key, values in exported.example.items()})[0]
    for count in (1, 3):
        alone = run(exported.model, {key: values[:count] for key, values in exported.example.items()})[0]
        np.testing.assert_allclose(alone, together[:count], atol=1e-4)
    assert np.abs(together[0] - together[1:]).max(axis=1).min() > 1e-3


def test_examples_differ(drawn: ExportedModel) -> None:
    first = next(iter(drawn.example.values()))
    assert len(first) >= 4
    assert not any(np.array_equal(row, other) for row, other in itertools.combinations(first, 2))


def test_a_net_is_what_its_record_will_say(drawn: ExportedModel) -> None:
    graph = onnx.load_from_string(drawn.model)
    assert drawn.is_untrained
    assert drawn.run is None
    assert "seed 50" in drawn.source
    assert graph.ir_version == 10
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 18)]
    for tensor, given in zip(drawn.inputs, graph.graph.input, strict=True):
        dims = [dim.dim_value or -1 for dim in given.type.tensor_type.shape.dim]
        assert (tensor.name, [-1, *tensor.shape]) == (given.name, dims)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "HIDDEN", (128, 128))  # the same in a tenth of the time
    first = load("mlp").model
    assert load("mlp").model == first
    assert load("mlp", seed=51).model != first


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "num_convolutions", "num_depthwise"),
    [("resnet50", 53, 0), ("efficientnet-b2", 115, 23)],
)
def test_convolutions_are_those_of_the_papers(name: str, num_convolutions: int, num_depthwise: int, made: Made) -> None:
    groups = [
        attribute.i
        for node in onnx.load_from_string(made(name).model).graph.node
        if node.op_type == "Conv"
        for attribute in node.attribute
        if attribute.name == "group"
    ]
    assert (len(groups), sum(group > 1 for group in groups)) == (num_convolutions, num_depthwise)


@pytest.mark.thorough
def test_swish_is_where_the_paper_has_it(made: Made) -> None:
    kinds = Counter(node.op_type for node in onnx.load_from_string(made("efficientnet-b2").model).graph.node)
    assert kinds["Sigmoid"] == 1 + 21 + 23 + 1 + 23 + 23  # stem, expansions, depthwise, head, squeezes; and the gates


def test_a_later_opset_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "HIDDEN", (128, 128))
    exported = load("mlp", SourceOptions(opset=20))
    assert onnx.load_from_string(exported.model).opset_import[0].version == 20


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet5", SourceOptions(), "did you mean 'resnet50'"),
        ("vgg", SourceOptions(), "known are resnet50, efficientnet-b2"),
        ("mlp", SourceOptions(opset=17), "opset 18 to 21, not 17"),
        ("mlp", SourceOptions(opset=23), "opset 18 to 21, not 23"),
        ("resnet50", SourceOptions(image_size=128), "--image-size does not apply to an untrained net"),
        ("minilm", SourceOptions(pooling="cls"), "--pooling does not apply"),
        ("minilm", SourceOptions(is_normalised=False), "--normalise does not apply"),
        ("mlp", SourceOptions(task="embedding"), "--task does not apply"),
        ("mlp", SourceOptions(max_length=8), "speed:mlp takes no text"),
        ("minilm", SourceOptions(max_length=513), "takes 1 to 512 tokens, not 513"),
        ("minilm", SourceOptions(max_length=0), "takes 1 to 512 tokens, not 0"),
    ],
)
def test_what_a_net_cannot_do_is_refused_before_it_is_drawn(name: str, options: SourceOptions, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(name, options)


def test_the_length_and_the_batch_size_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    small = bert.BertShape("small", num_layers=1, width=32, num_heads=4, is_pooled=True)
    monkeypatch.setitem(speed_nets._NETS, "minilm", bert._net(small, max_batch_size=32, num_tokens=32))  # type: ignore[index, unused-ignore]
    exported = load("minilm", SourceOptions(max_length=24, max_batch_size=4))
    assert exported.example["input_ids"].shape[1] == 24
    assert exported.max_batch_size == 4


@pytest.mark.thorough
@pytest.mark.parametrize(("asked", "gets"), [(None, 64), (32, 32), (7, 7)])
def test_a_batch_size_that_is_asked_for_counts_whatever_other_sources_have_by_default(
    asked: int | None, gets: int
) -> None:
    assert load("mlp", SourceOptions(max_batch_size=asked)).max_batch_size == gets
