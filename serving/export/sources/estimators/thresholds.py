"""Makes the splits of trees exact for float32 inputs.

scikit-learn's histogram trees and LightGBM compare in double precision, ONNX's trees in float32, and their converters round
each threshold to the nearest float32: where that lies above, an input that equals it goes the other way, and data with few
decimals hits that often (on scikit-learn's diabetes data predictions of up to 273 were off by up to 7). Rounded down
instead, x <= threshold says the same for every float32 x. For scikit-learn's other trees the converter does this itself. A
scaler before the trees can still flip a row: it computes in another precision. Rule: changes only the converter's copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.sources.estimators.estimator import steps


def down(values: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    """The largest float32 that is not above, as float64."""
    near = np.float32(values)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float64)


def round_down(model: Any) -> None:
    """In place, in every histogram tree and LightGBM model inside."""
    for _, part in steps(model):
        for trees in getattr(part, "_predictors", ()):  # HistGradientBoosting: a list for each iteration
            for tree in trees:
                tree.nodes["num_threshold"] = down(tree.nodes["num_threshold"])
        if hasattr(part, "_Booster"):
            part._Booster = _Rounded(part._Booster)


class _Rounded:
    """A LightGBM booster whose description, which is what its converter reads, has thresholds that float32 holds."""

    is_mock = True  # the converter's word for a booster that it asks instead of LightGBM's library

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._booster, name)

    def dump_model(self, *args: Any, **options: Any) -> dict[str, Any]:
        described: dict[str, Any] = self._booster.dump_model(*args, **options)
        waiting = [tree["tree_structure"] for tree in described["tree_info"]]
        while waiting:
            node = waiting.pop()
            if node.get("decision_type") == "<=":  # the other kind compares numbers of categories
                node["threshold"] = float(down(np.float64(node["threshold"])))
            waiting += [node[child] for child in ("left_child", "right_child") if child in node]
        return described
