"""What is sent to a model while it is profiled: the rows, where they come from, and the first batch of them.

Every rung gets the same batch. Rows come from what is named, else from what the gate kept beside the model, else they are seeded noise.
How rows become requests is `loadtest/sending/bodies.py`'s, as in campaigns.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.errors import PayloadError
from loadtest.sending.bodies import Arrays, Signature, signature
from loadtest.sending.inputs import Inputs, fitted, named, without_padding
from serving.decisions.engines import BASELINE
from serving.errors import UserError
from serving.repository.layout import GATE_DATA_FILE, Variant

SEED = 1
# Of a gate's rows, which may be thousands of photographs: as many as a generator cycles through (guess: no cache holds so much).
MAX_ROWS = 256


@dataclass(frozen=True, slots=True)
class ProfilePayload:
    """`what` is for people."""

    signature: Signature
    inputs: Inputs
    what: str

    def batch(self, size: int) -> Arrays:
        """The first rows, again from the first where there are too few."""
        chosen = np.arange(size) % self.inputs.num_inputs
        whole = {name: np.take(values, chosen, axis=0) for name, values in self.inputs.arrays.items()}
        return without_padding(self.signature, whole)

    def for_batches(self, size: int) -> Inputs:
        """At least one batch of rows, for the generator; without labels, which it would only check again."""
        have = self.inputs.num_inputs
        chosen = np.arange(max(size, have)) % have
        return Inputs({name: values[chosen] for name, values in self.inputs.arrays.items()}, None)


def inputs_for(variants: Sequence[Variant], data: str | None) -> ProfilePayload:
    """`variants`: of one model; one of them may hold what its gate saw. Raises UserError."""
    model = variants[0].record.model
    try:
        taken = signature_of(variants[0])
        if data is not None:
            return ProfilePayload(
                taken, named(data, taken, "binary", SEED), data if "/" not in data else Path(data).name
            )
        # FP32's lies there for all, also where FP32 itself is not profiled
        folders = [variants[0].directory.with_name(f"{model}-{BASELINE}"), *(variant.directory for variant in variants)]
        kept = next((folder / GATE_DATA_FILE for folder in folders if (folder / GATE_DATA_FILE).is_file()), None)
        if kept is not None and (rows := _gate_rows(kept, taken)) is not None:
            return ProfilePayload(taken, rows, "rows that its gate saw")
        return ProfilePayload(
            taken, named("random", taken, "binary", SEED), "seeded noise: the repository keeps no rows of it"
        )
    except (PayloadError, ValueError) as error:
        raise UserError(f"{model}: {error}") from None


def signature_of(variant: Variant) -> Signature:
    """Raises ValueError for a model that takes something else than numbers in batches."""
    record = variant.record
    if record.max_batch_size < 1:
        raise ValueError("it takes no batches, and only models that do can be profiled")
    tensors = {
        kind: [{"name": t.name, "datatype": t.datatype, "shape": [-1, *t.shape]} for t in given]
        for kind, given in (("inputs", record.inputs), ("outputs", record.outputs))
    }
    return signature({"name": record.name, **tensors})


def _gate_rows(file: Path, taken: Signature) -> Inputs | None:
    """None where the gate saw something else than the model itself takes, such as texts before they were tokens."""
    try:
        with np.load(file, allow_pickle=False) as given:
            wanted = [tensor.name for tensor in taken.inputs]
            if any(name not in given.files for name in wanted):
                return None
            arrays = {name: given[name][:MAX_ROWS] for name in wanted}
        return fitted(arrays, taken, str(file))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, PayloadError):
        return None
