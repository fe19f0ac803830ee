"""A net that takes a photograph, float32 [3, 224, 224], and does almost nothing with it: three means.

So what is measured is how a request of 150,528 numbers is read, and not a net. Its record says that nothing proves it; a bench serves it
to itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from loadtest.processes import MODEL_REPOSITORY
from loadtest.sending.bodies import Body, Signature, encode_binary, encode_json
from loadtest.sending.bodies import Tensor as Taken
from serving.repository import Record, digests_of
from serving.repository.layout import config_files
from serving.repository.record import OTHER, UNTRAINED, Tensor

MODEL = "pixels"
SHAPE = (3, 224, 224)
MAX_BATCH_SIZE = 8
SIGNATURE = Signature((Taken("image", "FP32", SHAPE),), "means")


def write(repository: Path) -> None:
    """The one variant. Of the form of digits' record, which every checkout has."""
    like = Record.from_json((MODEL_REPOSITORY / "digits-fp32" / "tandem.json").read_text())
    record = replace(
        like,
        model=MODEL,
        task=OTHER,
        source="made by a bench",
        max_batch_size=MAX_BATCH_SIZE,
        warmup_batch_sizes=(1,),
        inputs=(Tensor("image", "FP32", SHAPE),),
        outputs=(Tensor("means", "FP32", (3,)),),
        labels=None,
        preprocessing=None,
        sample=None,
        gate=replace(like.gate, basis=UNTRAINED, checks=()),
        speed=(),
        files={},
    )
    place = repository / record.name
    _write(place / record.model_file, _graph())
    record = replace(record, files=digests_of(place))
    for path, text in config_files(record).items():
        _write(place / path, text.encode())
    _write(place / "tandem.json", replace(record, files=digests_of(place)).to_json().encode())


def photograph() -> NDArray[np.float32]:
    """float32 [1, 3, 224, 224]: 8-bit values, scaled as nets want them, so that JSON has as many digits as in earnest."""
    values = np.random.default_rng(1).integers(0, 256, (1, *SHAPE)).astype(np.float32)
    return (values / np.float32(255) - np.float32(0.485)) / np.float32(0.229)


def json_body() -> Body:
    return encode_json(SIGNATURE, {"image": photograph()}, ())


def nested_json_body() -> Body:
    """The same as lists in lists, as `array.tolist()` gives them."""
    flat = orjson.loads(json_body().data)
    flat["inputs"][0]["data"] = photograph().astype(np.float64).tolist()
    return Body(orjson.dumps(flat), None, ())


def binary_body() -> Body:
    return encode_binary(SIGNATURE, {"image": photograph()}, ())


def _graph() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image", "along"], ["means"], keepdims=0)],
        MODEL,
        [info("image", TensorProto.FLOAT, ["n", *SHAPE])],
        [info("means", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.array([2, 3]), "along")],
    )
    model: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()
    return model


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
