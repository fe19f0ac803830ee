"""How texts become a served model's input and how long its vectors are; or why it makes none.

Read once for each model file, off the event loop. Rule: what the record or the preprocessing does not say is not guessed; such a model is
asked over /v2.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving import errors
from serving.gateway.model_files import Assets
from serving.gateway.threads import ReadOnce, Threads
from serving.preprocessing.texts import TextTokenizer, padded
from serving.protocol.tensors import binary_request
from serving.repository import EMBEDDING, Record
from serving.repository.preprocessing import Preprocessing, TextPreprocessing
from serving.scheduling import routing
from serving.scheduling.grouping import padded_length

# The tokenizers package would divide each call among threads of its own, beside those of `Threads`, which are as many as there are cores:
# 32 texts took it 0.73 ms of processor time so, and 0.58 ms on one.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
INTEGERS: dict[str, type[np.int32] | type[np.int64]] = {"INT32": np.int32, "INT64": np.int64}


@dataclass(frozen=True, slots=True)
class Embedder:
    """`size` of its vectors, float32. `fixed_length`: that every text is padded to; None where rows may have any."""

    tokenizer: TextTokenizer
    preprocessing: TextPreprocessing
    dtype: type[np.int32] | type[np.int64]
    fixed_length: int | None
    output: str
    size: int

    def length(self, num_tokens: int) -> int:
        """Of the row that a text of so many tokens needs."""
        if self.fixed_length is not None:
            return self.fixed_length
        return padded_length(num_tokens, self.tokenizer.max_length)

    def request(self, rows: Sequence[Sequence[int]]) -> tuple[bytes, list[bytes]]:
        """Token ids of some texts as a v2 request: its JSON part, and all the bytes."""
        arrays = padded(self.preprocessing, rows, self.tokenizer.types(rows), self.length(max(map(len, rows))))
        inputs: dict[str, NDArray[np.integer]] = {
            name: values.astype(self.dtype, copy=False) for name, values in arrays.items()
        }
        return binary_request(inputs, [self.output])


class Embedders:
    def __init__(self, assets: Assets, threads: Threads) -> None:
        self._assets = assets
        self._read_once = ReadOnce(self._read, threads)  # a tokenizer takes a tenth of a second

    async def of(self, served: routing.Variant, name: str) -> Embedder:
        """Raises BadRequest for a model that makes no vectors of texts, and as `Assets.beside`. `name` is the client's."""
        found = await self._read_once.of(served)
        if isinstance(found, str):
            raise errors.BadRequest(
                f"'{name}' makes no vectors of texts: {found}; send it tensors at /v2/models/{name}/infer",
                param="model",
            )
        return found

    def _read(self, served: routing.Variant) -> Embedder | str:
        """It, or why it is none."""
        beside = self._assets.beside(served)
        record, preprocessing = beside.record, beside.preprocessing()
        why = _unfit(record, preprocessing)
        if why is not None or not isinstance(preprocessing, TextPreprocessing):
            return why or ""
        try:
            tokenizer = TextTokenizer(beside.file(preprocessing.tokenizer), preprocessing)
        except errors.UserError as error:
            raise errors.Internal(f"'{served.name}': {error}") from None
        taken, (output,) = record.inputs[0], record.outputs
        length = taken.shape[0] if taken.shape[0] > 0 else None
        return Embedder(tokenizer, preprocessing, INTEGERS[taken.datatype], length, output.name, output.shape[0])


def _unfit(record: Record, preprocessing: Preprocessing | None) -> str | None:
    """Why it cannot be given texts or its vectors cannot be told; None where both can be."""
    if record.task != EMBEDDING:
        return f"its task is {record.task}"
    if preprocessing is None:
        return "nothing beside it says how a text becomes its input (preprocessing.json, written at export)"
    if not isinstance(preprocessing, TextPreprocessing):
        return "it takes images"
    if preprocessing.pooling == "none":
        return "it has a vector for each token and none for the text; export it with its pooling"
    if not record.max_batch_size:
        return "it takes one text at a time, without a dimension for more; export it with one"
    if {tensor.name for tensor in record.inputs} != set(preprocessing.inputs.values()):
        return "its inputs are not those that preprocessing.json says"
    kinds = {(tensor.datatype, tensor.shape) for tensor in record.inputs}
    datatype, shape = next(iter(kinds))
    if len(kinds) != 1 or datatype not in INTEGERS or len(shape) != 1 or 0 < shape[0] < preprocessing.max_length:
        return "its inputs are not token ids [length], of the length that preprocessing.json says"
    gives = record.outputs
    if len(gives) != 1 or gives[0].datatype != "FP32" or len(gives[0].shape) != 1 or gives[0].shape[0] < 1:
        return "it does not answer with one FP32 vector of one size"
    return None
