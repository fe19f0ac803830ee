"""Files that are small and cost their reader much are refused before it sees them; a photograph's parts are counted in no time."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.preprocessing.containers import BadImage, check_parts
from serving.preprocessing.images import WEB_FORMATS, decode
from serving.repository.preprocessing import ImagePreprocessing

HOW = ImagePreprocessing("image", 8, 8, None, "box", (0.0,), (1.0,), "L", "probabilities")
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))


def saved(kind: str, image: Image.Image = PICTURE, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 10, height: int = 10, before: bytes = b"", pixels: bytes | None = None) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(31 * 10)) if pixels is None else pixels
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@functools.cache
def bomb() -> bytes:
    """50 kB that unpack to 50 MB."""
    return zlib.compress(b"x" * 50_000_000, 9)


def with_scans(number: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    data = saved("JPEG", progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (number - data.count(b"\xff\xda")) + data[-2:]


JPEG = saved("JPEG")
COMMENT = b"\xff\xfe\x00\x02"


def test_what_programs_write_passes() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = b"p" * 300_000  # in segments of 64 KiB
    for data in (
        JPEG,
        saved("JPEG", progressive=True, exif=exif, icc_profile=profile, comment=b"x" * 1000),
        saved("PNG", PICTURE.resize((1000, 1000)), exif=exif, icc_profile=profile),
        JPEG[:2] + b"\xff" * 500 + JPEG[2:],  # fill bytes
        with_scans(50),
        JPEG[:2] + COMMENT * 900 + JPEG[2:],
        png(before=chunk(b"tEXt", b"k\0v") * 900),
    ):
        assert decode(data, HOW, formats=WEB_FORMATS).shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(with_scans(51), "more than 50 scans", id="scans of a progressive JPEG"),
        pytest.param(JPEG[:2] + COMMENT * 1001 + JPEG[2:], "more than 1,000 segments", id="comments of a JPEG"),
        pytest.param(JPEG[:2] + b"\xff" * 1001 + JPEG[2:], "more than 1,000 segments", id="fill bytes of a JPEG"),
        pytest.param(png(before=chunk(b"tEXt", b"k\0v") * 1001), "more than 1,000 chunks", id="texts of a PNG"),
        pytest.param(png(before=chunk(b"IDAT", b"") * 100_001), "100,000 of them", id="empty pixels of a PNG"),
    ],
)
def test_a_file_of_too_many_parts_is_not_decoded(data: bytes, says: str) -> None:
    with pytest.raises(BadImage, match=says):
        decode(data, HOW, formats=WEB_FORMATS)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(png(0, 0), "is none of JPEG, PNG, WEBP", id="no pixel"),
        pytest.param(png(0, 5), "is none of JPEG, PNG, WEBP", id="no column"),
        pytest.param(png(5001, 5000), "more than 25 million pixels", id="large"),
        pytest.param(png(2**31 - 1, 2**31 - 1), "more than 25 million pixels", id="as large as can be said"),
        pytest.param(saved("GIF"), "is none of JPEG, PNG, WEBP", id="GIF"),
        pytest.param(saved("TIFF"), "is none of JPEG, PNG, WEBP", id="TIFF"),
        pytest.param(saved("BMP"), "is none of JPEG, PNG, WEBP", id="BMP"),
        pytest.param(b"<svg/>", "is none of JPEG, PNG, WEBP", id="SVG"),
        pytest.param(JPEG[:2], "is none of JPEG", id="the beginning of a JPEG"),
        pytest.param(JPEG[:-200], "does not decode", id="JPEG cut off"),
        pytest.param(saved("WEBP")[:-20], "does not decode", id="WebP cut off"),
    ],
)
def test_what_is_hostile_or_broken_costs_little_and_says_why(data: bytes, says: str) -> None:
    with pytest.raises(BadImage, match=says):
        decode(data, HOW, formats=WEB_FORMATS, max_pixels=25_000_000)


# Each is made where it is decoded, because that takes a tenth of a second and more.
UNPACKED_LARGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a text that unpacks to 50 MB": (lambda: png(before=chunk(b"zTXt", b"k\0\0" + bomb())), "too large"),
    "an international one": (lambda: png(before=chunk(b"iTXt", b"k\0\1\0\0\0" + bomb())), "too large"),
    "a colour profile": (lambda: png(before=chunk(b"iCCP", b"k\0\0" + bomb())), "too large"),
    "more pixels than the header says": (lambda: png(pixels=bomb()), "does not decode"),
    "WebP": (lambda: saved("WEBP", Image.new("L", (5001, 5000)), quality=0, method=0), "25 million"),
}


@pytest.mark.parametrize("name", UNPACKED_LARGE)
def test_what_unpacks_to_much_costs_little_and_says_why(name: str) -> None:
    make, says = UNPACKED_LARGE[name]
    with pytest.raises(BadImage, match=says):
        decode(make(), HOW, formats=WEB_FORMATS, max_pixels=25_000_000)


def test_of_a_film_in_png_or_webp_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("white", "black", "black")]
    for kind in ("PNG", "WEBP"):
        data = saved(kind, frames[0], save_all=True, append_images=frames[1:] * 500, duration=1, lossless=True)
        assert decode(data, HOW, formats=WEB_FORMATS).min() == 1.0


def test_bytes_that_are_no_jpeg_and_no_png_are_the_readers_to_judge() -> None:
    for data in (b"", b"\xff", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF", b"\xff\xd8" * 1000):
        check_parts(data)
