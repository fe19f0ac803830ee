"""A fitted estimator as an ONNX graph: skl2onnx's, with the converters of `boosted_trees.py` beside it.

Probabilities, scores or distances come first, then the label; a regressor gives `prediction`. Rule: no lists of dictionaries
(ZipMap), no sequences and one column per value, because Triton carries neither them nor rows without dimensions.
"""

from __future__ import annotations

import copy
import re
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from skl2onnx import convert_sklearn, update_registered_converter  # type: ignore[import-untyped, unused-ignore]
from skl2onnx.common.data_types import (  # type: ignore[import-untyped, unused-ignore]
    FloatTensorType,
    Int64TensorType,
    StringTensorType,
)
from sklearn.base import is_classifier  # type: ignore[import-untyped, unused-ignore]
from sklearn.cluster import KMeans, MiniBatchKMeans  # type: ignore[import-untyped, unused-ignore]

from serving.errors import UserError
from serving.export.onnx_parts import inferred, rename
from serving.export.onnx_session import first_line
from serving.export.sources import boosted_trees
from serving.export.sources.boosted_trees import down
from serving.export.sources.graphs import batching
from serving.export.sources.graphs.onnx_model import upgraded
from serving.export.sources.sklearn_estimator import (
    FEATURES,
    LABEL,
    PROBABILITIES,
    SCORES,
    TEXT,
    Estimator,
    final,
    steps,
)
from serving.export.sources.xgboost_trees import adder


def round_down(model: Any) -> None:
    """Makes the splits of every tree exact for float32 inputs, in place: of the converter's copy only.

    They compare in double precision, ONNX's trees in float32, and their converters round a threshold to the nearest float32:
    where that lies above, an input that equals it takes the other branch, as data with few decimals often does (on
    scikit-learn's diabetes data predictions of up to 273 were off by up to 7). Rounded down, x <= threshold says the same for
    every float32 x. The converter of scikit-learn's other trees does this itself, but not of forests that answer several questions (of 40
    forests of five trees, 24 gave another answer to some iris). A scaler before the trees can still flip a row.
    """
    for _, part in steps(model):
        for trees in getattr(part, "_predictors", ()):  # HistGradientBoosting: a list for each iteration
            for tree in trees:
                tree.nodes["num_threshold"] = down(tree.nodes["num_threshold"])
        if hasattr(part, "tree_"):
            is_split = part.tree_.feature >= 0
            part.tree_.threshold[is_split] = down(part.tree_.threshold[is_split])
        boosted_trees.prepare(part)


# Their probabilities are shares of few votes, so that ties happen, and scikit-learn then takes the first class. Sums of float32
# differ in their last digits on a tie, so the label is taken from rounded ones.
_VOTES = ("RandomForestClassifier", "ExtraTreesClassifier", "BaggingClassifier", "VotingClassifier")
_STEPS_OF_1 = 2.0**16  # finer than the votes of any forest, coarser than float32's errors in their sum
# How the converter divides as scikit-learn does for float32, to the last digit: left alone it multiplies by the reciprocal, and
# a value beside a tree's threshold then takes the other branch. Measured on 1,500 values each, scikit-learn 1.9.
_DIVISIONS = {"StandardScaler": "div", "MaxAbsScaler": "div", "RobustScaler": "div_cast"}
ML_OPSET = 3  # has float trees; ONNX Runtime 1.19 loads it
_WORDS = r"(?u)\b\w\w+\b"  # the pattern that scikit-learn takes if nothing is said
_LOCALE = "C.UTF-8"  # every Debian has it; the operator's own en_US.UTF-8 is in no slim image


def to_onnx(estimator: Estimator, texts: Sequence[bool] | None, opset: int) -> onnx.ModelProto:
    """`texts`: for each column whether it is text, each then an input [n, 1]; None: one input of all features.

    Raises UserError that names the step which has no converter.
    """
    model = copy.deepcopy(estimator.model)
    round_down(model)
    for _, part in steps(model):
        if hasattr(part, "flatten_transform"):
            part.flatten_transform = False  # of VotingClassifier.transform, which is not what is served
    boosted_trees.register()
    for kind in (KMeans, MiniBatchKMeans):
        update_registered_converter(kind, f"Tandem{kind.__name__}", _centres_shapes, _convert_centres)
    graph = _converted(model, estimator, _initial_types(estimator, texts), opset)
    _without_sequences(graph.graph, estimator)
    for old, new in _outputs(graph, estimator).items():
        _rename_output(graph.graph, old, new)
    _order(graph.graph, estimator.outputs)
    if type(final(model)).__name__ in _VOTES and estimator.outputs[0] == PROBABILITIES and estimator.classes:
        _label_by_probabilities(graph.graph, estimator.classes)
    batching.columns(graph)
    return inferred(upgraded(graph, opset, estimator.name))


def _initial_types(estimator: Estimator, texts: Sequence[bool] | None) -> list[tuple[str, Any]]:
    if estimator.takes_text:
        return [(TEXT, StringTensorType([None, 1]))]
    if texts is None:
        return [(FEATURES, FloatTensorType([None, estimator.num_features]))]
    kinds = (StringTensorType if is_text else FloatTensorType for is_text in texts)
    return [(name, kind([None, 1])) for name, kind in zip(estimator.column_names, kinds, strict=True)]


def _converted(model: Any, estimator: Estimator, types: list[tuple[str, Any]], opset: int) -> onnx.ModelProto:
    last = final(model)
    options: dict[int, dict[str, bool | str]] = {
        id(part): {"div": how} for _, part in steps(model) if (how := _DIVISIONS.get(type(part).__name__))
    }
    options |= {id(part): _text_options(part) for _, part in steps(model) if hasattr(part, "vocabulary_")}
    if LABEL in estimator.outputs and is_classifier(last):
        options[id(last)] = {} if type(last).__name__ == "LinearSVC" else {"zipmap": False}  # it never has one
        if estimator.outputs[0] == SCORES:
            options[id(last)]["raw_scores"] = True  # two columns also where there are two classes
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph: onnx.ModelProto = convert_sklearn(
                model, initial_types=types, target_opset={"": opset, "ai.onnx.ml": ML_OPSET}, options=options or None
            )
    except Exception as error:  # whatever a converter meets in an estimator that it does not know
        raise UserError(f"{estimator.name}: {_refusal(error, model)}") from None
    versions = {entry.domain: entry.version for entry in graph.opset_import}  # it may name a domain twice
    del graph.opset_import[:]
    graph.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
    return graph


def _text_options(part: Any) -> dict[str, bool | str]:
    """How the graph finds words as scikit-learn does. ONNX Runtime's patterns are RE2's, whose \\w knows no letter beyond ASCII."""
    found: dict[str, bool | str] = {"locale": _LOCALE}
    if part.analyzer == "word" and part.token_pattern == _WORDS:
        found["tokenexp"] = r"[\p{L}\p{N}_][\p{L}\p{N}_]+"
    return found


def _refusal(error: Exception, model: Any) -> str:
    """Names the step and its class where the converter's words name a class."""
    words = str(error)
    named = re.search(r"type '<class '([\w.]+)'>'", words)
    parts = [(step, type(part)) for step, part in steps(model)]
    if named:
        found = [step for step, kind in parts if f"{kind.__module__}.{kind.__qualname__}" == named[1]]
        where = f"step {found[-1]} ({named[1]})" if found else f"a {named[1]}"
        return f"{where} has no converter to ONNX: take another in its place, or export the model as .onnx yourself"
    stumbled = _converted_last(error)
    found = [
        f"step {step} ({type(part).__name__})"
        for step, part in steps(model)
        if part is not model and (part is stumbled or (stumbled is None and type(part).__name__ in words))
    ]
    why = re.sub(r"\s*You may raise an is.*", "", first_line(error)).rstrip(".")  # advice for other people's project
    return (
        f"{found[-1] if found else type(model).__name__} cannot be converted to ONNX: {why}; take another in its place, or "
        "export the model as .onnx yourself"
    )


def _converted_last(error: Exception) -> Any:
    """The estimator that a converter was at when it raised; None where it was at none."""
    at = [frame.f_locals.get("operator") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((one.raw_operator for one in reversed(at) if hasattr(one, "raw_operator")), None)


def _without_sequences(graph: onnx.GraphProto, estimator: Estimator) -> None:
    """In place: probabilities of several questions, a sequence or a stack of tensors, become an output for each."""
    label = graph.output[0].type.tensor_type.shape.dim
    if estimator.is_multilabel and len(label) == 1:  # its converter says less than it gives
        label.add()
    if not estimator.questions or len(graph.output) != 2:
        return
    all_of_them = graph.output[1]
    makes = next(node for node in graph.node if all_of_them.name in node.output)
    if makes.op_type == "SequenceConstruct":
        single = list(makes.input)
        graph.node.remove(makes)
    else:
        single = [f"{all_of_them.name}_{index}" for index in range(len(estimator.questions))]
        for index, (name, count) in enumerate(zip(single, estimator.questions, strict=True)):
            for what, value in (("question", index), ("class", list(range(count)))):  # padded to the longest
                place = np.array(value, np.int64)
                graph.initializer.append(onnx.numpy_helper.from_array(place, f"tandem_{what}_{index}"))
            padded = f"{name}_padded"
            graph.node.append(
                onnx.helper.make_node("Gather", [all_of_them.name, f"tandem_question_{index}"], [padded], axis=0)
            )
            graph.node.append(onnx.helper.make_node("Gather", [padded, f"tandem_class_{index}"], [name], axis=1))
    del graph.output[1]
    for name, count in zip(single, estimator.questions, strict=True):
        graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, count]))


def _outputs(graph: onnx.ModelProto, estimator: Estimator) -> dict[str, str]:
    """The converter's names -> ours. It gives the label first."""
    given = [value.name for value in graph.graph.output]
    wanted = [*estimator.outputs[-1:], *estimator.outputs[:-1]]
    if len(given) != len(wanted):
        raise UserError(
            f"{estimator.name}: the converter gives {', '.join(given)} for a {type(estimator.model).__name__}, "
            f"want {', '.join(wanted)}: export the model as .onnx yourself"
        )
    return dict(zip(given, wanted, strict=True))


def _rename_output(graph: onnx.GraphProto, old: str, new: str) -> None:
    if old == new:
        return
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    if new in taken:  # an inner value that happens to be called so
        rename(graph, new, f"{new}_inside")
    rename(graph, old, new)
    for value in graph.output:
        if value.name == old:
            value.name = new


def _order(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    values = {value.name: value for value in graph.output}
    del graph.output[:]
    graph.output.extend(values[name] for name in names)


def _label_by_probabilities(graph: onnx.GraphProto, classes: Sequence[Any]) -> None:
    """In place: label = the first of the classes with the largest rounded probability, [batch, 1]."""
    rename(graph, LABEL, f"{LABEL}_of_sums")
    is_text = isinstance(classes[0], str)
    values = np.array([str(c).encode() for c in classes], object) if is_text else np.array(classes).astype(np.int64)
    graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.array(_STEPS_OF_1, np.float32), "tandem_steps"),
            onnx.helper.make_tensor(
                "tandem_classes",
                onnx.TensorProto.STRING if is_text else onnx.TensorProto.INT64,
                [len(classes)],
                values.tolist(),
            ),
        ]
    )
    graph.node.extend(
        [
            onnx.helper.make_node("Mul", [PROBABILITIES, "tandem_steps"], ["tandem_scaled"]),
            onnx.helper.make_node("Round", ["tandem_scaled"], ["tandem_rounded"]),
            onnx.helper.make_node("ArgMax", ["tandem_rounded"], ["tandem_best"], axis=1, keepdims=1),
            onnx.helper.make_node("Gather", ["tandem_classes", "tandem_best"], [LABEL]),
        ]
    )
    label = next(value for value in graph.output if value.name == LABEL).type.tensor_type
    if len(label.shape.dim) == 1:
        label.shape.dim.add().dim_value = 1


def _centres_shapes(operator: Any) -> None:
    num_rows, num_centres = operator.inputs[0].type.shape[0], len(operator.raw_operator.cluster_centers_)
    operator.outputs[0].type = Int64TensorType([num_rows])
    operator.outputs[1].type = FloatTensorType([num_rows, num_centres])


def _convert_centres(scope: Any, operator: Any, container: Any) -> None:
    """Distances by differences: skl2onnx's way, x² - 2xc + c², is the root of a negative number, NaN, where a row is a centre."""
    centres = operator.raw_operator.cluster_centers_.astype(np.float32)
    label, distances = operator.output_full_names

    add = adder(scope, container)
    shape, points = (str(scope.get_unique_variable_name(name)) for name in ("shape", "centres"))
    container.add_initializer(shape, onnx.TensorProto.INT64, [3], [-1, 1, centres.shape[1]])
    container.add_initializer(points, onnx.TensorProto.FLOAT, [1, *centres.shape], centres.ravel().tolist())
    difference = add("Sub", [add("Reshape", [operator.input_full_names[0], shape]), points])
    squares = add("Einsum", [difference, difference], equation="nkf,nkf->nk")
    add("ArgMin", [add("Sqrt", [squares], distances)], label, axis=1, keepdims=0)
