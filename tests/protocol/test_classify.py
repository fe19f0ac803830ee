"""The bodies of /v1/classify: every way to send images, and what is wrong with a request told with its place."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import numpy as np
import orjson
import pytest

from serving.errors import BadRequest
from serving.preprocessing.containers import BadImage
from serving.protocol import classify
from serving.protocol.classify import Request, best, body, file_of, read, softmax

JPEG = b"\xff\xd8\xff\xe0 and so on \n--B-- \r\n--A"
FORM = b"multipart/form-data; boundary=B"
JSON = b"application/json"


def form(*parts: tuple[str, bytes], boundary: bytes = b"B", end: bytes = b"--\r\n") -> bytes:
    out = b""
    for name, value in parts:
        out += b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="a.jpg"\r\n' % (boundary, name.encode())
        out += b"Content-Type: image/jpeg\r\n\r\n%b\r\n" % value
    return out + b"--" + boundary + end


def asked(body: bytes, kind: bytes | None = JSON, query: bytes = b"", max_images: int = 3) -> Request:
    return read(body, kind, query, max_images)


# -- what is taken ----------------------------------------------------------------------------------------------------


def test_json_holds_files_in_base64_in_their_order() -> None:
    images = [b"one", b"two"]
    said = {"images": [base64.b64encode(image).decode() for image in images], "top_k": 2}
    request = asked(json.dumps(said).encode())
    assert [file_of(image) for image in request.images] == images
    assert request.top_k == 2
    assert asked(b'{"images": ["eA=="], "top_k": null}').top_k is None


def test_a_data_uri_is_base64_with_a_beginning() -> None:
    assert file_of("data:image/png;base64,b25l") == b"one"
    assert file_of("data:;base64,b25l") == b"one"


def test_a_form_holds_files_whatever_their_bytes_are() -> None:
    files = [JPEG, b"\r\n--", b"\r\n--Cx\r\n--C--\r\n" * 3, b"\r\n\r\n--", b""]
    request = asked(form(*(("image", file) for file in files), ("top_k", b"7")), FORM, max_images=9)
    assert list(request.images) == files
    assert request.top_k == 7


def test_a_form_is_read_as_curl_browsers_and_python_write_it() -> None:
    quoted = b'multipart/form-data; boundary="----We bKit"; charset=utf-8'
    assert asked(form(("image", JPEG), boundary=b"----We bKit"), quoted).images == [JPEG]
    bare = b"--B\r\ncontent-disposition:form-data;name=image\r\n\r\nx\r\n--B--"
    assert asked(bare, FORM).images == [b"x"]
    around = b"before\r\n" + form(("image", b"x")) + b"after"
    with pytest.raises(BadRequest):  # an e-mail may have that, a request has no use for it
        asked(around, FORM)
    assert asked(form(("image", b"x")) + b"\r\n", FORM).images == [b"x"]


@pytest.mark.parametrize(
    "kind", [b"image/jpeg", b"image/png", b"application/x-www-form-urlencoded", None, b"x/y", JSON]
)
def test_a_file_as_the_whole_body_needs_no_word_on_what_it_is(kind: bytes | None) -> None:
    for file in (JPEG, b"\x89PNG\r\n\x1a\n...", b"RIFF....WEBPVP8 "):
        assert asked(file, kind).images == [file]


def test_what_is_called_an_image_is_taken_for_one() -> None:
    assert asked(b"GIF89a", b"image/gif").images == [b"GIF89a"]
    assert asked(b"", b"image/jpeg").images == [b""]


def test_how_many_labels_are_wanted_may_stand_in_the_query() -> None:
    assert asked(JPEG, None, b"top_k=3").top_k == 3
    assert asked(b'{"images": ["eA=="], "top_k": 3}', JSON, b"top_k=3").top_k == 3


# -- what is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (b"", JSON, "the request has no body; send {"),
        (b"", None, "the request has no body"),
        (b"GIF89a", b"application/x-www-form-urlencoded", "the body ('application/x-www-form-urlencoded') is neither an image nor JSON"),
        (b"{", JSON, "is neither an image nor JSON"),
        (b"[" * 9_000, JSON, "is neither an image nor JSON"),
        (b"[" * 100_000, JSON, "holds more values than any right request has (10000); send {\"images\""),
        (b"[]", JSON, "the JSON body is no object"),
        (b'{"images": ["eA=="], "im\\u0061ges": ["eQ=="]}', JSON, "the request has 'images' twice in one object"),
        (b"{}", JSON, "'images' must be an array of one or more files"),
        (b'{"images": []}', JSON, "'images' must be an array of one or more files"),
        (b'{"images": "eA=="}', JSON, "'images' must be an array of one or more files"),
        (b'{"image": ["eA=="]}', JSON, "unknown key 'image'; did you mean 'images'?"),
        (b'{"images": ["eA=="], "topk": 1}', JSON, "unknown key 'topk'; did you mean 'top_k'?"),
        (b'{"images": ["", "", "", ""]}', JSON, "the request has 4 images; at most 3 are taken at once"),
        (b'{"images": ["eA=="], "top_k": 0}', JSON, "top_k is 0, want a whole number, 1 or more"),
        (b'{"images": ["eA=="], "top_k": 1.0}', JSON, "top_k is 1.0, want"),
        (b'{"images": ["eA=="], "top_k": true}', JSON, "top_k is true, want"),
        (b'{"images": ["eA=="], "top_k": "1"}', JSON, 'top_k is "1", want'),
        (form(("file", JPEG)), FORM, "unknown field 'file'; known are image, top_k"),
        (form(("images", JPEG)), FORM, "unknown field 'images'; did you mean 'image'?"),
        (form(("", JPEG)), FORM, "unknown field ''"),
        (form(), FORM, "the form has no field 'image'"),
        (form(("top_k", b"1")), FORM, "the form has no field 'image'"),
        (form(*[("image", b"x")] * 4), FORM, "the request has 4 or more images; at most 3"),
        (form(("image", b"x"), ("top_k", b"1"), ("top_k", b"1")), FORM, "'top_k' came more than once"),
        (form(("image", b"x"), ("top_k", b"-1")), FORM, "top_k is '-1', want a whole number"),
        (form(("image", b"x"), ("top_k", "²".encode())), FORM, "want a whole number"),
        (form(("image", b"x"), ("top_k", b"1" * 5000)), FORM, "want a whole number"),
        (form(("image", JPEG), boundary=b"C"), FORM, "the body is not the form that its Content-Type says"),
        (form(("image", JPEG), end=b""), FORM, "the form is cut off"),
        (form(("image", JPEG))[:40], FORM, "the form is cut off"),
        (form(("image", JPEG)), b"multipart/form-data", "has no boundary"),
        (form(("image", JPEG)), b"multipart/form-data; boundary=" + b"B" * 10_000, "is not the form"),
        (JPEG, FORM, "is not the form"),
        (b"", FORM, "is cut off"),
        (b"--B\r\nContent-Disposition: form-data; name=\"image\"\r\n" + b"X-Y: z\r\n" * 20 + b"\r\nx\r\n--B--", FORM, "header count"),
        (b"--B\r\nContent-Disposition: form-data; name=\"image\"; filename=\"" + b"x" * 2000 + b"\"\r\n\r\nx\r\n--B--", FORM, "header size"),
        (b"--B\nContent-Disposition: form-data; name=\"image\"\n\nx\n--B--", FORM, "is not the form"),
        (b"--B\r\n\r\nx\r\n--B--", FORM, "unknown field ''"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_told_in_one_line(body: bytes, kind: bytes | None, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        asked(body, kind)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (b"top_k=", "top_k is '', want"),
        (b"top_k=0", "top_k is '0', want"),
        (b"top_k=1&top_k=1", "more than once in the query"),
        (b"topk=1", "unknown query field 'topk'"),
        (b"a=1&" * 20, "more than 8 fields"),
        (b"top_k=9", "top_k is 2 in the body and 9 in the query"),
    ],
)
def test_what_is_wrong_with_a_query_is_told(query: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        asked(b'{"images": ["eA=="], "top_k": 2}', JSON, query)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("https://example.com/cat.jpg", "is a URL, and URLs are not fetched"),
        ("http://169.254.169.254/", "is a URL, and URLs are not fetched"),
        ("file:///etc/passwd", "is a URL"),
        ("data:image/png,abc", "is a data: URI that is not base64"),
        ("data:image/png;base64", "is a data: URI that is not base64"),
        ("data:image/png;base64,%%%", "is not base64"),
        ("eA=", "is not base64"),
        ("eA", "is not base64"),
        ("eA==\n", "without line breaks"),
        ("eA==eA==", "is not base64"),
        ("-_-_", "its plain alphabet"),
        ("é", "is not base64"),
        ("", "is empty"),
        (b"", "is empty"),
        (None, "is no text"),
    ],
)
def test_an_image_that_is_none_fails_alone(image: classify.Image, says: str) -> None:
    with pytest.raises(BadImage, match=says):
        file_of(image)


def test_json_that_is_no_text_is_an_image_that_is_none() -> None:
    assert asked(b'{"images": ["eA==", 3, null]}').images == ["eA==", None, None]


# -- answers ----------------------------------------------------------------------------------------------------------


def found(scores: Sequence[float], top_k: int, labels: Sequence[str] | None = None) -> list[dict[str, object]]:
    labels_of: list[dict[str, object]] = best(np.asarray(scores, np.float32), top_k, labels)["labels"]
    return labels_of


def test_the_best_come_first_and_of_equal_ones_the_first() -> None:
    labels = found([0.1, 0.4, 0.1, 0.4], 3, list("abcd"))
    assert [(one["label"], one["index"]) for one in labels] == [("b", 1), ("d", 3), ("a", 0)]
    assert [one["index"] for one in found([0.5] * 6, 4)] == [0, 1, 2, 3]
    assert [one["index"] for one in found([1.0, 2.0], 2)] == [1, 0]
    assert [one["index"] for one in found([1.0], 1)] == [0]


def test_they_are_those_of_a_whole_sort() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        scores = random.integers(0, 20, 100).astype(np.float32)
        assert [one["index"] for one in found(list(scores), 10)] == np.argsort(-scores, kind="stable")[:10].tolist()


def test_classes_without_names_have_null_and_their_number() -> None:
    assert orjson.loads(body("m", [best(np.asarray([0.25, 0.75], np.float32), 1, None)])) == {
        "model": "m",
        "results": [{"labels": [{"label": None, "index": 1, "score": 0.75}]}],
    }


def test_a_score_is_written_as_short_as_its_32_bits_allow() -> None:
    assert b'"score":0.1}' in body("m", [best(np.asarray([0.1], np.float32), 1, ("a",))])


def test_logits_become_probabilities_however_large_they_are() -> None:
    logits = np.asarray([[1000.0, 999.0], [-1000.0, -1000.0]], np.float32)
    probabilities = softmax(logits)
    np.testing.assert_allclose(probabilities, [[0.7310586, 0.26894143], [0.5, 0.5]], rtol=1e-5)


def test_where_no_image_is_one_the_answer_says_so_as_an_error() -> None:
    bad = {"error": "the image is empty"}
    assert "empty" in orjson.loads(body("m", [bad]))["error"]
    assert "2 images" in orjson.loads(body("m", [bad, bad]))["error"]
    assert "error" not in orjson.loads(body("m", [bad, {"labels": []}]))
