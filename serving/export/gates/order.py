"""How much of an order stays: of documents that answer a query, of rows from usual to odd.

Kendall's tau-b is SciPy's; normalised discounted cumulative gain and the area under the ROC curve are scikit-learn's, both of which are
in every environment that exports. Rule: rows of different queries are never compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NUM_FIRST = 10  # the results on the first page


def kendall_tau(scores: Array, reference: Array, queries: Array) -> float:
    """Mean over queries of tau-b, -1..1. All are [n]. A query with one row, or whose reference is all alike, has no order."""
    from scipy.stats import kendalltau  # type: ignore[import-untyped, unused-ignore]

    if not _is_finite(scores, reference):
        return float("nan")
    found = []
    for rows in _of_queries(queries):
        if len(np.unique(reference[rows])) > 1:
            is_flat = len(np.unique(scores[rows])) == 1
            found.append(0.0 if is_flat else float(kendalltau(scores[rows], reference[rows]).statistic))
    return float(np.mean(found)) if found else 1.0


def ndcg(scores: Array, relevance: Array, queries: Array) -> float:
    """Mean over queries of nDCG@10 with linear gains, 0..1. `relevance` [n], 0 or more. A query without anything relevant is left out."""
    from sklearn.metrics import ndcg_score  # type: ignore[import-untyped, unused-ignore]

    if not _is_finite(scores, relevance):
        return float("nan")
    found = [
        float(ndcg_score(relevance[rows][None], scores[rows][None], k=NUM_FIRST))
        for rows in _of_queries(queries)
        if len(rows) > 1 and relevance[rows].any()
    ]
    return float(np.mean(found)) if found else 1.0


def gains(scores: Array, queries: Array) -> Array:
    """[n]: a reference's scores as relevance, 0 for the last of a query and 1 for its first."""
    made = np.zeros(len(scores), np.float64)
    for rows in _of_queries(queries):
        low, high = float(scores[rows].min()), float(scores[rows].max())
        made[rows] = (scores[rows].astype(np.float64) - low) / ((high - low) or 1.0)
    return made


def roc_auc(scores: Array, is_odd: Array, sign: float = 1.0) -> float:
    """0..1: how often an odd row has the larger score. Both are [n]. `sign` -1 where small scores are odd."""
    from sklearn.metrics import roc_auc_score

    if not _is_finite(scores):
        return float("nan")
    return float(roc_auc_score(is_odd, sign * scores.astype(np.float64)))


def _of_queries(queries: Array) -> list[Array]:
    return [np.flatnonzero(queries == query) for query in np.unique(queries)]


def _is_finite(*values: Array) -> bool:
    return all(bool(np.isfinite(one).all()) for one in values)
