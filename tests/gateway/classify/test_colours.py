"""/v1/classify on nets of other kinds: logits, no labels, no batches, and those that classify no images."""

from __future__ import annotations

import math

import pytest
from PIL import Image

from tests.gateway.classify.conftest import NAMES, as_json, best, classify, filled, png
from tests.gateway.conftest import Running

pytestmark = pytest.mark.triton

FILES = [filled(colour) for colour in ("red", "lime", "blue")]


@pytest.mark.thorough
def test_colours_are_told_apart_in_every_format(colours: Running) -> None:
    assert best(classify(colours, as_json(FILES), "colours")) == list(NAMES)
    for kind in ("JPEG", "PNG", "WEBP"):
        assert best(classify(colours, png(Image.new("RGB", (20, 10), "lime"), kind), "colours")) == ["green"]
    ink = png(Image.new("CMYK", (9, 9), (255, 255, 0, 0)), "JPEG")
    assert best(classify(colours, ink, "colours")) == ["blue"]


@pytest.mark.protocol("classify", "scores are probabilities, also of models that answer logits", "supported")
def test_logits_become_probabilities(colours: Running) -> None:
    (result,) = classify(colours, png_of("red"), "colours").json()["results"]
    likely, *others = [one["score"] for one in result["labels"]]
    assert abs(likely - 1 / (1 + 2 * math.exp(-20))) < 1e-6  # scores 10, -10, -10
    assert abs(likely + sum(others) - 1) < 1e-6


def png_of(colour: str) -> bytes:
    return png(Image.new("RGB", (6, 4), colour))


def test_probabilities_are_left_as_they_are(colours: Running) -> None:
    (result,) = classify(colours, png_of("red"), "shares").json()["results"]
    assert [one["score"] for one in result["labels"]] == [10.0, -10.0, -10.0]


def test_classes_without_names_are_numbers(colours: Running) -> None:
    (result,) = classify(colours, FILES[2], "nameless", "?top_k=1").json()["results"]
    assert [(one["label"], one["index"]) for one in result["labels"]] == [(None, 2)]


def test_without_batches_images_go_one_by_one(colours: Running) -> None:
    reply = classify(colours, as_json([*FILES, b"x", *FILES]), "single")
    assert best(reply) == [*NAMES, None, *NAMES]
    assert reply.headers["Tandem-Reason"] == "only_pool"


def test_several_batches_are_one_answer_with_one_receipt(colours: Running) -> None:
    files = [FILES[place % 3] for place in range(11)]
    files[4] = b"x"
    files[6:9] = [b"y"] * 3  # a whole batch
    reply = classify(colours, as_json(files), "colours")
    expected = [None if place in (4, 6, 7, 8) else NAMES[place % 3] for place in range(11)]
    assert best(reply) == expected
    assert reply.headers["Tandem-Variant"] == "fp32"


@pytest.mark.parametrize(
    ("model", "status", "says"),
    [
        ("tensors", 400, "nothing beside it says how an image becomes its input"),
        ("texts", 400, "it takes texts"),
        ("raw", 400, "its answers are no scores of classes"),
        ("misdescribed", 400, "its input is not what preprocessing.json says"),
        ("mislabelled", 500, "has 3 classes and 2 labels"),
        ("changed", 500, "preprocessing.json of 'changed-fp32' changed after its gate, so it is not used"),
    ],
)
def test_a_model_that_classifies_no_images_says_why_and_the_way_out(
    colours: Running, model: str, status: int, says: str
) -> None:
    for _ in range(2):  # also when that is known already
        reply = classify(colours, FILES[0], model)
        assert reply.status == status
        assert says in reply.json()["error"]
        assert status == 500 or reply.json()["error"].endswith(f" /v2/models/{model}/infer")


def test_an_answer_that_is_no_number_fails_alone(colours: Running) -> None:
    near, far = png_of("#808080"), png_of("white")  # 0.002 and 0.5, divided by next to nothing
    first, second = classify(colours, as_json([near, far]), "infinite").json()["results"]
    assert len(first["labels"]) == 3
    assert "no numbers" in second["error"]
    assert not colours.program.says("Warning")
