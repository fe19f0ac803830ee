"""Text models of transformers: ONNX Runtime answers what the framework answers, with pooling inside the graph. Tiny models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import tokenizers

from serving.errors import UserError
from serving.export.data import texts
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import silent
from serving.export.sources import hugging_face
from serving.export.sources.hf_folder import Folder
from serving.repository.preprocessing import TextPreprocessing

from . import tiny

hf_loading = pytest.importorskip("serving.export.sources.hf_loading", exc_type=ImportError)
pytestmark = pytest.mark.models

SHAPES = [(1, 1), (1, 33), (3, 1), (3, 7), (3, 33)]


def load(folder: Path, **options: Any) -> ExportedModel:
    return hugging_face.load(str(folder), SourceOptions(**options), silent)


def tokens(exported: ExportedModel, num_rows: int, length: int, seed: int = 0) -> dict[str, Any]:
    """Random words; each row but the first ends in padding."""
    random = np.random.default_rng(seed)
    mask = np.ones((num_rows, length), np.int64)
    for row in range(1, num_rows):
        mask[row, max(1, length - 2 * row) :] = 0
    arrays = {"input_ids": random.integers(5, 80, mask.shape) * mask, "attention_mask": mask}
    if any(tensor.name == "token_type_ids" for tensor in exported.inputs):
        arrays["token_type_ids"] = np.zeros_like(mask)
    return arrays


def answers(exported: ExportedModel, inputs: dict[str, Any]) -> Any:
    session = ort.InferenceSession(exported.model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, inputs)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mini")
    tiny.sentences(folder)
    return folder


@pytest.fixture(scope="module")
def mini(folder: Path) -> ExportedModel:
    return load(folder)


@pytest.fixture(scope="module", params=["distilbert-cls", "roberta-max"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    kind, _, pooling = request.param.partition("-")
    folder = tmp_path_factory.mktemp(request.param)
    tiny.sentences(folder, kind, pooling, is_normalised=pooling == "cls")
    return load(folder)


@pytest.mark.parametrize(("num_rows", "length"), SHAPES)
def test_vectors_are_the_frameworks(mini: ExportedModel, num_rows: int, length: int) -> None:
    inputs = tokens(mini, num_rows, length)
    assert mini.run is not None
    (want,) = mini.run(inputs)
    assert np.abs(answers(mini, inputs) - want).max() < 1e-5
    assert want.shape == (num_rows, 32)


@pytest.mark.thorough
@pytest.mark.parametrize(("num_rows", "length"), [(1, 7), (3, 33)])
def test_other_encoders_with_other_poolings_are_the_frameworks(
    other: ExportedModel, num_rows: int, length: int
) -> None:
    inputs = tokens(other, num_rows, length)
    assert other.run is not None
    assert np.abs(answers(other, inputs) - other.run(inputs)[0]).max() < 1e-5


def test_the_pooling_is_what_sentence_transformers_computes(mini: ExportedModel, folder: Path) -> None:
    import torch
    import transformers

    inputs = tokens(mini, 3, 9)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        given = model(**{name: torch.from_numpy(values) for name, values in inputs.items()})
    mask = inputs["attention_mask"][:, :, None]
    vectors = (given.last_hidden_state.numpy() * mask).sum(axis=1) / mask.sum(axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(answers(mini, inputs) - vectors).max() < 1e-5


@pytest.mark.thorough
def test_a_row_without_any_token_gives_zeros_and_never_nan(mini: ExportedModel, other: ExportedModel) -> None:
    for exported in (mini, other):
        inputs = tokens(exported, 3, 7)
        inputs["attention_mask"][1] = 0
        found = answers(exported, inputs)
        assert np.isfinite(found).all()
        assert np.abs(found[1]).max() == 0


def test_padding_changes_no_vector(mini: ExportedModel) -> None:
    alone = tokens(mini, 1, 7)
    padded = {name: np.pad(values, ((0, 0), (0, 9))) for name, values in alone.items()}
    assert np.abs(answers(mini, alone) - answers(mini, padded)).max() < 1e-5


def test_what_is_known_of_the_model_is_told(mini: ExportedModel, folder: Path) -> None:
    assert [(t.name, t.datatype, t.shape) for t in mini.inputs] == [
        ("input_ids", "INT64", (-1,)),
        ("attention_mask", "INT64", (-1,)),
        ("token_type_ids", "INT64", (-1,)),
    ]
    assert [(t.name, t.datatype, t.shape) for t in mini.outputs] == [("sentence_vector", "FP32", (32,))]
    assert mini.task == "embedding"
    assert mini.framework == "pytorch"
    assert mini.source == f"hf: {folder.name}"
    assert {"torch", "transformers", "onnx"} <= set(mini.toolchain)
    assert mini.preprocessing == TextPreprocessing(
        tokenizer="tokenizer.json",
        inputs={name: name for name in ("input_ids", "attention_mask", "token_type_ids")},
        max_length=48,
        pad_token_id=0,
        pooling="mean",
        is_normalised=True,
    )
    ids = mini.example["input_ids"]
    assert len(ids) >= 4
    assert len({tuple(row) for row in ids}) == len(ids)


@pytest.mark.thorough
def test_types_of_tokens_are_an_input_only_where_the_model_takes_them(other: ExportedModel) -> None:
    import onnx

    takes = {value.name for value in onnx.load_from_string(other.model).graph.input}
    assert takes == {tensor.name for tensor in other.inputs}
    assert takes >= {"input_ids", "attention_mask"}


def test_the_tokenizer_travels_as_a_file_that_gives_transformers_ids(mini: ExportedModel, folder: Path) -> None:
    import transformers

    assert isinstance(mini.preprocessing, TextPreprocessing)
    file = mini.files["tokenizer.json"]
    assert json.loads(file)["padding"] is None
    assert json.loads(file)["truncation"] is None
    sentences = ["What time is it?", "late. " * 40]
    given = texts.encode(file, mini.preprocessing, sentences)
    own = transformers.AutoTokenizer.from_pretrained(folder)
    want = own(sentences, padding=True, truncation=True, max_length=48, return_tensors="np")
    assert np.array_equal(given["input_ids"], want["input_ids"])
    assert np.array_equal(given["attention_mask"], want["attention_mask"])


@pytest.mark.thorough
def test_texts_that_sentence_transformers_puts_in_lower_case_are_so_by_the_file(tmp_path: Path) -> None:
    from serving.export.sources import hf_texts

    tiny.save_tokenizer(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    tiny.write(tmp_path / "tokenizer.json", tokenizer)
    file = hf_texts.tokenizer_of(Folder(tmp_path, "hf: test"), SourceOptions(), is_lowered=True).file
    upper, lower = (tokenizers.Tokenizer.from_str(file.decode()).encode(text).tokens for text in ("ABC", "abc"))
    assert upper == lower == ["[CLS]", "a", "##b", "##c", "[SEP]"]


def test_an_encoder_alone_takes_its_pooling_from_the_options(tmp_path: Path) -> None:
    tiny.save("AutoModel", tiny.config("distilbert"), tmp_path)
    tiny.save_tokenizer(tmp_path, has_types=True)  # which it makes, and the model does not take
    exported = load(tmp_path, pooling="mean", is_normalised=True, max_length=20)
    assert isinstance(exported.preprocessing, TextPreprocessing)
    assert (exported.preprocessing.pooling, exported.preprocessing.max_length) == ("mean", 20)
    assert [tensor.name for tensor in exported.inputs] == ["input_ids", "attention_mask"]
    assert np.allclose(np.linalg.norm(answers(exported, tokens(exported, 3, 7)), axis=1), 1, atol=1e-5)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    folder = tmp_path_factory.mktemp("classifier")
    config = tiny.config("bert", id2label={0: "bad", 1: "so\nso", 2: "good"})
    tiny.save("AutoModelForSequenceClassification", config, folder)
    tiny.save_tokenizer(folder)
    return load(folder)


@pytest.mark.parametrize(("num_rows", "length"), SHAPES)
def test_a_text_classifiers_probabilities_are_the_frameworks(
    classifier: ExportedModel, num_rows: int, length: int
) -> None:
    inputs = tokens(classifier, num_rows, length)
    found = answers(classifier, inputs)
    assert classifier.run is not None
    assert np.abs(found - classifier.run(inputs)[0]).max() < 1e-5
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)


def test_a_text_classifier_has_its_labels_in_lines_of_their_own(classifier: ExportedModel) -> None:
    assert classifier.labels == ("bad", "so so", "good")
    assert (classifier.outputs[0].name, classifier.task) == ("probabilities", "classification")
    assert isinstance(classifier.preprocessing, TextPreprocessing)
    assert classifier.preprocessing.pooling == "none"


@pytest.mark.thorough
def test_a_model_that_gives_one_number_is_served_as_it_is_when_asked(tmp_path: Path) -> None:
    tiny.save("AutoModelForSequenceClassification", tiny.config("distilbert", num_labels=1), tmp_path)
    tiny.save_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"--task.*serves"):
        load(tmp_path)
    exported = load(tmp_path, task="other")
    assert exported.run is not None
    inputs = tokens(exported, 3, 7)
    assert np.abs(answers(exported, inputs) - exported.run(inputs)[0]).max() < 1e-5
    assert (exported.outputs[0].name, exported.outputs[0].shape) == ("scores", (1,))
    assert exported.labels is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "sums_to_one"),
    [(None, True), ("single_label_classification", True), ("multi_label_classification", False)],
)
def test_classes_that_go_together_have_a_probability_each(problem: str | None, sums_to_one: bool) -> None:
    import torch

    name, activation = hf_loading.scores(tiny.config("bert", num_labels=3, problem_type=problem), False)
    found = activation(torch.tensor([[1.0, 2.0, -3.0]]))
    assert name == "probabilities"
    assert (abs(float(found.sum()) - 1) < 1e-6) == sums_to_one


# -- what is refused --------------------------------------------------------------------------------------------------


def test_weights_that_would_be_random_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "modules.json").unlink()
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    tiny.write(tmp_path / "copy" / "config.json", {**config, "architectures": ["BertForSequenceClassification"]})
    with pytest.raises(UserError, match=r"2.*weights.*BertForSequenceClassification \(classifier.bias\)"):
        load(tmp_path / "copy")


@pytest.mark.parametrize(("asked", "tried"), [(65, 65), (1_000_000, 2048)])
def test_a_length_that_the_positions_do_not_hold_is_found_before_a_client_finds_it(
    folder: Path, asked: int, tried: int
) -> None:
    with pytest.raises(UserError, match=rf"{tried}.*smaller.*--max-length"):
        load(folder, max_length=asked)


def test_a_tokenizer_without_padding_makes_no_batch(tmp_path: Path) -> None:
    tiny.save("AutoModelForSequenceClassification", tiny.config("bert"), tmp_path)
    tiny.save_tokenizer(tmp_path, pad_token=None)
    with pytest.raises(UserError, match="no padding token"):
        load(tmp_path)


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    tiny.save("AutoModelForSequenceClassification", tiny.config("bert"), tmp_path)
    with pytest.raises(UserError, match="holds no tokenizer"):
        load(tmp_path)


def test_code_that_came_with_the_model_runs_only_when_trusted(tmp_path: Path) -> None:
    tiny.save("AutoModelForSequenceClassification", tiny.config("bert"), tmp_path)
    tiny.save_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    tiny.write(tmp_path / "config.json", {**config, **own})
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise RuntimeError('mine ran')\n")
    with pytest.raises(UserError, match=r"brings.*--trust"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UserError, match="mine ran"):
        load(tmp_path, is_trusted=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.thorough
def test_weights_in_a_pickle_are_read_when_trusted(folder: Path, tmp_path: Path, mini: ExportedModel) -> None:
    import torch
    import transformers
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    shutil.copy(folder / "config.json", tmp_path)
    given, options = Folder(tmp_path, "hf: test"), SourceOptions(is_trusted=True)
    model = hf_loading.model_of(transformers.AutoModel, given, hf_loading.config_of(given, options), options)
    want = transformers.AutoModel.from_pretrained(folder)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), want.parameters(), strict=True))


def test_a_model_type_that_transformers_does_not_know_is_one_line(tmp_path: Path) -> None:
    tiny.save("AutoModelForSequenceClassification", tiny.config("bert"), tmp_path)
    tiny.save_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tiny.write(tmp_path / "config.json", {**config, "model_type": "brand_new"})
    with pytest.raises(UserError, match=r"transformers.*brand_new") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
