"""What is particular to trees of LightGBM, XGBoost and CatBoost, alone or as a step of scikit-learn: how each becomes nodes of ONNX,
and where its thresholds lie.

A library is imported only by what brought it in, a pickle or `tree_file.py`; most installations do without. Rule: a threshold that
float32 does not hold is rounded down, because ONNX's trees compare in float32 (see `down`).
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from skl2onnx import update_registered_converter  # type: ignore[import-untyped, unused-ignore]
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType  # type: ignore[import-untyped, unused-ignore]
from skl2onnx.common.shape_calculator import (  # type: ignore[import-untyped, unused-ignore]
    calculate_linear_classifier_output_shapes,
)

from serving.export.sources import xgboost_trees

LIBRARIES = ("lightgbm", "xgboost", "catboost")
_NAN_BORDER = 1e38  # CatBoost keeps NaN apart by a border at the end of float32's range
_ALIAS = "Tandem"  # before an operator's name while skl2onnx converts
_CLASSIFIER_OPTIONS = {"nocl": [True, False], "zipmap": [True, False]}
_ESTIMATORS = {  # library -> (its classifiers, its other estimators)
    "lightgbm": (("LGBMClassifier",), ("LGBMRegressor", "LGBMRanker")),
    "xgboost": (("XGBClassifier", "XGBRFClassifier"), ("XGBRegressor", "XGBRFRegressor", "XGBRanker")),
    "catboost": (("CatBoostClassifier",), ("CatBoostRegressor", "CatBoostRanker")),
}


def library_of(model: Any) -> str | None:
    """Which of the three made it; None: another."""
    name = type(model).__module__.partition(".")[0]
    return name if name in LIBRARIES else None


def num_features(model: Any) -> int:
    """Of any estimator. CatBoost forgets `n_features_in_` when it is pickled."""
    return len(model.feature_names_) if library_of(model) == "catboost" else int(model.n_features_in_)


def down(values: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    """The largest float32 that is not above, as float64."""
    near = np.float32(values)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float64)


def prepare(part: Any) -> None:
    """In place, of the converter's copy only: LightGBM's thresholds become such as float32 holds."""
    if library_of(part) == "lightgbm" and hasattr(part, "_Booster"):
        part._Booster = _RoundedBooster(part._Booster)


class _RoundedBooster:
    """A LightGBM booster whose description, which is what its converter reads, has thresholds that float32 holds."""

    is_mock = True  # the converter's word for a booster that it asks instead of LightGBM's library

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._booster, name)

    def dump_model(self, *args: Any, **options: Any) -> dict[str, Any]:
        description: dict[str, Any] = self._booster.dump_model(*args, **options)
        for node in _lightgbm_splits(description):
            node["threshold"] = float(down(np.float64(node["threshold"])))
            if node["missing_type"] == "None":  # LightGBM takes NaN for 0 where it has learnt from none
                node["default_left"] = node["threshold"] >= 0
        return description


def _lightgbm_splits(description: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of all trees in a LightGBM booster's description that compare a number; others compare categories."""
    queue = [tree["tree_structure"] for tree in description["tree_info"]]
    while queue:
        node = queue.pop()
        if node.get("decision_type") == "<=":
            yield node
        queue += [node[child] for child in ("left_child", "right_child") if child in node]


def splits(part: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """(features, thresholds) of all comparisons of numbers; None for what is not of the three."""
    library = library_of(part)
    if library == "lightgbm" and hasattr(part, "_Booster"):
        nodes = list(_lightgbm_splits(part._Booster.dump_model()))
        pairs = [(node["split_feature"], float(node["threshold"])) for node in nodes]
    elif library == "xgboost" and hasattr(part, "get_booster"):
        return xgboost_trees.splits(part.get_booster())
    elif library == "catboost" and hasattr(part, "get_borders"):
        borders = [(feature, border) for feature, found in part.get_borders().items() for border in found]
        pairs = [(feature, border) for feature, border in borders if abs(border) < _NAN_BORDER]
    else:
        return None
    return np.array([feature for feature, _ in pairs], np.int64), np.array([value for _, value in pairs], np.float64)


# -- estimators around a Booster ---------------------------------------------------------------------------------------


def estimator_of(booster: Any) -> Any:
    """The estimator around a Booster of XGBoost or LightGBM, which says itself what its numbers mean."""
    library = str(library_of(booster))
    module = importlib.import_module(library)
    return _around_xgboost(module, booster) if library == "xgboost" else _around_lightgbm(module, booster)


def _around_xgboost(xgboost: Any, booster: Any) -> Any:
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    is_classifier = objective.startswith(("binary:", "multi:"))
    kind = xgboost.XGBRanker if objective.startswith("rank:") else xgboost.XGBRegressor
    model = xgboost.XGBClassifier() if is_classifier else kind()
    model.load_model(booster.save_raw("ubj"))
    return model


def _around_lightgbm(lightgbm: Any, booster: Any) -> Any:
    """By the fields that LightGBM's own `fit` sets; it has no other way to an estimator."""
    described = booster.dump_model(num_iteration=1)
    objective = str(described.get("objective", "")).partition(" ")[0]
    is_classifier = objective in ("binary", "multiclass", "multiclassova")
    kind = lightgbm.LGBMRanker if objective in ("lambdarank", "rank_xendcg") else lightgbm.LGBMRegressor
    model = lightgbm.LGBMClassifier() if is_classifier else kind()
    model._Booster, model._best_iteration, model._objective = booster, booster.best_iteration, objective
    model._n_features = model._n_features_in = booster.num_feature()
    names = booster.feature_name()
    model._fitted_with_feature_names = names != [f"Column_{index}" for index in range(len(names))]
    if is_classifier:
        classes = np.arange(max(2, int(described["num_class"])))
        model._le = lightgbm.sklearn._LGBMLabelEncoder().fit(classes)
        model._classes, model._n_classes = classes, len(classes)
    model.fitted_ = True
    return model


# -- converters -------------------------------------------------------------------------------------------------------


def register() -> None:
    """Tells skl2onnx of the libraries that were imported."""
    for library, (classifiers, others) in _ESTIMATORS.items():
        module = sys.modules.get(library)
        if module is None:
            continue
        convert = _converter(library)
        for name in (*classifiers, *others):
            kind = getattr(module, name, None)
            if kind is None:
                continue
            is_classifier = name in classifiers
            shapes = calculate_linear_classifier_output_shapes if is_classifier else _prediction_shape
            options = _CLASSIFIER_OPTIONS if is_classifier else {"split": None} if library == "lightgbm" else None
            parser = _parse_catboost if library == "catboost" and is_classifier else None
            update_registered_converter(kind, _ALIAS + name, shapes, convert, parser=parser, options=options)


def _parse_catboost(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:  # noqa: ARG001 - skl2onnx passes it
    """A classifier's two outputs: skl2onnx gives them to subclasses of scikit-learn's ClassifierMixin alone."""
    operator = scope.declare_local_operator(_ALIAS + type(model).__name__, model)
    operator.inputs.append(inputs[0])
    for name, kind in (("label", Int64TensorType), ("probabilities", FloatTensorType)):
        operator.outputs.append(scope.declare_local_variable(name, kind()))
    return operator.outputs


def _converter(library: str) -> Any:
    if library == "xgboost":
        return xgboost_trees.convert
    if library == "catboost":
        return _convert_catboost
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import (  # type: ignore[import-untyped, unused-ignore]
        convert_lightgbm,
    )

    return convert_lightgbm


def _prediction_shape(operator: Any) -> None:
    """One number a row, of XGBoost as many as it has targets."""
    model = operator.raw_operator
    width = xgboost_trees.read(model.get_booster()).num_groups if library_of(model) == "xgboost" else 1
    operator.outputs[0].type = FloatTensorType([operator.inputs[0].type.shape[0], width])


def _convert_catboost(scope: Any, operator: Any, container: Any) -> None:
    """Takes the trees out of the graph that CatBoost itself makes; what follows them there is a list of dictionaries."""
    from catboost.utils import convert_to_onnx_object  # type: ignore[import-not-found, import-untyped, unused-ignore]

    model = operator.raw_operator
    loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
    if loss in ("Poisson", "Tweedie"):
        raise ValueError(f"CatBoost exports the trees of {loss} without its exponential")
    graph = convert_to_onnx_object(model).graph
    trees = next((node for node in graph.node if node.op_type.startswith("TreeEnsemble")), None)
    if trees is None:
        raise ValueError("CatBoost's own export has no trees in it")
    if not len(model.classes_) and trees.op_type != "TreeEnsembleRegressor":
        raise ValueError(f"CatBoost exports several targets at once ({loss}) as classes: fit one model for each")
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in trees.attribute}
    container.add_node(
        trees.op_type,
        operator.input_full_names,
        operator.output_full_names,
        op_domain="ai.onnx.ml",
        name=scope.get_unique_operator_name("CatBoost"),
        **attributes,
    )
