"""The trained photograph classifier behind the gateway: JPEG files answer as torch does on what transformers prepares. `make test-models`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.export.publish import publish, writing
from serving.local.environments import Environment
from serving.preprocessing.images import decode
from serving.repository import Repository
from serving.repository.preprocessing import ImagePreprocessing, to_json
from serving.repository.record import Tensor
from tests.gateway.classify.conftest import as_json, best, classify, png, triton_on
from tests.gateway.conftest import Running, gateway_before
from tests.local.harness import ROOT

pytestmark = [pytest.mark.models, pytest.mark.thorough, pytest.mark.triton]


@pytest.fixture(scope="module")
def net() -> Any:
    from serving.export.recipes import efficientnet_lite0

    return efficientnet_lite0.trained(lambda *_: None)


@pytest.fixture(scope="module")
def photographs(environment: Environment, net: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """EfficientNet-Lite0 in FP32, exported as the recipe does; its gates have tests of their own."""
    import torch

    from serving.export.recipes import efficientnet_lite0 as recipe
    from serving.export.sources import torch_export

    folder = tmp_path_factory.mktemp("photographs")
    example = {recipe.INPUT: np.zeros((4, *recipe.PREPROCESSING.shape), np.float32)}
    axes = {recipe.INPUT: {0: torch_export.BATCH}}
    with torch.no_grad():
        model = torch_export.to_onnx(net, example, [recipe.OUTPUT], axes, 18, lambda *_: None)
    base = Repository(ROOT / "model_repo").variant("digits-fp32").record
    from dataclasses import replace

    record = replace(
        base,
        model="photographs",
        inputs=(Tensor(recipe.INPUT, "FP32", recipe.PREPROCESSING.shape),),
        outputs=(Tensor(recipe.OUTPUT, "FP32", (1000,)),),
        max_batch_size=8,
        warmup_batch_sizes=(),
        preprocessing="preprocessing.json",
        sample=None,
    )
    files = {
        "1/model.onnx": model,
        "labels.txt": "".join(f"{label}\n" for label in recipe.labels()).encode(),
        "preprocessing.json": to_json(recipe.PREPROCESSING).encode(),
    }
    with writing(folder / "models"):
        publish(folder / "models", record, files)
    with triton_on(folder / "models", folder) as url:
        with gateway_before(folder, {"cpu": [url]}, "--model-repository", str(folder / "models")) as running:
            yield running


def files() -> list[bytes]:
    """The two photographs as they are published, and views of them as JPEG, small and large, upright and turned."""
    from importlib import resources

    from serving.export.recipes import photographs

    folder = resources.files("sklearn.datasets") / "images"
    whole = [(folder / name).read_bytes() for name in photographs.FILES]
    exif = Image.Exif()
    exif[0x0112] = 6
    views = [Image.open(io.BytesIO(view)) for view in photographs.gate(10)]
    turned = [png(view.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=90, exif=exif) for view in views[:2]]
    large = [png(view.resize((1200, 900)), "JPEG", quality=90) for view in views[2:4]]
    return [*whole, *turned, *large, *(png(view, "JPEG", quality=90) for view in views[4:])]


def theirs(file: bytes, how: ImagePreprocessing) -> Any:
    """As transformers' EfficientNet-like processors prepare it: the shorter edge to 256, the centre, normalised; upright first."""
    from PIL import ImageOps
    from transformers import BitImageProcessorPil as Processor  # type: ignore[import-not-found, unused-ignore]

    image = ImageOps.exif_transpose(Image.open(io.BytesIO(file)).convert("RGB"))
    processor = Processor(
        size={"shortest_edge": how.resize_shortest},
        crop_size={"height": how.height, "width": how.width},
        resample=Image.Resampling.BICUBIC,
        image_mean=how.mean,
        image_std=how.std,
    )
    return processor(image, return_tensors="np")["pixel_values"][0]


def test_photographs_are_what_torch_says_of_what_transformers_prepares(photographs: Running, net: Any) -> None:
    import torch

    from serving.export.recipes import efficientnet_lite0 as recipe

    given = files()
    prepared = np.stack([theirs(file, recipe.PREPROCESSING) for file in given])
    ours = np.stack([decode(file, recipe.PREPROCESSING) for file in given])
    assert np.abs(ours - prepared).max() < 1e-5
    with torch.no_grad():
        expected = net(torch.from_numpy(prepared)).numpy()
    reply = classify(photographs, as_json(given, top_k=3), "photographs")
    assert reply.status == 200
    assert best(reply) == [recipe.labels()[index] for index in expected.argmax(axis=1)]
    for result, row in zip(reply.json()["results"], expected, strict=True):
        for one in result["labels"]:
            assert abs(one["score"] - row[one["index"]]) < 1e-3


def test_a_photograph_as_the_whole_body_shows_what_is_on_it(photographs: Running) -> None:
    temple, flower = files()[:2]
    assert best(classify(photographs, flower, "photographs", headers={})) == ["daisy"]
    (seen,) = best(classify(photographs, temple, "photographs", headers={"Content-Type": "image/jpeg"}))
    assert seen in ("palace", "monastery", "bell cote", "stupa")
