"""How many values does this JSON hold? Told before it is parsed, from its bytes alone.

A parser makes an object of each value and lets no other thread run meanwhile: 64 MB of `[1],` held a gateway up for 8 seconds and filled a
gigabyte. Whether it is JSON at all is the parser's to say. Rule: never says that a right document holds fewer values than it does.
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.errors import BadRequest

PIECE_BYTES = (
    256 * 1024
)  # between two of which other threads have their turn: the slowest kind, all escapes, takes 4 ms
BEGINS = (b",", b"[", b"{")  # a value, wherever they stand outside of a text; a text begins with a quotation mark


def require_few_values(body: bytes, most: int, way_out: str) -> None:
    """Raises BadRequest. Texts count twice, or three times in an array."""
    if len(body) <= most:
        return
    found = 0
    for piece in outside_texts(body):
        found += piece.count(b'"') + sum(map(piece.count, BEGINS))
        if found > most:
            raise BadRequest(
                f"the body, read as JSON, holds more values than any right request has ({most}); {way_out}"
            )


def outside_texts(body: bytes) -> Iterator[bytes]:
    """What stands outside of texts, in pieces, with both marks of each text."""
    is_text, half = False, b""
    for start in range(0, len(body), PIECE_BYTES):
        piece = half + body[start : start + PIECE_BYTES]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            half = b"\\" if piece.endswith(b"\\") else b""
            piece = piece.removesuffix(half)
        else:
            half = b""
        parts = piece.split(b'"')
        yield b"".join(parts[is_text::2]) + b'"' * (len(parts) - 1)
        is_text ^= not len(parts) % 2
