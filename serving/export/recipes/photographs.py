"""Photographs for nets that know real ones: many views of the two that scikit-learn carries, a temple and a flower.

A view is a square part of a picture, turned, lighter or darker, mirrored or not, as bytes of an image file, so that it goes
the way of any image. The gate's views show nearly all, because a class can be told of that; calibration's are parts of less.
Rule: a view is never in both. Two pictures are few all the same, and what is judged on them says so.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import numpy as np
from PIL import Image, ImageEnhance

FILES = ("china.jpg", "flower.jpg")  # each 640 × 427


@dataclass(frozen=True, slots=True)
class _Kind:
    """`smallest` and `largest`: edge of the view, as a share of the longest that fits. `angle`: most, in degrees."""

    seed: int
    smallest: float
    largest: float
    angle: float


_GATE = _Kind(seed=1, smallest=0.9, largest=1.0, angle=6.0)
_CALIBRATION = _Kind(seed=2, smallest=0.4, largest=0.85, angle=20.0)
_LIGHT = 0.2  # most that brightness and contrast change, either way


def gate(count: int) -> list[bytes]:
    return list(_views(count, _GATE))


def calibration(count: int) -> list[bytes]:
    return list(_views(count, _CALIBRATION))


def _views(count: int, kind: _Kind) -> Iterator[bytes]:
    """PNG files, of each picture in turn."""
    random = np.random.default_rng(kind.seed)
    shown = pictures()
    for index in range(count):
        view = _lit(_view(shown[index % len(shown)], kind, random), random)
        file = io.BytesIO()
        view.save(file, "PNG")
        yield file.getvalue()


def pictures() -> list[Image.Image]:
    folder = resources.files("sklearn.datasets") / "images"
    return [Image.open(io.BytesIO((folder / name).read_bytes())).convert("RGB") for name in FILES]


def _view(picture: Image.Image, kind: _Kind, random: np.random.Generator) -> Image.Image:
    """A turned square, all of it inside the picture."""
    angle = random.uniform(-kind.angle, kind.angle)
    turn = np.radians(abs(angle))
    spread = np.cos(turn) + np.sin(turn)  # how much wider than the square its turned one is
    edge = int(min(picture.size) / spread * random.uniform(kind.smallest, kind.largest))
    margin = edge * spread / 2
    x, y = (random.uniform(margin, size - margin) for size in picture.size)
    left, top = round(x - edge / 2), round(y - edge / 2)
    turned = picture.rotate(angle, Image.Resampling.BICUBIC, center=(x, y))
    view = turned.crop((left, top, left + edge, top + edge))
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else view


def _lit(view: Image.Image, random: np.random.Generator) -> Image.Image:
    brighter = ImageEnhance.Brightness(view).enhance(random.uniform(1 - _LIGHT, 1 + _LIGHT))
    return ImageEnhance.Contrast(brighter).enhance(random.uniform(1 - _LIGHT, 1 + _LIGHT))
