"""curl, as people try things: images as forms and as raw bodies, JSON from a file, keys in a header."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import LABEL, ROOT, SAMPLE, Gateway, Keys
from PIL import Image

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
SAMPLE_FILE = ROOT / "model_repo" / "digits-fp32" / "sample.json"


def curl(*arguments: str) -> tuple[int, Any]:
    """Status and body."""
    command = ["curl", "-sS", "--max-time", "30", "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


@pytest.fixture(params=["PNG", "WEBP"])
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The sample digit as somebody would keep it: 8 × 8, scores of 0..16 as grey."""
    pixels = bytes(round(255 * value) for value in SAMPLE["data"])
    file = tmp_path / f"digit.{request.param.lower()}"
    Image.frombytes("L", (8, 8), pixels).save(file, request.param, lossless=True)
    return file


def check(body: Any, num_images: int = 1) -> None:
    assert body["model"] == "digits"
    assert len(body["results"]) == num_images
    for result in body["results"]:
        best = result["labels"][0]
        assert (best["label"], best["index"]) == (str(LABEL), LABEL)
        assert 0 < best["score"] <= 1


def test_a_picture_is_sent_as_a_form(gateway: Gateway, picture: Path) -> None:
    status, body = curl("-F", f"image=@{picture}", f"{gateway.url}/v1/classify/digits")
    assert status == 200, body
    check(body)


def test_several_pictures_of_which_one_is_none(gateway: Gateway, picture: Path) -> None:
    form = ["-F", f"image=@{picture}", "-F", f"image=@{SAMPLE_FILE}", "-F", f"image=@{picture}"]
    status, body = curl(*form, f"{gateway.url}/v1/classify/digits")
    assert status == 200, body
    good, bad, again = body["results"]
    check({"model": body["model"], "results": [good, again]}, 2)
    assert list(bad) == ["error"]


def test_a_picture_is_sent_as_it_is(gateway: Gateway, picture: Path) -> None:
    kind = f"Content-Type: image/{picture.suffix[1:]}"
    status, body = curl("-H", kind, "--data-binary", f"@{picture}", f"{gateway.url}/v1/classify/digits")
    assert status == 200, body
    check(body)


def test_pictures_are_sent_in_json(gateway: Gateway, picture: Path, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    text = base64.b64encode(picture.read_bytes()).decode()
    file.write_text(json.dumps({"images": [text, text], "top_k": 3}))
    status, body = curl("--json", f"@{file}", f"{gateway.url}/v1/classify/digits")
    assert status == 200, body
    check(body, 2)
    assert [len(result["labels"]) for result in body["results"]] == [3, 3]


def test_a_request_is_sent_from_a_file(gateway: Gateway) -> None:
    """Without a Content-Type that fits: curl says that it is a form."""
    status, body = curl("--data-binary", f"@{SAMPLE_FILE}", f"{gateway.url}/v2/models/digits/infer")
    assert status == 200, body
    assert body["model_name"] == "digits"


def test_texts_are_sent_by_hand(gateway: Gateway) -> None:
    status, body = curl("-d", '{"model": "words", "input": "red car"}', f"{gateway.url}/v1/embeddings")
    assert status == 200, body
    assert len(body["data"][0]["embedding"]) == 4


@pytest.mark.parametrize("header", ["Authorization: Bearer {}", "X-API-Key: {}"])
def test_a_key_is_one_header(keyed: Gateway, keys: Keys, picture: Path, header: str) -> None:
    form = ["-F", f"image=@{picture}", f"{keyed.url}/v1/classify/digits"]
    assert curl("-H", header.format(keys.infer), *form)[0] == 200
    assert curl("-H", header.format("tdm_nobody"), *form)[0] == 401
    assert curl(*form)[0] == 401
