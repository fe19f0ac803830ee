"""A session for each size of batch, for nets whose convolutions a card's provider plans anew when the size changes.

Answers: which session computes a batch of so many rows, and with how many rows? From 1.20 on ONNX Runtime's CUDA provider keeps
one plan for each convolution, that of the last shape: on an H100 a ResNet-50 (FP16, 32, 64 and 96 images in turns, 2026-11-26) took 271 to
312 ms a batch, with a session for each size 9 to 24. NumPy only: sessions are opened by whoever is handed in.
Keep: of each row the answer is that of this row, however many others there are to fill the batch.
"""

import mmap

import numpy as np

CONVOLUTIONS = (b'"\x04Conv', b'"\x0dConvTranspose')  # a node's op_type in an ONNX file: field 4, its length, its name
CLIENTS_FAULT = "InvalidArgument"  # ONNX Runtime's class of errors for what no session would compute
MAX_OWN = 4  # sizes that are no power of two and have a session of their own; more are padded (guess, not measured)


def has_convolutions(path):
    """Of the file's bytes: whoever parses it needs the package onnx, which is not here."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(sign) >= 0 for sign in CONVOLUTIONS)


class Sizes:
    """`first`: the session that is open. `opened`: opens another one. `told`: is told why a size has none of its own, once."""

    def __init__(self, first, opened, told, max_batch_size):
        self.first, self.opened, self.told = first, opened, told
        self.max_batch_size = max_batch_size
        self.of = {}  # rows -> session
        self.refused = (
            set()
        )  # sizes for which there was no room: the first session computes them, and plans anew at each change

    def run(self, names, feed, options):
        """{name: rows}. `feed`: {input: rows}."""
        num_rows = len(next(iter(feed.values())))
        size, reason = self.size(num_rows), ""
        if size not in self.refused:
            try:
                return answer(self.session(size), size, names, feed, options)
            except Exception as e:
                if type(e).__name__ == CLIENTS_FAULT or self.of.get(size) is self.first:
                    raise
                reason = str(e)
            self.of.pop(
                size, None
            )  # the error is gone, and with it all that held the session: the first has its room on the card
        found = answer(self.first, num_rows, names, feed, options)
        if reason:
            self.refused.add(size)
            self.told(f"batches of {size} have no session of their own: {reason}")
        return found

    def session(self, size):
        if size not in self.of:
            self.of[size] = self.opened() if self.of else self.first
        return self.of[size]

    def size(self, num_rows):
        """A power of two, the largest batch, or one of the first few others that came."""
        power = 1 << max(0, num_rows - 1).bit_length()
        if num_rows in self.of or num_rows in (0, power) or num_rows >= self.max_batch_size:
            return num_rows
        if sum(size & (size - 1) != 0 for size in self.of if size != self.max_batch_size) < MAX_OWN:
            return num_rows
        return min(power, self.max_batch_size)


def answer(session, size, names, feed, options):
    num_rows = len(next(iter(feed.values())))
    given = feed if size == num_rows else {name: padded(rows, size) for name, rows in feed.items()}
    found = zip(names, session.run(names, given, options), strict=True)
    return {name: value[:num_rows] if value.shape[:1] == (size,) else value for name, value in found}


def padded(rows, size):
    """With its own first row."""
    return np.concatenate([rows, np.broadcast_to(rows[:1], (size - len(rows), *rows.shape[1:]))])
