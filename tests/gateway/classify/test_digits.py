"""/v1/classify on the digits that ship: as right as the tensors are, however the images come, and a bad one fails alone."""

from __future__ import annotations

import base64
import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.gateway.classify.conftest import BUDGET_BYTES, as_json, best, classify, png
from tests.gateway.conftest import Running
from tests.local.harness import ROOT

pytestmark = pytest.mark.triton

HELD_OUT = np.load(ROOT / "loadtest" / "payloads" / "digits.npz")
PIXELS: NDArray[np.float32] = HELD_OUT["image"]
FILES = [png(np.round(pixels[0] * 255).astype(np.uint8)) for pixels in PIXELS]
FIRST = str(HELD_OUT["labels"][0])


def form(*files: bytes) -> tuple[bytes, dict[str, str]]:
    parts = b"".join(
        b'--B\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n%b\r\n' % file for file in files
    )
    return parts + b"--B--\r\n", {"Content-Type": "multipart/form-data; boundary=B"}


def by_tensors(gateway: Running, pixels: NDArray[np.float32], variant: str) -> NDArray[np.float32]:
    entry = {"name": "image", "datatype": "FP32", "shape": list(pixels.shape), "data": pixels.ravel().tolist()}
    reply = gateway.infer(json.dumps({"inputs": [entry]}).encode(), headers={"Tandem-Variant": variant})
    return np.asarray(reply.json()["outputs"][0]["data"], np.float32).reshape(len(pixels), 10)


@pytest.mark.protocol(
    "classify", "JPEG, PNG and WebP in base64 (JSON), as a form's field `image`, or as the whole body", "supported"
)
@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_every_held_out_digit_as_png_is_what_its_tensor_is(labelled: Running, variant: str) -> None:
    for start in range(0, len(FILES), 32):
        reply = classify(labelled, as_json(FILES[start : start + 32]), headers={"Tandem-Variant": variant})
        assert reply.status == 200
        scores = by_tensors(labelled, PIXELS[start : start + 32], variant)
        assert best(reply) == [str(digit) for digit in scores.argmax(axis=1)]
        for result, row in zip(reply.json()["results"], scores, strict=True):
            assert result["labels"][0]["index"] == row.argmax()
            assert abs(result["labels"][0]["score"] - row.max()) < 0.02  # 8 bits hold no sixteenths


def test_every_way_to_send_an_image_gives_the_same_answer(labelled: Running) -> None:
    pixels = np.round(PIXELS[0, 0] * 255).astype(np.uint8)
    whole = classify(labelled, FILES[0], headers={})
    assert best(whole) == [FIRST]
    body, headers = form(FILES[0])
    for reply in (
        classify(labelled, as_json([FILES[0]])),
        classify(labelled, as_json([f"data:image/png;base64,{base64.b64encode(FILES[0]).decode()}"])),
        classify(labelled, body, headers=headers),
        classify(labelled, FILES[0], headers={"Content-Type": "image/png"}),
        classify(labelled, png(pixels, "WEBP", lossless=True), headers={"Content-Type": "image/webp"}),
        classify(labelled, png(np.stack([pixels] * 3, axis=2))),
        classify(labelled, png(np.stack([pixels] * 3, axis=2), "WEBP", lossless=True)),
        classify(labelled, png(Image.fromarray(pixels).convert("LA"))),
        classify(labelled, png(pixels.astype(np.uint16) * 257)),
    ):
        assert reply.status == 200
        assert reply.json() == whole.json()


def test_a_larger_drawing_is_scaled_to_what_the_model_takes(labelled: Running) -> None:
    large = Image.fromarray(np.round(PIXELS[0, 0] * 255).astype(np.uint8)).resize((256, 256), Image.Resampling.NEAREST)
    assert classify(labelled, png(large)).json() == classify(labelled, FILES[0]).json()
    assert best(classify(labelled, png(large, "JPEG"))) == [FIRST]


def test_the_answer_names_model_labels_and_scores_best_first(labelled: Running) -> None:
    said = classify(labelled, FILES[0]).json()
    assert said["model"] == "digits"
    (result,) = said["results"]
    scores = [one["score"] for one in result["labels"]]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert all(one["label"] == str(one["index"]) for one in result["labels"])


@pytest.mark.protocol(
    "classify", "`top_k` in JSON, as a form's field and in the query; at most the number of classes", "supported"
)
def test_as_many_labels_come_as_are_wanted(labelled: Running) -> None:
    body, headers = form(FILES[0])
    with_field = body[: -len(b"--B--\r\n")] + b'--B\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n3\r\n--B--'
    for reply, wanted in (
        (classify(labelled, as_json([FILES[0]], top_k=1)), 1),
        (classify(labelled, FILES[0], query="?top_k=10"), 10),
        (classify(labelled, with_field, headers=headers), 3),
    ):
        assert len(reply.json()["results"][0]["labels"]) == wanted
    whole = classify(labelled, FILES[0], query="?top_k=10").json()["results"][0]["labels"]
    assert abs(sum(one["score"] for one in whole) - 1) < 1e-4
    assert {one["index"] for one in whole} == set(range(10))
    reply = classify(labelled, FILES[0], query="?top_k=11")
    assert reply.status == 400
    assert "top_k is 11" in reply.json()["error"]


@pytest.mark.protocol("classify", "several images a request; a bad one fails alone, in its place", "supported")
def test_a_bad_image_fails_alone_and_in_its_place(labelled: Running) -> None:
    files = [FILES[0], b"no image", FILES[1], FILES[2][:40], b"", FILES[2]]
    reply = classify(labelled, as_json(files, top_k=1))
    assert reply.status == 200
    good = classify(labelled, as_json([FILES[0], FILES[1], FILES[2]], top_k=1)).json()["results"]
    told = reply.json()["results"]
    assert [told[0], told[2], told[5]] == good
    assert [list(told[place]) for place in (1, 3, 4)] == [["error"]] * 3
    assert "JPEG, PNG, WEBP" in told[1]["error"]
    assert "empty" in told[4]["error"]


@pytest.mark.protocol(
    "classify",
    "fetching what a URL names",
    "refused: only bytes in the request are read, so that nobody is sent anywhere",
)
def test_a_url_is_not_fetched(labelled: Running) -> None:
    url = f"http://{labelled.url}/health/live"
    reply = classify(labelled, as_json([url, FILES[0]]))
    assert "URL" in reply.json()["results"][0]["error"]
    assert best(reply)[1] == FIRST


@pytest.mark.protocol("classify", "a request without one good image is 400, with every reason", "supported")
def test_a_request_without_any_good_image_is_400_and_tells_each(labelled: Running) -> None:
    reply = classify(labelled, as_json([b"x", b"GIF89a"]))
    assert reply.status == 400
    assert reply.headers["Tandem-Error"] == "bad_request"
    said = reply.json()
    assert "2 images" in said["error"]
    assert "JPEG, PNG, WEBP" in said["error"]
    assert [list(one) for one in said["results"]] == [["error"], ["error"]]


@pytest.mark.parametrize(
    ("body", "query", "headers", "status", "says"),
    [
        (b"", "", {}, 400, "has no body"),
        (b"{}", "", {}, 400, "'images' must be"),
        (b"GIF89a", "", {}, 400, "neither an image nor JSON"),
        (FILES[0], "?top_k=x", {}, 400, "top_k is 'x'"),
        (FILES[0], "", {"Tandem-Deadline-Ms": "-1"}, 400, "Tandem-Deadline-Ms"),
        (FILES[0], "", {"Tandem-Priority": "9"}, 400, "Tandem-Priority"),
        (FILES[0], "", {"Tandem-Variant": "fp64"}, 400, "fp64"),
        (FILES[0], "", {"Content-Encoding": "br"}, 501, "gzip and deflate"),
        (b'{"images": [' + b",".join([b'""'] * 41) + b"]}", "", {}, 400, "41 images; at most 40"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_as_on_every_path(
    labelled: Running, body: bytes, query: str, headers: dict[str, str], status: int, says: str
) -> None:
    reply = classify(labelled, body, query=query, headers=headers)
    assert reply.status == status
    assert says in reply.json()["error"]
    assert reply.headers["Tandem-Error"] in ("bad_request", "unsupported")


@pytest.mark.protocol("classify", "limits of pixels, images and bytes", "supported")
def test_an_image_of_too_many_pixels_fails_alone_before_it_is_unpacked(labelled: Running) -> None:
    large = png(Image.new("L", (1001, 1000)))
    reply = classify(labelled, as_json([large, FILES[0]]))
    assert "1 million pixels" in reply.json()["results"][0]["error"]
    assert best(reply)[1] == FIRST


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/classify/nobody", 404), ("/v1/classify/", 404), ("/v1/classify/digits/infer", 404)]
)
def test_what_is_not_there_is_404(labelled: Running, path: str, status: int) -> None:
    reply = labelled.ask(path, FILES[0])
    assert (reply.status, reply.headers["Tandem-Error"]) == (status, "not_found")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_post_is_taken(labelled: Running, method: str) -> None:
    reply = labelled.ask("/v1/classify/digits", FILES[0], method=method)
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")


def test_a_name_that_pins_a_variant_works_and_is_the_one_in_the_answer(labelled: Running) -> None:
    reply = classify(labelled, FILES[0], "digits-fp32")
    assert reply.json()["model"] == "digits-fp32"
    assert reply.headers["Tandem-Variant"] == "fp32"


@pytest.mark.protocol("classify", "receipt, deadline, pins and priority, as on v2", "supported")
def test_the_receipt_is_that_of_v2(labelled: Running) -> None:
    reply = classify(
        labelled, FILES[0], headers={"Tandem-Variant": "int8", "Tandem-Pool": "cpu", "Tandem-Priority": "1"}
    )
    sample = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
    v2 = labelled.infer(sample, headers={"Tandem-Variant": "int8"})
    for name, value in v2.headers.items():
        if name.lower().startswith("tandem-") and name.lower() != "tandem-request-id":
            assert reply.headers[name] == value
    times = [part.split(";")[0].strip() for part in reply.headers["Server-Timing"].split(",")]
    assert times == ["prepare", "queue", "backend", "total"]


def test_a_deadline_that_has_passed_is_504(labelled: Running) -> None:
    reply = classify(labelled, as_json(FILES[:32]), headers={"Tandem-Deadline-Ms": "0.01"})
    assert reply.status in (503, 504)
    assert reply.headers["Tandem-Error"] in ("overloaded", "deadline_expired")


def test_more_images_than_a_batch_takes_come_back_in_order(labelled: Running) -> None:
    files = FILES[:40]
    files[33] = b"bad"
    reply = classify(labelled, as_json(files, top_k=1))
    assert reply.status == 200
    alone = [best(classify(labelled, file))[0] for file in FILES[:40]]
    assert best(reply) == [label if place != 33 else None for place, label in enumerate(alone)]
    assert reply.headers["Tandem-Pool"] == "cpu"  # said once, however many batches


def test_a_body_in_chunks_and_a_compressed_one_are_read(labelled: Running) -> None:
    import gzip

    packed = classify(labelled, gzip.compress(as_json([FILES[0]])), headers={"Content-Encoding": "gzip"})
    assert best(packed) == [FIRST]
    connection = http.client.HTTPConnection("127.0.0.1", labelled.port, timeout=60)
    body = as_json([FILES[0]])
    connection.request("POST", "/v1/classify/digits", iter([body[:9], body[9:]]), encode_chunked=True)
    assert json.loads(connection.getresponse().read())["results"][0]["labels"][0]["label"] == FIRST
    connection.close()


def test_requests_beside_each_other_get_their_own_answers(labelled: Running) -> None:
    def ask(place: int) -> bool:
        return best(classify(labelled, as_json([FILES[place], FILES[place + 1]]))) == alone[place : place + 2]

    alone = best(classify(labelled, as_json(FILES[:33])))
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(32)))


def test_answers_and_errors_are_as_the_api_document_says(labelled: Running) -> None:
    import jsonschema

    api = labelled.ask("/openapi.json").json()
    described = api["paths"]["/v1/classify/{model}"]["post"]
    replies = [
        classify(labelled, FILES[0], headers={}),
        classify(labelled, as_json([FILES[0], b"x"])),
        classify(labelled, as_json([b"x"])),
        classify(labelled, b"{}"),
        labelled.ask("/v1/classify/nobody", FILES[0]),
    ]
    for reply in replies:
        schema = described["responses"][str(reply.status)]["content"]["application/json"]["schema"]
        jsonschema.validate(reply.json(), {**schema, "components": api["components"]})
    sent = {name.lower() for name in replies[0].headers if name.lower().startswith(("tandem-", "server-timing"))}
    assert sent == {name.lower() for name in described["responses"]["200"]["headers"]}
    takes = api["components"]["schemas"]["ClassifyRequest"]
    jsonschema.validate(json.loads(as_json([FILES[0]], top_k=2)), takes)
    assert set(described["requestBody"]["content"]) == {
        "application/json", "multipart/form-data", "image/jpeg", "image/png", "image/webp"
    }  # fmt: skip


def metric(gateway: Running, outcome: str) -> float:
    text = gateway.ask("/metrics").body.decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("tandem_requests_total") and f'outcome="{outcome}"' in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_each_request_is_counted_once_by_how_it_ended(labelled: Running) -> None:
    before = {outcome: metric(labelled, outcome) for outcome in ("ok", "client_error")}
    classify(labelled, FILES[0])
    classify(labelled, as_json([FILES[0], b"x"]))
    classify(labelled, as_json([b"x"]))
    classify(labelled, b"{}")
    labelled.ask("/v1/classify/nobody", FILES[0])
    assert metric(labelled, "ok") == before["ok"] + 2
    assert metric(labelled, "client_error") == before["client_error"] + 3


@pytest.mark.thorough
@pytest.mark.protocol(
    "classify", "without `--model-repository`", "refused: preprocessing and labels are read from there"
)
def test_a_gateway_without_the_models_files_says_so(gateway: Running) -> None:
    reply = classify(gateway, FILES[0])
    assert (reply.status, reply.headers["Tandem-Error"]) == (501, "unsupported")
    assert "--model-repository" in reply.json()["error"]


def test_what_comes_out_of_base64_counts_in_the_budget_of_memory(labelled: Running) -> None:
    for size, status in (
        (BUDGET_BYTES // 2, 400),
        (BUDGET_BYTES * 5 // 8, 413),
    ):  # 7/8 and 35/32 of it, with what it decodes to
        reply = classify(labelled, as_json(["A" * size]))
        assert reply.status == status, reply.body[:200]
    assert classify(labelled, as_json([FILES[0]])).status == 200
