"""Arrays that the gateway made itself -> a v2 request in the binary extension, and outputs of an answer -> arrays.

For other protocols than v2, whose own requests are forwarded as they came, and for who compares two answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.errors import Internal

# What preprocessing makes. By the type itself: its name takes NumPy 3 µs to tell.
DATATYPES = {np.dtype(kind): name for kind, name in ((np.float32, "FP32"), (np.int32, "INT32"), (np.int64, "INT64"))}


def binary_request(inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> tuple[bytes, list[bytes]]:
    """The JSON part, and all the bytes, of which it is the beginning. Arrays are [rows, …]."""
    blobs = [np.ascontiguousarray(values).tobytes() for values in inputs.values()]
    head = orjson.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": values.shape,
                    "datatype": DATATYPES[values.dtype],
                    "parameters": {"binary_data_size": len(blob)},
                }
                for (name, values), blob in zip(inputs.items(), blobs, strict=True)
            ],
            "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
        }
    )
    return head, [head, *blobs]


# In the binary extension; BF16, which NumPy has not, is widened to FP32, and BYTES have a length before each.
BINARY = {
    "BOOL": "?",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
    **{f"{sign}INT{bits}": f"<{kind}{bits // 8}" for sign, kind in (("", "i"), ("U", "u")) for bits in (8, 16, 32, 64)},
}


def all_outputs(body: bytes, header_length: int | None) -> dict[str, NDArray[Any]]:
    """Every output of an answer, in JSON or binary, by its name. Raises Internal for what is no answer."""
    at = len(body) if header_length is None else header_length
    found: dict[str, NDArray[Any]] = {}
    try:
        for output in orjson.loads(body[:at])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                values = _of_json(output["data"], output["datatype"])
            else:
                values, at = _of_binary(body[at : at + size], output["datatype"]), at + size
            found[output["name"]] = values.reshape(output["shape"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Internal(f"the model's answer cannot be read: {error}") from None
    return found


def _of_json(data: list[Any], datatype: str) -> NDArray[Any]:
    if datatype == "BYTES":
        return np.array(data, dtype=object).ravel()
    return np.array(data, dtype=BINARY[datatype]).ravel()


def _of_binary(data: bytes, datatype: str) -> NDArray[Any]:
    if datatype == "BYTES":
        texts, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            texts.append(data[at + 4 : at + 4 + size].decode("utf-8", "replace"))
            at += 4 + size
        return np.array(texts, dtype=object)
    values = np.frombuffer(data, BINARY[datatype])
    return (values.astype("<u4") << 16).view("<f4") if datatype == "BF16" else values


def float_output(body: bytes, header_length: int | None, name: str) -> NDArray[np.float32]:
    """The output `name` of a binary answer, in its shape. Raises Internal where it is not there as it was asked for."""
    at = len(body) if header_length is None else header_length
    try:
        for output in orjson.loads(body[:at])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            if output["name"] == name and output["datatype"] == "FP32":
                return np.frombuffer(body, "<f4", size // 4, at).reshape(output["shape"])
            at += size
    except (KeyError, TypeError, ValueError):
        pass
    raise Internal(f"the model gave no output '{name}' of FP32")
