"""What the bench's models are asked: photographs, lines of text, sounds and files, as arrays. The same at every call.

Photographs are scikit-learn's two; files and docstrings are those of Python's standard library; sounds are made, because no package here
carries any.
"""

from __future__ import annotations

import inspect
import io
import sysconfig
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from serving.export.recipes import photographs

Array = NDArray[Any]
SAMPLES_PER_S = 16000


def photos(count: int, height: int, width: int) -> Array:
    """Views of photographs, uint8 [n, height, width, 3]."""
    views = (Image.open(io.BytesIO(file)).convert("RGB") for file in photographs.gate(count))
    return np.stack([np.asarray(view.resize((width, height))) for view in views])


def scaled(images: Array, mean: float = 0.0, deviation: float = 255.0) -> Array:
    """Bytes [n, h, w, 3] to float32 [n, 3, h, w]."""
    return np.ascontiguousarray(((images.astype(np.float32) - mean) / deviation).transpose(0, 3, 1, 2))


def lines(count: int, height: int, width: int) -> Array:
    """Drawn lines of text, uint8 [n, height, width, 3]."""
    texts = [text.split("\n")[0] for text, _ in docstrings(count)]
    font = ImageFont.load_default(height * 0.6)
    drawn = []
    for index, text in enumerate(texts):
        image = Image.new("RGB", (width, height), (255, 255, 255 - index % 40))
        ImageDraw.Draw(image).text((4, height * 0.12), text, fill=(index % 60, 0, 30), font=font)
        drawn.append(np.asarray(image))
    return np.stack(drawn)


def page(count: int, size: int) -> Array:
    """Photographs with lines of text on them, uint8 [n, size, size, 3]."""
    images = photos(count, size, size).copy()
    images[:, size // 4 : size // 4 + 48, :, :] = lines(count, 48, size)
    return images


def sound(seconds: float, seed: int = 0) -> Array:
    """A made voice: harmonics of a gliding pitch that come and go, in noise; float32 [samples] at 16 kHz."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * SAMPLES_PER_S)) / SAMPLES_PER_S
    pitch = 130 + 40 * np.sin(2 * np.pi * 0.7 * time + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLES_PER_S
    voice = sum(np.sin(k * phase) / k * (1 + np.sin(2 * np.pi * k * 0.9 * time)) for k in range(1, 25))
    loud = np.clip(np.sin(2 * np.pi * 0.8 * time + seed), 0, 1)
    return np.asarray(0.08 * voice * loud + 0.004 * random.normal(size=len(time)), np.float32)


def spectra(sounds: Array, window: int, hop: int) -> Array:
    """Magnitudes of short spectra, float32 [frames, window / 2 + 1]."""
    starts = range(0, len(sounds) - window + 1, hop)
    cut = np.stack([sounds[at : at + window] for at in starts]) * np.hanning(window)
    return np.abs(np.fft.rfft(cut)).astype(np.float32)


def files(count: int, size: int, padding: int) -> Array:
    """First and last bytes of files of the standard library and of the packages here, int32 [n, 2 * size]."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in (".py", ".so", ".txt", ".c"))
    content = [found[index * len(found) // count].read_bytes().strip() for index in range(count)]
    rows = np.full((count, 2 * size), padding, np.int32)
    for row, data in zip(rows, content, strict=True):
        first, last = data[:size], data[-size:]
        row[: len(first)] = list(first)
        if last:
            row[-len(last) :] = list(last)
    return rows


MODULES = (
    "argparse",
    "asyncio",
    "decimal",
    "email.message",
    "http.client",
    "logging",
    "tarfile",
    "tkinter",
    "unittest",
    "zipfile",
)


def docstrings(count: int | None = None) -> list[tuple[str, str]]:
    """Sentences of the standard library's documentation, and the module that each is of; in a seeded order."""
    found: dict[str, str] = {}
    for name in MODULES:
        module = import_module(name)
        for part in vars(module).values():
            members = [part, *vars(part).values()] if inspect.isclass(part) else [part]
            for member in members:
                text = inspect.getdoc(member) if callable(member) else None
                if text and len(text) > 30 and str(getattr(member, "__module__", "")).startswith(name.split(".")[0]):
                    found.setdefault(" ".join(text.split())[:300], name)
    rows = sorted(found.items())
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[index] for index in order[:count]]
