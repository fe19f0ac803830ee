"""The datatypes of the v2 protocol: what their elements are in JSON and in binary, and what a shape may be.

What is here holds for HTTP and gRPC alike. A new datatype goes also into `json_tensors.py`, `protocol/{grpc_v2,tensors}.py`,
`repository/record.py` (Triton's names), `export/{exported_model,gates/file,sources/graphs/ports}.py`, `gateway/fleet/curves.py`,
`local/backends/onnxruntime/model.py` and `loadtest/sending/bodies.py`.
"""

from __future__ import annotations

from math import prod

from serving.errors import BadRequest
from serving.protocol.budget import DIMENSIONS, TEXTS

# Triton 2.51 narrows these silently when they come as JSON (UINT8 300 becomes 44); wider ones it refuses itself.
INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
    "UINT32": (0, 2**32 - 1),
    "UINT64": (0, 2**64 - 1),
}
DATATYPES = frozenset({*INTEGER_RANGES, "BOOL", "FP16", "FP32", "FP64", "BF16", "BYTES"})
# Types of JSON values, as Python reads them, that a tensor's elements may have; the other datatypes are integers.
HOLDS: dict[str, set[type]] = {"BOOL": {bool, int}, "BYTES": {str}, "FP32": {int, float}, "FP64": {int, float}}
BINARY_ONLY = frozenset({"FP16", "BF16"})  # Triton carries them in the binary extension only
MAX_DIMENSION = 2**31 - 1  # Triton's own configurations hold no larger one


def check_shape(shape: object, body_size: int, where: str, datatype: object = None) -> list[int]:
    """Refuses what is no shape, one of more elements than the body has bytes, and one of more texts than `TEXTS`.

    Triton 2.51 makes room for a JSON tensor by its shape before it looks at the data: `[4294967297, 4]` in a request of 90 bytes
    kills it. Every element takes a byte at least, in JSON and in binary. Raises BadRequest.
    """
    if isinstance(shape, list) and len(shape) > DIMENSIONS.most:
        DIMENSIONS.check(len(shape), f"{where}: 'shape'")
    if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
        raise BadRequest(f"{where}: 'shape' must be an array of whole numbers, 0 or more, not {str(shape)[:80]}")
    if max(shape, default=0) > MAX_DIMENSION:
        raise BadRequest(f"{where}: shape {str(shape)[:80]} has a dimension over {MAX_DIMENSION}")
    if prod(shape) > body_size:
        raise BadRequest(
            f"{where}: shape {str(shape)[:80]} holds {prod(shape)} elements, more than a body of {body_size} bytes can"
        )
    if datatype == "BYTES":
        TEXTS.check(prod(shape), where, "send them in several requests")
    return shape
