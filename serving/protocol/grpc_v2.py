"""A v2 request as gRPC has it becomes one in JSON with binary tensors, which is what goes to Triton, and its answer becomes gRPC's.

Raw tensors are the very same bytes in both, so they are handed on as views of what came. What a request may say beyond its form is checked
where HTTP's is (`v2.check_head`). Rule: what only HTTP has (`binary_data…`) is written here and never taken from a client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from serving import errors
from serving.protocol import budget
from serving.protocol import protobuf_wire as wire
from serving.protocol.v2 import BINARY_ONLY, DATATYPES, check_shape

Chunk = bytes | memoryview
INPUTS, RAW_INPUTS, OUTPUTS, RAW_OUTPUTS, SHAPE, CONTENTS, STREAMED = 5, 7, 6, 6, 3, 5, 2  # numbers of fields
SMALL_BYTES = 8 * 1024  # of a description: protobuf parses whatever is in it in 0.2 ms
VARINT_BYTES = 10  # of one dimension, at most
# What is left of a request once its tensors are taken out: names, shapes, parameters. Parsed, it takes up to thirty times as much memory;
# the bound on it is a guess at what nobody needs.
FIELD_BYTES = 12  # of one number in a message, at most: a tag, and a varint of ten
NUM_AT_ONCE = 65_536  # elements that become an array without a pause in which others get a turn
# datatype -> (its field of InferTensorContents, how NumPy writes an element, in bytes)
TYPED: dict[str, tuple[str, str, int]] = {
    "BOOL": ("bool_contents", "?", 1),
    "INT8": ("int_contents", "i1", 1),
    "INT16": ("int_contents", "<i2", 2),
    "INT32": ("int_contents", "<i4", 4),
    "INT64": ("int64_contents", "<i8", 8),
    "UINT8": ("uint_contents", "u1", 1),
    "UINT16": ("uint_contents", "<u2", 2),
    "UINT32": ("uint_contents", "<u4", 4),
    "UINT64": ("uint64_contents", "<u8", 8),
    "FP32": ("fp32_contents", "<f4", 4),
    "FP64": ("fp64_contents", "<f8", 8),
    "BYTES": ("bytes_contents", "", 0),
}
SIZES = {name: size for name, (_, _, size) in TYPED.items() if size} | {"FP16": 2, "BF16": 2}
AS_ON_THE_WIRE = {"FP32": 6, "FP64": 7}  # datatypes whose packed field has the tensor's very bytes -> its number
# A client of a stream asks by it for an empty response at the end of answers in several parts; ours have one part.
FINAL_ASKED, FINAL = "triton_enable_empty_final_response", "triton_final_response"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A ModelInferRequest whose tensors have not been looked into. `inputs` are InferInputTensors as they came."""

    description: Any  # ModelInferRequest without its inputs
    inputs: list[memoryview]
    raw: list[memoryview]
    size: int  # bytes
    described: int  # bytes, of all but raw tensors

    @property
    def model(self) -> str:
        return str(self.description.model_name)

    @property
    def version(self) -> str:
        return str(self.description.model_version)


def opened(message: bytes) -> Envelope:
    """Raises BadRequest for bytes that are no ModelInferRequest."""
    try:
        rest, taken = wire.take_out(message, (INPUTS, RAW_INPUTS))
    except wire.Malformed as error:
        raise errors.BadRequest(f"the message is not a ModelInferRequest: {error}") from None
    inputs = taken[INPUTS]
    budget.INPUTS.check(len(inputs))
    described = len(rest) + sum(map(len, inputs))
    if len(rest) > SMALL_BYTES:
        _require_few_in_outputs(rest)
    return Envelope(parsed(pb.ModelInferRequest, rest), inputs, taken[RAW_INPUTS], len(message), described)


def parsed(kind: Any, message: bytes) -> Any:
    """A message of this kind. Raises BadRequest."""
    budget.GRPC_DESCRIPTION_BYTES.check(len(message), kind.DESCRIPTOR.name)
    try:
        return kind.FromString(message)
    except DecodeError:
        raise errors.BadRequest(f"the message is not a {kind.DESCRIPTOR.name}") from None


def translated(envelope: Envelope, *, is_streamed: bool = False) -> tuple[bytes, list[Chunk]]:
    """The request's JSON part, and its binary tensors. Raises BadRequest.

    Takes long where tensors came element by element (`contents`) instead of raw.
    """
    request, raw = envelope.description, envelope.raw
    if raw and len(raw) != len(envelope.inputs):
        raise errors.BadRequest(
            f"raw_input_contents has {len(raw)} tensors and there are {len(envelope.inputs)} inputs; it holds all of them or none"
        )
    inputs, blobs = [], []
    budget.OUTPUTS.check(len(request.outputs))
    for index, message in enumerate(envelope.inputs):
        described, blob = _input(message, raw[index] if raw else None, envelope.size, f"inputs[{index}]")
        inputs.append(described)
        blobs.append(blob)
    parameters = _parameters(request.parameters, "parameters")
    if is_streamed and type(parameters.get(FINAL_ASKED)) is bool:
        del parameters[FINAL_ASKED]
    head: dict[str, Any] = {"inputs": inputs}
    if request.id:
        head["id"] = request.id
    if request.outputs:
        head["outputs"] = [
            {
                "name": output.name,
                "parameters": {"binary_data": True} | _parameters(output.parameters, f"outputs[{index}].parameters"),
            }
            for index, output in enumerate(request.outputs)
        ]
        if parameters:
            head["parameters"] = parameters
    else:
        head["parameters"] = {"binary_data_output": True} | parameters
    return orjson.dumps(head), blobs


def answer(parts: Sequence[bytes], header_length: int | None, model: str, *, is_streamed: bool = False) -> list[bytes]:
    """Triton's answer, in the parts of its body, as pieces of a ModelInferResponse under the name that was asked for. Raises Internal."""
    try:
        rest = _Parts(parts)
        described = orjson.loads(b"".join(rest.take(rest.size if header_length is None else header_length)))
        response = pb.ModelInferResponse(
            model_name=model, model_version=described.get("model_version", ""), id=described.get("id", "")
        )
        _set_parameters(response.parameters, described.get("parameters", {}))
        if is_streamed:
            response.parameters[FINAL].bool_param = True
        pieces = [b""]
        for size in _outputs(response, described["outputs"]):
            pieces += (wire.field_head(RAW_OUTPUTS, size), *rest.take(size))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise errors.Internal("Triton's answer cannot be read") from None
    pieces[0] = response.SerializeToString()
    return pieces


def streamed(pieces: list[bytes]) -> list[bytes]:
    """The pieces of a ModelStreamInferResponse that holds this ModelInferResponse."""
    return [wire.field_head(STREAMED, sum(map(len, pieces))), *pieces]


def stream_error(text: str, request_id: str, model: str, said: Mapping[str, str]) -> bytes:
    """A ModelStreamInferResponse that says what was wrong with one request of the stream; `said` become its parameters."""
    response = pb.ModelStreamInferResponse(error_message=text)
    response.infer_response.id, response.infer_response.model_name = request_id, model
    _set_parameters(response.infer_response.parameters, said)
    whole: bytes = response.SerializeToString()
    return whole


def with_parameters(said: Mapping[str, str]) -> bytes:
    """A piece of a ModelInferResponse that adds these to its parameters."""
    response = pb.ModelInferResponse()
    _set_parameters(response.parameters, said)
    piece: bytes = response.SerializeToString()
    return piece


# -- a request --------------------------------------------------------------------------------------------------------


def _input(message: memoryview, raw: memoryview | None, body_size: int, where: str) -> tuple[dict[str, Any], Chunk]:
    try:
        rest, taken = wire.take_out(message, (CONTENTS,))
    except wire.Malformed as error:
        raise errors.BadRequest(f"{where} is not an InferInputTensor: {error}") from None
    if len(rest) > SMALL_BYTES:
        num_dimensions = -(-sum(map(len, wire.take_out(rest, (SHAPE,))[1][SHAPE])) // VARINT_BYTES)  # or more
        budget.DIMENSIONS.check(num_dimensions, f"{where}: 'shape'")
    tensor = parsed(pb.ModelInferRequest.InferInputTensor, rest)
    contents = taken[CONTENTS]
    where_named = f"{where} '{tensor.name[:80]}'"
    count = _count(tensor, body_size, where_named)
    if raw is None:
        blob = _typed(contents[0] if len(contents) == 1 else b"".join(contents), tensor, count, where_named)
    elif any(contents):
        raise errors.BadRequest(
            f"{where_named} has 'contents' beside raw_input_contents; send all tensors in one of the two"
        )
    else:
        blob = raw
        size = SIZES.get(tensor.datatype)
        if size is not None and count * size != len(raw):
            raise errors.BadRequest(
                f"{where_named}: {tensor.datatype} of shape {list(tensor.shape)} has {count * size} bytes, not {len(raw)}"
            )
    parameters = _parameters(tensor.parameters, f"{where}.parameters")
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "datatype": tensor.datatype,
        "parameters": {"binary_data_size": len(blob)} | parameters,
    }, blob


def _require_few_in_outputs(message: bytes) -> None:
    """Before protobuf makes objects of all parameters of an output at once, 0.15 µs each. Raises BadRequest."""
    try:
        wire.require_few_fields(b"".join(wire.take_out(message, (OUTPUTS,))[1][OUTPUTS]), budget.GRPC_FIELDS.most)
    except wire.Malformed as error:
        raise errors.BadRequest(f"the outputs are not those of a ModelInferRequest: {error}") from None


def _count(tensor: Any, body_size: int, where: str) -> int:
    """How many elements its shape says."""
    budget.DIMENSIONS.check(len(tensor.shape), f"{where}: 'shape'")  # before they become a list
    if tensor.datatype not in DATATYPES:
        raise errors.BadRequest(
            f"{where}: 'datatype' must be one of {', '.join(sorted(DATATYPES))}, not {tensor.datatype[:40]!r}"
        )
    return math.prod(check_shape(list(tensor.shape), body_size, where, tensor.datatype))


def _typed(message: Chunk, tensor: Any, count: int, where: str) -> Chunk:
    """The bytes of a tensor that came element by element."""
    datatype = tensor.datatype
    if datatype in BINARY_ONLY:
        raise errors.BadRequest(f"{where}: {datatype} is sent in raw_input_contents, 'contents' has no field for it")
    name, code, size = TYPED[datatype]
    field = AS_ON_THE_WIRE.get(datatype)
    packed = wire.only_field(message, field) if field is not None else None
    if packed is not None and len(packed) == count * size:
        return packed
    if datatype == "BYTES":
        budget.GRPC_TEXTS.check(count, where, "send them in raw_input_contents")
        try:
            wire.require_few_fields(message, count)
        except wire.Malformed as error:
            raise errors.BadRequest(
                f"{where}: shape {list(tensor.shape)} holds {count} elements; of {name}: {error}"
            ) from None
    elif len(message) > FIELD_BYTES * count + FIELD_BYTES:
        raise errors.BadRequest(f"{where}: shape {list(tensor.shape)} holds {count} elements but {name} has more")
    contents = _contents(message, where)
    wrong = [field.name for field, _ in contents.ListFields() if field.name != name]
    if wrong:
        raise errors.BadRequest(f"{where}: {datatype} is sent in {name}, not in {wrong[0]}")
    elements = getattr(contents, name)
    if len(elements) != count:
        raise errors.BadRequest(
            f"{where}: shape {list(tensor.shape)} holds {count} elements but {name} has {len(elements)}"
        )
    if datatype == "BYTES":
        return b"".join(piece for element in elements for piece in (len(element).to_bytes(4, "little"), element))
    return b"".join(_packed(elements, code, datatype, where))


def _contents(message: Chunk, where: str) -> Any:
    try:
        return pb.InferTensorContents.FromString(bytes(message))
    except DecodeError:
        raise errors.BadRequest(f"{where}: 'contents' is not an InferTensorContents") from None


def _packed(elements: Any, code: str, datatype: str, where: str) -> Iterator[bytes]:
    for begin in range(0, len(elements), NUM_AT_ONCE):
        try:
            yield np.array(elements[begin : begin + NUM_AT_ONCE], code).tobytes()
        except OverflowError:
            raise errors.BadRequest(f"{where}: an element is outside what {datatype} holds") from None


def _parameters(given: Any, where: str) -> dict[str, Any]:
    """InferParameters as JSON has them."""
    budget.PARAMETERS.check(len(given) - len(budget.BINARY))
    made: dict[str, Any] = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise errors.BadRequest(f"{where}.{name} has no value")
        if name in budget.BINARY:  # KServe's SDK sends them here too: they mean nothing
            continue
        value = made[name] = getattr(parameter, kind)
        if kind == "double_param" and not math.isfinite(value):
            raise errors.BadRequest(f"{where}.{name} must be a finite number")
    return made


# -- an answer --------------------------------------------------------------------------------------------------------


class _Parts:
    """Bytes in several parts, taken from the front: a part that is taken whole is not copied."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = iter(parts)
        self._part, self._at = b"", 0
        self.size = sum(map(len, parts))  # of what is left

    def take(self, size: int) -> Iterator[bytes]:
        """The next so many bytes. Raises ValueError where there are fewer."""
        if not 0 <= size <= self.size:
            raise ValueError("the body is shorter than its JSON says")
        self.size -= size
        while size:
            if self._at == len(self._part):
                self._part, self._at = next(self._parts), 0
                continue
            piece = self._part[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            yield piece


def _outputs(response: Any, outputs: list[Any]) -> Iterator[int]:
    """Describes them in the response; their sizes in bytes."""
    for output in outputs:
        parameters = output["parameters"]
        size = parameters.pop("binary_data_size")
        described = response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        _set_parameters(described.parameters, parameters)
        yield size


def _set_parameters(into: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, bool):
            into[name].bool_param = value
        elif isinstance(value, int):
            if value < 2**63:
                into[name].int64_param = value
            else:
                into[name].uint64_param = value
        elif isinstance(value, float):
            into[name].double_param = value
        else:
            into[name].string_param = str(value)
