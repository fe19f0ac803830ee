"""One image file's bytes -> what the model takes: decoded, turned upright, RGB, resized, cut, normalised.

Sizes and cuts are computed as transformers and torchvision compute them, resampling is Pillow's as theirs is, so that an
answer here is the answer there. Folders of images are elsewhere. Rule: bytes come from strangers: only formats that
decode inside Pillow itself, and never more pixels than `MAX_PIXELS`.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from serving.errors import UserError
from serving.repository.preprocessing import ImagePreprocessing

# Pillow reads more: EPS starts a program, and rare formats have had most of its holes
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_PIXELS = 89_478_485  # Pillow's own line, a quarter of a gigabyte as RGB; the largest common cameras stay under it

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_16_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # Pillow's conversion of these to RGB cuts everything off at 255

# Between its line and twice that, Pillow only warns. Set once: changing filters around each call is not thread-safe.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


class BadImage(UserError):
    """These bytes give no image. `reason` is for a sentence that names the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the image {reason}")
        self.reason = reason


def decode(data: bytes, preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    """float32 [3, height, width]. Raises BadImage."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(*image.size)
            pixels = _fitted(_rgb(image), preprocessing)
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large() from None
    except UnidentifiedImageError:
        raise BadImage(f"is none of {', '.join(FORMATS)}") from None
    except Exception as error:  # each format's reader raises its own: struct.error, SyntaxError, IndexError, zlib.error
        raise BadImage(f"does not decode: {(str(error).splitlines() or [type(error).__name__])[0][:200]}") from None
    return _normalised(pixels, preprocessing)


def _rgb(image: Image.Image) -> Image.Image:
    """Upright RGB, the first frame of several. Transparency is dropped, as both libraries drop it."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode in _16_BIT:
        values = np.asarray(upright).astype(np.float64)
        if values.min() < 0 or values.max() > 65535:
            raise BadImage("holds 32-bit values, whose range nobody knows; save it with 8 or 16 bits")
        return Image.fromarray((values / 257).round().astype(np.uint8)).convert("RGB")  # 65535 / 257 = 255
    if upright.mode == "F":
        raise BadImage("holds floating-point values, whose range nobody knows; save it with 8 or 16 bits")
    if upright.mode == "P":
        upright = upright.convert("RGBA")  # a palette may hold transparency too
    return upright.convert("RGB")


def _fitted(image: Image.Image, preprocessing: ImagePreprocessing) -> NDArray[np.uint8]:
    """uint8 [height, width, 3]."""
    width, height = image.size
    if preprocessing.resize_shortest is None:
        new_width, new_height = preprocessing.width, preprocessing.height
    else:
        shortest, longest = preprocessing.resize_shortest, max(width, height)
        along = int(shortest * longest / min(width, height))
        new_width, new_height = (shortest, along) if width <= height else (along, shortest)
    _check_size(new_width, new_height)  # a line of 1 × 50,000 pixels is small until its short edge has 256
    resized = image.resize((new_width, new_height), _RESAMPLING[preprocessing.interpolation])
    return _centre(np.asarray(resized), preprocessing.height, preprocessing.width)


def _centre(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """The middle of that size; black around what is smaller. An odd pixel over is cut at the end."""
    above, beside = max(0, height - pixels.shape[0]), max(0, width - pixels.shape[1])
    if above or beside:
        edges = ((above - above // 2, above // 2), (beside - beside // 2, beside // 2), (0, 0))
        pixels = np.pad(pixels, edges)
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def _normalised(pixels: NDArray[np.uint8], preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    mean, std = (np.asarray(values, np.float32) for values in (preprocessing.mean, preprocessing.std))
    scaled: NDArray[Any] = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _too_large()


def _too_large() -> BadImage:
    return BadImage(f"unpacks to more than {MAX_PIXELS / 1e6:.0f} million pixels, so it is not decoded")
