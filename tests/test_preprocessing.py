"""preprocessing.json: what a client has to know, read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving.repository.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing, from_json, to_json
from serving.repository.record import RecordError

IMAGE = ImagePreprocessing(
    "image", 224, 224, 256, "bicubic", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "RGB", "probabilities"
)
GREY = ImagePreprocessing("image", 8, 8, None, "box", (0.0,), (1.0,), "L", "logits")
TEXT = TextPreprocessing("tokenizer.json", {"input_ids": "ids"}, 128, 0, "mean", is_normalised=True)


@pytest.mark.parametrize("preprocessing", [IMAGE, GREY, TEXT])
def test_it_survives_being_written_and_read(preprocessing: Preprocessing) -> None:
    assert from_json(to_json(preprocessing)) == preprocessing


@pytest.mark.parametrize(
    ("start", "changes", "says"),
    [
        (IMAGE, {"version": 2}, "its version is 2"),
        (IMAGE, {"kind": "imag"}, "unknown kind 'imag'; did you mean 'image'"),
        (IMAGE, {"heigth": 3}, "unknown key 'heigth'; did you mean 'height'"),
        (IMAGE, {"interpolation": "cubic"}, "unknown interpolation 'cubic'; did you mean 'bicubic'"),
        (IMAGE, {"std": [1, 1]}, "mean and std are 3 numbers each for RGB"),
        (IMAGE, {"mode": "L"}, "mean and std are 1 number each for L"),
        (IMAGE, {"mode": "l"}, "unknown mode 'l'"),
        (GREY, {"scores": "logit"}, "unknown scores 'logit'; did you mean 'logits'"),
        (IMAGE, {"std": [1, 1, 0]}, "std above 0"),
        (IMAGE, {"height": 0}, "pixels, 1 or more"),
        (IMAGE, {"height": "x"}, "height: must be a whole number"),
        (TEXT, {"pooling": "avg"}, "unknown pooling 'avg'"),
        (TEXT, {"max_length": 0}, "max_length 0"),
    ],
)
def test_what_is_not_quite_right_is_refused_with_the_place(
    start: Preprocessing, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(RecordError, match=f"preprocessing.json: .*{says}"):
        from_json(json.dumps({**json.loads(to_json(start)), **changes}))


@pytest.mark.parametrize("text", ["", "[]", "3", "{"])
def test_text_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match=r"preprocessing\.json"):
        from_json(text)


def test_a_missing_key_is_named() -> None:
    data = json.loads(to_json(TEXT))
    del data["pad_token_id"]
    with pytest.raises(RecordError, match="'pad_token_id' is missing"):
        from_json(json.dumps(data))
