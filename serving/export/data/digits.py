"""scikit-learn's 1,797 handwritten digits, split once and for all: the data of the model that ships with Tandem.

Rule: the held-out part is what every gate of the digits ran on; another split makes their records say something else.
"""

from __future__ import annotations

import numpy as np

from serving.errors import EnvironmentFault
from serving.export.data.dataset import Dataset
from serving.installation import how_to_add

DIGITS = "digits"
HELD_OUT_RATIO = 0.25  # of 1,797 images: 450, so that one point of accuracy is 4.5 images
_SPLIT_SEED = 0


def digits() -> tuple[Dataset, Dataset]:
    """(to learn from, held out). Input `image` is float32 [n, 1, 8, 8] in 0..1."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
        from sklearn.model_selection import train_test_split  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise EnvironmentFault(f"the digits need scikit-learn: {how_to_add('onnx')}, or give --data FILE.npz") from None
    raw = load_digits()
    images = (raw.images / 16).astype(np.float32)[:, None]  # pixels are 0..16, so sixteenths are exact
    labels = raw.target.astype(np.int64)
    learn, held_out = train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT_RATIO, random_state=_SPLIT_SEED, stratify=labels
    )
    return (
        Dataset("scikit-learn digits, training part", {"image": images[learn]}, labels[learn]),
        Dataset("scikit-learn digits, held-out part", {"image": images[held_out]}, labels[held_out]),
    )
