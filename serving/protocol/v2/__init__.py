"""The Open Inference Protocol v2 over HTTP, without I/O: bytes in, values and errors out.

What must be known of a request before Triton sees it is in `head.py`, which runs on every request; `json_tensors.py` turns large
JSON into the binary extension; `explain.py` finds what was wrong once Triton gave up. Tensors in binary form are never looked into.
"""

from serving.protocol.v2.datatypes import BINARY_ONLY, DATATYPES, INTEGER_RANGES, check_shape
from serving.protocol.v2.explain import explain
from serving.protocol.v2.head import (
    Head,
    check_head,
    control,
    inference_header_length,
    num_rows,
    require_json_outputs,
    rows_and_length,
)
from serving.protocol.v2.json_tensors import Binary, to_binary
from serving.protocol.v2.parameters import SEQUENCE_PARAMETERS, check_parameters, json_type

__all__ = [
    "BINARY_ONLY",
    "DATATYPES",
    "INTEGER_RANGES",
    "SEQUENCE_PARAMETERS",
    "Binary",
    "Head",
    "check_head",
    "check_parameters",
    "check_shape",
    "control",
    "explain",
    "inference_header_length",
    "json_type",
    "num_rows",
    "require_json_outputs",
    "rows_and_length",
    "to_binary",
]
