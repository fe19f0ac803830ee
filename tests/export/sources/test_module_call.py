"""`module:` with torch: what comes of a user's module, and how errors inside their code are told. Nets of a few weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from serving.errors import UserError
from serving.export.dimensions import read_dims
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.gates.graph import check_graph
from serving.export.progress import silent
from serving.export.sources import torch_module

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.models

HEAD = "import torch\nfrom torch import nn\n"
NET = (
    HEAD
    + """
class Net(nn.Module):
    labels = ["cat", "dog"]

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.scores = nn.Linear(12, 2)

    def forward(self, image):
        return self.scores(self.drop(image.flatten(1))).softmax(dim=1)

def make():
    return Net(), torch.zeros(1, 3, 2, 2)

net = Net()
"""
)
TWO = (
    HEAD
    + """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids, weight, scale=None):
        vectors = self.table(ids).mean(dim=1).double() * weight[:, None]
        return {"vectors": vectors, "top": vectors.argmax(dim=1), "nothing": None}

def by_order():
    return Two(), (torch.tensor([[1, 2, 3]]), torch.ones(1))

def by_name():
    return Two(), {"weight": torch.ones(5).half(), "ids": torch.arange(15).reshape(5, 3) % 9}
"""
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the user's own; what was imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    torch.manual_seed(0)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)) or name == "tandem_module_net":
            del sys.modules[name]


def load(rest: str, code: str = "", **options: Any) -> ExportedModel:
    if code:
        Path("net.py").write_text(code)
    return torch_module.load(rest, SourceOptions(is_trusted=True, **options), silent)


def refusal(rest: str, code: str = "", **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(rest, code, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same_answers(exported: ExportedModel) -> None:
    session = ort.InferenceSession(exported.model, providers=["CPUExecutionProvider"])
    assert exported.run is not None
    for num_rows in (1, 3):
        inputs = {name: values[:num_rows] for name, values in exported.example.items()}
        for want, found in zip(exported.run(inputs), session.run(None, inputs), strict=True):
            assert want.dtype == found.dtype
            assert want.shape == found.shape
            assert np.abs(want.astype(float) - found.astype(float)).max() < 1e-5


def test_a_module_with_its_example_becomes_a_model_and_the_example_four_different_rows() -> None:
    exported = load("net.py:make", NET)
    assert [(t.name, t.datatype, t.shape) for t in exported.inputs] == [("image", "FP32", (3, 2, 2))]
    assert [(t.name, t.datatype, t.shape) for t in exported.outputs] == [("output", "FP32", (2,))]
    assert exported.task == "classification"
    assert exported.labels == ("cat", "dog")
    assert exported.source == "module: net.py:make"
    assert exported.framework == "pytorch"
    assert_same_answers(exported)
    image = exported.example["image"]  # one row was given
    assert len(image) == 4
    assert len({row.tobytes() for row in image}) == 4


def test_a_module_of_a_package_here_takes_its_example_from_the_options() -> None:
    Path("mine").mkdir()
    Path("mine", "__init__.py").touch()
    Path("mine", "net.py").write_text(NET)
    example = {"picture": np.random.default_rng(0).random((5, 3, 2, 2)).astype(np.float64)}
    exported = load("mine.net:net", example=example)
    assert [(t.name, t.datatype) for t in exported.inputs] == [("picture", "FP32")]
    assert exported.source == "module: mine.net:net"
    assert_same_answers(exported)


@pytest.mark.parametrize("name", ["by_order", "by_name"])
def test_inputs_and_outputs_keep_their_names_and_one_number_per_row_gets_a_column(name: str) -> None:
    exported = load(f"net.py:{name}", TWO)
    assert {(t.name, t.datatype, t.shape) for t in exported.inputs} == {
        ("ids", "INT64", (3,)),
        ("weight", "FP32", (1,)),
    }
    assert [(t.name, t.datatype, t.shape) for t in exported.outputs] == [
        ("vectors", "FP32", (4,)),
        ("top", "INT64", (1,)),
    ]
    assert exported.task == "other"
    assert exported.example["ids"].max() < 9
    assert_same_answers(exported)


def test_a_file_may_import_what_lies_beside_it() -> None:
    Path("parts").mkdir()
    Path("parts", "layers.py").write_text("from torch import nn\nlayer = nn.Linear(3, 3)\n")
    Path("parts", "net.py").write_text(
        "import torch\nfrom layers import layer\ndef make(): return layer, torch.zeros(2, 3)\n"
    )
    assert load("parts/net.py:make").task == "other"


def test_half_precision_becomes_the_fp32_that_everything_is_measured_by_and_a_task_is_taken_as_asked() -> None:
    exported = load(
        "net.py:make", HEAD + "def make(): return nn.Linear(3, 2).bfloat16(), torch.zeros(2, 3).bfloat16()\n"
    )
    assert (exported.inputs[0].datatype, exported.outputs[0].datatype) == ("FP32", "FP32")
    assert_same_answers(exported)


# -- errors inside the user's code ------------------------------------------------------------------------------------


def with_forward(*lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return (
        HEAD + f"class Net(nn.Module):\n    def forward(self, x):\n{body}def make(): return Net(), torch.ones(2, 3)\n"
    )


FAILURES = [
    ("def make(:\n", "SyntaxError"),
    ("import a_package_that_is_nowhere\nmake = 1\n", "No module named 'a_package_that_is_nowhere' (net.py:1: import a_package"),
    ("x = 1\ny = x / 0\nmake = 1\n", "ZeroDivisionError: division by zero (net.py:2: y = x / 0)"),
    ("import sys\nsys.exit(3)\nmake = 1\n", "SystemExit: 3 (net.py:2: sys.exit(3))"),
    ("def make():\n    raise KeyError('gone')\n", "KeyError: 'gone' (net.py:2: raise KeyError('gone'))"),
    ("def make(size): pass\n", "TypeError: make() missing 1 required positional argument: 'size'"),
    ("other = 1\n", "net.py has no 'make'"),
    ("make = 3\n", "'make' is a int, want a torch.nn.Module or a callable"),
    ("def make(): pass\n", "net.py:make returned nothing, want a torch.nn.Module"),
    ("def make(): return {}, 1\n", "net.py:make returned a dict, want a torch.nn.Module"),
    (HEAD + "make = nn.Linear(3, 2)\n", "there are no example inputs"),
    (HEAD + "def make(): return nn.Linear(3, 2), 'x'\n", "the example's 'input' is a str"),
    (HEAD + "def make(): return nn.Linear(3, 2), ()\n", "the example has 0 tensors, and forward takes input"),
    (HEAD + "def make(): return nn.Linear(3, 2), {}\n", "the example's dictionary maps no input names"),
    (HEAD + "def make(): return nn.Linear(3, 2), torch.tensor(1.0)\n", "got input []: where the first dimension is no batch"),
    (HEAD + "def make(): return nn.Linear(3, 2), torch.zeros(0, 3)\n", "the same number of rows, 1 or more; got input [0, 3]"),
    (HEAD + "def make(): return nn.Linear(3, 2), (torch.zeros(2, 3),) * 2\n", "has 2 tensors, and forward takes input"),
    (
        HEAD + "def make(): return nn.Bilinear(3, 3, 2), (torch.zeros(2, 3), torch.zeros(4, 3))\n",
        "got input1 [2, 3], input2 [4, 3]",
    ),
    (
        HEAD + "def make(): return nn.Bilinear(3, 3, 2), {'a': torch.zeros(2, 3), 'input1': torch.zeros(2, 3)}\n",
        "the example has 'a', and forward takes input1, input2",
    ),
    (HEAD + "def make(): return nn.Linear(3, 2), torch.zeros(2, 5)\n", "mat1 and mat2 shapes cannot be multiplied"),
    (with_forward("y = x + 1", "return y[7]"), "(net.py:6: return y[7])"),
    (with_forward("return x.sum()"), "'output' has the shape [] for 4 rows: a batch has to stay a batch"),
    (with_forward("return x[:1]"), "'output' has the shape [1, 3] for 4 rows"),
    (with_forward("return {'x': x * 2}"), "returns 'x', which is an input's name as well"),
    (with_forward("return x, ['x']"), "forward returns a str as 'output_1_0'"),
    (with_forward("return None"), "forward returns a NoneType as 'output'"),
    (with_forward("return {}"), "forward returns nothing"),
    (with_forward("labels = 1", "return torch.from_numpy(x.numpy() + 1)"), "(net.py:6: return torch.from_numpy"),
    (with_forward("return x if x.sum() > 0 else -x"), "different ways for different values"),
    (with_forward("return x + x if x.shape[0] > 3 else 2 * x"), "sizes 4 to int_oo only"),
    (
        with_forward("return torch.special.bessel_j0(x)"),
        "operator aten.special_bessel_j0 does not export to ONNX (net.py:5: return torch.special.bessel_j0(x))",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "says"), FAILURES, ids=[says for _, says in FAILURES])
def test_what_fails_in_the_users_code_is_one_line_with_the_place(code: str, says: str) -> None:
    assert says in refusal("net.py:make", code)


@pytest.mark.parametrize("labels", ["'ab'", "[]", "[1, 2]", "['a', '']", "{'a': 1, 'b': 2}", "3"])
def test_labels_that_are_no_names_are_told_so(labels: str) -> None:
    code = NET.replace('["cat", "dog"]', labels)
    assert "`labels` is not" in refusal("net.py:make", code)


def test_labels_of_another_number_than_the_columns_are_told_so() -> None:
    code = NET.replace('["cat", "dog"]', "['a', 'b', 'c']")
    assert "'output' has 2 columns" in refusal("net.py:make", code)


def test_a_task_that_the_output_cannot_be_is_refused() -> None:
    code = with_forward("return x[:, :, None] * 2")
    assert "is float32 ['n', 3, 1]" in refusal("net.py:make", code, task="embedding")


def test_a_module_that_python_does_not_find_is_named() -> None:
    assert "ModuleNotFoundError: No module named 'nowhere'" in refusal("nowhere.net:make")


def test_ctrl_c_in_the_users_code_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        load("net.py:make", "def make(): raise KeyboardInterrupt\n")


EVALUATION = [
    (["return nn.functional.dropout(x, 0.5, training=True)"], "'output' changes from call to call on the same inputs"),
    (["return x + torch.randn_like(x)"], "'output' changes from call to call on the same inputs"),
    (["self.n = getattr(self, 'n', 0) + 1", "return x + self.n"], "or a buffer that forward changes"),
    (["return x / x.max()"], "'output' of a row depends on the rows beside it"),
    (["return x.cumsum(0)"], "'output' of a row depends on the rows beside it"),
    (["return nn.functional.batch_norm(x, None, None, training=True)"], "Expected more than 1 value per channel when training"),
    (["return torch.complex(x, x)"], "forward returns complex numbers as 'output'"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "says"), EVALUATION)
def test_answers_that_no_graph_can_be_judged_beside_are_the_modules_own_fault(lines: list[str], says: str) -> None:
    """They would fail the gate as an export that went wrong."""
    told = refusal("net.py:make", with_forward(*lines).replace("torch.ones(2, 3)", "torch.randn(5, 3)"))
    assert says in told
    assert "\n" not in told


def test_answers_that_are_no_numbers_are_left_to_the_gate() -> None:
    exported = load("net.py:make", with_forward("return (x - 100).log()"))
    assert exported.run is not None
    assert np.isnan(exported.run(exported.example)[0]).all()


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_torchscript_asks_for_the_module_that_it_was_made_of() -> None:
    code = "def make(): return torch.jit.script(nn.Linear(3, 2)), torch.zeros(2, 3)\n"
    assert "TorchScript" in refusal("net.py:make", HEAD + code)


def test_an_example_with_nan_is_not_the_models_fault() -> None:
    code = "def make(): return nn.Linear(3, 2), torch.full((2, 3), float('nan'))\n"
    assert "'input' holds NaN" in refusal("net.py:make", HEAD + code)


OPEN = (
    HEAD
    + """
from typing import NamedTuple

class Heads(NamedTuple):
    scores: torch.Tensor
    pair: list

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids, weights):
        vectors = self.table(ids) * weights[..., None]
        return {"tags": vectors, "heads": Heads(vectors.sum(1), [vectors.mean(1), None, {"last": vectors[:, -1]}])}

class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(4, 3)

    def forward(self, frame, state, rate):
        answer, after = self.cell(frame / rate, state)
        return answer, {"state": after}

ids, weights = torch.arange(12).reshape(2, 6) % 9, torch.rand(2, 6)

def tagger():
    return Tagger(), {"ids": ids, "weights": weights}

def tagger_of_named_dimensions():
    return Tagger(), {"ids": ids, "weights": weights}, {"ids": {1: "tokens"}, "weights": {1: "tokens"}}

def memory():
    return Memory(), (torch.rand(1, 2, 4), torch.zeros(1, 2, 3), 8.0)
"""
)


@pytest.mark.parametrize(
    ("name", "dims", "width"),
    [
        ("tagger", ("ids:1=2..12", "weights:1=2..12"), -1),
        ("tagger_of_named_dimensions", (), -1),
        ("tagger_of_named_dimensions", ("tokens=2..12",), -1),
        ("tagger_of_named_dimensions", ("tokens=5",), 5),
        ("tagger", (), 6),
    ],
)
def test_dimensions_beside_the_batch_are_open_where_the_code_or_the_user_says_so(
    name: str, dims: tuple[str, ...], width: int
) -> None:
    exported = load(f"net.py:{name}", OPEN, dims=read_dims(dims) or None)
    assert [tensor.shape for tensor in exported.inputs] == [(width,), (width,)]
    check_graph("m-fp32", exported)  # at other lengths, beside the module itself


@pytest.mark.parametrize(
    ("dims", "says"), [(("token=5",), "tokens"), (("ids:0=5",), "--max-batch"), (("ids:2=5",), "ids:1")]
)
def test_a_dimension_that_the_module_does_not_have_is_refused_with_the_nearest(
    dims: tuple[str, ...], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        load("net.py:tagger_of_named_dimensions", OPEN, dims=read_dims(dims))


def test_outputs_are_named_by_where_they_are_in_what_forward_returns() -> None:
    names = [tensor.name for tensor in load("net.py:tagger", OPEN).outputs]
    assert names == ["tags", "heads_scores", "heads_pair_0", "heads_pair_2_last"]


def test_a_state_that_has_its_batch_elsewhere_is_served_without_batches_and_given_back() -> None:
    with pytest.raises(UserError, match="--max-batch 0"):
        load("net.py:memory", OPEN)
    exported = load("net.py:memory", OPEN, max_batch_size=0)
    assert exported.max_batch_size == 0
    assert [(tensor.name, tensor.shape) for tensor in exported.inputs] == [
        ("frame", (1, 2, 4)),
        ("state", (1, 2, 3)),
        ("rate", (1,)),  # no request to Triton carries a number without dimensions
    ]
    assert [(tensor.name, tensor.shape) for tensor in exported.outputs] == [
        ("output_0", (1, 2, 3)),
        ("output_1_state", (1, 2, 3)),
    ]
    check_graph("m-fp32", exported)


def test_rows_of_the_users_data_say_the_shapes_where_they_are_of_the_same_inputs() -> None:
    rows = {"ids": np.ones((4, 8), np.int64), "weights": np.ones((4, 8), np.float32), "labels": np.zeros(4)}
    assert load("net.py:tagger", OPEN, example=rows, is_from_data=True).inputs[0].shape == (8,)
    del rows["weights"]
    assert load("net.py:tagger", OPEN, example=rows, is_from_data=True).inputs[0].shape == (
        6,
    )  # its reader names what lacks
