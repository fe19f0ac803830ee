"""Is the exported FP32 graph the model that it was exported from? Before any variant is made of it.

Its rows are the framework's, at batch 1, 3 and the largest; dimensions that say they take any length do; different inputs
get different answers. Accuracy on real data is `accuracy`'s. Rule: where there is no framework beside the file, the file's
rows alone stand for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays, ExportedModel, Run, as_long, num_rows, spread
from serving.export.gates import lengths, rows
from serving.export.gates.limits import (
    EXACT_ROWS,
    Degenerate,
    FrameworkDiffers,
    Limits,
    NonFinite,
    NotDynamic,
    RowsDiffer,
)
from serving.export.gates.metrics import count_non_finite
from serving.export.onnx_session import CannotRun, Session, in_batches, joined
from serving.repository.preprocessing import TextPreprocessing

# Of the output's scale. FP32 keeps seven digits, so that real differences between rows are larger, and a net of random
# weights whose activations faded to denormals shows 0.0 (seen in an EfficientNet-B2).
MIN_DEVIATION = 1e-6
_MOST_UNLIKE = 0.05  # of the output's scale, beside the framework: sums in another order, never another model (guess)
_MAX_ROWS = 8  # of the example; more rows of the same kind show nothing new
_MAX_ROWS_ALIKE = 256  # looked at before a net is called degenerate: rare classes may be one row in a hundred


def check_graph(name: str, exported: ExportedModel, limits: Limits | None = None, inputs: Arrays | None = None) -> None:
    """Raises FrameworkDiffers, RowsDiffer, NotDynamic, Degenerate or NonFinite. `inputs` stand in for the example's."""
    max_row_difference = (limits or Limits()).max_row_difference
    limit = EXACT_ROWS if max_row_difference is None else max_row_difference
    _GraphCheck(name, exported, exported.example if inputs is None else inputs, limit).all()


class _GraphCheck:
    """One graph's way through."""

    def __init__(self, name: str, exported: ExportedModel, inputs: Arrays, limit: float) -> None:
        self._name, self._exported, self._limit = name, exported, limit
        # How far a row may depend on its batch is the user's to say; that the graph is the framework's model is not.
        self._like = min(max(limit, EXACT_ROWS), _MOST_UNLIKE)
        self._session = Session(name, exported.model)
        names = [output.name for output in exported.outputs]
        if (got := [output.name for output in self._session.outputs]) != names:
            raise UserError(f"{name}: the graph's outputs are {', '.join(got)}, the source says {', '.join(names)}")
        self._inputs = inputs
        self._example = spread(inputs, _MAX_ROWS)
        self._num_alone = 1 if exported.max_batch_size else 0

    def all(self) -> None:
        each = rows.one_by_one(self._name, self._session.run, self._example) if self._num_alone else []
        alone = joined(self._name, each) if each else self._alone(self._example)
        self._finite(alone)
        self._like_framework(alone, each)
        self._batches(each)
        self._degenerate(alone)
        for dimension, length, inputs in self._lengths():
            self._at_length(dimension, length, inputs)

    def _alone(self, inputs: Arrays) -> list[NDArray[Any]]:
        return in_batches(self._session.run, inputs, self._num_alone, self._name)

    def _finite(self, outputs: list[NDArray[Any]]) -> None:
        if count := sum(count_non_finite(values) for values in outputs):
            raise NonFinite(self._name, "its answers on the example", count)

    def _theirs(self, run: Run, inputs: Arrays) -> list[NDArray[Any]]:
        """The framework's rows; it may take all of them at once."""
        size = len(next(iter(inputs.values()))) if self._exported.max_batch_size else 0
        return in_batches(run, inputs, size, self._exported.framework)

    def _like_framework(self, alone: list[NDArray[Any]], each: list[list[NDArray[Any]]]) -> None:
        if self._exported.run is None:
            return
        theirs = self._theirs(self._exported.run, self._example)
        ours = rows.as_in_batch(each, theirs) if each and len(theirs) == len(alone) else alone
        difference = rows.worst_difference(ours, theirs)
        if not difference <= self._like:
            raise FrameworkDiffers(self._name, self._exported.framework, difference, self._like)

    def _batches(self, each: list[list[NDArray[Any]]]) -> None:
        for size in rows.batch_sizes(self._exported.max_batch_size)[1:]:
            try:
                together = rows.answers_together(self._name, self._session.run, self._example, size)
            except RowsDiffer as problem:
                raise NotDynamic(self._name, "the batch dimension", size, problem.problem) from None
            difference = rows.worst_difference(*as_long(together, rows.as_in_batch(each, together)))
            if not difference <= self._limit:
                raise RowsDiffer(self._name, size, f"a row changes by {difference:.2g} (at most {self._limit:g})")

    def _degenerate(self, alone: list[NDArray[Any]]) -> None:
        """Refuses where no output of floats tells the rows apart, though the inputs differ.

        Trees answer the same for many rows, and data is often sorted: more rows count, and so do those of the source.
        """
        if _all_alike(self._example) or _tells_apart(alone):
            return
        more = spread(self._inputs, _MAX_ROWS_ALIKE)
        answers = self._alone(more)
        if _tells_apart(answers):
            return
        if num_rows(self._exported.example) and _tells_apart(self._alone(spread(self._exported.example, _MAX_ROWS))):
            return
        outputs = _floats(answers)
        deviation, scale = max(_deviation(values) for values in outputs), max(_scale(values) for values in outputs)
        raise Degenerate(self._name, num_rows(more), deviation, scale)

    # -- dimensions of any length -------------------------------------------------------------------------------------

    def _lengths(self) -> Iterator[tuple[str, int, Arrays]]:
        """(dimension, length, inputs of that length), each free dimension in turn."""
        exported = self._exported
        how = exported.preprocessing
        longest = how.max_length if isinstance(how, TextPreprocessing) else None
        symbols = {node.name: list(node.shape) for node in self._session.inputs}
        for free in lengths.free_dimensions(exported.inputs, symbols, self._example, exported.ranges):
            for other in lengths.other_lengths(free, self._example, longest):
                yield free.name, other, lengths.resized(free, self._example, other)

    def _at_length(self, dimension: str, length: int, inputs: Arrays) -> None:
        """A length that the framework itself does not take is not the graph's fault."""
        theirs = None
        if self._exported.run is not None:
            try:
                theirs = self._theirs(self._exported.run, inputs)
            except Exception:  # whatever a framework raises for a shape that its model was not made for
                return
        try:
            ours = self._alone(inputs)
        except CannotRun as problem:
            raise NotDynamic(self._name, dimension, length, f"it fails: {problem.reason}") from None
        self._finite(ours)
        if theirs is not None and not (difference := rows.worst_difference(ours, theirs)) <= self._like:
            raise NotDynamic(
                self._name, dimension, length, f"it differs by {difference:.2g} from {self._exported.framework}"
            )


def _tells_apart(outputs: list[NDArray[Any]]) -> bool:
    """Whether any output of floats differs between rows; plain decisions say nothing about that."""
    floats = _floats(outputs)
    return not floats or any(_deviation(values) > MIN_DEVIATION * _scale(values) for values in floats)


def _floats(outputs: list[NDArray[Any]]) -> list[NDArray[np.float64]]:
    return [values.astype(np.float64) for values in outputs if values.dtype.kind == "f"]


def _deviation(values: NDArray[np.float64]) -> float:
    """0 of answers without elements, such as those of a detector that found nothing in any row."""
    return float(values.std(axis=0).max(initial=0.0))


def _scale(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0


def _all_alike(inputs: Arrays) -> bool:
    return all(np.array_equal(values, np.broadcast_to(values[:1], values.shape)) for values in inputs.values())
