"""`hf:`: what is turned away, and with which words, before any framework is imported. Needs no torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.progress import silent
from serving.export.sources import hf_folder, hugging_face
from serving.export.sources.hf_folder import Folder

BERT = {"architectures": ["BertModel"], "model_type": "bert"}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


_HEADER = b'{"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + b"1"


def saved(folder: Path, config: Any, *files: str) -> Path:
    write(folder / "config.json", config)
    for name in files:
        write(folder / name, "{}" if name.endswith(".json") else "")
        if name == "model.safetensors":
            (folder / name).write_bytes(WEIGHTS)
    return folder


def refusal(spec: Path | str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        hugging_face.load(str(spec), SourceOptions(**options), silent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/at/all", "a/b/c", "-x", "~/nowhere/at/all", "a b"])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(spec).endswith(spec)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", "")
    assert "folder" in refusal(tmp_path / "model.safetensors")


def test_a_folder_without_settings_is_told_from_a_model(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "null", "\x00"])
def test_broken_settings_are_named(tmp_path: Path, text: str) -> None:
    said = refusal(saved(tmp_path, text))
    assert "config.json" in said
    assert "cannot be read" in said or "holds no JSON object" in said


@pytest.mark.parametrize("name", ["DetrForObjectDetection", "ViTModel"])
def test_an_unknown_architecture_is_named_with_what_is_known_and_the_ways_round(tmp_path: Path, name: str) -> None:
    said = refusal(saved(tmp_path, {"architectures": [name]}))
    assert name in said
    for known in ("ForImageClassification", "ForSequenceClassification", "sentence vectors", "module:", "FILE.onnx"):
        assert known in said


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
        {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"},
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        {"architectures": ["LlamaModel"], "model_type": "llama"},
        {"architectures": ["T5Model"], "model_type": "t5", "is_encoder_decoder": True},
    ],
)
@pytest.mark.parametrize("pooling", [None, "mean"])
def test_a_model_that_generates_is_named_as_such_and_is_no_encoder_by_accident(
    tmp_path: Path, config: dict[str, object], pooling: str | None
) -> None:
    said = refusal(saved(tmp_path, config, "tokenizer.json"), pooling=pooling)
    assert "token by token" in said
    assert "vLLM" in said


@pytest.mark.parametrize("task", [None, "classification", "other"])
def test_a_config_without_an_architecture_is_told_what_it_lacks(tmp_path: Path, task: str | None) -> None:
    assert "config.json has no 'architectures'" in refusal(saved(tmp_path, {"architectures": None}), task=task)


def test_a_task_that_the_saved_class_has_no_head_for_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, BERT, "vocab.txt")
    assert "--task classification" in refusal(folder, task="classification")


def test_an_unknown_task_is_named_with_the_nearest(tmp_path: Path) -> None:
    assert "'embedding'" in refusal(saved(tmp_path, BERT), task="embeding")


def test_an_encoder_that_does_not_say_its_pooling_asks_for_it(tmp_path: Path) -> None:
    said = refusal(saved(tmp_path, BERT, "vocab.txt"))
    assert "--pooling mean, cls, max" in said


def test_an_unknown_pooling_is_named_with_the_nearest(tmp_path: Path) -> None:
    said = refusal(saved(tmp_path, BERT, "vocab.txt"), pooling="meen")
    assert "'mean'" in said


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_weights_in_a_pickle_ask_for_trust(tmp_path: Path, name: str) -> None:
    said = refusal(saved(tmp_path, {"architectures": ["ViTForImageClassification"]}, name))
    assert name in said
    assert "--trust" in said


@pytest.mark.parametrize(
    ("name", "framework"), [("tf_model.h5", "TensorFlow's"), ("flax_model.msgpack", "Flax's"), ("README.md", "")]
)
def test_missing_weights_are_told_with_the_framework_whose_are_there(tmp_path: Path, name: str, framework: str) -> None:
    said = refusal(saved(tmp_path, {"architectures": ["ViTForImageClassification"]}, name))
    assert "holds no model.safetensors" in said
    assert framework in said


IMAGE = {"architectures": ["ViTForImageClassification"]}
TEXT = {"architectures": ["BertForSequenceClassification"]}


@pytest.mark.parametrize(
    ("config", "options", "spelled"),
    [
        (IMAGE, {"pooling": "mean"}, "--pooling"),
        (TEXT, {"pooling": "mean"}, "--pooling"),
        (TEXT, {"is_normalised": False}, "--normalise"),
        (IMAGE, {"max_length": 8}, "--max-length"),
        (TEXT, {"image_size": 8}, "--image-size"),
        (TEXT, {"example": {}}, "--example"),
    ],
)
def test_an_option_of_another_kind_of_model_is_an_error(
    tmp_path: Path, config: Any, options: dict[str, Any], spelled: str
) -> None:
    assert f"{spelled} does not" in refusal(saved(tmp_path, config, "model.safetensors"), **options)


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("serving.export.sources.hugging_face.hf_")]:
        if not name.endswith(".hf_folder"):
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(name, raising=False)
    config = {**IMAGE, "model_type": "vit"}
    said = refusal(saved(tmp_path, config, "model.safetensors", "preprocessor_config.json"))
    assert "pip install -e '.[export]'" in said


# -- sentence-transformers' own files ---------------------------------------------------------------------------------


def modules(folder: Path, *kinds: str, pooling: Any = None) -> Folder:
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    write(
        folder / "modules.json",
        [
            {"idx": i, "path": paths.get(kind, f"{i}_{kind}"), "type": f"sentence_transformers.models.{kind}"}
            for i, kind in enumerate(kinds)
        ],
    )
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True} if pooling is None else pooling)
    return Folder(folder, "hf: test")


def read(folder: Folder, **given: Any) -> hf_folder.Sentences:
    return hf_folder.read_sentences(folder, **{"pooling": None, "is_normalised": None, **given})


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_lasttoken": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "cls", "embedding_dimension": 4}, "cls"),
    ],
)
def test_the_pooling_is_read_in_both_generations_of_spelling(tmp_path: Path, config: Any, pooling: str) -> None:
    assert read(modules(tmp_path, "Transformer", "Pooling", pooling=config)).pooling == pooling


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "mean and max"),
        ({"pooling_mode_mean_tokens": False}, "none"),
        ({"word_embedding_dimension": 384}, "none"),
    ],
)
def test_a_pooling_that_is_not_known_is_never_guessed(tmp_path: Path, config: Any, told: str) -> None:
    with pytest.raises(UserError, match=rf"pooling.*{told}"):
        read(modules(tmp_path, "Transformer", "Pooling", pooling=config))


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (("Transformer", "Pooling", "Dense"), "has a Dense"),
        (("CLIPModel",), "has a CLIPModel"),
        (("Pooling", "Transformer"), "in an order"),
        (("Transformer", "Normalize", "Pooling"), "in an order"),
        (("Transformer", "Transformer"), "in an order"),
        (("Transformer", "Normalize"), "has no Pooling: give --pooling"),
        ((), "has no Transformer"),
    ],
)
def test_a_chain_of_modules_that_the_graph_would_not_hold_is_refused(
    tmp_path: Path, kinds: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        read(modules(tmp_path, *kinds))


@pytest.mark.parametrize("text", ["{", '{"a": 1}', '[{"idx": "x"}]', "[1]", '[{"path": ""}]'])
def test_a_broken_list_of_modules_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path / "modules.json", text)
    with pytest.raises(UserError, match=r"modules\.json.*read"):
        read(Folder(tmp_path, "hf: test"))


def test_a_module_outside_the_folder_is_refused(tmp_path: Path) -> None:
    folder = modules(tmp_path / "inside", "Transformer", "Pooling")
    listed = json.loads((folder.path / "modules.json").read_text())
    listed[1]["path"] = "../outside"
    write(folder.path / "modules.json", listed)
    write(tmp_path / "outside" / "config.json", {"pooling_mode_mean_tokens": True})
    with pytest.raises(UserError, match="not inside it"):
        read(folder)


def test_a_prompt_before_every_text_is_refused_because_clients_would_not_know_it(tmp_path: Path) -> None:
    folder = modules(tmp_path, "Transformer", "Pooling")
    write(tmp_path / "config_sentence_transformers.json", {"default_prompt_name": "query"})
    with pytest.raises(UserError, match=r"prompt.*'query'"):
        read(folder)


def test_what_is_given_overrules_the_files(tmp_path: Path) -> None:
    folder = modules(tmp_path, "Transformer", "Pooling", "Normalize")
    write(tmp_path / "sentence_bert_config.json", {"max_seq_length": 77, "do_lower_case": True})
    plain = read(folder)
    assert (plain.pooling, plain.is_normalised, plain.max_length, plain.is_lowered) == ("mean", True, 77, True)
    given = read(folder, pooling="cls", is_normalised=False)
    assert (given.pooling, given.is_normalised) == ("cls", False)


def test_an_encoder_with_no_files_of_sentence_transformers_is_normalised_only_when_asked(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "hf: test")
    assert not read(folder, pooling="mean").is_normalised
    assert read(folder, pooling="mean", is_normalised=True).is_normalised


def test_the_source_in_the_record_has_no_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    folder = hf_folder.opened(str(tmp_path / "my-model"), False, silent)
    assert folder.source == "hf: my-model"
