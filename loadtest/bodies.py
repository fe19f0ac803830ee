"""Request bodies of the Open Inference Protocol v2 from arrays, and the first label out of an answer.

Pure: arrays and bytes in, bytes and numbers out. Bodies are made before the clock starts. Every request names its one output, so that
JSON and binary answers carry the same numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

DIGITS = Path(__file__).resolve().parent / "payloads" / "digits.npz"
HEADER_LENGTH = "Inference-Header-Content-Length"
# Distinct random inputs: one batch of the largest size a campaign may ask for; 32 of 3x224x224 take 19 MB.
NUM_RANDOM = 32


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives, from its v2 metadata. `shape` is without the batch dimension."""

    input_name: str
    shape: tuple[int, ...]
    output_name: str


@dataclass(frozen=True, slots=True)
class Body:
    """One request: its bytes, its length header (None for JSON) and the true label of each image (empty: none is known)."""

    data: bytes
    header_length: int | None
    labels: tuple[int, ...]

    @property
    def headers(self) -> dict[str, str]:
        if self.header_length is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(self.header_length)}


def signature(metadata: dict[str, Any]) -> Signature:
    """Raises ValueError for a model that this load test cannot drive: it takes one FP32 input with a batch dimension."""
    name, inputs, outputs = metadata.get("name"), metadata.get("inputs", []), metadata.get("outputs", [])
    if len(inputs) != 1 or not outputs:
        raise ValueError(f"{name} has {len(inputs)} inputs; the load test drives models with one")
    (given,) = inputs
    if given["datatype"] != "FP32":
        raise ValueError(f"{name} takes {given['datatype']}; the load test sends FP32")
    shape = tuple(int(d) for d in given["shape"][1:])
    if any(d < 1 for d in shape):
        raise ValueError(f"{name} takes {given['shape']}; the load test needs fixed dimensions after the batch")
    return Signature(given["name"], shape, outputs[0]["name"])


def images(data: str, shape: tuple[int, ...], seed: int) -> tuple[FloatArray, IntArray | None]:
    """(float32 [n, *shape], labels [n] or None): `digits` are real, held out of training; `random` is seeded noise in 0..1."""
    if data == "random":
        return np.random.default_rng(seed).random((NUM_RANDOM, *shape), dtype=np.float32), None
    with np.load(DIGITS, allow_pickle=False) as file:
        (name,) = (name for name in file.files if name != "labels")
        pixels, labels = file[name], file["labels"]
    if pixels[0].size != int(np.prod(shape)):
        raise ValueError(f"an image of {data} has {pixels[0].size} values; the model takes {list(shape)}")
    return pixels.astype(np.float32).reshape(len(pixels), *shape), labels.astype(np.int64)


def bodies(model: Signature, pixels: FloatArray, labels: IntArray | None, encoding: str, batch_size: int) -> list[Body]:
    """One body per whole batch of images, in their order. Raises ValueError where there is not one."""
    if len(pixels) < batch_size:
        raise ValueError(f"{len(pixels)} images are too few for a batch of {batch_size}")
    encode = encode_binary if encoding == "binary" else encode_json
    starts = range(0, len(pixels) - batch_size + 1, batch_size)
    made = []
    for start in starts:
        chosen = slice(start, start + batch_size)
        truth = () if labels is None else tuple(int(label) for label in labels[chosen])
        made.append(encode(model, pixels[chosen], truth))
    return made


def encode_json(model: Signature, batch: FloatArray, labels: tuple[int, ...]) -> Body:
    numbers = np.ascontiguousarray(batch.ravel())
    tensor = {"name": model.input_name, "shape": list(batch.shape), "datatype": "FP32", "data": numbers}
    request = {"inputs": [tensor], "outputs": [{"name": model.output_name}]}
    return Body(orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY), None, labels)


def encode_binary(model: Signature, batch: FloatArray, labels: tuple[int, ...]) -> Body:
    blob = batch.astype("<f4").tobytes()
    size = {"binary_data_size": len(blob)}
    tensor = {"name": model.input_name, "shape": list(batch.shape), "datatype": "FP32", "parameters": size}
    output = {"name": model.output_name, "parameters": {"binary_data": True}}
    header = orjson.dumps({"inputs": [tensor], "outputs": [output]})
    return Body(header + blob, len(header), labels)


def top1(body: bytes, header_length: int | None) -> list[int]:
    """The index of the largest score of each row. Raises ValueError (KeyError, IndexError, TypeError) for an answer that is none."""
    answer = orjson.loads(body if header_length is None else body[:header_length])
    output = answer["outputs"][0]
    if header_length is None:
        scores = output["data"]
    else:
        size = output["parameters"]["binary_data_size"]
        if size % 4 or header_length + size > len(body):
            raise ValueError(f"{len(body) - header_length} bytes of data instead of {size}")
        scores = struct.unpack_from(f"<{size // 4}f", body, header_length)
    num_rows = int(output["shape"][0])
    width = len(scores) // num_rows if num_rows else 0
    if not width or width * num_rows != len(scores):
        raise ValueError(f"{len(scores)} scores for {num_rows} rows")
    rows = (scores[i * width : (i + 1) * width] for i in range(num_rows))
    return [row.index(max(row)) for row in rows]
