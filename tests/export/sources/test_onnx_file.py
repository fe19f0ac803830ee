"""FILE.onnx as a new model: what is read, changed and turned away, on graphs whose answers are known."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from serving.errors import UserError
from serving.export import onnx_session
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.gates.graph import check_graph
from serving.export.sources import onnx_file
from serving.export.sources.graphs import outputs, runnable
from serving.export.sources.graphs.runnable import Trial
from serving.repository import Tensor

from .graphs import FLOAT, HALF, INT64, STRING, constant, convolution, graph, linear, node, value, weights

ALL = ("fp32", "bf16", "fp16", "int8")


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Writes a graph as model.onnx and loads it."""

    def run(model: onnx.ModelProto | bytes, **options: Any) -> ExportedModel:
        path = tmp_path / "model.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return onnx_file.load(path, SourceOptions(**options), lambda *_: None)

    return run


def answers(model: bytes | onnx.ModelProto, **inputs: Any) -> list[Any]:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs)


def floats(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


# -- what becomes of a good file --------------------------------------------------------------------------------------


def test_a_graph_with_a_batch_is_taken_as_it_is(load: Any) -> None:
    model = linear("n")
    exported = load(model, max_batch_size=7)
    assert exported.inputs == (Tensor("x", "FP32", (4,)),)
    assert exported.outputs == (Tensor("y", "FP32", (3,)),)
    assert (exported.max_batch_size, exported.task, exported.framework, exported.run) == (7, "other", "onnx", None)
    assert exported.source == "onnx: model.onnx"
    assert exported.precisions == ALL
    assert not exported.is_cpu_only
    assert exported.example["x"].shape == (8, 4)
    assert len(np.unique(exported.example["x"], axis=0)) == 8
    assert np.allclose(answers(exported.model, x=floats(5, 4))[0], answers(model, x=floats(5, 4))[0])
    assert set(exported.toolchain) == {"onnx", "onnxruntime"}


@pytest.mark.parametrize("classes", [{"classlabels_int64s": [0, 1, 2]}, {"classlabels_strings": ["a", "b", "c"]}])
def test_probabilities_that_zipmap_gives_by_class_become_a_tensor(load: Any, classes: dict[str, list[Any]]) -> None:
    """As scikit-learn's converter writes a classifier if nothing is said."""
    key = INT64 if "classlabels_int64s" in classes else STRING
    by_class = helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, []))
    gives = helper.make_value_info("probabilities", helper.make_sequence_type_proto(by_class))
    model = graph(
        [node("MatMul", ["x", "w"], ["scores"]), node("Softmax", ["scores"], ["shares"]),
         node("ZipMap", ["shares"], ["probabilities"], domain="ai.onnx.ml", **classes)],
        [value("x", FLOAT, ["n", 4])], [gives], [weights("w", 4, 3)], domains={"ai.onnx.ml": 1},
    )  # fmt: skip
    exported = load(model)
    assert (exported.outputs, exported.task) == ((Tensor("probabilities", "FP32", (3,)),), "classification")
    given = answers(model, x=floats(5, 4))[0]
    found = Trial(exported.model, "it").run({"x": floats(5, 4)})[0]
    assert np.allclose(found, [list(row.values()) for row in given])


def test_the_same_file_gives_the_same_bytes_and_the_same_example(load: Any) -> None:
    content = linear("n").SerializeToString()
    first, second = load(content), load(content)
    assert first.model == second.model
    assert np.array_equal(first.example["x"], second.example["x"])


def test_the_traces_of_the_exporter_and_of_its_machine_are_removed(load: Any) -> None:
    model = linear("n", producer_name="pytorch", producer_version="2.1.0")
    model.graph.name = "/home/somebody/net.py"
    model.graph.node[0].doc_string = "/home/somebody/net.py(12): forward"
    model.metadata_props.add(key="pkg", value="/home/somebody")
    exported = load(model)
    assert b"somebody" not in exported.model
    assert exported.source == "onnx: model.onnx; made by pytorch 2.1.0"


def test_a_producer_that_is_a_path_does_not_get_into_the_record(load: Any) -> None:
    assert load(linear("n", producer_name="/home/somebody/tool")).source == "onnx: model.onnx"


def test_progress_ends_where_it_said(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(linear().SerializeToString())
    steps: list[tuple[str, int, int]] = []
    onnx_file.load(tmp_path / "model.onnx", SourceOptions(), lambda *step: steps.append(step))
    assert steps[0][1] == 0
    assert steps[-1] == ("reading model.onnx", steps[-1][2], steps[-1][2])


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17])
def test_an_old_opset_is_upgraded_and_answers_the_same(load: Any, opset: int) -> None:
    model = linear("n", opset=opset, softmax=opset >= 11)
    exported = load(model, opset=19)
    raised = onnx.load_from_string(exported.model)
    assert [entry.version for entry in raised.opset_import if not entry.domain] == [19]
    assert exported.source == f"onnx: model.onnx; opset {opset} upgraded to 19"
    assert np.allclose(answers(exported.model, x=floats(3, 4))[0], answers(model, x=floats(3, 4))[0], atol=1e-6)


def test_weights_that_are_inputs_too_as_in_old_files_are_none_afterwards(load: Any) -> None:
    model = linear("n", opset=8, ir_version=3)
    model.graph.input.extend([value("w", FLOAT, [4, 3]), value("b", FLOAT, [3])])
    assert [tensor.name for tensor in load(model).inputs] == ["x"]


@pytest.mark.parametrize("opset", [19, 21, 22])
def test_a_newer_opset_than_asked_for_is_kept_while_servers_read_it(load: Any, opset: int) -> None:
    exported = load(linear("n", opset=opset), opset=18)
    assert onnx.load_from_string(exported.model).opset_import[0].version == opset
    assert any("24.10" in note for note in exported.notes) == (opset > 21)
    assert "upgraded" not in exported.source


def test_the_ir_version_is_one_that_old_servers_read(load: Any) -> None:
    assert onnx.load_from_string(load(linear("n", ir_version=12)).model).ir_version == 10


def test_a_graph_of_classical_operators_only_gets_an_opset_and_is_for_cpus(load: Any) -> None:
    model = graph(
        [node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0])],
        [value("x", FLOAT, ["n", 4])],
        [value("y", FLOAT, ["n", 4])],
        domains={"ai.onnx.ml": 3},
    )
    del model.opset_import[0]
    exported = load(model)
    assert exported.is_cpu_only
    assert exported.precisions == ("fp32",)
    assert exported.source.endswith("for CPUs only")


# -- the batch dimension ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [linear(1), linear(1, opset=9), convolution(1), convolution("n")])
def test_a_batch_fixed_at_1_is_freed_where_the_answers_stay(load: Any, model: onnx.ModelProto) -> None:
    exported = load(model)
    (name, rows), *_ = exported.example.items()
    assert exported.max_batch_size == 32
    assert "batch dimension freed" in exported.source
    alone = [answers(exported.model, **{name: rows[i : i + 1]})[0] for i in range(5)]
    assert np.allclose(answers(exported.model, **{name: rows[:5]})[0], np.concatenate(alone), atol=1e-5)
    declared = onnx.load_from_string(exported.model).graph
    assert [v.type.tensor_type.shape.dim[0].dim_param for v in (*declared.input, *declared.output)] == ["batch"] * 2


def test_a_freed_graph_answers_as_the_file_did(load: Any) -> None:
    model = convolution(1)
    row = floats(1, 3, 8, 8)
    assert np.allclose(answers(load(model).model, image=row)[0], answers(model, image=row)[0], atol=1e-6)


def heads() -> onnx.ModelProto:
    """Splits [1, 6, 8] in a way that only a batch of 1 survives."""
    nodes = [
        node("Reshape", ["x", "split"], ["h"]),
        node("Softmax", ["h"], ["s"], axis=0),
        node("Reshape", ["s", "join"], ["y"]),
    ]
    ports = [value("x", FLOAT, [1, 6, 8])], [value("y", FLOAT, [1, 6, 8])]
    return graph(nodes, *ports, [constant("split", 6, 2, 4), constant("join", 1, 6, 8)])


def test_a_batch_that_cannot_be_freed_is_served_without_batches(load: Any) -> None:
    exported = load(heads())
    assert exported.max_batch_size == 0
    assert exported.inputs == (Tensor("x", "FP32", (1, 6, 8), "NCHW"),)
    assert exported.outputs == (Tensor("y", "FP32", (1, 6, 8)),)
    assert exported.example["x"].shape == (8, 1, 6, 8)
    assert "operator Reshape" in exported.source


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(
            graph([node("Softmax", ["x"], ["y"], axis=0)], [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])]),
            (-1, 4),
            id="softmax over what looks like the batch",
        ),
        pytest.param(
            graph(
                [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)],
                [value("x", FLOAT, ["steps", "n", 4])],
                [value("y", FLOAT, ["steps", 1, "n", 2])],
                [weights("w", 1, 8, 4), weights("r", 1, 8, 2)],
            ),
            (-1, -1, 4),
            id="a recurrent net with the steps first",
        ),
        pytest.param(
            graph([node("CumSum", ["x", "a"], ["y"])], [value("x", FLOAT, ["n", 4])],
                  [value("y", FLOAT, ["n", 4])], [numpy_helper.from_array(np.array(0, np.int64), "a")]),
            (-1, 4),
            id="sums over rows",
        ),
    ],
)  # fmt: skip
def test_rows_that_mix_are_no_batch_whatever_the_dimension_is_called(
    load: Any, model: onnx.ModelProto, shape: tuple[int, ...]
) -> None:
    exported = load(model)
    assert exported.max_batch_size == 0
    assert exported.inputs[0].shape == shape
    assert "rows" in exported.source


def test_a_first_dimension_of_another_fixed_length_is_no_batch(load: Any) -> None:
    exported = load(linear(2))
    assert (exported.max_batch_size, exported.inputs[0].shape, exported.outputs[0].shape) == (0, (2, 4), (2, 3))
    assert exported.source == "onnx: model.onnx; no batch dimension"


def test_no_batches_can_be_asked_for(load: Any) -> None:
    exported = load(linear("n"), max_batch_size=0)
    assert (exported.max_batch_size, exported.inputs[0].shape) == (0, (-1, 4))


def test_one_number_per_row_becomes_a_column_because_triton_takes_no_row_without_dimensions(load: Any) -> None:
    nodes = [node("Gather", ["table", "id"], ["v"]), node("ReduceSum", ["v", "axis"], ["y"], keepdims=0)]
    ports = [value("id", INT64, ["n"])], [value("y", FLOAT, ["n"])]
    model = graph(nodes, *ports, [weights("table", 2, 5), constant("axis", 1)])
    exported = load(model)
    assert (exported.inputs, exported.outputs) == ((Tensor("id", "INT64", (1,)),), (Tensor("y", "FP32", (1,)),))
    ids = np.array([0, 1, 1])
    assert np.allclose(answers(exported.model, id=ids[:, None])[0][:, 0], answers(model, id=ids)[0])
    assert load(model, example={"id": np.array([1, 0, 1, 0])}).example["id"].shape == (4, 1)


# -- other shapes, types and tasks ------------------------------------------------------------------------------------


def test_dynamic_dimensions_stay_dynamic_and_are_longer_than_1_in_the_example(load: Any) -> None:
    nodes = [node("Gather", ["table", "ids"], ["v"]), node("ReduceMean", ["v", "axis"], ["y"], keepdims=0)]
    ports = [value("ids", INT64, ["n", "length"])], [value("y", FLOAT, ["n", 5])]
    exported = load(graph(nodes, *ports, [weights("table", 2, 5), constant("axis", 1)]), max_length=12)
    assert exported.inputs == (Tensor("ids", "INT64", (-1,)),)
    assert exported.example["ids"].shape == (8, 12)
    assert set(np.unique(exported.example["ids"])) == {0, 1}


@pytest.mark.parametrize("few", [2, 1000])
def test_rows_of_two_values_alone_do_not_say_that_a_graph_mixes_rows(load: Any, few: int) -> None:
    """Rows without a value of `few` or more are mixed, as rounding does where a net was never shown the like; with 1,000 all are."""
    nodes = [
        node("Cast", ["ids"], ["x"], to=FLOAT),
        node("ReduceMax", ["x", "all"], ["most"], keepdims=1),
        node("Less", ["most", "few"], ["is_odd"]),
        node("ReduceMean", ["x", "all"], ["mean"], keepdims=1),
        node("Where", ["is_odd", "mean", "zero"], ["more"]),
        node("Add", ["x", "more"], ["y"]),
    ]
    ports = [value("ids", INT64, ["n", 6])], [value("y", FLOAT, ["n", 6])]
    numbers = [numpy_helper.from_array(np.float32(number), name) for name, number in (("few", few), ("zero", 0))]
    exported = load(graph(nodes, *ports, [*numbers, numpy_helper.from_array(np.array([0, 1]), "all")]))
    assert (exported.max_batch_size > 0) == (few == 2)
    if few == 2:
        assert exported.example["ids"].max() > 2
    else:
        assert "output 'y'" in " ".join(exported.notes)


def test_an_image_of_any_size_is_tried_at_the_size_that_was_asked_for(load: Any) -> None:
    exported = load(convolution("n", "edge"), image_size=10)
    assert exported.inputs[0].shape == (3, -1, -1)
    assert exported.example["image"].shape == (8, 3, 10, 10)


def test_masks_are_ones(load: Any) -> None:
    nodes = [node("Mul", ["ids", "attention_mask"], ["y"])]
    ports = [value("ids", INT64, ["n", 6]), value("attention_mask", INT64, ["n", 6])], [value("y", INT64, ["n", 6])]
    assert load(graph(nodes, *ports)).example["attention_mask"].min() == 1


def test_a_shape_that_the_file_has_wrong_is_mended_by_the_answers(load: Any) -> None:
    model = graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 7])])
    assert load(model).outputs == (Tensor("y", "FP32", (4,)),)


def test_a_length_that_depends_on_the_values_stays_open(load: Any) -> None:
    model = graph([node("NonZero", ["x"], ["y"])], [value("x", FLOAT, [3])], [value("y", INT64, [1, "found"])])
    exported = load(model)
    assert (exported.max_batch_size, exported.outputs) == (0, (Tensor("y", "INT64", (1, -1)),))


def test_an_output_without_a_shape_gets_the_one_that_follows_from_the_operators(load: Any) -> None:
    model = graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, None)])
    assert load(model).outputs == (Tensor("y", "FP32", (4,)),)


def test_branches_are_followed(load: Any) -> None:
    """With operators inside that the upgrade has to change as well."""
    then = helper.make_graph([node("Squeeze", ["x"], ["a"], axes=[1])], "t", [], [value("a", FLOAT, None)])
    other = helper.make_graph(
        [node("ReduceMax", ["x"], ["b"], axes=[1], keepdims=0)], "e", [], [value("b", FLOAT, None)]
    )
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["is_positive"]),
        node("If", ["is_positive"], ["y"], then_branch=then, else_branch=other),
    ]
    ports = [value("x", FLOAT, ["n", 1, 4])], [value("y", FLOAT, ["n", 4])]
    model = graph(nodes, *ports, [numpy_helper.from_array(np.float32(0), "zero")], opset=11)
    exported = load(model)
    assert np.allclose(answers(exported.model, x=floats(2, 1, 4))[0], floats(2, 1, 4)[:, 0])


@pytest.mark.parametrize("opset", [13, 18])
def test_functions_that_came_with_the_model_are_dissolved(load: Any, opset: int) -> None:
    twice = helper.make_function(
        "my.functions", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", opset)]
    )
    model = graph(
        [node("Twice", ["x"], ["y"], domain="my.functions")],
        [value("x", FLOAT, ["n", 4])],
        [value("y", FLOAT, ["n", 4])],
        opset=opset,
        domains={"my.functions": 1},
        functions=[twice],
    )
    made = onnx.load_from_string(load(model).model)
    assert not made.functions
    assert [n.op_type for n in made.graph.node] == ["Add"]


def half() -> onnx.ModelProto:
    ports = [value("x", HALF, ["n", 4])], [value("y", HALF, ["n", 3])]
    return graph([node("MatMul", ["x", "w"], ["y"])], *ports, [weights("w", 4, 3, dtype="float16")])


def quantised() -> onnx.ModelProto:
    """Dynamic: the scale is the whole batch's, so rows differ a little from the same rows alone."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("MatMul", ["d", "w"], ["y"]),
    ]
    return graph(nodes, [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 3])], [weights("w", 4, 3)])


@pytest.mark.parametrize(("model", "says"), [(half(), "FP16"), (quantised(), "quantised")])
def test_what_is_in_a_lower_precision_already_is_served_as_it_came(
    load: Any, model: onnx.ModelProto, says: str
) -> None:
    exported = load(model)
    assert exported.precisions == ("fp32",)
    assert exported.source.startswith(f"onnx: model.onnx; already {says}")
    assert exported.max_batch_size == 32


def test_rows_that_sum_to_1_are_a_classification_and_come_first(load: Any) -> None:
    nodes = [
        node("Gemm", ["x", "w"], ["z"]),
        node("Softmax", ["z"], ["p"], axis=1),
        node("ArgMax", ["p"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [value("label", INT64, ["n"]), value("p", FLOAT, ["n", 3])]
    exported = load(graph(nodes, [value("x", FLOAT, ["n", 4])], outputs, [weights("w", 4, 3)]))
    assert exported.task == "classification"
    assert exported.outputs == (Tensor("p", "FP32", (3,)), Tensor("label", "INT64", (1,)))
    assert Trial(exported.model, "it").outputs == ("p", "label")


def test_two_outputs_of_probabilities_are_nothing_that_can_be_guessed(load: Any) -> None:
    nodes = [node("Gemm", ["x", "w"], ["z"]), *(node("Softmax", ["z"], [name], axis=1) for name in "pq")]
    outputs = [value(name, FLOAT, ["n", 3]) for name in "pq"]
    assert load(graph(nodes, [value("x", FLOAT, ["n", 4])], outputs, [weights("w", 4, 3)])).task == "other"


def test_the_task_that_was_asked_for_counts(load: Any) -> None:
    assert load(linear(), task="embedding").task == "embedding"
    assert load(linear(softmax=True), task="other").task == "other"


# -- an example of the user's -----------------------------------------------------------------------------------------


def test_the_users_example_is_taken_before_made_up_inputs(load: Any) -> None:
    rows = np.arange(20).reshape(5, 4) / 7
    exported = load(linear(), example={"x": rows})
    assert exported.example["x"].dtype == np.float32
    assert np.allclose(exported.example["x"], rows)


def test_an_example_of_a_graph_without_batches_has_a_row_for_each_input(load: Any) -> None:
    assert load(linear(2), example={"x": floats(5, 2, 4)}).example["x"].shape == (5, 2, 4)
    assert load(heads(), example={"x": floats(5, 6, 8)}).example["x"].shape == (5, 1, 6, 8)


def test_an_example_with_every_dimension_says_that_there_is_no_batch(load: Any) -> None:
    exported = load(linear("steps"), example={"x": floats(5, 6, 4)})
    assert (exported.max_batch_size, exported.inputs[0].shape) == (0, (-1, 4))


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ({"x": floats(8, 5)}, r"input 'x' of the example has shape \[n, 5\], want FP32 \[n, 4\]"),
        ({"x": floats(8)}, r"has shape \[n\], want FP32 \[n, 4\]"),
        ({"x": floats(3, 4)}, "the example has 3 rows, want at least 4"),
        ({"X": floats(8, 4)}, "the example has 'X', which is not an input of the model"),
        ({"x": floats(8, 4), "y": floats(8, 4)}, "the example has 'y', which is not an input"),
        ({}, r"the example lacks input 'x', want FP32 \[n, 4\]"),
        ({"x": np.full((8, 4), "a")}, r"is <U1, want FP32"),
    ],
)
def test_an_example_that_does_not_fit_says_what_is_wanted(load: Any, example: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(linear(), example=example)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (np.full((4, 6), 0.5), "input 'ids' of the example is float64, want INT64"),
        (np.full((4, 6), 2**63, np.uint64), "holds numbers that INT64 cannot"),
    ],
)
def test_numbers_that_the_input_cannot_hold_are_not_rounded(load: Any, ids: Any, says: str) -> None:
    model = graph([node("Abs", ["ids"], ["y"])], [value("ids", INT64, ["n", 6])], [value("y", INT64, ["n", 6])])
    with pytest.raises(UserError, match=says):
        load(model, example={"ids": ids})


def test_inputs_of_different_lengths_are_told_apart(load: Any) -> None:
    ports = [value("a", FLOAT, ["n", 4]), value("b", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])]
    with pytest.raises(UserError, match=r"numbers.*8.*7"):
        load(graph([node("Add", ["a", "b"], ["y"])], *ports), example={"a": floats(8, 4), "b": floats(7, 4)})


def test_text_needs_an_example(load: Any) -> None:
    model = graph([node("Identity", ["x"], ["y"])], [value("x", STRING, ["n", 1])], [value("y", STRING, ["n", 1])])
    with pytest.raises(UserError, match=r"'x'.*examples"):
        load(model)
    exported = load(model, example={"x": np.array([b"a", b"b", b"c", b"d"])})
    assert exported.example["x"].tolist() == [["a"], ["b"], ["c"], ["d"]]
    assert exported.is_cpu_only


# -- what is turned away ----------------------------------------------------------------------------------------------

SEQUENCE = helper.make_tensor_sequence_value_info("many", FLOAT, None)
OPTIONAL = helper.make_value_info("maybe", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [1])))
X, Y = value("x", FLOAT, ["n", 4]), value("y", FLOAT, ["n", 4])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "it holds no graph; it is empty", id="empty"),
        pytest.param(b"hello " * 100, "is not an ONNX file, or only a part of one", id="something else"),
        pytest.param(convolution().SerializeToString()[:-50], "or only a part of one", id="cut off"),
        pytest.param(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
            "it is a Git LFS pointer, so fetch the model itself: git lfs pull",
            id="a pointer instead of the file",
        ),
        pytest.param(linear(opset=23), "needs opset 23 of ai.onnx, servers here read up to 22", id="too new"),
        pytest.param(linear(opset=9999), "needs opset 9999 of ai.onnx", id="far too new"),
        pytest.param(
            graph([node("Foo", ["x"], ["y"], domain="acme")], [X], [Y], domains={"acme": 1}),
            "uses operator acme:Foo, of a library that no server here has: export the model without custom operators",
            id="an operator of somebody's library",
        ),
        pytest.param(
            graph([node("Foo", ["x"], ["y"], domain="com.microsoft")], [X], [Y], domains={"com.microsoft": 1}),
            "does not know operator com.microsoft:Foo",
            id="an operator that ONNX Runtime never had",
        ),
        pytest.param(
            graph(
                [node("BitShift", ["x", "x"], ["y"], direction="LEFT", name="shift")],
                [value("x", onnx.TensorProto.UINT16, ["n", 4])],
                [value("y", onnx.TensorProto.UINT16, ["n", 4])],
            ),
            r"cannot run operator BitShift of opset 11 \(node shift\)",
            id="an operator without a kernel for this type",
        ),
        pytest.param(
            graph([node("Affine", ["x"], ["y"])], [X], [Y], opset=1),
            "operator Affine of opset 1 cannot be upgraded to 18: export the model again with opset 18$",
            id="an operator that no longer exists",
        ),
        pytest.param(
            graph([node("SequenceAt", ["many", "i"], ["y"])], [SEQUENCE, value("i", INT64, [])], [Y]),
            "input 'many' is a sequence, and only tensors can be served",
            id="a sequence comes in",
        ),
        pytest.param(
            graph([node("SequenceConstruct", ["x"], ["many"])], [X], [SEQUENCE]),
            r"output 'many' is a sequence.*zipmap=False",
            id="a sequence comes out",
        ),
        pytest.param(
            graph([node("OptionalGetElement", ["maybe"], ["y"])], [OPTIONAL], [Y]),
            "input 'maybe' is an optional",
            id="an optional",
        ),
        pytest.param(
            graph([node("Cast", ["x"], ["y"], to=onnx.TensorProto.BFLOAT16)], [X],
                  [value("y", onnx.TensorProto.BFLOAT16, ["n", 4])]),
            "output 'y' is BFLOAT16, which no request can carry",
            id="a type that no client has",
        ),
        pytest.param(
            graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["n"] + [1] * 64)],
                  [value("y", FLOAT, ["n"] + [1] * 64)]),
            "input 'x' has 65 dimensions, and Triton hands over 32 at most",
            id="more dimensions than arrays have",
        ),
        pytest.param(
            graph([node("Sum", [f"x{i}" for i in range(1025)], ["y"])],
                  [value(f"x{i}", FLOAT, ["n", 4]) for i in range(1025)], [Y]),
            "has 1025 inputs, and a request carries 1024 at most",
            id="more inputs than a request carries",
        ),
        pytest.param(
            graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, None)], [Y]),
            "input 'x' does not say how many dimensions it has",
            id="an input of any rank",
        ),
        pytest.param(
            graph([node("Constant", [], ["y"], value_float=1.0)], [], [value("y", FLOAT, [])]),
            "has no input, so there is nothing to serve",
            id="nothing goes in",
        ),
        pytest.param(
            graph([node("Add", ["x", "ghost"], ["y"])], [X], [Y]),
            "is not a valid ONNX model: .*ghost",
            id="a value that nobody makes",
        ),
        pytest.param(
            graph([node("Add", ["x", "w"], ["y"])], [X], [Y], [weights("w", 4, dtype="float64")]),
            "ONNX Runtime .* cannot load it: Type Error",
            id="types that do not meet",
        ),
        pytest.param(
            graph([node("Log", ["x"], ["y"])], [X], [Y]),
            "output 'y' is NaN on the inputs that it was tried on; give inputs as the model expects them",
            id="answers that are no numbers",
        ),
        pytest.param(
            graph([node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])], [X], [Y]),
            "output 'y' changes from run to run on the same inputs, by RandomNormalLike: export the model in evaluation mode",
            id="random numbers",
        ),
        pytest.param(
            graph([node("Dropout", ["x", "r", "t"], ["y"])], [X], [Y],
                  [onnx.numpy_helper.from_array(np.array(0.5, np.float32), "r"),
                   onnx.numpy_helper.from_array(np.array(True), "t")]),
            "output 'y' changes from run to run on the same inputs, by Dropout",
            id="a dropout that was left on",
        ),
        pytest.param(
            graph([node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])],
                  [value("x", FLOAT, [2, 4])], [value("y", FLOAT, [2, 4])]),
            "output 'y' changes from run to run",
            id="random numbers without a batch",
        ),
        pytest.param(
            graph([node("Reshape", ["x", "s"], ["y"])], [X], [Y], [constant("s", 7, 7)]),
            "does not run on made-up inputs, give real ones with --data or --example: operator Reshape",
            id="runs on nothing",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_served_is_turned_away_in_one_line(
    load: Any, content: bytes | onnx.ModelProto, says: str
) -> None:
    with pytest.raises(UserError, match=says) as error:
        load(content)
    assert "model.onnx" in str(error.value)
    assert "\n" not in str(error.value)
    assert not re.search(r"\.(cc|h):\d", str(error.value))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"opset": 23}, "opset 23 is newer than servers here read: ask for 22"),
        ({"task": "clasification"}, "unknown task 'clasification'; did you mean 'classification'"),
    ],
)
def test_options_that_cannot_be_are_named(load: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(linear(), **options)


def test_a_task_that_the_outputs_cannot_have_is_refused_with_what_they_are(load: Any) -> None:
    model = graph([node("Abs", ["x"], ["y"])], [value("x", INT64, ["n", 6])], [value("y", INT64, ["n", 6])])
    with pytest.raises(UserError, match=r"classification.*\[batch, n\].*INT64 \[6\]"):
        load(model, task="classification")


@pytest.mark.parametrize("what", ["nothing", "folder"])
def test_a_path_without_a_file_is_named(tmp_path: Path, what: str) -> None:
    if what == "folder":
        (tmp_path / "model.onnx").mkdir()
    with pytest.raises(UserError, match=r"model\.onnx"):
        onnx_file.load(tmp_path / "model.onnx", SourceOptions(), lambda *_: None)


def test_a_file_over_2_gb_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.onnx").open("wb") as file:
        os.truncate(file.fileno(), 2**31)  # a hole: takes no space
    with pytest.raises(UserError, match=r"2\.1 GB.*ONNX.*2 GB.*convert.*FP16"):
        onnx_file.load(tmp_path / "model.onnx", SourceOptions(), lambda *_: None)


def test_a_dropout_that_is_off_is_no_chance(load: Any) -> None:
    assert load(graph([node("Dropout", ["x"], ["y"])], [X], [Y])).max_batch_size > 0


def test_scalars_are_served_as_one_number_with_a_dimension(load: Any) -> None:
    """As the sampling rate of voice detectors is: Triton has no way to carry a scalar."""
    model = graph(
        [node("Cast", ["rate"], ["r"], to=FLOAT), node("Mul", ["x", "r"], ["y"]), node("ReduceSum", ["y"], ["s"], keepdims=0)],
        [value("x", FLOAT, [2, 3]), value("rate", INT64, [])],
        [value("y", FLOAT, [2, 3]), value("s", FLOAT, [])],
    )  # fmt: skip
    rows = {"x": np.arange(24, dtype=np.float32).reshape(4, 2, 3), "rate": np.array([1, 2, 3, 4])}
    for example in (rows, {**rows, "rate": rows["rate"][:, np.newaxis]}, None):
        exported = load(model, example=example)
        assert [tensor.shape for tensor in (*exported.inputs, *exported.outputs)] == [(2, 3), (1,), (2, 3), (1,)]
        assert exported.max_batch_size == 0
        check_graph("m", exported, inputs=exported.example)
    y, total = onnx_session.answers(load(model, example=rows).model, {**rows, "rate": rows["rate"][:, np.newaxis]}, 0)
    assert np.array_equal(y, rows["x"] * np.arange(1, 5, dtype=np.float32)[:, np.newaxis, np.newaxis])
    assert np.array_equal(total[:, 0], y.sum(axis=(1, 2)))


def test_a_graph_of_images_that_runs_at_no_made_up_size_takes_no_memory_for_batches_of_them(load: Any) -> None:
    """A text recogniser takes images of 48 pixels in height, and says that it takes any."""
    model = graph(
        [node("Conv", ["x", "k"], ["c"]), node("Reshape", ["c", "shape"], ["y"])],
        [value("x", FLOAT, ["n", 3, "h", "w"])],
        [value("y", FLOAT, ["n", 2, "l"])],
        [weights("k", 2, 3, 48, 1), constant("shape", 0, 2, 10)],
    )
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"made-up.*inputs.*--data.*--example"):
            load(model)
        assert tracemalloc.get_traced_memory()[1] < 256 * 2**20
    finally:
        tracemalloc.stop()
    real = load(model, example={"x": np.random.default_rng(0).standard_normal((4, 3, 48, 10)).astype(np.float32)})
    assert real.max_batch_size == 32


@pytest.mark.thorough
def test_made_up_inputs_that_take_too_much_are_ended_and_named_as_made_up(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round of the Loop makes its value longer by the input."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Concat", ["in", "x"], ["out"], axis=1)],
        "body",
        [value("round", INT64, []), value("go", onnx.TensorProto.BOOL, []), value("in", FLOAT, ["n", "l"])],
        [value("on", onnx.TensorProto.BOOL, []), value("out", FLOAT, ["n", "l"])],
    )
    model = graph(
        [node("Loop", ["rounds", "", "x"], ["y"], body=body)],
        [value("x", FLOAT, ["n", 4096])],
        [value("y", FLOAT, ["n", "l"])],
        [onnx.numpy_helper.from_array(np.array(10**9), "rounds")],
    )
    monkeypatch.setattr(runnable, "MAX_BYTES", 64 * 2**20)
    with pytest.raises(UserError, match=r"0.0625 GB.*memory.*made-up.*\[1, 4096\]"):
        load(model)
    monkeypatch.setattr(runnable, "MAX_RUN_S", 0.0)
    with pytest.raises(UserError, match=r"0.*made-up.*inputs"):
        load(model)
    with pytest.raises(UserError, match=r"input.*512 MB.*\[134217728\]"):
        load(graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["n", 2**27])], [value("y", FLOAT, ["n", 2**27])]))


@pytest.mark.thorough
def test_batches_of_large_rows_are_as_large_as_memory_allows(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graph(
        [node("Expand", ["x", "large"], ["e"]), node("ReduceSum", ["e", "axis"], ["y"], keepdims=0)],
        [value("x", FLOAT, ["n", 1])], [value("y", FLOAT, ["n"])],
        [constant("large", 1, 2**24), constant("axis", 1)],
    )  # fmt: skip
    # 64 MB a row: more than what malloc may take out of memory that this process has had before and given back
    monkeypatch.setattr(outputs, "MAX_BATCH_BYTES", 512 * 2**20)
    assert load(model).max_batch_size in (1, 2, 4, 8)
    assert load(model, max_batch_size=32).max_batch_size == 32


def test_a_step_of_a_generative_model_is_named_as_such_and_served_only_where_that_is_wanted(load: Any) -> None:
    inputs = [value("x", FLOAT, ["n", 4]), value("past_key_values.0.key", FLOAT, ["n", 4])]
    model = graph([node("Add", ["x", "past_key_values.0.key"], ["y"])], inputs, [value("y", FLOAT, ["n", 4])])
    with pytest.raises(UserError, match=r"token by token.*vLLM.*--task other"):
        load(model)
    assert load(model, task="other").max_batch_size == 32
