"""What a model is judged on, as arrays: read from npz, a folder of images, or a table of texts.

`dataset` is the value that comes out, `reading` finds the reader for a path, `digits` is what ships with Tandem. Rules: what
a variant is calibrated on is never in what it is judged on, and a reader says what it wanted and what it got.
"""

from serving.export.data.dataset import ARRAYS, IMAGES, TEXTS, Dataset
from serving.export.data.digits import DIGITS, digits
from serving.export.data.npz import read_npz
from serving.export.data.reading import MAX_BAD_RATIO, read

__all__ = ["ARRAYS", "DIGITS", "IMAGES", "MAX_BAD_RATIO", "TEXTS", "Dataset", "digits", "read", "read_npz"]
