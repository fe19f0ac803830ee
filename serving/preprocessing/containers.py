"""Refuses images that are built to cost a decoder time.

A decoder spends time on each part of a file (segments and scans of a JPEG, chunks of a PNG), however few pixels it holds: a JPEG of 60 MB
can ask for millions of passes over one picture. Parts are counted here before any decoder sees the file; whether they are valid is the
decoder's to say. Rule: counting costs less than a millisecond for a real photograph.
"""

from __future__ import annotations

from serving.errors import UserError

MAX_PARTS = 1_000  # beside pixels: a photograph has a dozen, and one that carries 60 MB of colour profile a thousand
MAX_PIXEL_PARTS = (
    100_000  # most programs write PNG's pixels in chunks of 8 KiB: 16 bits × RGB × 89 million pixels have 65,000
)
MAX_SCANS = 50  # programs write 10; with 90, an image of 25 million pixels and 150 kB took 3 s

_JPEG, _PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_START_OF_SCAN = b"\xff\xda"
_PIXELS = b"IDAT"


class BadImage(UserError):
    """These bytes give no image. `reason` is for a sentence that names the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the image {reason}")
        self.reason = reason


def check_parts(data: bytes) -> None:
    """Raises BadImage. What is neither a JPEG nor a PNG passes."""
    if data.startswith(_JPEG):
        _check_jpeg(data)
    elif data.startswith(_PNG):
        _check_png(data)


def _check_jpeg(data: bytes) -> None:
    """The segments before the first scan, one by one; then scans, whose marker stands nowhere in their own data."""
    at = len(_JPEG)
    for _ in range(MAX_PARTS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return  # cut off or broken: the reader says how
        if data.startswith(_START_OF_SCAN, at):
            break
        at += (
            1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
        )  # any number of FF may fill a gap
    else:
        raise BadImage(f"has more than {MAX_PARTS:,} segments, so it is not decoded")
    if data.count(_START_OF_SCAN, at) > MAX_SCANS:
        raise BadImage(f"has more than {MAX_SCANS} scans, so it is not decoded")


def _check_png(data: bytes) -> None:
    at, num_of_pixels, num_others = len(_PNG), 0, 0
    while at + 8 <= len(data):
        is_of_pixels = data.startswith(_PIXELS, at + 4)
        num_of_pixels, num_others = num_of_pixels + is_of_pixels, num_others + (not is_of_pixels)
        if num_of_pixels > MAX_PIXEL_PARTS or num_others > MAX_PARTS:
            raise BadImage(
                f"has more than {MAX_PARTS:,} chunks beside its pixels, or {MAX_PIXEL_PARTS:,} of them, so it is not decoded"
            )
        at += 12 + int.from_bytes(data[at : at + 4])  # its length, kind and checksum beside what it holds
