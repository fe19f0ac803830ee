"""Arrays that the gateway made itself -> a v2 request in the binary extension, and an output of the answer -> an array.

For other protocols than v2, whose own requests are forwarded as they came.
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
