"""Request bodies of the Open Inference Protocol v2 from arrays, and the first label out of an answer.

Pure: arrays and bytes in, bytes and numbers out. Bodies are made before the clock starts. Every request names its one output, so that
JSON and binary answers carry the same numbers. What the arrays hold is `sending/inputs.py`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

HEADER_LENGTH = "Inference-Header-Content-Length"
# v2's name -> NumPy's little-endian type. BF16, which NumPy lacks, is float32 here and loses its lower half on the way out.
NUMPY_TYPES = {
    "BOOL": "?",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "BF16": "<f4",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
BINARY_ONLY = ("FP16", "BF16")  # Triton refuses both in JSON
_UNPACKED = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input. `shape` is without the batch dimension; -1: any length."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def is_dynamic(self) -> bool:
        return any(size < 0 for size in self.shape)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes, and the one output that is asked for, from its v2 metadata."""

    inputs: tuple[Tensor, ...]
    output_name: str


@dataclass(frozen=True, slots=True)
class Body:
    """One request: its bytes, its length header (None for JSON) and the true label of each row (empty: none is known)."""

    data: bytes
    header_length: int | None
    labels: tuple[int, ...]

    @property
    def headers(self) -> dict[str, str]:
        if self.header_length is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(self.header_length)}


def signature(metadata: dict[str, Any]) -> Signature:
    """Raises ValueError for a model that this load test cannot drive: it takes numbers, with a batch dimension."""
    name, inputs, outputs = metadata.get("name"), metadata.get("inputs", []), metadata.get("outputs", [])
    if not inputs or not outputs:
        raise ValueError(f"{name} has {len(inputs)} inputs and {len(outputs)} outputs; the load test needs one of each")
    for given in inputs:
        if given["datatype"] not in NUMPY_TYPES:
            raise ValueError(f"{name} takes {given['datatype']} as {given['name']!r}; the load test sends numbers")
        if not given["shape"] or int(given["shape"][0]) != -1:
            raise ValueError(
                f"{name} takes {given['shape']} as {given['name']!r}; the load test needs a batch dimension"
            )
    tensors = tuple(Tensor(g["name"], g["datatype"], tuple(int(d) for d in g["shape"][1:])) for g in inputs)
    numbers = [output["name"] for output in outputs if output["datatype"] in _UNPACKED]
    return Signature(tensors, (numbers or [outputs[0]["name"]])[0])


def encode(model: Signature, batch: Arrays, labels: tuple[int, ...], encoding: str) -> Body:
    """`batch`: input name -> [n, …] of the type that NUMPY_TYPES names. Raises ValueError for what JSON cannot carry."""
    return encode_binary(model, batch, labels) if encoding == "binary" else encode_json(model, batch, labels)


def encode_json(model: Signature, batch: Arrays, labels: tuple[int, ...]) -> Body:
    tensors = []
    for given in model.inputs:
        numbers = np.ascontiguousarray(batch[given.name]).ravel()
        if given.datatype in BINARY_ONLY:
            raise ValueError(
                f"input {given.name!r} is {given.datatype}, which JSON does not carry: use encoding binary"
            )
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise ValueError(
                f"input {given.name!r} holds NaN or infinity, which JSON does not carry: use encoding binary"
            )
        tensors.append(_tensor(given, batch) | {"data": numbers})
    request = {"inputs": tensors, "outputs": [{"name": model.output_name}]}
    return Body(orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY), None, labels)


def encode_binary(model: Signature, batch: Arrays, labels: tuple[int, ...]) -> Body:
    tensors, blobs = [], []
    for given in model.inputs:
        blobs.append(_blob(given.datatype, batch[given.name]))
        tensors.append(_tensor(given, batch) | {"parameters": {"binary_data_size": len(blobs[-1])}})
    output = {"name": model.output_name, "parameters": {"binary_data": True}}
    header = orjson.dumps({"inputs": tensors, "outputs": [output]})
    return Body(b"".join((header, *blobs)), len(header), labels)


def _tensor(given: Tensor, batch: Arrays) -> dict[str, Any]:
    return {"name": given.name, "shape": list(batch[given.name].shape), "datatype": given.datatype}


def _blob(datatype: str, values: Array) -> bytes:
    if datatype == "BF16":
        halves = np.ascontiguousarray(values, "<f4").view("<u4") >> 16
        return halves.astype("<u2").tobytes()
    return np.ascontiguousarray(values, NUMPY_TYPES[datatype]).tobytes()


def top1(body: bytes, header_length: int | None) -> list[int]:
    """Of each row the index of the largest score; of an output that is one whole number a row, that number.

    Raises ValueError (KeyError, IndexError, TypeError) for an answer that is none.
    """
    output = _output(body, header_length)
    if header_length is None:
        scores = output["data"]
    else:
        size, kind = output["parameters"]["binary_data_size"], _UNPACKED[output["datatype"]]
        width = struct.calcsize(f"<{kind}")
        if size % width:
            raise ValueError(f"{size} bytes of {output['datatype']}")
        scores = struct.unpack_from(f"<{size // width}{kind}", body, header_length)
    num_rows = int(output["shape"][0])
    width = len(scores) // num_rows if num_rows else 0
    if not width or width * num_rows != len(scores):
        raise ValueError(f"{len(scores)} scores for {num_rows} rows")
    if width == 1 and output["datatype"].startswith(("INT", "UINT")):
        return [int(score) for score in scores]
    rows = (scores[i * width : (i + 1) * width] for i in range(num_rows))
    return [row.index(max(row)) for row in rows]


def check(body: bytes, header_length: int | None) -> None:
    """That the answer is whole, where nobody knows what is right. Raises as `top1` does."""
    output = _output(body, header_length)
    if header_length is None and len(output["data"]) != int(np.prod(output["shape"])):
        raise ValueError(f"{len(output['data'])} numbers for {output['shape']}")


def _output(body: bytes, header_length: int | None) -> dict[str, Any]:
    answer = orjson.loads(body if header_length is None else body[:header_length])
    output: dict[str, Any] = answer["outputs"][0]
    if header_length is not None and header_length + output["parameters"]["binary_data_size"] > len(body):
        raise ValueError(f"{len(body) - header_length} bytes of data instead of {output['parameters']}")
    return output
