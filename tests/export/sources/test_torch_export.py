"""What leaves the dynamo exporter: one file, named as asked, dynamic where asked, or one line that says what to change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from serving.errors import UserError
from serving.export.progress import silent

torch = pytest.importorskip("torch")
torch_export = pytest.importorskip("serving.export.sources.torch_export")
pytestmark = pytest.mark.models

BATCH = {0: "batch"}


class Chain(torch.nn.Module):
    """Names inside the graph are those of its variables and operators."""

    def forward(self, first: Any, second: Any) -> Any:
        mul = first * 2
        relu = (mul + second.sum(dim=1, keepdim=True)).relu()
        return relu, mul


def export(module: Any, inputs: dict[str, Any], outputs: list[str], **more: Any) -> bytes:
    dynamic = more.pop("dynamic", dict.fromkeys(inputs, BATCH))
    return bytes(torch_export.to_onnx(module.eval(), inputs, outputs, dynamic, more.pop("opset", 18), silent))


def run(model: bytes, inputs: dict[str, Any]) -> list[Any]:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: np.asarray(values) for name, values in inputs.items()}))


@pytest.fixture(scope="module")
def chain() -> bytes:
    inputs = {"second": torch.randn(3, 5), "first": torch.randn(3, 4)}  # in another order than forward's
    dynamic = {"first": BATCH, "second": {0: "batch", 1: "sequence"}}
    return export(Chain(), inputs, ["mul", "first_2"], dynamic=dynamic)


@pytest.mark.parametrize(("num_rows", "length"), [(1, 1), (1, 7), (3, 1), (3, 33)])
def test_dynamic_dimensions_are_dynamic_and_inputs_go_where_their_names_say(
    chain: bytes, num_rows: int, length: int
) -> None:
    inputs = {"first": torch.randn(num_rows, 4), "second": torch.randn(num_rows, length)}
    for want, found in zip(Chain()(**inputs), run(chain, inputs), strict=True):
        assert np.abs(want.numpy() - found).max() < 1e-5


def test_an_output_may_be_called_like_a_value_inside(chain: bytes) -> None:
    graph = onnx.load_from_string(chain).graph
    assert [value.name for value in graph.output] == ["mul", "first_2"]
    made = [name for node in graph.node for name in node.output]
    assert len(made) == len(set(made))


def test_the_file_is_what_old_servers_read_and_says_nothing_of_this_machine(chain: bytes) -> None:
    model = onnx.load_from_string(chain)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [18]
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
    assert str(Path(__file__).parent).encode() not in chain


def test_the_interface_leaves_the_batch_out(chain: bytes) -> None:
    inputs, outputs = torch_export.interface(chain)
    assert {(tensor.name, tensor.datatype, tensor.shape) for tensor in inputs} == {
        ("first", "FP32", (4,)),
        ("second", "FP32", (-1,)),
    }
    assert [(tensor.name, tensor.shape) for tensor in outputs] == [("mul", (4,)), ("first_2", (4,))]


def test_the_same_module_gives_the_same_bytes() -> None:
    inputs = {"x": torch.zeros(2, 3)}
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    assert export(net, inputs, ["y"]) == export(net, inputs, ["y"])


def test_another_opset_is_reached_or_refused() -> None:
    inputs = {"x": torch.zeros(2, 3)}
    model = onnx.load_from_string(export(torch.nn.Linear(3, 2), inputs, ["y"], opset=20))
    assert model.opset_import[0].version == 20
    with pytest.raises(UserError, match=r"exports.*18.*99.*--opset"):
        export(torch.nn.Linear(3, 2), inputs, ["y"], opset=99)


def test_the_exporters_advice_is_not_shown_and_logging_is_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    before = logging.root.manager.disable
    with pytest.raises(UserError, match=r"values.*test_torch_export\.py:\d+"):
        export(Branch(), {"x": torch.ones(2, 3)}, ["y"])
    assert logging.root.manager.disable == before
    assert capfd.readouterr() == ("", "")


def test_the_framework_is_asked_in_parts_of_any_number_of_rows() -> None:
    ask = torch_export.runner(Chain().eval(), ["second", "first"])
    inputs = {"first": np.random.default_rng(0).random((70, 4), np.float32), "second": np.ones((70, 2), np.float32)}
    whole, alone = ask(inputs), ask({name: values[69:] for name, values in inputs.items()})
    assert [values.shape for values in whole] == [(70, 4), (70, 4)]
    assert np.allclose(whole[0][69:], alone[0])


# -- what is refused --------------------------------------------------------------------------------------------------


def test_more_than_one_file_holds_is_refused_before_anything_is_exported() -> None:
    with pytest.raises(UserError, match=r"model.*3.6 GB.*FP32.*ONNX.*2 GB"):
        export(torch.nn.Linear(30_000, 30_000, device="meta"), {"x": torch.zeros(2, 30_000)}, ["y"])


class Fixed(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cat([x, torch.ones(3, 1)], dim=1)


class Few(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.shape[0] < 10 else x * 3


class Sum(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sum(dim=0)


class Svd(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svd(x)[1]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (
            Svd,
            r"operator aten\._linalg_svd does not export to ONNX \(.*test_torch_export\.py:\d+: return torch\.linalg\.svd",
        ),
        (Fixed, r"fixes the size of a dimension that is to be dynamic \(batch\) at the example's 3"),
        (Few, r"works for batch sizes 2 to 9 only"),
        (Sum, r"output 'y' has the shape \[4\]: its first dimension has to be the batch"),
    ],
)
def test_what_cannot_be_a_served_model_is_told_in_one_line(module: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        torch_export.interface(export(module(), {"x": torch.zeros(3, 4)}, ["y"]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ({"first": (2, 4), "other": (2, 4)}, ["a", "b"], "forward takes first, second, but no 'other'"),
        ({"first": (2, 4), "second": (2, 4)}, ["a"], "returns 2 tensors, but 1 names are given"),
        ({"first": (2, 4), "second": (2, 4)}, ["a", "first"], "'first' is the name of an input and of an output"),
    ],
)
def test_names_that_do_not_fit_are_refused(inputs: dict[str, Any], outputs: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        export(Chain(), {name: torch.zeros(shape) for name, shape in inputs.items()}, outputs)


def test_an_example_too_short_for_an_open_axis_is_refused() -> None:
    with pytest.raises(UserError, match=r"shorter.*2.*0"):
        export(torch.nn.Linear(3, 2), {"x": torch.zeros(1, 3)}, ["y"])
