"""Buffers for batches: the same answers as without them, on the CPU provider and on a card that refuses what CUDA refuses."""

from __future__ import annotations

import gc
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.gpu.stand_in_card import CapturingSession, Card, CudaError, on_host
from serving.local.launch import BACKEND
from tests.local import models

SPEC = importlib.util.spec_from_file_location("bindings", BACKEND.with_name("bindings.py"))
assert SPEC is not None
assert SPEC.loader is not None
bindings: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bindings)

SIZES, LENGTHS = [1, 2, 8], [4, 6]
Feed = dict[str, np.ndarray[Any, Any]]


def session_of(folder: Path, name: str = "net") -> ort.InferenceSession:
    """Two inputs of any length, two outputs: the one multiplied, the other a sum over the length."""
    wide: list[int | str] = ["n", "m"]
    nodes = [models.node("Mul", ["x", "k"], ["y"]), models.node("ReduceSum", ["x", "axis"], ["total"])]
    inputs: list[models.Value] = [("x", "fp32", wide), ("k", "fp32", wide)]
    outputs: list[models.Value] = [("y", "fp32", wide), ("total", "fp32", ["n", 1])]
    models.write(folder, name, nodes, inputs, outputs, {"axis": np.array([1], np.int64)})
    return ort.InferenceSession(folder / name / "1" / "model.onnx", providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> ort.InferenceSession:
    return session_of(tmp_path_factory.mktemp("net"))


def on_card(session: ort.InferenceSession, card: Card, **change: Any) -> Any:
    how = {"sizes": SIZES, "lengths": LENGTHS, "captures": True, **change}
    memory = bindings.CardMemory(0, card.runtime)
    opened = CapturingSession(session, card, enable_cuda_graph=how["captures"])
    return bindings.Buckets(opened, card.ort, memory, **how)


@pytest.fixture(params=["cpu", "card", "card that captures"], scope="module")
def buckets(request: pytest.FixtureRequest, session: ort.InferenceSession) -> Any:
    if request.param == "cpu":
        return bindings.Buckets(session, ort, bindings.PlainMemory(), SIZES, LENGTHS)
    return on_card(session, Card(), captures=request.param == "card that captures")


@pytest.fixture(params=["small", "large"])
def tensors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the same tensors are taken for large ones, which are copied once."""
    if request.param == "large":
        monkeypatch.setattr(bindings, "DIRECT_BYTES", 0)
    return str(request.param)


def feed(rows: int, length: int, seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((rows, length)).astype(np.float32) for name in ("x", "k")}


@settings(
    max_examples=60 if os.environ.get("THOROUGH") else 15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batches=st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([3, *LENGTHS])), max_size=6
    )
)
def test_batches_of_any_sizes_in_any_order_answer_as_without_buffers(
    buckets: Any, tensors: str, session: ort.InferenceSession, batches: list[tuple[list[int], int]]
) -> None:
    for seed, (rows, length) in enumerate(batches):
        feeds = [feed(one, length, seed) for one in rows]
        found = buckets.run(feeds, ["total", "y"])
        assert (found is None) == (sum(rows) > max(SIZES) or length not in LENGTHS)
        if found is not None:
            whole = {name: np.concatenate([one[name] for one in feeds]) for name in ("x", "k")}
            for name, expected in zip(["total", "y"], session.run(["total", "y"], whole), strict=True):
                assert np.array_equal(found[name], expected)


def test_an_answer_stays_what_it_was_when_the_next_batch_runs(buckets: Any, tensors: str) -> None:
    given_feed = feed(2, 4, 1)
    answer = buckets.run([given_feed], ["y"])["y"]
    buckets.run([feed(2, 4, 2)], ["y"])
    assert np.array_equal(answer, given_feed["x"] * given_feed["k"])


def test_only_large_tensors_that_fill_their_buffers_are_copied_once(
    tensors: str, session: ort.InferenceSession
) -> None:
    card = Card()
    made = on_card(session, card)
    counts = []
    for feeds in ([feed(8, 4, 1)], [feed(7, 4, 1)], [feed(4, 4, 1), feed(4, 4, 2)]):
        before = card.num_pageable
        made.run(feeds, ["y"])
        counts.append(card.num_pageable - before)
    assert counts == ([0, 0, 0] if tensors == "small" else [3, 1, 1])  # two inputs, one output; an output


@pytest.mark.parametrize("change", [{"x": np.ones((1, 4), np.float64)}, {"z": np.ones((1, 4), np.float32)}])
def test_tensors_of_other_names_or_types_have_no_buffers(buckets: Any, change: Feed) -> None:
    assert buckets.run([{**feed(1, 4, 0), **change}], ["y"]) is None


def test_each_bucket_is_captured_once_at_the_load_and_replayed_by_its_batches(session: ort.InferenceSession) -> None:
    card = Card()
    made = on_card(session, card)
    assert len(set(card.captured)) == len(card.captured) == len(SIZES) * len(LENGTHS)
    assert not card.replays
    for rows in (1, 2, 3, 8):
        for length in LENGTHS:
            made.run([feed(rows, length, rows)], ["y"])
    assert len(card.captured) == len(SIZES) * len(LENGTHS)
    assert len(set(card.replays)) == len(SIZES) * len(LENGTHS)


def test_what_runs_without_buffers_leaves_the_graphs_alone(session: ort.InferenceSession) -> None:
    made = on_card(session, Card())
    made.session.run(["y"], feed(9, 3, 0), made.plain)
    with pytest.raises(CudaError):
        made.session.run(["y"], feed(9, 3, 0), None)


def test_outputs_that_nobody_asks_for_stay_on_the_card(session: ort.InferenceSession) -> None:
    card = Card()
    made = on_card(session, card)
    card.copied_to_host.clear()
    made.run([feed(2, 4, 0)], ["total"])
    assert card.copied_to_host == [2 * 4]


def test_no_row_of_a_batch_is_left_in_the_buffers_for_the_next(session: ort.InferenceSession) -> None:
    made = bindings.Buckets(session, ort, bindings.PlainMemory(), [8], [4])
    secret = {name: np.full((8, 4), 77, np.float32) for name in ("x", "k")}
    made.run([secret], ["y"])
    made.run([feed(1, 4, 0)], ["y"])
    [(_, bucket)] = next(iter(made.of.values()))
    for array, value in bucket.inputs.values():
        assert 77 not in array
        assert 77 not in value.numpy()


def test_pinned_memory_is_given_back_with_the_session(session: ort.InferenceSession) -> None:
    card = Card()
    made = on_card(session, card)
    assert len(card.pinned) == len(SIZES) * len(LENGTHS) * 4
    del made
    gc.collect()
    assert not card.pinned


def test_a_card_without_room_says_so(session: ort.InferenceSession) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        on_card(session, Card(memory_bytes=16))


def test_without_cudas_runtime_in_the_process_there_is_no_memory_of_a_card() -> None:
    with pytest.raises(RuntimeError, match=r"libcudart.so.*not loaded"):
        bindings.CardMemory(0)


def test_the_stand_in_refuses_what_cuda_refuses(session: ort.InferenceSession) -> None:
    """Else it would prove nothing above."""
    card = Card()
    made = on_card(session, card, lengths=[4], sizes=[2])
    capturing, graph, other = made.session, made.options("1"), made.options("2")
    allocate = card.ort.OrtValue.ortvalue_from_shape_and_type

    def bound(shape: list[int], y: Any, total: Any) -> Any:
        binding = capturing.io_binding()
        for name in ("x", "k"):
            binding.bind_ortvalue_input(name, allocate(shape, np.float32, "cuda", 0))
        for name, value in (("y", y), ("total", total)):
            if value is None:
                binding.bind_output(name, "cuda", 0)
            else:
                binding.bind_ortvalue_output(name, value)
        return binding

    on_device = [allocate([2, 4], np.float32, "cuda", 0), allocate([2, 1], np.float32, "cuda", 0)]
    shorter = [allocate([1, 4], np.float32, "cuda", 0), allocate([1, 1], np.float32, "cuda", 0)]
    for binding, options, words in [
        (bound([2, 4], *on_device), graph, "other shapes or addresses"),  # the same shape at other addresses
        (bound([1, 4], *shorter), graph, "other shapes or addresses"),
        (bound([2, 4], None, None), other, "allocated while"),
        (bound([2, 4], on_host([2, 4]), on_device[1]), other, "host is copied while"),
    ]:
        with pytest.raises(CudaError, match=words):
            capturing.run_with_iobinding(binding, options)
    card.is_capturing = True
    array, value = next(iter(next(iter(made.of.values()))[0][1].inputs.values()))
    with pytest.raises(RuntimeError, match="copying failed"):
        bindings.CardMemory(0, card.runtime).upload(array, value)


# -- which buckets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "max_batch_size", "sizes"),
    [
        ("auto", 32, [1, 2, 4, 8, 16, 32]),
        ("auto", 24, [1, 2, 4, 8, 16, 24]),
        ("auto", 1, [1]),
        ("8, 1,8", 8, [1, 8]),
    ],
)
def test_sizes_are_as_listed_or_powers_of_two_up_to_the_largest_batch(
    text: str, max_batch_size: int, sizes: list[int]
) -> None:
    assert bindings.batch_sizes(text, max_batch_size) == sizes


@pytest.mark.parametrize("text", ["0,1", "1,64", "one", "", "1,,2", "-1"])
def test_sizes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"batch_buckets is '{text}'.*from 1 to 32.*'auto'"):
        bindings.batch_sizes(text, 32)


def test_what_no_buffer_can_hold_is_refused(tmp_path: Path, session: ort.InferenceSession) -> None:
    memory = bindings.PlainMemory()
    with pytest.raises(ValueError, match="bucket_lengths"):
        bindings.Buckets(session, ort, memory, SIZES)
    with pytest.raises(ValueError, match="more than 256"):
        bindings.Buckets(session, ort, memory, [1, 2, 3], range(1, 101))
    row: list[int | str] = ["n", 4]
    fixed: list[int | str] = [2, 4]
    cut = {"zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
    first: list[int | str] = ["k", 4]
    for name, nodes, kind, shape, out, constants, words in [
        ("text", [models.node("Identity", ["x"], ["y"])], "bytes", row, row, {}, "input 'x' is tensor.string."),
        ("fixed", [models.node("Identity", ["x"], ["y"])], "fp32", fixed, fixed, {}, "no batch dimension"),
        ("cut", [models.node("Slice", ["x", "zero", "one", "zero"], ["y"])], "fp32", row, first, cut, "not the batch"),
    ]:
        models.write(tmp_path, name, nodes, [("x", kind, shape)], [("y", kind, out)], constants)
        opened = ort.InferenceSession(tmp_path / name / "1" / "model.onnx", providers=["CPUExecutionProvider"])
        with pytest.raises(ValueError, match=words):
            bindings.Buckets(opened, ort, memory, [2])
