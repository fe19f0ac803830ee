"""A session for each size of batch: right rows from the right session, few of them, and what happens where there is no room for one."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.local.environments import Environment
from serving.local.launch import BACKEND
from tests.local import models

SPEC = importlib.util.spec_from_file_location("sizes", BACKEND.with_name("sizes.py"))
assert SPEC is not None
assert SPEC.loader is not None
sizes: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sizes)

DIGITS = Path(__file__).parents[2] / "model_repo" / "digits-fp32" / "1" / "model.onnx"
LARGEST = 48


def session() -> Any:
    """With one thread: others would spin, and there are many sessions."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(DIGITS, options, providers=["CPUExecutionProvider"])


class Session:
    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run


class Opened:
    """Real sessions, with the sizes of batches that each has run. `room`: how many fit."""

    def __init__(self, room: int = 99) -> None:
        self.room, self.ran, self.told = room, list[list[int]](), list[str]()

    def __call__(self) -> Any:
        if len(self.ran) == self.room:
            raise RuntimeError("CUDA out of memory")
        opened, ran = session(), list[int]()
        self.ran.append(ran)

        def one(names: list[str], feed: dict[str, Any], options: Any) -> Any:
            ran.append(len(feed["image"]))
            return opened.run(names, feed, options)

        return Session(one)


def of(opened: Opened) -> Any:
    return sizes.Sizes(opened(), opened, opened.told.append, LARGEST)


PLAIN = Opened()()


def same(chosen: Any, num_rows: int) -> bool:
    rows = np.random.default_rng(num_rows).random((num_rows, 1, 8, 8), np.float32)
    names = ["probabilities"]
    found = chosen.run(names, {"image": rows}, None)["probabilities"]
    wanted = PLAIN.run(names, {"image": rows}, None)[0]
    return found.shape == wanted.shape and np.allclose(found, wanted, atol=1e-5)


@example([16, 3, 5, 6, 7, 13, 16])
@example([48, 3, 5, 6, 7, 9, 33])
@given(st.lists(st.integers(1, LARGEST), max_size=30))
def test_no_session_sees_two_sizes_and_every_row_has_its_answer(batches: list[int]) -> None:
    opened = Opened()
    chosen = of(opened)
    assert all(same(chosen, num_rows) for num_rows in batches)
    assert all(len(set(ran)) <= 1 for ran in opened.ran)
    assert sum(map(sum, opened.ran)) <= 2 * sum(batches)
    assert len(opened.ran) <= sizes.MAX_OWN + 7  # 1, 2, 4, … 32, 48
    assert not opened.told


def test_the_first_few_odd_sizes_are_not_padded_and_later_ones_to_a_power_of_two_or_the_largest() -> None:
    opened = Opened()
    chosen = of(opened)
    for num_rows in (3, 5, 6, 7, 9, 33, 3, 16, 48):
        assert same(chosen, num_rows)
    assert opened.ran == [[3, 3], [5], [6], [7], [16, 16], [48, 48]]


def test_without_room_the_first_session_computes_what_comes_and_says_so_once() -> None:
    opened = Opened(room=2)
    chosen = of(opened)
    for num_rows in (4, 8, 16, 16, 8, 13):
        assert same(chosen, num_rows)
    assert opened.ran == [[4, 16, 16, 13], [8, 8]]
    assert [told.partition(":")[0] for told in opened.told] == [
        "batches of 16 have no session of their own",
        "batches of 13 have no session of their own",
    ]


def test_a_session_that_fails_later_is_given_up_before_the_first_computes_in_its_place() -> None:
    opened = Opened()
    chosen = of(opened)
    assert same(chosen, 4)
    assert same(chosen, 8)
    kept = weakref.ref(chosen.of[8])

    def full(names: list[str], feed: dict[str, Any], options: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    chosen.of[8].run = full
    is_gone = list[bool]()
    run_of_first = chosen.first.run
    chosen.first.run = lambda *given: (is_gone.append(kept() is None), run_of_first(*given))[1]
    assert same(chosen, 8)
    assert is_gone == [True]
    assert same(chosen, 8)
    assert opened.told == ["batches of 8 have no session of their own: CUDA out of memory"]
    assert len(opened.ran) == 2


def test_a_batch_that_is_at_fault_costs_its_size_no_session() -> None:
    opened = Opened()
    chosen = of(opened)
    assert same(chosen, 4)
    for _ in range(3):
        with pytest.raises(Exception, match="image"):
            chosen.run(["probabilities"], {"image": np.zeros((8, 1, 9, 9), np.float32)}, None)
    assert same(chosen, 8)
    assert len(opened.ran) == 2
    assert not opened.told


def test_convolutions_are_found_in_a_file_and_in_no_other(tmp_path: Path) -> None:
    assert sizes.has_convolutions(DIGITS)
    models.write(
        tmp_path, "sum", [models.node("Add", ["x", "x"], ["y"])], [("x", "fp32", ["n", 4])], [("y", "fp32", ["n", 4])]
    )
    assert not sizes.has_convolutions(tmp_path / "sum" / "1" / "model.onnx")


ASK = """
import json, os, pathlib, shutil, sys, types
stub = types.ModuleType("triton_python_backend_utils")
stub.TritonModelException = RuntimeError
sys.modules["triton_python_backend_utils"] = stub
sys.path.insert(0, sys.argv[1])
import numpy, ort_session, onnxruntime
path, other = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
real = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
ort_session.open_session = lambda path, *_: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
said = []
def sizes(provider="CUDAExecutionProvider", rows=("n",), largest=8, file=path, length=None, **parameters):
    shapes = [[*rows, *(one.shape[1:-1]), length or one.shape[-1]] for one in real.get_inputs()]
    nodes = [types.SimpleNamespace(shape=shape) for shape in shapes]
    card = types.SimpleNamespace(get_inputs=lambda: nodes, get_providers=lambda: [provider], run=real.run)
    config = {"max_batch_size": largest, "parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    return ort_session.open_sizes(card, file, ort_session.identity(path), config, "GPU", "0", said.append)
asked = [{}, {"provider": "CPUExecutionProvider"}, {"provider": "TensorrtExecutionProvider"}, {"rows": (4,)}, {"largest": 0}]
asked += [{"file": other}, {"length": "width"}, {"gpu_mem_limit": "1000000"}]
print(json.dumps([sizes(**one) is not None for one in asked]))
found = sizes()
row = numpy.zeros((1, 1, 8, 8), numpy.float32)
def answer(num_rows):
    return found.run(["probabilities"], {"image": numpy.repeat(row, num_rows, 0)}, None)["probabilities"][0]
before = answer(1)
print(json.dumps([bool(numpy.array_equal(before, answer(2))), said]))
shutil.copy(other, path.with_name("new"))
os.replace(path.with_name("new"), path)
print(json.dumps([bool(numpy.allclose(before, answer(4))), said]))
"""


@pytest.mark.triton
def test_only_the_provider_that_plans_anew_has_them_and_no_file_that_was_replaced_is_opened(
    environment: Environment, tmp_path: Path
) -> None:
    model = tmp_path / "1" / "model.onnx"
    model.parent.mkdir()
    shutil.copy(DIGITS, model)
    wide: list[int | str] = ["n", 4]
    models.write(tmp_path, "sum", [models.node("Add", ["x", "x"], ["y"])], [("x", "fp32", wide)], [("y", "fp32", wide)])
    other = tmp_path / "sum" / "1" / "model.onnx"
    command = [str(environment.python), "-c", ASK, str(Path(BACKEND).parent), str(model), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    which, opened, replaced = map(json.loads, done.stdout.splitlines())
    assert which == [True] + 7 * [False]
    assert opened == [True, []]
    assert replaced[0]
    assert len(replaced[1]) == 1
    assert replaced[1][0].endswith("the model's file has been replaced since it was loaded")
