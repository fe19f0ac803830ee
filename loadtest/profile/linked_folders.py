"""Which variants of a model are profiled, and where they lie: chosen from a repository, linked into folders of their own.

A Triton serves a whole folder; linking leaves the others out without copying files of gigabytes. Rule: links only, nothing in the
repository is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.profile.options import ProfileOptions
from serving.decisions.engines import POOL
from serving.decisions.files.curves import read_curves
from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.repository.layout import Repository, Variant, default_repository
from serving.repository.record import LABELS

ACCURACY = "top1"  # the one metric of gates that is a share of right answers
EMULATED = "emulated"  # how names of pools and devices begin whose times follow a file (docs/emulated.md)


def variants_of(options: ProfileOptions) -> list[Variant]:
    """Those that were asked for, else all that may run on the pool; FP32 first. Raises UserError."""
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
