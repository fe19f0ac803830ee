"""Photographs for nets that know real ones: many views of the two that scikit-learn carries, a temple and a flower.

A view is a part of the picture at some scale, turned a little, mirrored or not, as bytes of an image file, so that it goes the
way of any image. Rule: calibration looks at the left of each picture and the gate at the right; they share no pixel.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

FILES = ("china.jpg", "flower.jpg")  # each 640 × 427

_SPLIT = 0.35  # of the width, to the left for calibration: the subjects are in the middle and on the right
_SMALLEST = 0.75  # of what can be cut out at all: smaller parts show texture, of which no class can be told
_LARGEST_ANGLE = 12.0  # degrees


def gate(count: int) -> list[bytes]:
    return list(_views(count, _SPLIT, 1.0, seed=1))


def calibration(count: int) -> list[bytes]:
    return list(_views(count, 0.0, _SPLIT, seed=2))


def _views(count: int, left: float, right: float, seed: int) -> Iterator[bytes]:
    """PNG files, of each picture in turn; `left` and `right` in 0..1 of its width."""
    random = np.random.default_rng(seed)
    parts = [_part(picture, left, right) for picture in pictures()]
    for index in range(count):
        view = _view(parts[index % len(parts)], random)
        file = io.BytesIO()
        view.save(file, "PNG")
        yield file.getvalue()


def pictures() -> list[Image.Image]:
    folder = resources.files("sklearn.datasets") / "images"
    return [Image.open(io.BytesIO((folder / name).read_bytes())).convert("RGB") for name in FILES]


def _part(picture: Image.Image, left: float, right: float) -> Image.Image:
    return picture.crop((round(left * picture.width), 0, round(right * picture.width), picture.height))


def _view(part: Image.Image, random: Any) -> Image.Image:
    """A turned square, all of it inside the part."""
    angle = random.uniform(-_LARGEST_ANGLE, _LARGEST_ANGLE)
    turn = np.radians(abs(angle))
    spread = np.cos(turn) + np.sin(turn)  # how much wider than the square its turned one is
    edge = int(min(part.size) / spread * random.uniform(_SMALLEST, 1.0))
    margin = edge * spread / 2
    x, y = (random.uniform(margin, size - margin) for size in part.size)
    left, top = round(x - edge / 2), round(y - edge / 2)
    view = part.rotate(angle, Image.Resampling.BICUBIC, center=(x, y)).crop((left, top, left + edge, top + edge))
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else view
