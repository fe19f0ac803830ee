"""Gateways that classify images: the committed digits, and a net of colours made here, each on a real Triton."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image

from serving.export.publish import publish, writing
from serving.local.environments import Environment
from serving.repository import Record, Repository, Tensor
from serving.repository.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing, to_json
from tests.gateway.conftest import Reply, Running, gateway_before, triton_of_its_own
from tests.local.harness import ROOT

COLOURS = ImagePreprocessing("pixels", 4, 6, None, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "RGB", "logits")
NAMES = ("red", "green", "blue")
MAX_BATCH = 3
BUDGET_BYTES = 16 * 2**20


def png(image: Image.Image | NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def filled(colour: str) -> bytes:
    return png(Image.new("RGB", (9, 9), colour), "JPEG", quality=95, subsampling=0)


def as_json(files: Sequence[bytes | str], **more: Any) -> bytes:
    return json.dumps(
        {"images": [f if isinstance(f, str) else base64.b64encode(f).decode() for f in files]} | more
    ).encode()


def classify(
    gateway: Running, body: bytes, model: str = "digits", query: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    given = {"Content-Type": "application/json"} if headers is None else headers
    return gateway.ask(f"/v1/classify/{model}{query}", body, given)


def best(reply: Reply) -> list[str | None]:
    """The first label of each image; None where it failed."""
    return [one["labels"][0]["label"] if "labels" in one else None for one in reply.json()["results"]]


@pytest.fixture(scope="session")
def labelled(digits: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The committed digits, and where their files lie."""
    repository = str(ROOT / "model_repo")
    limits = {"max_images": 40, "max_image_pixels": 1_000_000, "max_buffered_bytes": BUDGET_BYTES}
    folder = tmp_path_factory.mktemp("labelled")
    with gateway_before(folder, {"cpu": [digits]}, "--model-repository", repository, limits=limits) as running:
        yield running


@pytest.fixture(scope="session")
def colours(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Nets that answer with the mean of each channel, three images at once: in many ways right and wrong to classify with."""
    folder = tmp_path_factory.mktemp("colours")
    repository = folder / "models"
    with writing(repository):
        for name, made in kinds_of_colours().items():
            write(repository, name, *made)
    with triton_on(repository, folder) as url:
        file = repository / "changed-fp32" / "preprocessing.json"
        file.write_text(file.read_text().replace("bilinear", "nearest"))
        with gateway_before(folder, {"cpu": [url]}, "--model-repository", str(repository)) as running:
            yield running


Made = tuple[Preprocessing | None, tuple[str, ...] | None, dict[str, Any]]


def kinds_of_colours() -> dict[str, Made]:
    text = TextPreprocessing("tokenizer.json", {"input_ids": "pixels"}, 8, 0, "none", is_normalised=False)
    return {
        "colours": (COLOURS, NAMES, {}),
        "nameless": (COLOURS, None, {}),
        "single": (COLOURS, NAMES, {"max_batch_size": 0}),
        "shares": (replace(COLOURS, scores="probabilities"), NAMES, {}),
        "raw": (replace(COLOURS, scores="none"), NAMES, {}),
        "tensors": (None, NAMES, {}),
        "texts": (text, NAMES, {}),
        "mislabelled": (COLOURS, NAMES[:2], {}),
        "misdescribed": (replace(COLOURS, height=5), NAMES, {}),
        "changed": (COLOURS, NAMES, {}),
        "infinite": (replace(COLOURS, std=(1e-38, 1e-38, 1e-38)), NAMES, {}),
    }


def write(
    repository: Path, name: str, how: Preprocessing | None, names: tuple[str, ...] | None, more: Mapping[str, Any]
) -> None:
    base: Record = Repository(ROOT / "model_repo").variant("digits-fp32").record
    has_batch = more.get("max_batch_size", MAX_BATCH) > 0
    files = {"1/model.onnx": means(has_batch)}
    if how is not None:
        files["preprocessing.json"] = to_json(how).encode()
    if names is not None:
        files["labels.txt"] = "".join(f"{one}\n" for one in names).encode()
    record = replace(
        base,
        model=name,
        inputs=(Tensor("pixels", "FP32", (3, 4, 6)),),
        outputs=(Tensor("scores", "FP32", (3,)),),
        labels=None if names is None else "labels.txt",
        preprocessing=None if how is None else "preprocessing.json",
        sample=None,
        **{"max_batch_size": MAX_BATCH, "warmup_batch_sizes": (), **more},
    )
    publish(repository, record, files)


def means(has_batch: bool) -> bytes:
    """float32 [n, 3, 4, 6] -> [n, 3], the mean of each channel times ten."""
    rows: list[str | int] = ["n"] if has_batch else []
    axes = [2, 3] if has_batch else [1, 2]
    nodes = [
        helper.make_node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "ten"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [*rows, 3, 4, 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [*rows, 3])],
        [
            helper.make_tensor("axes", TensorProto.INT64, [2], axes),
            helper.make_tensor("ten", TensorProto.FLOAT, [], [10.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


@contextlib.contextmanager
def triton_on(repository: Path, folder: Path) -> Iterator[str]:
    with triton_of_its_own(folder, "--no-measure", "--model-repository", str(repository)) as (_, url):
        yield url
