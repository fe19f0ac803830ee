"""One image file's bytes -> what the model takes: decoded, turned upright, RGB or grey, resized, cut, normalised.

Sizes and cuts are computed as transformers and torchvision compute them, resampling is Pillow's as theirs is, so that an
answer here is the answer there. Folders of images are elsewhere. Rule: bytes come from strangers: only formats that
decode inside Pillow itself, never more pixels than `max_pixels`, and no file of more parts than `containers` allows.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL import JpegImagePlugin as _Jpeg  # noqa: F401  # here, or the first image would wait 50 ms for its reader
from PIL import PngImagePlugin as _Png  # noqa: F401
from PIL import WebPImagePlugin as _Webp  # noqa: F401

from serving.preprocessing.containers import BadImage, check_parts
from serving.repository.preprocessing import NCHW, ImagePreprocessing

# Pillow reads more: EPS starts a program, and rare formats have had most of its holes
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
WEB_FORMATS = ("JPEG", "PNG", "WEBP")  # what clients of a service send; each reader more is one more to trust
MAX_PIXELS = 89_478_485  # Pillow's own line, a quarter of a gigabyte as RGB; the largest common cameras stay under it

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_16_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # Pillow's conversion of these to RGB cuts everything off at 255

# Between its line and twice that, Pillow only warns. Set once: changing filters around each call is not thread-safe.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
# Of a damaged EXIF it warns with numbers out of the file: each would be another line on stderr, and kept for good.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def decode(
    data: bytes,
    preprocessing: ImagePreprocessing,
    *,
    formats: tuple[str, ...] = FORMATS,
    max_pixels: int = MAX_PIXELS,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """float32 of the preprocessing's shape, in `out` where one is given. `max_pixels` is MAX_PIXELS or less. Raises BadImage."""
    check_parts(data)
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            _check_size(*image.size, max_pixels)
            pixels = _fitted(_upright(image, preprocessing.mode), preprocessing, max_pixels)
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(max_pixels) from None
    except UnidentifiedImageError:
        raise BadImage(f"is none of {', '.join(formats)}") from None
    except Exception as error:  # each format's reader raises its own: struct.error, SyntaxError, IndexError, zlib.error
        raise BadImage(f"does not decode: {(str(error).splitlines() or [type(error).__name__])[0][:200]}") from None
    return _normalised(pixels, preprocessing, out)


def _upright(image: Image.Image, mode: str) -> Image.Image:
    """In that mode, the first frame of several. Transparency is dropped, as both libraries drop it."""
    ImageOps.exif_transpose(image, in_place=True)  # elsewhere it would copy what is upright already
    if image.mode in _16_BIT:
        values = np.asarray(image)
        if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() > 65535):
            raise BadImage("holds 32-bit values, whose range nobody knows; save it with 8 or 16 bits")
        values = values.astype(np.uint32)
        values += 128  # the nearest, of 65535 / 257 = 255
        values //= 257
        image = Image.fromarray(values.astype(np.uint8))
    if image.mode == "F":
        raise BadImage("holds floating-point values, whose range nobody knows; save it with 8 or 16 bits")
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may hold transparency too
    return image if image.mode == mode else image.convert(mode)


def _fitted(image: Image.Image, preprocessing: ImagePreprocessing, max_pixels: int) -> NDArray[np.uint8]:
    """uint8 [height, width, channels]."""
    width, height = image.size
    if preprocessing.resize_shortest is None:
        new_width, new_height = preprocessing.width, preprocessing.height
    else:
        shortest, longest = preprocessing.resize_shortest, max(width, height)
        along = int(shortest * longest / min(width, height))
        new_width, new_height = (shortest, along) if width <= height else (along, shortest)
    _check_size(new_width, new_height, max_pixels)  # a line of 1 × 50,000 pixels is small until its short edge has 256
    resized = image.resize((new_width, new_height), _RESAMPLING[preprocessing.interpolation])
    pixels = np.asarray(resized).reshape(new_height, new_width, preprocessing.channels)
    return _centre(pixels, preprocessing.height, preprocessing.width)


def _centre(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """The middle of that size; black around what is smaller. An odd pixel over is cut at the end."""
    above, beside = max(0, height - pixels.shape[0]), max(0, width - pixels.shape[1])
    if above or beside:
        edges = ((above - above // 2, above // 2), (beside - beside // 2, beside // 2), (0, 0))
        pixels = np.pad(pixels, edges)
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def _normalised(
    pixels: NDArray[np.uint8], preprocessing: ImagePreprocessing, out: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Channels first and then in place: a sixth of the time of doing it pixel by pixel, and the same bits."""
    mean, std = (np.asarray(v, np.float32)[:, None, None] for v in (preprocessing.mean, preprocessing.std))
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    is_first = preprocessing.layout == NCHW
    scaled: NDArray[np.float32] = np.divide(planes, np.float32(255), out=out if is_first else None, dtype=np.float32)
    scaled -= mean
    scaled /= std
    if is_first:
        return scaled
    last = np.empty(preprocessing.shape, np.float32) if out is None else out
    last[...] = scaled.transpose(1, 2, 0)
    return last


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise _too_large(max_pixels)


def _too_large(max_pixels: int) -> BadImage:
    return BadImage(f"unpacks to more than {max_pixels / 1e6:.3g} million pixels, so it is not decoded")
