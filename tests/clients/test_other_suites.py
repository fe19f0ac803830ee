"""What other servers' own tests and samples ask, asked here, and what of it is refused with the reason.

They are the ONNX cases of Triton's `L0_infer` and `L0_http` and the samples of OpenVINO model server for KServe's protocol; the calls are
made here in words of our own, at models of our own. docs/clients.md has the table, `REFUSED` the list.
"""

from __future__ import annotations

import http.client
import itertools
import json
import queue
from collections.abc import Iterator
from typing import Any

import digits
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from conftest import Gateway, run, up
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException

# Case -> why it is refused, or answered otherwise than there.
REFUSED = {
    "L0_infer: FP16 as JSON": "JSON has no FP16; Triton refuses it too",
    "L0_infer: versions that are not among those kept (the newest two, or `--keep-versions`)": "of those before, the proof alone is kept",
    "L0_infer: ensembles": "the parts of an ensemble have no gate together",
    "L0_infer: shared memory": "a client's memory is not the server's",
    "L0_infer: TensorRT plans, LibTorch, Python models": "Tandem serves ONNX",
    "L0_http: raw binary of several inputs, of two free dimensions, of several texts": "no shape follows from it; Triton refuses it too",
    "L0_http: a shape beyond 64 bits, a negative one": "400, where Triton says 500 to the second",
    "L0_http: a model's configuration and files in a load request": "they run code; 403",
    "L0_http: more than 64 MiB": "413 by the head, where Triton says 400; `max_body_bytes` sets it",
    "L0_http: JSON nested deeper than 128": "400; Triton's newest limit is 100, and 2.51 dies of 50,000",
    "L0_http: trace, logging and shared memory": "they are set on Triton itself, or not offered",
    "L0_http: generate and generate_stream": "generative models are not served",
    "L0_http: a queue of one request": "requests wait in the gateway, and are refused by what they would take",
    "L0_http: restricted endpoints": "API keys have scopes instead",
    "OVMS: images as BYTES": "encoded images are for /v1/classify; the model's input is a tensor",
}
KINDS = (triton_http, triton_grpc)
LETTERS = {
    "u": np.uint8, "b": np.int8, "s": np.int16, "i": np.int32, "l": np.int64, "h": np.float16, "f": np.float32, "o": np.object_,
}  # fmt: skip
TYPES = {
    "u": "UINT8", "b": "INT8", "s": "INT16", "i": "INT32", "l": "INT64", "h": "FP16", "f": "FP32", "o": "BYTES",
}  # fmt: skip
# Datatypes of the inputs, of the sum and of the difference.
EXACT = [
    "uuu",
    "bbb",
    "sss",
    "iii",
    "lll",
    "hhh",
    "fff",
    "hff",
    "bii",
    "ibb",
    "ibs",
    "fuu",
    "uff",
    "fuh",
    "iff",
    "fii",
    "ihs",
    "ooo",
    "oii",
    "oio",
    "ooi",
    "ioo",
    "iio",
    "ioi",
]
CLASSES = ["bbb", "sss", "iii", "lll", "fff", "iff"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("suites")
    run("tests/clients/repository.py", str(folder / "repository"), "suites")
    (folder / "tandem.yaml").write_text("version: 1\npools: {cpu: {versions: 2}}\n")
    with up(folder, folder / "repository", "--config", str(folder / "tandem.yaml")) as running:
        yield running


def client_of(kind: Any, gateway: Gateway) -> Any:
    return kind.InferenceServerClient(gateway.http if kind is triton_http else gateway.grpc)


# -- L0_infer ---------------------------------------------------------------------------------------------------------


def as_type(values: np.ndarray, letter: str) -> np.ndarray:
    if letter == "text":  # what JSON holds
        return values.astype(np.str_).astype(np.object_)
    if letter != "o":
        return values.astype(LETTERS[letter])
    return np.array([str(value).encode() for value in values.ravel()], np.object_).reshape(values.shape)


def ask(
    kind: Any, gateway: Gateway, case: str, rows: int | None, binary: bool, num_classes: tuple[int, int] = (0, 0)
) -> tuple[Any, ...]:
    """The sum and the difference as they came. `rows` None: a model without batches."""
    shape = (16,) if rows is None else (rows, 16)
    first, second = (
        np.arange(16, 16 + np.prod(shape)).reshape(shape) % 32 + 16,
        np.arange(np.prod(shape)).reshape(shape) % 16,
    )
    by_http = {"binary_data": binary} if kind is triton_http else {}
    given = []
    for name, values in (("INPUT0", first), ("INPUT1", second)):
        given.append(kind.InferInput(name, list(shape), TYPES[case[0]]))
        given[-1].set_data_from_numpy(as_type(values, case[0]), **by_http)
    names = (f"SUM_{TYPES[case[1]]}", f"DIFFERENCE_{TYPES[case[2]]}")
    wanted = [
        kind.InferRequestedOutput(name, **by_http, **({"class_count": count} if count else {}))
        for name, count in zip(names, num_classes, strict=True)
    ]
    model = f"onnx_{TYPES[case[0]].lower()}{'_nobatch' if rows is None else ''}"
    with client_of(kind, gateway) as client:
        result = client.infer(model, given, outputs=wanted, request_id=case)
    response = result.get_response()
    assert (response["id"] if kind is triton_http else response.id) == case
    return first + second, first - second, *(result.as_numpy(name) for name in names)


@pytest.mark.parametrize("kind", KINDS, ids=["http", "grpc"])
@pytest.mark.parametrize("case", EXACT)
def test_sums_and_differences_are_exact_in_every_datatype(gateway: Gateway, kind: Any, case: str) -> None:
    for rows in (1, 8, *([None] if case[0] in "io" else [])):
        for binary in (True, False):
            if not binary and ("h" in case or kind is triton_grpc):
                continue
            total, difference, *came = ask(kind, gateway, case, rows, binary)
            for right, letter, values in zip((total, difference), case[1:], came, strict=True):
                expected = as_type(right, letter if binary or letter != "o" else "text").tolist()
                assert values.tolist() == expected, (rows, binary, letter)


@pytest.mark.parametrize("case", ["hff", "fuh"])
def test_fp16_is_no_json(gateway: Gateway, case: str) -> None:
    with pytest.raises(InferenceServerException, match="FP16") as raised:
        ask(triton_http, gateway, case, 1, False)
    assert raised.value.status() in (None, "400")


@pytest.mark.parametrize("kind", KINDS, ids=["http", "grpc"])
@pytest.mark.parametrize("num_classes", [(3, 3), (3, 0), (0, 3)])
@pytest.mark.parametrize("case", CLASSES)
def test_outputs_come_as_classes_all_or_some(
    gateway: Gateway, kind: Any, case: str, num_classes: tuple[int, int]
) -> None:
    for rows in (1, 8):
        *right, total, difference = ask(kind, gateway, case, rows, True, num_classes)
        for values, came, count in zip(right, (total, difference), num_classes, strict=True):
            if not count:
                assert came.tolist() == values.tolist()
                continue
            for row, classes in zip(values, came, strict=True):
                pairs = [entry.decode().split(":") for entry in classes]
                assert [float(value) for value, _ in pairs] == sorted(map(float, row), reverse=True)[:count]
                assert all(row[int(index)] == float(value) for value, index in pairs)


@pytest.mark.parametrize("kind", KINDS, ids=["http", "grpc"])
def test_the_two_newest_of_three_versions_are_there(gateway: Gateway, kind: Any) -> None:
    given = kind.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(np.zeros((1, 4), np.float32))
    with client_of(kind, gateway) as client:
        for asked, more in (("", 3), ("3", 3), ("2", 2)):
            result = client.infer("versioned", [given], model_version=asked)
            response = result.get_response()
            version = response["model_version"] if kind is triton_http else response.model_version
            assert (result.as_numpy("OUTPUT0").tolist(), version) == ([[more] * 4], str(more))
        assert [client.is_model_ready("versioned", version) for version in ("2", "3")] == [True, True]
        with pytest.raises(InferenceServerException, match="version"):
            client.infer("versioned", [given], model_version="1")


# -- L0_http ----------------------------------------------------------------------------------------------------------


def post(gateway: Gateway, path: str, body: Any, **headers: str) -> tuple[int, bytes, Any]:
    """Status, body and headers. A body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(gateway.http, timeout=60)
    connection.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    came = answer.read()
    connection.close()
    return answer.status, came, answer.headers


def infer(gateway: Gateway, model: str, body: Any, **headers: str) -> tuple[int, bytes, Any]:
    return post(gateway, f"/v2/models/{model}/infer", body, **headers)


RAW = {"Inference_Header_Content_Length": "0"}


@pytest.mark.parametrize("count", [8, 32])
def test_raw_binary_is_one_row(gateway: Gateway, count: int) -> None:
    values = np.arange(count, dtype=np.float32).tobytes()
    status, body, headers = infer(gateway, "zero_1_float32", values, **RAW)
    assert (status, body[int(headers["Inference-Header-Content-Length"]) :]) == (200, values)
    chunked = b"%X\r\n%b\r\n0\r\n\r\n" % (len(values), values)
    status, body, headers = infer(gateway, "zero_1_float32", chunked, **RAW, Transfer_Encoding="chunked")
    assert (status, body[int(headers["Inference-Header-Content-Length"]) :]) == (200, values)


def test_a_raw_text_is_one_element(gateway: Gateway) -> None:
    status, body, headers = infer(gateway, "zero_1_object_1_element", b"427", **RAW)
    assert (status, body[int(headers["Inference-Header-Content-Length"]) + 4 :]) == (200, b"427")


@pytest.mark.parametrize("model", ["zero_1_object", "zero_1_float16", "zero_3_float32"])
def test_raw_binary_of_no_certain_shape_is_refused(gateway: Gateway, model: str) -> None:
    status, body, _ = infer(gateway, model, bytes(24), **RAW)
    assert (status, len(json.loads(body)["error"]) > 20) == (400, True)


def zero(shape: list[int], data: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "shape": shape, "datatype": "FP32", "data": data}], **more}


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "1.0" + "]" * depth)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (zero([2**4, 2**60 + 2], [1.0]), 400),
        (zero([2**2, 2**60 + 2], [1.0]), 400),
        (zero([2, -5], [1.0]), 400),
        (zero([1, 3], [1.0]), 400),
        (zero([1, 1], [1.0, 2.0]), 400),
        (zero([1, 1], nested(50)), 200),
        (zero([1, 1], nested(130)), 400),
        (zero([1, 2], [1.0, 2.0], outputs=[{"name": "OUTPUT0"}] * 2), 400),
        (zero([1, 2], [1.0, 2.0], outputs=[{"name": "NOBODY"}]), 400),
    ],
)
def test_what_contradicts_itself_is_the_clients_and_the_server_lives(gateway: Gateway, body: Any, status: int) -> None:
    came, said, _ = infer(gateway, "zero_1_float32", body)
    assert came == status, said
    assert infer(gateway, "zero_1_float32", zero([1, 2], [1.0, 2.0]))[0] == 200


@pytest.mark.parametrize(
    ("default", "each", "binary"),
    [
        (None, None, (False, False)),
        (None, (True, False), (True, False)),
        (None, (True, None), (True, False)),
        (True, None, (True, True)),
        (True, (False, None), (False, False)),
    ],
)
def test_each_output_is_json_or_binary_as_asked(
    gateway: Gateway, default: bool | None, each: tuple[bool | None, ...] | None, binary: tuple[bool, bool]
) -> None:
    """That a default of the request is not that of outputs which are listed is Triton's reading."""
    names = ("SUM_INT32", "DIFFERENCE_INT32")
    body: dict[str, Any] = {
        "inputs": [{"name": f"INPUT{i}", "datatype": "INT8", "shape": [1, 16], "data": list(range(16))} for i in (0, 1)]
    }
    if default is not None:
        body["parameters"] = {"binary_data_output": default}
    if each is not None:
        body["outputs"] = [
            {"name": name, **({} if it is None else {"parameters": {"binary_data": it}})}
            for name, it in zip(names, each, strict=True)
        ]
    status, came, headers = infer(gateway, "onnx_int8", body)
    length = headers["Inference-Header-Content-Length"]
    told = json.loads(came[: int(length)] if length else came)["outputs"]
    by_name = {output["name"]: output for output in told}
    assert status == 200
    assert tuple("data" not in by_name[name] for name in names) == binary
    assert all(
        by_name[name]["data"] == right
        for name, right, is_binary in zip(names, ([2 * i for i in range(16)], [0] * 16), binary, strict=True)
        if not is_binary
    )


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v2/models/onnx_int32/infer", (400,)),
        ("/v2/repository/index", (400,)),
        ("/v2/repository/models/onnx_int32/load", (400,)),
        ("/v2/repository/models/onnx_int32/unload", (400,)),
        ("/v2/models/onnx_int32/trace/setting", (400, 501)),
        ("/v2/logging", (400, 501)),
        ("/v2/systemsharedmemory/region/r/register", (400, 501)),
        ("/v2/cudasharedmemory/region/r/register", (400, 501)),
        ("/v2/models/onnx_int32/generate", (404, 501)),
    ],
)
def test_seventy_thousand_chunks_of_a_byte_harm_nobody(gateway: Gateway, path: str, allowed: tuple[int, ...]) -> None:
    body = b"1\r\nA\r\n" * 70_000 + b"0\r\n\r\n"
    try:
        status = post(gateway, path, body, **RAW, Transfer_Encoding="chunked", Connection="close")[0]
    except (BrokenPipeError, ConnectionResetError):  # it was answered, and hung up, before all of it was sent
        status = allowed[0]
    assert status in (*allowed, 413)
    assert infer(gateway, "zero_1_float32", zero([1, 2], [1.0, 2.0]))[0] == 200


def test_more_than_a_server_takes_is_told_by_the_head(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection(gateway.http, timeout=60)
    connection.putrequest("POST", "/v2/models/zero_1_float32/infer")
    connection.putheader("Content-Length", str(2**27))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_load_brings_no_files_and_a_plugin_of_the_client_its_header(gateway: Gateway) -> None:
    with client_of(triton_http, gateway) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.load_model("invalid", config='{"backend": "onnxruntime"}', files={"file:1/model.onnx": b"A" * 64})
        assert raised.value.status() == "403"
        client.register_plugin(BasicAuth("somebody", "secret"))
        assert client.is_server_live()
        digits.check(client.infer("digits", digits.inputs(triton_http)))
        client.unregister_plugin()


# -- OpenVINO model server's samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=["http", "grpc"])
def test_a_server_and_a_model_say_what_they_are(gateway: Gateway, kind: Any) -> None:
    with client_of(kind, gateway) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        metadata = client.get_server_metadata()
        assert (metadata["name"] if kind is triton_http else metadata.name) == "tandem"
        for version in ("", "1"):
            assert client.is_model_ready("digits", version)
            model = client.get_model_metadata("digits", version)
            versions = model["versions"] if kind is triton_http else list(model.versions)
            assert versions == ["1"]


@pytest.mark.parametrize("kind", KINDS, ids=["http", "grpc"])
def test_images_as_arrays_are_answered_at_once_and_later(gateway: Gateway, kind: Any) -> None:
    batch = np.repeat(digits.IMAGE.transpose(0, 2, 3, 1), 4, axis=0).transpose(0, 3, 1, 2)
    with client_of(kind, gateway) as client:
        digits.check(client.infer("digits", digits.inputs(kind, batch), outputs=[]), 4)
        if kind is triton_http:
            digits.check(client.async_infer("digits", digits.inputs(kind, batch)).get_result(), 4)
            return
        came: queue.Queue[Any] = queue.Queue()
        client.async_infer("digits", digits.inputs(kind, batch), lambda result, error: came.put(error or result))
        digits.check(came.get(timeout=30), 4)


def test_texts_are_a_tensor_in_contents_and_raw(gateway: Gateway) -> None:
    words = ["these", "are", "five", "short", "words"]
    with client_of(triton_grpc, gateway) as client:
        given = triton_grpc.InferInput("INPUT0", [5], "BYTES")
        given.set_data_from_numpy(np.array(words, dtype=bytes))
        assert client.infer("strings", [given], outputs=[]).as_numpy("OUTPUT0").tolist() == [w.encode() for w in words]
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="strings")
        tensor = request.inputs.add(name="INPUT0", datatype="BYTES", shape=[5])
        tensor.contents.bytes_contents.extend(word.encode() for word in words)
        request.outputs.add(name="OUTPUT0")
        answer = stub.ModelInfer(request)
        assert list(itertools.chain(answer.outputs[0].shape)) == [5]
        assert b"five" in answer.raw_output_contents[0]


def test_an_encoded_image_is_no_tensor(gateway: Gateway) -> None:
    image = b"\xff\xd8\xff\xe0 not much of a picture"
    head = {
        "inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(image)}}]
    }
    data = json.dumps(head).encode()
    status, body, _ = infer(gateway, "digits", data + image, Inference_Header_Content_Length=str(len(data)))
    assert (status, len(json.loads(body)["error"]) > 20) == (400, True)
    with grpc.insecure_channel(gateway.grpc) as channel:
        request = service_pb2.ModelInferRequest(model_name="digits")
        request.inputs.add(name="image", datatype="BYTES", shape=[1]).contents.bytes_contents.append(image)
        with pytest.raises(grpc.RpcError) as raised:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_page_lists_what_is_refused_with_the_same_reasons() -> None:
    from conftest import ROOT

    page = (ROOT / "docs" / "clients.md").read_text()
    assert [case for case, why in REFUSED.items() if f"| {case} | {why} |" not in page] == []
