"""XGBoost's trees as ONNX nodes: a converter that skl2onnx calls, alone or as the last step of a pipeline.

It reads the model's JSON, whose schema XGBoost documents, so that trees of several classes, several targets, forests and dropped
trees (DART) go where XGBoost puts them; thresholds are float32 there as in ONNX, so every row takes the same branch. Rule: what
the graph would answer differently (linear boosters, categories, vector leaves, unknown objectives) is refused here by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

_LOGISTIC = ("binary:logistic", "reg:logistic")
_SOFTMAX = ("multi:softprob", "multi:softmax")
_LOG = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:aft", "survival:cox")
_PLAIN = (
    "reg:squarederror",
    "reg:squaredlogerror",
    "reg:pseudohubererror",
    "reg:absoluteerror",
    "reg:quantileerror",
    "rank:ndcg",
    "rank:map",
    "rank:pairwise",
)


@dataclass(frozen=True, slots=True)
class Node:
    """One of a tree. A leaf has no children and `value` is what it adds; else `value` is a threshold, and x < value goes to `yes`."""

    number: int
    feature: int
    value: float
    yes: int = -1
    no: int = -1
    is_missing_yes: bool = False

    @property
    def is_leaf(self) -> bool:
        return self.yes < 0


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What a booster says of itself. `groups`: for each tree, which of `num_groups` classes or targets it adds to."""

    objective: str
    trees: tuple[tuple[Node, ...], ...]
    groups: tuple[int, ...]
    num_groups: int
    base_scores: tuple[float, ...]  # one, or one for each group; before the objective's link

    @property
    def base_values(self) -> list[float]:
        """What each group's sum begins with."""
        links: list[tuple[tuple[str, ...], Callable[[float], float]]] = [
            (_LOGISTIC, lambda share: math.log(share / (1 - share))),
            (_LOG, math.log),
        ]
        link = next((link for objectives, link in links if self.objective in objectives), float)
        values = [link(score) for score in self.base_scores]
        return values * self.num_groups if len(values) == 1 else values


def read(booster: Any) -> Ensemble:
    """Raises ValueError that names what a graph cannot answer alike."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    objective, of_all, boosting = (
        learner["objective"]["name"],
        learner["learner_model_param"],
        learner["gradient_booster"],
    )
    if objective not in (*_LOGISTIC, *_SOFTMAX, *_LOG, *_PLAIN):
        raise ValueError(f"its objective {objective} is not known here")
    if boosting["name"] == "gblinear":
        raise ValueError("its booster gblinear is a linear model, not trees")
    model = boosting["gbtree"]["model"] if boosting["name"] == "dart" else boosting["model"]
    weights = boosting.get("weight_drop", [])
    last = booster.attr("best_iteration")  # of early stopping: later trees are not asked
    count = len(model["trees"]) if last is None else model["iteration_indptr"][int(last) + 1]
    trees = model["trees"][:count]
    factors = weights[:count] or [1.0] * count
    scores = json.loads(of_all["base_score"].lower())  # a number, since XGBoost 3 a list of them
    return Ensemble(
        objective=objective,
        trees=tuple(tuple(_nodes(tree, factor)) for tree, factor in zip(trees, factors, strict=True)),
        groups=tuple(model["tree_info"][:count]),
        num_groups=max(1, int(of_all["num_class"]), int(of_all.get("num_target", 1))),
        base_scores=tuple(scores) if isinstance(scores, list) else (float(scores),),
    )


def _nodes(tree: dict[str, Any], factor: float) -> Iterator[Node]:
    """Those that are reached from the root; pruned ones stay in XGBoost's arrays."""
    if int(tree["tree_param"].get("size_leaf_vector", 1)) > 1:
        raise ValueError("its trees have a vector in each leaf (multi_strategy multi_output_tree)")
    left, right, values = tree["left_children"], tree["right_children"], tree["split_conditions"]
    waiting = [0]
    while waiting:
        number = waiting.pop()
        if left[number] == -1:
            yield Node(number, 0, factor * values[number])
            continue
        if tree["split_type"][number]:
            raise ValueError("it compares categories (enable_categorical), not numbers")
        waiting += [left[number], right[number]]
        is_missing_yes = bool(tree["default_left"][number])
        yield Node(number, tree["split_indices"][number], values[number], left[number], right[number], is_missing_yes)


def splits(booster: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(features, thresholds) of all comparisons."""
    nodes = [node for tree in read(booster).trees for node in tree if not node.is_leaf]
    features = np.array([node.feature for node in nodes], np.int64)
    return features, np.array([node.value for node in nodes], np.float64)


def adder(scope: Any, container: Any) -> Callable[..., str]:
    """Adds a node to a graph of skl2onnx's, and gives the name of its output."""

    def add(kind: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        given = output or str(scope.get_unique_variable_name(kind.lower()))
        container.add_node(kind, list(inputs), given, name=scope.get_unique_operator_name(kind), **attributes)
        return given

    return add


def convert(scope: Any, operator: Any, container: Any) -> None:
    """For skl2onnx. A classifier gives its label, then its probabilities [n, classes]; any other its prediction [n, groups]."""
    model = operator.raw_operator
    ensemble = read(model.get_booster())
    classes = [int(label) for label in model.classes_] if hasattr(model, "classes_") else None

    add = adder(scope, container)

    def constant(name: str, kind: int, values: Sequence[Any]) -> str:
        given = str(scope.get_unique_variable_name(name))
        container.add_initializer(given, kind, [len(values)], values)
        return given

    *_, answer = operator.output_full_names
    sums = add("TreeEnsembleRegressor", operator.input_full_names, op_domain="ai.onnx.ml", **_attributes(ensemble))
    if ensemble.objective in _LOGISTIC:
        shares = add("Sigmoid", [sums], None if classes else answer)
        if classes:
            one = constant("one", onnx.TensorProto.FLOAT, [1.0])
            add("Concat", [add("Sub", [one, shares]), shares], answer, axis=1)
    elif ensemble.objective in _SOFTMAX:
        add("Softmax", [sums], answer, axis=1)
    else:
        add("Exp" if ensemble.objective in _LOG else "Identity", [sums], answer)
    if classes:
        names = constant("classes", onnx.TensorProto.INT64, classes)
        best = add("ArgMax", [answer], axis=1, keepdims=0)
        add("Gather", [names, best], operator.output_full_names[0])


def _attributes(ensemble: Ensemble) -> dict[str, Any]:
    nodes = [(place, node) for place, tree in enumerate(ensemble.trees) for node in tree]
    leaves = [(place, node) for place, node in nodes if node.is_leaf]
    return {
        "n_targets": ensemble.num_groups,
        "base_values": ensemble.base_values,
        "post_transform": "NONE",
        "nodes_treeids": [place for place, _ in nodes],
        "nodes_nodeids": [node.number for _, node in nodes],
        "nodes_featureids": [node.feature for _, node in nodes],
        "nodes_modes": ["LEAF" if node.is_leaf else "BRANCH_LT" for _, node in nodes],
        "nodes_values": [0.0 if node.is_leaf else node.value for _, node in nodes],
        "nodes_truenodeids": [max(0, node.yes) for _, node in nodes],
        "nodes_falsenodeids": [max(0, node.no) for _, node in nodes],
        "nodes_missing_value_tracks_true": [int(node.is_missing_yes) for _, node in nodes],
        "target_treeids": [place for place, _ in leaves],
        "target_nodeids": [node.number for _, node in leaves],
        "target_ids": [ensemble.groups[place] for place, _ in leaves],
        "target_weights": [node.value for _, node in leaves],
    }
