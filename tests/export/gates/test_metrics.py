"""Metrics against what they promise: exact where equal, bounded, blind to what does not matter, and never fooled by NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

from serving.export.gates import metrics

Array = NDArray[Any]
PROPERTY = settings(max_examples=30, deadline=None)  # a busy machine is no failure
FINITE = st.floats(-1e3, 1e3, width=32)


def tables(min_rows: int = 1, min_columns: int = 1) -> st.SearchStrategy[Array]:
    shapes = st.tuples(st.integers(min_rows, 8), st.integers(min_columns, 5))
    return st_numpy.arrays(np.float32, shapes, elements=FINITE)


def pairs(min_rows: int = 1, min_columns: int = 1) -> st.SearchStrategy[tuple[Array, Array]]:
    def of(table: Array) -> st.SearchStrategy[tuple[Array, Array]]:
        return st.tuples(st.just(table), st_numpy.arrays(np.float32, table.shape, elements=FINITE))

    return tables(min_rows, min_columns).flatmap(of)


def with_nan(table: Array, value: float = math.nan) -> Array:
    spoilt = table.copy()
    spoilt.flat[-1] = value
    return spoilt


WORST_IS_LARGE = (
    metrics.absolute_error,
    metrics.relative_error,
    metrics.noise_ratio,
    metrics.probability_difference,
    metrics.row_difference,
)


@PROPERTY
@given(tables(min_rows=2))
def test_answers_like_the_reference_have_the_best_values(table: Array) -> None:
    assert metrics.agreement(table, table) == 1
    assert np.allclose(metrics.cosines(table, table), 1)
    assert metrics.neighbour_recall(table, table) == 1
    assert [metric(table, table) for metric in WORST_IS_LARGE] == [0] * len(WORST_IS_LARGE)


@PROPERTY
@given(pairs(min_rows=2))
def test_every_value_is_in_its_range(pair: tuple[Array, Array]) -> None:
    answers, reference = pair
    assert 0 <= metrics.agreement(answers, reference) <= 1
    assert (np.abs(metrics.cosines(answers, reference)) <= 1 + 1e-9).all()
    assert 0 <= metrics.neighbour_recall(answers, reference) <= 1
    assert metrics.probability_difference(answers, reference) >= 0
    assert all(metric(answers, reference) >= 0 for metric in WORST_IS_LARGE)


@PROPERTY
@given(pairs(min_rows=2), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nan_in_the_answers_never_gets_the_best_value(pair: tuple[Array, Array], value: float) -> None:
    _, reference = pair
    answers = with_nan(reference, value)
    assert metrics.agreement(answers, reference) < 1
    if math.isnan(value):
        assert all(not metric(answers, reference) <= 1e9 for metric in WORST_IS_LARGE)
        assert not float(metrics.cosines(answers, reference).mean()) >= -2
        assert not float(metrics.cosines(answers, reference).min()) >= -2


@PROPERTY
@given(tables(min_rows=2))
def test_nan_in_the_reference_never_gets_the_best_value(table: Array) -> None:
    reference = with_nan(table)
    assert metrics.agreement(table, reference) < 1
    assert metrics.agreement(reference, reference) < 1
    assert all(not metric(table, reference) <= 1e9 for metric in WORST_IS_LARGE)
    assert not float(metrics.cosines(table, reference).min()) >= -2


def test_a_row_of_nan_finds_no_neighbours_and_is_nobodys() -> None:
    reference = np.eye(5, dtype=np.float32) + 0.1
    assert metrics.neighbour_recall(with_nan(reference), reference) < 1
    assert metrics.neighbour_recall(np.full_like(reference, math.nan), reference) == 0
    assert metrics.neighbour_recall(reference, np.full_like(reference, math.nan)) == 0


# -- decisions --------------------------------------------------------------------------------------------------------


@PROPERTY
@given(pairs(min_columns=2))
def test_agreement_is_the_share_of_equal_largest_columns(pair: tuple[Array, Array]) -> None:
    answers, reference = pair
    expected = np.mean([int(a.argmax()) == int(b.argmax()) for a, b in zip(answers, reference, strict=True)])
    assert metrics.agreement(answers, reference) == pytest.approx(expected)


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.floats(0.125, 8), st.floats(-4, 4))
def test_decisions_do_not_depend_on_the_scale_of_scores(seed: int, factor: float, shift: float) -> None:
    random = np.random.default_rng(seed)
    table = np.stack([random.permutation(5) for _ in range(6)]).astype(np.float32) - 2
    assert metrics.agreement((table * factor + shift).astype(np.float32), table) == 1


@pytest.mark.parametrize(
    ("reference", "answers", "agrees"),
    [
        pytest.param([[0.9], [0.1]], [[0.6], [0.4]], 1.0, id="probabilities turn at a half"),
        pytest.param([[0.9], [0.1]], [[0.4], [0.1]], 0.5, id="one turned"),
        pytest.param([[2.0], [-3.0]], [[0.1], [-0.1]], 1.0, id="scores turn at zero"),
        pytest.param([[2.0], [-3.0]], [[0.4], [0.4]], 0.5, id="the reference says how to read the answers"),
    ],
)
def test_one_column_is_a_yes_or_no(reference: Any, answers: Any, agrees: float) -> None:
    assert metrics.agreement(np.array(answers, np.float32), np.array(reference, np.float32)) == agrees


def test_one_number_a_row_without_columns_is_a_yes_or_no_too() -> None:
    assert metrics.agreement(np.array([0.6, 0.4]), np.array([0.9, 0.9])) == 0.5


def test_decided_classes_and_texts_agree_where_they_are_equal() -> None:
    outliers = np.array([[1], [-1], [-1]])  # isolation forests say -1, which is an answer
    assert metrics.agreement(outliers, outliers) == 1
    assert metrics.agreement(np.array([["cat"], ["dog"]]), np.array([["cat"], ["cow"]], object)) == 0.5


def test_a_row_with_several_decisions_agrees_only_as_a_whole() -> None:
    reference = np.zeros((2, 3, 2), np.float32)
    reference[..., 1] = 1
    answers = reference.copy()
    answers[0, 2] = [1, 0]
    assert metrics.agreement(answers, reference) == 0.5


@PROPERTY
@given(tables(min_columns=2), st.data())
def test_top1_is_the_share_of_right_rows(table: Array, data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, table.shape[1] - 1), min_size=len(table), max_size=len(table))))
    expected = np.mean([int(row.argmax()) == label for row, label in zip(table, labels, strict=True)])
    assert metrics.top1(metrics.decisions(table, table), labels) == pytest.approx(expected)
    nothing = np.full_like(table, math.nan)
    assert metrics.top1(metrics.decisions(nothing, table), labels) == 0


# -- probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "answers", "moved"),
    [
        pytest.param([[0.9, 0.1]], [[0.6, 0.4]], 0.3, id="probabilities as they are"),
        pytest.param([[0.0, 0.0]], [[math.log(3), 0.0]], 0.25, id="scores through softmax"),
        pytest.param([[1000.0, 0.0]], [[1000.0, 0.0]], 0.0, id="large scores do not overflow"),
        pytest.param([[0.9]], [[0.6]], 0.3, id="one probability"),
        pytest.param([[0.0], [9.0]], [[math.log(3)], [9.0]], 0.25, id="one score through the sigmoid"),
        pytest.param([[1e6], [-1e6]], [[1e6], [-1e6]], 0.0, id="large scores of one column"),
        pytest.param([[0.9, 0.8]], [[0.9, 0.8]], 0.0, id="shares that do not add up to one are scores"),
    ],
)
def test_how_far_a_probability_moved(reference: Any, answers: Any, moved: float) -> None:
    got = metrics.probability_difference(np.array(answers, np.float32), np.array(reference, np.float32))
    assert got == pytest.approx(moved, abs=1e-6)


# -- vectors ----------------------------------------------------------------------------------------------------------


@PROPERTY
@given(pairs(min_columns=2), st.floats(0.125, 8))
def test_cosines_do_not_depend_on_length(pair: tuple[Array, Array], factor: float) -> None:
    answers, reference = pair
    assume((np.linalg.norm(answers, axis=1) > 1e-3).all() and (np.linalg.norm(reference, axis=1) > 1e-3).all())
    moved = answers.astype(np.float64) * factor
    np.testing.assert_allclose(metrics.cosines(moved, reference), metrics.cosines(answers, reference), atol=1e-9)


def test_vectors_of_zeros_are_alike_and_unlike_all_others() -> None:
    zero, one = np.zeros((1, 3)), np.ones((1, 3))
    assert metrics.cosines(zero, zero).tolist() == [1.0]
    assert metrics.cosines(zero, one).tolist() == [0.0]
    assert metrics.cosines(one, zero).tolist() == [0.0]
    assert metrics.cosines(-one, one)[0] == pytest.approx(-1)


def test_vectors_of_several_dimensions_are_one_direction() -> None:
    table = np.random.default_rng(0).standard_normal((3, 2, 4))
    np.testing.assert_allclose(metrics.cosines(table, table), 1)


@pytest.mark.parametrize("n", [2, 3, 12, 40])
def test_recall_counts_what_a_plain_reading_of_it_counts(n: int) -> None:
    random = np.random.default_rng(n)
    reference = random.standard_normal((n, 6))
    answers = reference + 0.5 * random.standard_normal((n, 6))
    k = min(10, n - 1)

    def nearest(vectors: Array) -> list[set[int]]:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return [
            set(sorted((j for j in range(n) if j != i), key=lambda j: -float(unit[i] @ unit[j]))[:k]) for i in range(n)
        ]

    expected = np.mean([len(a & b) / k for a, b in zip(nearest(answers), nearest(reference), strict=True)])
    assert metrics.neighbour_recall(answers, reference) == pytest.approx(expected)


def test_neighbours_that_are_equally_near_are_all_right() -> None:
    """Sixteen copies of one sentence: which ten of them are nearest means nothing."""
    reference = np.repeat(np.eye(2), 16, axis=0)
    shaken = reference + 1e-4 * np.random.default_rng(0).standard_normal(reference.shape)
    assert metrics.neighbour_recall(shaken, reference) == 1


def test_more_rows_than_a_chunk_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    reference = random.standard_normal((50, 4))
    answers = reference + random.standard_normal((50, 4))
    whole = [metrics.neighbour_recall(answers, reference), *(metric(answers, reference) for metric in WORST_IS_LARGE)]
    monkeypatch.setattr(metrics, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(metrics, "_CHUNK_NUMBERS", 9)
    assert [
        metrics.neighbour_recall(answers, reference),
        *(metric(answers, reference) for metric in WORST_IS_LARGE),
    ] == pytest.approx(whole, rel=1e-12)


def test_a_row_alone_has_no_neighbours() -> None:
    with pytest.raises(ValueError, match="no neighbours"):
        metrics.neighbour_recall(np.ones((1, 3)), np.ones((1, 3)))


# -- numbers ----------------------------------------------------------------------------------------------------------


@PROPERTY
@given(pairs(), st.floats(0.125, 8))
def test_the_relative_error_does_not_depend_on_the_unit(pair: tuple[Array, Array], factor: float) -> None:
    answers, reference = (values.astype(np.float64) for values in pair)
    assume(np.abs(reference).max() > 1e-3)
    got = metrics.relative_error(answers * factor, reference * factor)
    assert got == pytest.approx(metrics.relative_error(answers, reference))


@PROPERTY
@given(pairs())
def test_the_relative_error_is_never_more_than_the_absolute_one_by_what_is_usual(pair: tuple[Array, Array]) -> None:
    answers, reference = pair
    smallest = float(metrics.scale(reference).min())
    assert metrics.relative_error(answers, reference) <= metrics.absolute_error(answers, reference) / smallest * 1.0001


@pytest.mark.parametrize(
    ("reference", "answers", "error"),
    [
        pytest.param([[1e-12], [1.0]], [[1e-9], [1.0]], 1.4e-9, id="next to nothing is judged by what is usual"),
        pytest.param([[1.0], [-1.0]], [[1.1], [-1.0]], 0.1, id="a tenth"),
        pytest.param([[100.0], [0.0]], [[110.0], [0.0]], 0.1, id="a large one by itself"),
        pytest.param([[1e6, 1.0], [1e6, 1.0]], [[1e6, 1.5], [1e6, 1.0]], 0.5, id="each column in its own unit"),
        pytest.param(
            [[1e6, 0.0], [1e6, 0.0]], [[1e6, 1.0], [1e6, 0.0]], 1.4e-6, id="a column of zeros has the others'"
        ),
        pytest.param([[0.0], [0.0]], [[0.5], [0.0]], 0.5, id="all zeros"),
        pytest.param([1.0, 1.0], [1.0, 1.2], 0.2, id="one number a row"),
    ],
)
def test_the_relative_error_has_a_denominator_that_is_safe(reference: Any, answers: Any, error: float) -> None:
    assert metrics.relative_error(np.array(answers), np.array(reference)) == pytest.approx(error, rel=0.02)


def test_half_precision_is_computed_in_full() -> None:
    reference = np.full((1, 2), 60_000, np.float16)
    assert metrics.absolute_error(-reference, reference) == 120_000  # beyond FP16's range
    assert metrics.cosines(reference, reference)[0] == pytest.approx(1)


def test_rows_of_large_numbers_differ_by_their_share_and_decisions_by_one() -> None:
    large = np.full((2, 2), 1e4)
    assert metrics.row_difference(large + 1, large) == pytest.approx(1e-4)
    small = np.full((2, 2), 1e-3)
    assert metrics.row_difference(small + 1e-3, small) == pytest.approx(1e-3)
    assert metrics.row_difference(np.array([1, 2]), np.array([1, 3])) == 1
    assert metrics.row_difference(np.array(["a"]), np.array(["a"], object)) == 0


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (np.array([1.0, math.nan, math.inf, -math.inf]), 3),
        (np.array([1, 2]), 0),
        (np.array(["a"]), 0),
        (np.empty(0), 0),
    ],
)
def test_what_is_no_number_is_counted(values: Array, count: int) -> None:
    assert metrics.count_non_finite(values) == count
