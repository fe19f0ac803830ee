"""Repositories with the committed digits under any name, as an export would have published them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from serving.export.publish import publish, writing
from serving.repository import RECORD_FILE, Repository
from tests.local.harness import ROOT

BROKEN = b"not a model"  # its digest is right, and no Triton loads it


def publish_digits(
    repository: Path,
    model: str = "digits",
    *,
    precisions: Iterable[str] = ("fp32", "int8"),
    version: int = 1,
    model_file: bytes | None = None,
    num_kept: int | None = None,
) -> None:
    """`model_file`: instead of its own. `num_kept`: versions whose files stay."""
    for precision in precisions:
        variant = Repository(ROOT / "model_repo").variant(f"digits-{precision}")
        record = replace(variant.record, model=model, model_version=version)
        generated = {RECORD_FILE, *variant.config_files()}
        files = {
            path: (variant.directory / path).read_bytes() for path in variant.record.files if path not in generated
        }
        files[record.model_file] = files.pop(variant.record.model_file)
        if model_file is not None:
            files[record.model_file] = model_file
        with writing(repository):
            publish(repository, record, files, num_kept)
