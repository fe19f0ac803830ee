"""Bare ONNX files with labels, preprocessing and a layout given beside them: exported, on a real Triton, asked as clients ask.

The calls are those of Triton's example client for images: metadata and configuration say what to send, and the answer is a
classification with labels. With a batch, channels last, and without a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from click.testing import CliRunner, Result
from onnx import TensorProto
from PIL import Image

from serving import cli
from serving.local.environments import Environment
from serving.ports import free_ports
from serving.repository import Repository
from tests.export.sources.graphs import constant, graph, node, value
from tests.gateway.classify.conftest import NAMES, as_json, best, classify, filled
from tests.gateway.conftest import Running, gateway_before, triton_of_its_own

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
PREPROCESSING = {
    "version": 1, "kind": "image", "input": "pixels", "height": 4, "width": 6, "resize_shortest": None,
    "interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3, "mode": "RGB", "scores": "logits",
}  # fmt: skip
TEN = onnx.numpy_helper.from_array(np.array(10, np.float32), "ten")


def means(shape: Sequence[Any], axes: Sequence[int]) -> onnx.ModelProto:
    """pixels -> scores [n, 3]: the mean of each channel times ten."""
    nodes = [node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0), node("Mul", ["mean", "ten"], ["scores"])]
    ports = [value("pixels", FLOAT, shape)], [value("scores", FLOAT, ["n", 3])]
    return graph(nodes, *ports, [constant("axes", *axes), TEN])


def means_of_one() -> onnx.ModelProto:
    """pixels [1, 3, 4, 6] -> scores [1, 3], written so that it takes no more than one."""
    nodes = [
        node("Reshape", ["pixels", "channels"], ["rows"]),
        node("ReduceMean", ["rows", "axes"], ["mean"], keepdims=0),
        node("Mul", ["mean", "ten"], ["tens"]),
        node("Reshape", ["tens", "one"], ["scores"]),
    ]
    ports = [value("pixels", FLOAT, [1, 3, 4, 6])], [value("scores", FLOAT, [1, 3])]
    return graph(nodes, *ports, [constant("channels", 3, 24), constant("axes", 1), constant("one", 1, 3), TEN])


def times() -> onnx.ModelProto:
    """x [2, 3] times a scalar: no batch, and an input without dimensions."""
    nodes = [node("Cast", ["rate"], ["factor"], to=FLOAT), node("Mul", ["x", "factor"], ["y"])]
    return graph(nodes, [value("x", FLOAT, [2, 3]), value("rate", INT64, [])], [value("y", FLOAT, [2, 3])])


MODELS = {"first": means(["n", 3, 4, 6], [2, 3]), "last": means(["n", 4, 6, 3], [1, 2]), "one": means_of_one()}


def export(folder: Path, name: str, *words: str) -> Result:
    ports = [
        "--model-repository",
        str(folder / "models"),
        "--engine",
        "cpu",
        "--seconds",
        "0.01",
        "--precision",
        "fp32",
    ]
    return CliRunner().invoke(cli.cli, ["export", str(folder / f"{name}.onnx"), *ports, *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as a user has them: the nets, labels, preprocessing, and images of each colour."""
    folder = tmp_path_factory.mktemp("bare")
    for name, model in {**MODELS, "times": times()}.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in NAMES))
    (folder / "two.txt").write_text("red\ngreen\n")
    (folder / "how.json").write_text(json.dumps(PREPROCESSING))
    (folder / "wrong.json").write_text(json.dumps({**PREPROCESSING, "height": 5}))
    for name in NAMES:
        (folder / "images" / name).mkdir(parents=True)
        for place, size in enumerate(((9, 9), (12, 7))):
            Image.new("RGB", size, name).save(folder / "images" / name / f"{place}.png")
    np.savez(folder / "times.npz", x=np.arange(24, dtype=np.float32).reshape(4, 2, 3), rate=np.array([1, 2, 3, 4]))
    return folder


@pytest.fixture(scope="module")
def exported(folder: Path) -> Repository:
    described = ("--labels", str(folder / "labels.txt"), "--preprocessing", str(folder / "how.json"))
    for name in MODELS:
        done = export(folder, name, *described, "--data", str(folder / "images"))
        assert done.exit_code == 0, done.output + str(done.exception)
    done = export(folder, "times", "--data", str(folder / "times.npz"))
    assert done.exit_code == 0, done.output + str(done.exception)
    return Repository(folder / "models")


@pytest.fixture(scope="module")
def served(exported: Repository, environment: Environment, folder: Path) -> Iterator[tuple[Running, str]]:
    """The gateway, and where it speaks gRPC."""
    port, repository = free_ports(1)[0], ("--model-repository", str(exported.path))
    with (
        triton_of_its_own(folder, "--no-measure", *repository) as (_, url),
        gateway_before(folder, {"cpu": [url]}, *repository, "--grpc-port", str(port)) as gateway,
    ):
        yield gateway, f"127.0.0.1:{port}"


@pytest.mark.thorough
def test_the_labels_are_covered_by_a_digest_and_the_layout_is_what_the_shape_says(exported: Repository) -> None:
    for name, line in (("first", "format: FORMAT_NCHW"), ("last", "format: FORMAT_NHWC")):
        variant = exported.variant(f"{name}-fp32")
        variant.verify()
        assert (variant.directory / "labels.txt").read_text().split() == [*NAMES]
        assert "labels.txt" in variant.record.files
        config = (variant.directory / "config.pbtxt").read_text()
        assert line in config
        assert 'label_filename: "labels.txt"' in config
        assert variant.record.gate.checks[0].metric == "top1"
        assert variant.record.gate.checks[0].value == 1.0
    assert exported.variant("one-fp32").record.max_batch_size == 0
    assert exported.variant("one-fp32").record.gate.checks[0].value == 1.0


@pytest.mark.triton
@pytest.mark.parametrize("name", MODELS)
def test_a_bare_file_classifies_images(served: tuple[Running, str], name: str) -> None:
    reply = classify(served[0], as_json([filled(colour) for colour in NAMES]), name)
    assert reply.status == 200, reply.body
    assert best(reply) == [*NAMES]


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("name", "layout"), [("first", "NCHW"), ("last", "NHWC"), ("one", None)])
def test_what_tritons_example_client_for_images_does_works(
    served: tuple[Running, str], name: str, layout: str | None, protocol: str
) -> None:
    gateway, grpc_url = served
    triton: Any = triton_http if protocol == "http" else triton_grpc
    with triton.InferenceServerClient(gateway.url if protocol == "http" else grpc_url) as client:
        as_json_too = {} if protocol == "http" else {"as_json": True}
        metadata = client.get_model_metadata(name, **as_json_too)
        config = client.get_model_config(name, **as_json_too)
        config = config.get("config", config)
        [taken], [given], [described] = metadata["inputs"], metadata["outputs"], config["input"]
        assert (taken["datatype"], given["datatype"]) == ("FP32", "FP32")
        assert described.get("format", "FORMAT_NONE") == f"FORMAT_{layout or 'NONE'}"
        has_batch = int(config.get("max_batch_size", 0)) > 0
        assert has_batch == (name != "one")
        shape = [int(size) for size in taken["shape"]]
        rows = 3 if has_batch else 1
        colours = np.full((rows, 4, 6, 3), -1, np.float32)
        for row in range(rows):
            colours[row, :, :, row] = 1
        pixels = colours if layout == "NHWC" else np.ascontiguousarray(colours.transpose(0, 3, 1, 2))
        assert shape[-3:] == list(pixels.shape[1:])
        tensor = triton.InferInput(taken["name"], list(pixels.shape), taken["datatype"])
        tensor.set_data_from_numpy(pixels)
        wanted = triton.InferRequestedOutput(given["name"], class_count=2)
        found = client.infer(name, [tensor], outputs=[wanted]).as_numpy(given["name"])
    best_ones = [entry.decode().split(":") for entry in found.reshape(rows, 2)[:, 0]]
    assert [(int(index), label) for _, index, label in best_ones] == list(enumerate(NAMES))[:rows]


@pytest.mark.triton
def test_a_model_with_a_scalar_input_answers_over_v2(served: tuple[Running, str]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    inputs = [triton_http.InferInput("x", [2, 3], "FP32"), triton_http.InferInput("rate", [1], "INT64")]
    inputs[0].set_data_from_numpy(x)
    inputs[1].set_data_from_numpy(np.array([3]))
    with triton_http.InferenceServerClient(served[0].url) as client:
        assert np.array_equal(client.infer("times", inputs).as_numpy("y"), 3 * x)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("first", ("--labels", "two.txt"), "--labels names 2 classes, and first.onnx gives scores FP32 [3]"),
        ("first", ("--labels", "none.txt"), "none.txt"),
        ("first", ("--layout", "NHWC"), "--layout NHWC does not fit first.onnx: an image is [3, 4, 6], which is NCHW"),
        ("last", ("--preprocessing", "wrong.json"), "--preprocessing makes NCHW images [3, 5, 6], and last.onnx takes"),
        ("times", ("--preprocessing", "how.json"), "--preprocessing is for the input 'pixels', and times.onnx takes x"),
        ("times", ("--layout", "NCHW"), "--layout does not apply to times.onnx: no input is an image"),
        ("times", ("--labels", "labels.txt"), "is not a model for classification"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_file_is_refused_with_both_sides(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, str], says: str
) -> None:
    monkeypatch.chdir(folder)
    done = export(folder, name, *words, "--i-accept-ungated")
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)
