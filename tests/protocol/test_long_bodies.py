"""Long bodies of /v1/classify and /v1/embeddings are read in pieces, and say what short ones say."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from serving.errors import BadRequest
from serving.preprocessing.containers import BadImage
from serving.protocol.classify import HERE_BYTES, file_of, read
from serving.protocol.openai import read_embeddings

MANY = 300_000
FILE = bytes(range(256)) * 2048  # in base64 five times as much as is read in one go
CODE = base64.b64encode(FILE).decode()
TEXTS = {
    "letters": "a" * MANY,
    "two bytes each": "äöü" * (MANY // 3),
    "escaped": '"\\/\n\t' * (MANY // 3),
    "pairs of surrogates": "x😀" * (MANY // 3),
}


def files(body: str) -> list[bytes]:
    return [file_of(image) for image in read(body.encode(), b"application/json", b"", 32).images]


@pytest.mark.parametrize("write", [json.dumps, lambda said: json.dumps(said).replace("/", "\\/")])
def test_images_in_long_bodies_are_the_files_that_were_sent(write: Any) -> None:
    assert files(write({"images": [CODE, "data:image/png;base64," + CODE, "AAAA"]})) == [FILE, FILE, b"\0\0\0"]


@pytest.mark.parametrize(
    "wrong",
    [
        CODE[:400_000] + "=" + CODE[400_000:],
        CODE + "A",
        CODE[:-1] + "!",
        CODE.replace("A", "\n", 1),
        CODE[:131_072] + "AA==" + CODE,
    ],
)
def test_what_is_no_base64_is_told_of_its_image_alone(wrong: str) -> None:
    images = read(json.dumps({"images": [wrong, CODE]}).encode(), b"application/json", b"", 32).images
    assert file_of(images[1]) == FILE
    with pytest.raises(BadImage):
        file_of(images[0])


def test_a_form_is_read_alike_wherever_a_piece_ends() -> None:
    for shift in (0, 1, 2, 5, 20, 60):
        before = bytes(HERE_BYTES - 100 - shift)
        parts = b"".join(
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="f"\r\nContent-Type: image/png\r\n\r\n%b\r\n'
            % one
            for one in (before, FILE)
        )
        assert read(parts + b"--x--\r\n", b"multipart/form-data; boundary=x", b"", 32).images == [before, FILE]


def embeddings(given: Any, *, is_ascii: bool) -> tuple[list[str] | None, list[list[int]] | None]:
    request = read_embeddings(
        json.dumps({"model": "m", "input": given}, ensure_ascii=is_ascii).encode(), 2048, 2_000_000
    )
    return request.texts, request.ids


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_long_texts_are_those_that_were_sent(name: str, is_ascii: bool) -> None:
    text = TEXTS[name]
    assert embeddings(text, is_ascii=is_ascii) == ([text], None)
    several = [text, "short", *(text[:100] for _ in range(500))]
    assert embeddings(several, is_ascii=is_ascii) == (several, None)


@pytest.mark.parametrize(
    "ids",
    [[list(range(MANY))], [list(range(1000, 1200)) for _ in range(1000)], [[1], list(range(MANY)), [2, 3]]],
)
def test_long_lists_of_ids_are_those_that_were_sent(ids: list[list[int]]) -> None:
    assert embeddings(ids, is_ascii=True) == (None, ids)
    if len(ids) == 1:
        assert embeddings(ids[0], is_ascii=True) == (None, ids)


ROW = "[" + "1," * 100_000 + "1]"


@pytest.mark.parametrize(
    "wrong",
    [
        f"[{ROW}{ROW}]",
        f"[{ROW},]",
        f"[,{ROW}]",
        f"[{ROW},,{ROW}]",
        f"[{ROW},1]",
        f"[[{ROW}]]",
        f'[{ROW},"a"]',
        f"[[],{ROW}]",
        "[" + "1," * 100_000 + "]",
        "[" + "1," * 100_000 + "1.5]",
        "[" + '"a",' * 1000 + '["a"],"' + "a" * MANY + '"]',
        "[" + "[[]]," * 2000 + ROW + "]",
        '["' + "\\ud800" * MANY + '"]',
        '"' + "a" * MANY + '\n"',
        '"' + "a" * MANY,
    ],
)
def test_what_is_no_input_is_refused(wrong: str) -> None:
    with pytest.raises(BadRequest):
        read_embeddings(b'{"model":"m","input":%b}' % wrong.encode(), 2048, 2_000_000)
