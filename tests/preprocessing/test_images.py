"""One image: upright, RGB, resized and cut like the libraries do it, and nothing hostile gets far."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.preprocessing import images
from serving.preprocessing.containers import BadImage
from serving.preprocessing.images import decode
from serving.repository.preprocessing import ImagePreprocessing

PLAIN = ImagePreprocessing("image", 4, 6, None, "nearest", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "RGB", "probabilities")
PHOTOGRAPH = ImagePreprocessing(
    "pixel_values", 224, 224, 256, "bicubic", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "RGB", "probabilities"
)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth noise, so that every pixel of a resized one tells where it came from."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def png_header(width: int, height: int) -> bytes:
    """A PNG of that size with hardly any data: what a decompression bomb begins with."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def test_pixels_become_channels_rows_and_columns_of_0_to_1() -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    values = decode(saved(Image.fromarray(pixels)), PLAIN)
    assert (values.dtype, values.shape) == (np.float32, (3, 4, 6))
    np.testing.assert_array_equal(values, pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255))


def test_mean_and_std_are_per_channel() -> None:
    white = Image.new("RGB", (6, 4), (255, 255, 255))
    values = decode(saved(white), replace(PLAIN, mean=(0.0, 0.5, 1.0), std=(1.0, 0.25, 0.5)))
    assert values.reshape(3, -1).min(axis=1).tolist() == [1.0, 2.0, 0.0]


ORIENTATIONS: dict[int, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    # what a viewer does to the stored rows, by the EXIF standard
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_photograph_taken_sideways_is_turned_upright(orientation: int) -> None:
    stored = np.random.default_rng(1).integers(0, 256, (4, 6, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(Image.fromarray(stored), exif=exif)
    seen = ORIENTATIONS[orientation](stored)
    values = decode(data, replace(PLAIN, height=seen.shape[0], width=seen.shape[1]))
    np.testing.assert_array_equal((values * 255).round().astype(np.uint8), seen.transpose(2, 0, 1))


GREY = np.linspace(0, 255, 24).astype(np.uint8).reshape(4, 6)


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        pytest.param(Image.fromarray(GREY), "PNG", id="grey"),
        pytest.param(Image.fromarray(GREY.astype(np.uint16) * 257), "PNG", id="grey of 16 bits"),
        pytest.param(Image.fromarray(GREY.astype(np.int32) * 257), "TIFF", id="grey of 16 bits in 32"),
        pytest.param(Image.fromarray(GREY).convert("RGBA"), "PNG", id="opaque alpha"),
        pytest.param(Image.merge("LA", (Image.fromarray(GREY), Image.new("L", (6, 4), 0))), "PNG", id="grey, alpha"),
        pytest.param(Image.fromarray(GREY).convert("P"), "PNG", id="palette"),
        pytest.param(Image.fromarray(GREY).convert("P"), "GIF", id="GIF"),
        pytest.param(Image.fromarray(GREY), "BMP", id="BMP"),
        pytest.param(Image.fromarray(GREY).convert("RGB"), "PPM", id="PPM"),
    ],
)
def test_every_way_to_store_grey_is_the_same_grey(image: Image.Image, kind: str) -> None:
    values = (decode(saved(image, kind), PLAIN) * 255).round().astype(np.uint8)
    assert np.abs(values.astype(int) - GREY).max() <= (8 if image.mode == "P" else 0)  # a web palette has 216 colours


def test_transparency_is_dropped_as_the_libraries_drop_it() -> None:
    half = Image.new("RGBA", (6, 4), (10, 20, 30, 128))
    assert (decode(saved(half), PLAIN) * 255).round()[:, 0, 0].tolist() == [10.0, 20.0, 30.0]


def test_a_palette_with_transparency_gives_no_warning() -> None:
    image = Image.new("P", (6, 4))
    image.putpalette([200, 100, 50] * 256)
    assert (decode(saved(image, transparency=bytes(range(256))), PLAIN) * 255).round()[:, 0, 0].tolist() == [
        200,
        100,
        50,
    ]


def test_the_inks_of_print_become_rgb() -> None:
    cyan = Image.new("CMYK", (6, 4), (255, 0, 0, 0))
    values = decode(saved(cyan, "JPEG", quality=100), PLAIN)
    assert values[0].max() < 0.05
    assert values[1:].min() > 0.95


def test_of_a_film_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "lime")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data, PLAIN)[:, 0, 0].round().tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [(500, 333), (333, 500), (256, 256), (100, 700), (225, 224)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_the_shorter_edge_is_resized_and_the_middle_cut_out(size: tuple[int, int], interpolation: str) -> None:
    """Beside a plain reading of the rule: int(256 · long / short), the middle, the odd pixel cut at the end."""
    image, (width, height) = photograph(*size), size
    resized = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    left, top = (resized[0] - 224) // 2, (resized[1] - 224) // 2
    method = Image.Resampling[interpolation.upper()]
    expected = np.asarray(image.resize(resized, method).crop((left, top, left + 224, top + 224)))
    values = decode(saved(image), replace(PHOTOGRAPH, interpolation=interpolation))
    mean, std = np.array(PHOTOGRAPH.mean), np.array(PHOTOGRAPH.std)
    np.testing.assert_allclose(values, ((expected / 255 - mean) / std).transpose(2, 0, 1), atol=1e-6)


@pytest.mark.models
@pytest.mark.parametrize("size", [(500, 333), (333, 501), (257, 256), (100, 700)])
def test_an_image_is_prepared_exactly_as_transformers_prepares_it(size: tuple[int, int]) -> None:
    from transformers import image_transforms as theirs  # type: ignore[import-not-found, unused-ignore]

    image = photograph(*size)
    pixels = np.asarray(image)
    wanted = theirs.get_resize_output_image_size(
        pixels, 256, default_to_square=False, input_data_format="channels_last"
    )
    resized = theirs.resize(pixels, wanted, resample=Image.Resampling.BICUBIC, input_data_format="channels_last")
    cut = theirs.center_crop(resized, (224, 224), input_data_format="channels_last")
    scaled = theirs.rescale(cut, 1 / 255, input_data_format="channels_last")
    expected = theirs.normalize(scaled, PHOTOGRAPH.mean, PHOTOGRAPH.std, input_data_format="channels_last")
    np.testing.assert_allclose(decode(saved(image), PHOTOGRAPH), expected.transpose(2, 0, 1), atol=2e-6)


def test_an_image_smaller_than_the_cut_gets_a_black_edge() -> None:
    values = decode(saved(Image.new("RGB", (3, 3), "white")), replace(PLAIN, height=6, width=6, resize_shortest=3))
    assert values[0].tolist() == np.pad(np.ones((3, 3)), ((2, 1), (2, 1))).tolist()


# -- what is no image, or a hostile one -------------------------------------------------------------------------------

PNG = saved(photograph(64, 64))
JPEG = saved(photograph(64, 64), "JPEG")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "is none of JPEG, PNG", id="empty"),
        pytest.param(b"<html>not found</html>", "is none of JPEG, PNG", id="a page"),
        pytest.param(PNG[:-200], "does not decode", id="PNG cut off"),
        pytest.param(JPEG[: len(JPEG) // 2], "does not decode", id="JPEG cut off"),
        pytest.param(PNG[:60] + bytes(20) + PNG[80:], "does not decode", id="PNG with a hole"),
        pytest.param(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is none of JPEG", id="PostScript is a program"
        ),
        pytest.param(saved(photograph(9, 9), "ICO"), "is none of", id="a format that is not taken"),
        pytest.param(saved(Image.fromarray(np.full((4, 4), 0.5, np.float32)), "TIFF"), "floating-point", id="floats"),
        pytest.param(saved(Image.fromarray(np.full((4, 4), 70000, np.int32)), "TIFF"), "32-bit values", id="32 bits"),
        pytest.param(png_header(9000, 9000), "does not decode", id="large and empty"),
        pytest.param(png_header(10_000, 10_000), "unpacks to more than 89.5 million pixels", id="a bomb"),
        pytest.param(png_header(60_000, 60_000), "unpacks to more than 89.5 million pixels", id="a large bomb"),
    ],
)
def test_what_gives_no_image_says_why(data: bytes, says: str) -> None:
    with pytest.raises(BadImage, match=says) as caught:
        decode(data, PHOTOGRAPH)
    assert "\n" not in str(caught.value)


def test_a_line_that_would_explode_when_its_short_edge_is_resized_is_not_resized() -> None:
    with pytest.raises(BadImage, match=r"89\.5.*million"):
        decode(saved(Image.new("L", (50_000, 1))), replace(PHOTOGRAPH, resize_shortest=256))


def test_the_line_between_large_and_too_large_is_pillows_own() -> None:
    assert images.MAX_PIXELS == Image.MAX_IMAGE_PIXELS


# -- grey, limits, and where it is written ----------------------------------------------------------------------------

DIGIT = ImagePreprocessing("image", 8, 8, None, "box", (0.0,), (1.0,), "L", "probabilities")


def test_a_grey_model_gets_one_channel_of_any_image() -> None:
    values = decode(saved(Image.new("RGB", (8, 8), (255, 0, 0))), DIGIT)
    assert values.shape == (1, 8, 8)
    assert (values * 255).round().max() == 76.0  # red's weight, 0.299
    half_clear = Image.new("RGBA", (8, 8), (100, 100, 100, 10))
    assert set((decode(saved(half_clear), DIGIT) * 255).round().ravel()) == {100.0}


def test_ink_is_counted_in_blocks_as_the_digits_were_made() -> None:
    """The data set's pixels 0..16 are the ink in 4 × 4 blocks of bitmaps of 32 × 32."""
    bitmap = np.random.default_rng(2).integers(0, 2, (32, 32), np.uint8)
    ink = bitmap.reshape(8, 4, 8, 4).sum(axis=(1, 3))
    values = decode(saved(Image.fromarray(bitmap * 255)), DIGIT)
    np.testing.assert_array_equal((values[0] * 16).round(), ink)


@pytest.mark.parametrize("step", [1, 257])
def test_sixteen_bits_become_the_nearest_of_eight(step: int) -> None:
    values = np.arange(0, 65536, step, dtype=np.uint16)
    side = int(len(values) ** 0.5)
    image = Image.fromarray(values[: side * side].reshape(side, side))
    expected = (np.asarray(image) / 257).round()
    got = decode(saved(image), replace(DIGIT, height=side, width=side, interpolation="nearest"))
    np.testing.assert_array_equal((got[0] * 255).round(), expected)


def test_it_is_the_same_bits_in_an_array_that_was_given() -> None:
    rows = np.full((3, 3, 224, 224), np.nan, np.float32)
    image = saved(photograph(300, 400), "JPEG")
    assert decode(image, PHOTOGRAPH, out=rows[1]) is not None
    np.testing.assert_array_equal(rows[1], decode(image, PHOTOGRAPH))
    assert np.isnan(rows[[0, 2]]).all()


def test_normalising_is_the_arithmetic_that_the_libraries_do() -> None:
    """In FP32, in their order, to the bit."""
    image = photograph(256, 256)
    pixels = np.asarray(image.resize((256, 256), Image.Resampling.BICUBIC))[16:240, 16:240]
    mean, std = (np.asarray(v, np.float32) for v in (PHOTOGRAPH.mean, PHOTOGRAPH.std))
    plain = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    np.testing.assert_array_equal(decode(saved(image), PHOTOGRAPH), plain.transpose(2, 0, 1))


def test_a_caller_may_take_fewer_formats_and_fewer_pixels() -> None:
    gif, image = saved(photograph(9, 9), "GIF"), saved(photograph(10, 10))
    assert decode(gif, PLAIN).shape == (3, 4, 6)
    with pytest.raises(BadImage, match=r"JPEG, PNG, WEBP$"):
        decode(gif, PLAIN, formats=images.WEB_FORMATS)
    assert decode(image, PLAIN, max_pixels=100).shape == (3, 4, 6)
    with pytest.raises(BadImage, match="unpacks"):
        decode(image, PLAIN, max_pixels=99)
    with pytest.raises(BadImage, match="unpacks"):  # what it is resized to counts too
        decode(saved(Image.new("L", (100, 1))), replace(PHOTOGRAPH, resize_shortest=256), max_pixels=10_000)


DAMAGED = """
import io
from PIL import Image, TiffImagePlugin
from serving.preprocessing.images import decode
from serving.repository.preprocessing import ImagePreprocessing

HOW = ImagePreprocessing("image", 2, 2, None, "box", (0.0,), (1.0,), "L", "probabilities")
exif = Image.Exif()
exif[0x010E] = "a description that is longer than four bytes"
for number in range(1, 200):
    file = io.BytesIO()
    Image.new("L", (2, 2)).save(file, "JPEG", exif=exif.tobytes()[:-number % 40 or None])
    assert decode(file.getvalue(), HOW).shape == (1, 2, 2)
kept = set(getattr(TiffImagePlugin, "__warningregistry__", {})) - {"version"}
assert not kept, kept
"""


def test_a_photograph_with_a_damaged_exif_is_read_and_nothing_is_said_or_kept_of_it() -> None:
    """In a process of its own, because tests turn warnings into errors."""
    ran = subprocess.run([sys.executable, "-c", DAMAGED], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_largest_image_that_settings_allow_is_what_the_decoder_allows() -> None:
    from pydantic import ValidationError

    from serving.settings import LimitSettings

    assert LimitSettings(max_image_pixels=images.MAX_PIXELS)
    with pytest.raises(ValidationError):
        LimitSettings(max_image_pixels=images.MAX_PIXELS + 1)
