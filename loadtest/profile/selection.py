"""What is profiled: which variants of a model, and the rows that every one of them is sent.

Variants are linked into folders of their own, because a Triton serves a whole folder. Rows come from the data that the options name, else
from what the gate kept beside the model, else they are seeded noise. How rows become requests is `loadtest/sending/bodies.py`'s.
Rule: links only; nothing in the repository is touched.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.errors import PayloadError
from loadtest.profile.options import ProfileOptions
from loadtest.sending.bodies import Arrays, Signature, signature
from loadtest.sending.inputs import Inputs, fitted, named, without_padding
from serving.decisions.curves import read_curves
from serving.decisions.engines import BASELINE, POOL
from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.repository.layout import GATE_DATA_FILE, Repository, Variant, default_repository
from serving.repository.record import LABELS

ACCURACY = "top1"  # the one metric of gates that is a share of right answers
EMULATED = "emulated"  # how names of pools and devices begin whose times follow a file (docs/emulated.md)


def variants_of(options: ProfileOptions) -> list[Variant]:
    """The variants in the options, else all that may run on the pool; FP32 first. Raises UserError."""
    repository = Repository((options.model_repository or default_repository()).absolute())
    everything = repository.variants()
    models = list(dict.fromkeys(variant.record.model for variant in everything))
    if options.model not in models:
        raise UserError(f"{repository.path} has no model {options.model!r}{nearest(options.model, models)}")
    mine = {v.record.variant: v for v in everything if v.record.model == options.model}
    for name in options.variants:
        if name not in mine:
            raise UserError(f"{options.model} has no variant {name!r}{nearest(name, list(mine))}")
    chosen = [mine[name] for name in options.variants] or [v for v in mine.values() if _may_run(v, options)]
    if not chosen:
        raise UserError(f"no variant of {options.model} may run on the {options.pool} pool; see `tandem models`")
    return sorted(chosen, key=lambda variant: (variant.record.variant != "fp32", variant.record.variant))


def _may_run(variant: Variant, options: ProfileOptions) -> bool:
    """An emulated device runs what its file speaks of, which Tandem can compute here. Raises UserError for a wrong file."""
    if options.emulate is None:
        return options.pool in variant.loadable_pools
    return read_curves(options.emulate).of(variant) is not None and bool(variant.loadable_pools)


def check_batch_sizes(options: ProfileOptions, variants: Sequence[Variant]) -> None:
    """Raises UserError."""
    for size in (*options.batch_sizes, *options.rate_batch_sizes):
        for variant in variants:
            if size > variant.record.max_batch_size:
                raise UserError(
                    f"--batch-size {size}: {variant.name} takes at most {variant.record.max_batch_size} rows at once"
                )


def check_engines(options: ProfileOptions, installed: Sequence[str]) -> None:
    """Raises UserError, before anything is started."""
    for engine in options.engines:
        if options.emulate is not None:
            raise UserError(f"--engine {engine} does nothing for an emulated device, whose times are a file's")
        if POOL[engine] != options.pool:
            raise UserError(f"--engine {engine} computes on the {POOL[engine]} pool, not on {options.pool}: see --pool")
        if engine not in installed:
            raise UserError(f"--engine {engine} is not installed here: `tandem environment` makes it")


def linked(folder: Path, variants: Sequence[Variant]) -> Path:
    """A repository of links to these."""
    folder.mkdir(parents=True)
    for variant in variants:
        (folder / variant.name).symlink_to(variant.directory.resolve(), target_is_directory=True)
    return folder


def accuracy(variant: Variant) -> float | None:
    """Where the gate counted right answers."""
    gate = variant.record.gate
    check = gate.check(ACCURACY) if gate.basis == LABELS else None
    return None if check is None else check.value


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
