"""How images become a served model's input and what its classes are called; or why it classifies none.

Read once for each model file, off the event loop. Rule: what the record or the preprocessing does not say is not guessed; such a model is
asked over /v2.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving import errors
from serving.gateway.model_files import Assets
from serving.gateway.threads import ReadOnce, Threads
from serving.repository import Record
from serving.repository.preprocessing import NO_SCORES, ImagePreprocessing, Preprocessing
from serving.scheduling import routing


@dataclass(frozen=True, slots=True)
class Classifier:
    """`labels` None: its classes have no names. `has_batch` False: it takes one image at a time, of `input_shape`."""

    preprocessing: ImagePreprocessing
    output: str
    num_classes: int
    labels: tuple[str, ...] | None
    has_batch: bool
    input_shape: tuple[int, ...]


class Classifiers:
    def __init__(self, assets: Assets, threads: Threads) -> None:
        self._assets = assets
        self._read_once = ReadOnce(self._read, threads)

    async def of(self, served: routing.Variant, name: str) -> Classifier:
        """Raises BadRequest for a model that classifies no images, and as `Assets.beside`. `name` is the client's."""
        found = await self._read_once.of(served)
        if isinstance(found, str):
            raise errors.BadRequest(
                f"'{name}' classifies no images: {found}; send it tensors at /v2/models/{name}/infer"
            )
        return found

    def _read(self, served: routing.Variant) -> Classifier | str:
        """It, or why it is none."""
        beside = self._assets.beside(served)
        record, preprocessing = beside.record, beside.preprocessing()
        why = _unfit(record, preprocessing)
        if why is not None or not isinstance(preprocessing, ImagePreprocessing):
            return why or ""
        (output,) = record.outputs
        num_classes = output.shape[-1]
        labels = beside.labels()
        if labels is not None and len(labels) != num_classes:
            raise errors.Internal(
                f"'{served.name}' has {num_classes} classes and {len(labels)} labels; export it again"
            )
        in_front = (1,) * (len(record.inputs[0].shape) - len(preprocessing.shape))
        shape = (*in_front, *preprocessing.shape)
        return Classifier(preprocessing, output.name, num_classes, labels, record.max_batch_size > 0, shape)


def _unfit(record: Record, preprocessing: Preprocessing | None) -> str | None:
    """Why its answers to images cannot be read; None where they can."""
    if preprocessing is None:
        return "nothing beside it says how an image becomes its input (preprocessing.json, written at export)"
    if not isinstance(preprocessing, ImagePreprocessing):
        return "it takes texts"
    if preprocessing.scores == NO_SCORES:
        return "its answers are no scores of classes"
    is_whole = record.max_batch_size == 0  # a graph without a batch may write it as 1
    takes = [(tensor.name, tensor.datatype, _of_one(tensor.shape, 3, is_whole)) for tensor in record.inputs]
    if len(takes) != 1 or not _fits(takes[0], preprocessing):
        return "its input is not what preprocessing.json says"
    gives = record.outputs
    scores = _of_one(gives[0].shape, 1, is_whole)
    if len(gives) != 1 or gives[0].datatype != "FP32" or len(scores) != 1 or scores[0] < 1:
        return "it does not answer with one FP32 score for each class"
    return None


def _of_one(shape: tuple[int, ...], num_dims: int, is_whole: bool) -> tuple[int, ...]:
    """Without the batch of one that a graph without batches has in front."""
    return shape[1:] if is_whole and len(shape) == num_dims + 1 and shape[0] == 1 else shape


def _fits(taken: tuple[str, str, tuple[int, ...]], preprocessing: ImagePreprocessing) -> bool:
    name, datatype, shape = taken
    return (name, datatype, len(shape)) == (preprocessing.input, "FP32", 3) and all(
        size in (-1, got) for size, got in zip(shape, preprocessing.shape, strict=True)
    )
