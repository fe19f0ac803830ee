"""Bodies of the v2 protocol, as NVIDIA's own client writes and reads them, and what is read out of answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from loadtest.sending.bodies import (
    NUMPY_TYPES,
    Signature,
    Tensor,
    check,
    encode,
    encode_binary,
    encode_json,
    signature,
    top1,
)

METADATA: dict[str, Any] = {
    "name": "digits",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
    "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
}
TEXTS = Signature((Tensor("input_ids", "INT64", (-1,)), Tensor("attention_mask", "INT64", (-1,))), "embedding")


def test_a_signature_is_read_from_metadata() -> None:
    assert signature(METADATA) == Signature((Tensor("image", "FP32", (1, 8, 8)),), "probabilities")
    several = [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "x", "datatype": "BOOL", "shape": [-1]},
    ]
    outputs = [
        {"name": "word", "datatype": "BYTES", "shape": [-1]},
        {"name": "p", "datatype": "FP32", "shape": [-1, 2]},
    ]
    read = signature({"name": "m", "inputs": several, "outputs": outputs})
    assert read == Signature((Tensor("ids", "INT64", (-1,)), Tensor("x", "BOOL", ())), "p")
    assert [tensor.is_dynamic for tensor in read.inputs] == [True, False]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"inputs": []}, "digits has 0 inputs and 1 outputs"),
        ({"outputs": []}, "digits has 1 inputs and 0 outputs"),
        ({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]}, "digits takes BYTES as 'text'"),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4, 2]}]},
            r"takes \[4, 2\] as 'x'; .* needs a batch dim",
        ),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": []}]}, r"takes \[\] as 'x'; .* needs a batch dim"),
    ],
)
def test_a_model_that_cannot_be_driven_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        signature(METADATA | change)


def some(datatype: str) -> np.ndarray[Any, Any]:
    wanted = np.dtype(NUMPY_TYPES[datatype])
    if wanted.kind == "f":
        return np.array([[0.0, -1.5, 3.0], [1e-3, 250.0, -0.0]], wanted)
    if wanted.kind == "b":
        return np.array([[True, False, True], [False, False, True]])
    info = np.iinfo(wanted)
    return np.array([[info.min, info.max, 0], [1, 2, 3]], wanted)


@pytest.mark.parametrize("datatype", sorted(set(NUMPY_TYPES) - {"BF16"}))  # for which the client wants another package
def test_a_binary_request_is_byte_for_byte_what_tritons_client_sends(datatype: str) -> None:
    values = some(datatype)
    body = encode_binary(Signature((Tensor("x", datatype, (3,)),), "y"), {"x": values}, ())
    theirs = InferInput("x", list(values.shape), datatype)
    theirs.set_data_from_numpy(values, binary_data=True)
    output = InferRequestedOutput("y", binary_data=True)
    wanted, length = InferenceServerClient.generate_request_body([theirs], outputs=[output])
    assert body.header_length is not None
    blob = body.data[body.header_length :]
    assert blob == wanted[length:]
    ours, header = json.loads(body.data[: body.header_length]), json.loads(wanted[:length])
    assert ours["inputs"] == header["inputs"]
    assert ours["outputs"] == header["outputs"]
    assert body.headers["Inference-Header-Content-Length"] == str(body.header_length)


def test_bf16_is_the_upper_half_of_fp32() -> None:
    values = np.array([[1.5, -2.0, 1e-3]], np.float32)
    body = encode_binary(Signature((Tensor("x", "BF16", (3,)),), "y"), {"x": values}, ())
    halves = np.frombuffer(body.data[body.header_length :], "<u2").astype("<u4") << 16
    assert halves.view("<f4").tolist() == pytest.approx([1.5, -2.0, 1e-3], rel=2**-7)
    assert halves.view("<f4").tolist()[:2] == [1.5, -2.0]


@pytest.mark.parametrize("datatype", sorted(set(NUMPY_TYPES) - {"FP16", "BF16"}))
def test_a_json_request_carries_the_numbers_of_the_binary_one(datatype: str) -> None:
    values = some(datatype)
    body = encode_json(Signature((Tensor("x", datatype, (3,)),), "y"), {"x": values}, ())
    (tensor,) = json.loads(body.data)["inputs"]
    assert np.array_equal(np.array(tensor["data"], values.dtype).reshape(tensor["shape"]), values)
    assert (tensor["name"], tensor["datatype"], body.header_length) == ("x", datatype, None)


def test_several_inputs_lie_one_after_the_other_in_the_models_order() -> None:
    batch = {"attention_mask": np.ones((1, 2), "<i8"), "input_ids": np.array([[7, 9]], "<i8")}
    body = encode_binary(TEXTS, batch, ())
    assert np.frombuffer(body.data[body.header_length :], "<i8").tolist() == [7, 9, 1, 1]
    assert [tensor["name"] for tensor in json.loads(encode_json(TEXTS, batch, ()).data)["inputs"]] == list(
        reversed(batch)
    )


def test_a_slice_that_is_not_contiguous_is_sent_as_it_reads() -> None:
    ids = np.arange(6, dtype="<i8").reshape(2, 3)
    batch = {"input_ids": ids[:, :2], "attention_mask": ids[:, 1:]}
    first, second = json.loads(encode_json(TEXTS, batch, ()).data)["inputs"]
    assert (first["data"], second["data"]) == ([0, 1, 3, 4], [1, 2, 4, 5])
    blob = encode_binary(TEXTS, batch, ())
    assert np.frombuffer(blob.data[blob.header_length :], "<i8").tolist() == [0, 1, 3, 4, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("datatype", "values", "problem"),
    [
        ("FP16", [[1.0]], "'x' is FP16, which JSON does not carry: use encoding binary"),
        ("BF16", [[1.0]], "'x' is BF16, which JSON does not carry: use encoding binary"),
        ("FP32", [[float("nan")]], "'x' holds NaN or infinity, which JSON does not carry: use encoding binary"),
    ],
)
def test_what_json_cannot_carry_is_refused_and_goes_as_binary(datatype: str, values: Any, problem: str) -> None:
    model = Signature((Tensor("x", datatype, (1,)),), "y")
    batch = {"x": np.array(values, NUMPY_TYPES[datatype])}
    with pytest.raises(ValueError, match=problem):
        encode(model, batch, (), "json")
    assert encode(model, batch, (), "binary").header_length


def answer(**output: object) -> bytes:
    return json.dumps({"outputs": [{"name": "p", "shape": [2, 3], "datatype": "FP32", **output}]}).encode()


def with_data(values: Any, **output: object) -> tuple[bytes, int]:
    """A binary answer, and where its header ends."""
    blob = np.asarray(values).tobytes()
    header = answer(parameters={"binary_data_size": len(blob)}, **output)
    return header + blob, len(header)


def test_the_largest_score_of_each_row_is_the_answer() -> None:
    assert top1(answer(data=[0, 1, 0, 5, 1, 1]), None) == [1, 0]
    for kind, name in (("<f4", "FP32"), ("<f8", "FP64"), ("<f2", "FP16"), ("<i8", "INT64"), ("<u1", "UINT8")):
        assert top1(*with_data(np.array([0, 0, 1, 0, 7, 0], kind), datatype=name)) == [2, 1]


def test_an_output_of_one_whole_number_a_row_is_the_label_itself() -> None:
    assert top1(answer(datatype="INT64", shape=[2], data=[4, 7]), None) == [4, 7]
    assert top1(*with_data(np.array([4, 7], "<i8"), datatype="INT64", shape=[2, 1])) == [4, 7]


def test_what_tritons_client_reads_of_an_answer_is_what_is_read_here() -> None:
    body, length = with_data(np.array([0, 0, 1, 0, 7, 0], "<f4"))
    theirs = InferResult.from_response_body(body, header_length=length).as_numpy("p")
    assert theirs is not None
    assert top1(body, length) == theirs.argmax(axis=1).tolist()


BAD = [
    (b"", None),
    (b"{}", None),
    (b"[]", None),
    (b'{"outputs": []}', None),
    (answer(data=[1, 2, 3, 4]), None),  # two numbers short of what the shape says
    (answer(), None),
    (answer(parameters={"binary_data_size": 24}), len(answer(parameters={"binary_data_size": 24}))),
]


@pytest.mark.parametrize(
    ("body", "length"),
    [
        *(bad for bad in BAD if bad[0] != answer(data=[1, 2, 3, 4])),
        (answer(data=[1, 2, 3]), None),
        (answer(data=[]), None),
        (answer(shape=[0, 3], data=[]), None),
        (answer(parameters={"binary_data_size": 3}) + b"abc", len(answer(parameters={"binary_data_size": 3}))),
    ],
)
def test_an_answer_that_is_none_is_noticed(body: bytes, length: int | None) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
        top1(body, length)


@pytest.mark.parametrize(("body", "length"), BAD)
def test_half_an_answer_is_noticed_where_nobody_knows_what_is_right(body: bytes, length: int | None) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
        check(body, length)
    check(answer(data=[0] * 6), None)
    check(*with_data(np.zeros(6, "<f4")))
