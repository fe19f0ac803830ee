"""Image classifiers of transformers: pixels to probabilities in one graph, and what stands before it as data.

Image processors come in dozens of classes with settings of their own. What one does to pixels is therefore measured, not
read: a black and a white image give mean and deviation, and the whole has to agree with our own reader on random images.
Rule: a processor that does anything else is refused, because clients would feed the model something it never saw.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import transformers  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray
from PIL import Image

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.sources import hf_loading, torch_export
from serving.export.sources.hf_folder import PROCESSORS, Folder
from serving.preprocessing import images
from serving.repository.preprocessing import NO_SCORES, ImagePreprocessing
from serving.repository.record import CLASSIFICATION, OTHER

INPUT = "pixel_values"

_INTERPOLATIONS = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
}  # Pillow's numbers, which settings hold
_SHAPES = ((100, 75), (70, 110), (90, 90))  # width and height of the images that are tried, scaled to the model's size
_TOLERANCE = 1.01 / 255  # of a pixel's 0..1: two libraries may round to neighbouring steps
_NUM_EXAMPLES = 6


def classifier(folder: Folder, options: SourceOptions, progress: Progress, *, is_raw: bool) -> ExportedModel:
    config = hf_loading.config_of(folder, options)
    output, activation = hf_loading.scores(config, is_raw)
    labels = None if is_raw else hf_loading.labels_of(config)
    preprocessing = replace(_preprocessing(folder, options), scores=hf_loading.meaning_of(config, is_raw))
    model = hf_loading.model_of(transformers.AutoModelForImageClassification, folder, config, options)
    module = hf_loading.ImageClassifier(model, activation).eval()
    example = {INPUT: _examples(preprocessing)}
    return torch_export.export_module(
        module,
        example,
        [output],
        options,
        progress,
        task=OTHER if is_raw else CLASSIFICATION,
        source=folder.source,
        labels=labels,
        preprocessing=preprocessing,
        packages=("transformers", "pillow"),
    )


def _preprocessing(folder: Folder, options: SourceOptions) -> ImagePreprocessing:
    if not any(folder.has(name) for name in PROCESSORS):
        raise UserError(
            f"{folder.path} holds no image processor ({PROCESSORS[0]}), which says how images become numbers: save it beside "
            "the model"
        )
    with hf_loading.foreign(folder, "image processor"):
        auto: Any = transformers.AutoImageProcessor
        processor = auto.from_pretrained(
            folder.path, backend="pil", trust_remote_code=options.is_trusted, local_files_only=True
        )
        found = _measured(processor)
    if found is None:
        raise UserError(
            f"{folder.path}: {type(processor).__name__} does more than resize, cut the centre and normalise, which is all that "
            "preprocessing.json can say: give the model as module: or FILE.onnx, and its images as arrays"
        )
    if options.image_size is None:
        return found
    shortest = found.resize_shortest and round(
        found.resize_shortest * options.image_size / min(found.height, found.width)
    )
    return replace(found, height=options.image_size, width=options.image_size, resize_shortest=shortest)


def _measured(processor: Any) -> ImagePreprocessing | None:
    """The preprocessing that gives what the processor gives; None if there is none."""
    black, white = (_processed(processor, Image.new("RGB", _SHAPES[0], value)) for value in ("black", "white"))
    if black.ndim != 3 or len(black) != 3 or (white <= black).any():
        return None
    middle = (slice(None), black.shape[1] // 2, black.shape[2] // 2)  # edges may be padding
    std = 1 / (white - black)[middle].astype(np.float64)
    mean = -black[middle] * std
    for shortest in _shortest(processor):
        candidate = ImagePreprocessing(
            input=INPUT,
            height=black.shape[1],
            width=black.shape[2],
            resize_shortest=shortest,
            interpolation=_INTERPOLATIONS.get(int(processor.resample), "nearest"),
            mean=_rounded(mean),
            std=_rounded(std),
            mode="RGB",
            scores=NO_SCORES,  # what the net answers is not the processor's to say
        )
        if all(_agree(processor, candidate, shape) for shape in _SHAPES):
            return candidate
    return None


def _rounded(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """What was written in the settings, as far as FP32 lets it be seen."""
    red, green, blue = (round(float(value), 6) for value in values)
    return red, green, blue


def _shortest(processor: Any) -> Iterator[int | None]:
    """What the short edge may become before the cut, in the spellings of the processors' families; None: no cut."""
    yield None
    edge = getattr(processor.size, "shortest_edge", None)
    if edge:
        yield edge
        yield int(edge / getattr(processor, "crop_pct", 1))  # ConvNeXT, ResNet
        yield int(edge * 256 / 224)  # LeViT


def _agree(processor: Any, preprocessing: ImagePreprocessing, shape: tuple[int, int]) -> bool:
    scale = max(preprocessing.height, preprocessing.width, preprocessing.resize_shortest or 1) / 80
    width, height = (max(1, round(edge * scale)) for edge in shape)
    pixels = _pictures(1, width, height)[0]
    image = Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "PNG")
    want, got = _processed(processor, image), images.decode(file.getvalue(), preprocessing)
    if want.shape != got.shape:
        return False
    std = np.asarray(preprocessing.std, np.float32)[:, None, None]
    return bool((np.abs(want - got) * std).max() <= _TOLERANCE)


def _processed(processor: Any, image: Image.Image) -> NDArray[np.float32]:
    values: NDArray[np.float32] = np.asarray(processor(image, return_tensors="np")[INPUT][0], np.float32)
    return values


def _examples(preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    pixels = _pictures(_NUM_EXAMPLES, preprocessing.width, preprocessing.height)
    mean, std = (np.asarray(values, np.float32) for values in (preprocessing.mean, preprocessing.std))
    scaled = ((pixels.astype(np.float32) / 255 - mean) / std).astype(np.float32)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def _pictures(count: int, width: int, height: int) -> NDArray[np.uint8]:
    """Smooth patches of random colours, uint8 [count, height, width, 3]: noise alone looks alike to every net."""
    random = np.random.default_rng(0)
    patches = random.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(p).resize((width, height), Image.Resampling.BICUBIC)) for p in patches])
