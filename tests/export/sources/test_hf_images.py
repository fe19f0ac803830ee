"""Image classifiers of transformers: probabilities as the framework's, and preprocessing measured on the processor. Tiny models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import silent
from serving.export.sources import hugging_face
from serving.export.sources.hf_folder import Folder
from serving.preprocessing import images
from serving.repository.preprocessing import ImagePreprocessing

from . import tiny

hf_images = pytest.importorskip("serving.export.sources.hf_images", exc_type=ImportError)
pytestmark = [pytest.mark.models, pytest.mark.thorough]

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 16,
    "num_labels": 5,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 5}
SQUARE = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}


def save(folder: Path, kind: str, settings: dict[str, Any], processor: dict[str, Any]) -> Path:
    import transformers

    configuration = transformers.AutoConfig.for_model(kind, **settings)
    tiny.save("AutoModelForImageClassification", configuration, folder)
    tiny.write(folder / "preprocessor_config.json", processor)
    return folder


def load(folder: Path, **options: Any) -> ExportedModel:
    return hugging_face.load(str(folder), SourceOptions(**options), silent)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    return load(save(tmp_path_factory.mktemp("vit"), "vit", VIT, SQUARE))


def assert_same_answers(exported: ExportedModel) -> None:
    session = ort.InferenceSession(exported.model, providers=["CPUExecutionProvider"])
    assert exported.run is not None
    for num_rows in (1, 3):
        inputs = {name: values[:num_rows] for name, values in exported.example.items()}
        (want,), (found,) = exported.run(inputs), session.run(None, inputs)
        assert np.abs(want - found).max() < 1e-5
        assert np.allclose(found.sum(axis=1), 1, atol=1e-5)


def test_a_transformers_probabilities_are_the_frameworks(vit: ExportedModel) -> None:
    assert_same_answers(vit)
    assert [(t.name, t.datatype, t.shape) for t in vit.inputs] == [("pixel_values", "FP32", (3, 32, 32))]
    assert [(t.name, t.datatype, t.shape) for t in vit.outputs] == [("probabilities", "FP32", (5,))]
    assert vit.labels == tuple(f"LABEL_{index}" for index in range(5))
    assert vit.task == "classification"


def test_a_convolution_nets_probabilities_are_the_frameworks_at_a_size_that_was_asked(tmp_path: Path) -> None:
    processor = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 56}, "crop_pct": 0.875}
    exported = load(save(tmp_path, "resnet", RESNET, processor), image_size=28)
    assert_same_answers(exported)
    assert isinstance(exported.preprocessing, ImagePreprocessing)
    assert exported.inputs[0].shape == (3, 28, 28)
    assert exported.preprocessing.resize_shortest == 32


def test_examples_are_different_images_as_the_model_takes_them(vit: ExportedModel) -> None:
    pixels = vit.example["pixel_values"]
    assert len(pixels) >= 4
    assert len({row.tobytes() for row in pixels}) == len(pixels)
    assert -1.01 < pixels.min() < -0.5 < 0.5 < pixels.max() < 1.01


CLIP = ((0.481455, 0.457828, 0.408211), (0.26863, 0.261303, 0.275777))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("settings", "shortest", "size", "interpolation", "mean_and_std"),
    [
        (SQUARE, None, (32, 32), "bilinear", HALF),
        ({**SQUARE, "resample": 3, "size": {"height": 20, "width": 40}}, None, (20, 40), "bicubic", HALF),
        ({**SQUARE, "resample": 1}, None, (32, 32), "lanczos", HALF),
        ({**SQUARE, "resample": 4}, None, (32, 32), "box", HALF),
        ({**SQUARE, "resample": 0, "do_normalize": False}, None, (32, 32), "nearest", NONE),
        ({**SQUARE, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, None, (32, 32), "bilinear", ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))),
        ({**SQUARE, "rescale_factor": 1 / 127.5, "image_mean": [1] * 3, "image_std": [1] * 3}, None, (32, 32), "bilinear", HALF),
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": 24}, None, (24, 24), "bilinear", HALF),
        ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}, 40, (32, 32), "bicubic", CLIP),
        ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 56}, "crop_pct": 0.875}, 64, (56, 56), "bicubic", HALF),
        ({"image_processor_type": "EfficientNetImageProcessor", "size": {"height": 30, "width": 30}, "rescale_factor": 1 / 127.5, "rescale_offset": True, "image_mean": [0] * 3, "image_std": [0.5] * 3, "resample": 0}, None, (30, 30), "nearest", ((0.5, 0.5, 0.5), (0.125, 0.125, 0.125))),
    ],
    ids=["square", "oblong", "lanczos", "box", "raw", "three", "scaled", "old", "cut", "convnext", "efficientnet"],
)  # fmt: skip
def test_what_a_processor_does_is_found_out(
    tmp_path: Path, settings: Any, shortest: int | None, size: tuple[int, int], interpolation: str, mean_and_std: Any
) -> None:
    import transformers

    tiny.write(tmp_path / "preprocessor_config.json", settings)
    tiny.write(tmp_path / "config.json", {"model_type": "vit"})
    found = hf_images._preprocessing(Folder(tmp_path, "hf: test"), SourceOptions())
    assert (found.resize_shortest, (found.height, found.width), found.interpolation) == (shortest, size, interpolation)
    assert np.allclose((found.mean, found.std), mean_and_std, atol=2e-6)
    pixels = np.random.default_rng(1).integers(0, 256, (77, 123, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    want = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    assert np.abs(images.decode(file.getvalue(), found) - want).max() < 1e-4


@pytest.mark.parametrize(
    "settings",
    [
        {"image_processor_type": "MobileViTImageProcessor", "size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}},
        {"image_processor_type": "DeiTImageProcessor", "size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}},
        {**SQUARE, "resample": 5},
        {**SQUARE, "do_resize": False},
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40}, "do_center_crop": False},
    ],
    ids=["flipped channels", "stretched, then cut", "box filter", "any size", "no cut"],
)  # fmt: skip
def test_a_processor_that_does_anything_else_is_refused(tmp_path: Path, settings: Any) -> None:
    tiny.write(tmp_path / "preprocessor_config.json", settings)
    tiny.write(tmp_path / "config.json", {"model_type": "vit"})
    with pytest.raises(UserError, match=r"resize.*normalise"):
        hf_images._preprocessing(Folder(tmp_path, "hf: test"), SourceOptions())


def test_a_size_that_the_model_does_not_take_is_told(tmp_path: Path) -> None:
    save(tmp_path, "vit", VIT, SQUARE)
    with pytest.raises(UserError, match=r"\(64\*64\).*doesn't.*\(32\*32\)"):
        load(tmp_path, image_size=64)


@pytest.mark.parametrize("text", ["{", '{"image_processor_type": "NobodysImageProcessor"}'])
def test_a_broken_or_unknown_processor_is_one_line(tmp_path: Path, text: str) -> None:
    save(tmp_path, "vit", VIT, SQUARE)
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(UserError, match=r"image processor|preprocessor_config\.json") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [{"0": "a", "2": "b"}, {"1": "a", "2": "b"}])
def test_labels_that_leave_a_class_without_a_name_are_refused(tmp_path: Path, labels: dict[str, str]) -> None:
    save(tmp_path, "vit", {**VIT, "num_labels": 2}, SQUARE)
    config = json.loads((tmp_path / "config.json").read_text())
    tiny.write(tmp_path / "config.json", {**config, "id2label": labels})
    with pytest.raises(UserError, match=r"id2label.*classes.*0.*1"):
        load(tmp_path)


def test_a_folder_without_a_processor_says_which_file_is_missing(tmp_path: Path) -> None:
    folder = save(tmp_path, "vit", VIT, SQUARE)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"processor.*\(preprocessor_config\.json\)"):
        load(folder)


def test_weights_of_another_shape_than_the_settings_are_named_with_both_shapes(tmp_path: Path) -> None:
    """As where the classes in config.json were edited after the training."""
    folder = save(tmp_path, "vit", VIT, SQUARE)
    settings = json.loads((folder / "config.json").read_text())
    names = {str(index): f"class {index}" for index in range(7)}
    settings |= {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}
    tiny.write(folder / "config.json", settings)
    with pytest.raises(UserError, match=r"2.*weights.*classifier\.bias.*\[7\].*\[5\]"):
        load(folder)
