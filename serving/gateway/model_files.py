"""Reads the files beside a served model that the gateway needs itself: preprocessing, tokenizer, labels.

Everything else about a variant comes from Triton; these files are too large for its configuration, so they are read from the directory of
`--model-repository`. Digests prove that they belong to what is served: each file's against the gate record, and the record's model against
the one that Triton names. Rule: a file that does not match is not used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from serving import errors
from serving.repository import PREPROCESSING_FILE, DigestMismatch, Record, Repository, Variant
from serving.repository.layout import SourceState
from serving.repository.preprocessing import Preprocessing, from_json
from serving.scheduling import routing

MAX_FILE_BYTES = 64 * 2**20  # the largest tokenizers in use have 35 MB; a guess at what nobody needs


@dataclass(frozen=True, slots=True)
class Beside:
    """A variant's record and its directory, known to belong to what is served."""

    variant: Variant
    is_earlier: bool = False  # of a version before the newest one, whose files stand there

    @property
    def record(self) -> Record:
        return self.variant.record

    def file(self, path: str) -> bytes:
        """A file of its directory, as the gate saw it. Raises Internal: it is not the client's to mend.

        Raises Unsupported for an earlier version whose file was another one.
        """
        name, digest = self.variant.name, self.record.files.get(path)
        if digest is None:
            raise errors.Internal(f"the gate record of '{name}' has no file {path}")
        try:
            file = self.variant.directory / path
            if file.stat().st_size > MAX_FILE_BYTES:
                raise errors.Internal(f"{path} of '{name}' is larger than {MAX_FILE_BYTES >> 20} MiB")
            data = file.read_bytes()
        except OSError as error:
            raise errors.Internal(f"{path} of '{name}' cannot be read: {error.strerror}") from None
        is_same = hashlib.sha256(data).hexdigest() == digest
        if not is_same and self.is_earlier:
            raise errors.Unsupported(
                f"version {self.record.model_version} of '{name}' was exported with another {path} than the newest one, and the model "
                "repository keeps that one alone, so it can only pass tensors on; use /v2"
            )
        if not is_same:
            raise errors.Internal(f"{path} of '{name}' changed after its gate, so it is not used")
        return data

    def preprocessing(self) -> Preprocessing | None:
        """None where the model has none: it takes tensors only."""
        if self.record.preprocessing is None:
            return None
        text = self.file(self.record.preprocessing).decode("utf-8", "replace")
        try:
            return from_json(text, PREPROCESSING_FILE)
        except errors.UserError as error:
            raise errors.Internal(f"'{self.variant.name}': {error}") from None

    def labels(self) -> tuple[str, ...] | None:
        if self.record.labels is None:
            return None
        return tuple(self.file(self.record.labels).decode("utf-8", "replace").splitlines())


class RepositoryVariant(NamedTuple):
    """What the repository has as a variant."""

    digest: str
    pools: frozenset[str]  # that may serve it
    version: str


class Assets:
    """`repository` is None where the gateway was given none. Reads from disk: not on the event loop."""

    def __init__(self, repository: Path | None) -> None:
        self._repository = repository

    def exported(self, model: str) -> dict[str, RepositoryVariant]:
        """By variant, of a public name or a variant's, as the repository has it now."""
        own = [v for v in self._readable() if model in (v.record.model, v.name)]
        return {
            v.name: RepositoryVariant(v.digest, frozenset(v.loadable_pools), str(v.record.model_version)) for v in own
        }

    def loadable(self) -> dict[str, tuple[str, ...]]:
        """Device -> names of the variants that may run on it."""
        variants = self._readable()
        devices = {device for variant in variants for device in variant.loadable_pools}
        return {device: tuple(v.name for v in variants if device in v.loadable_pools) for device in devices}

    def spaces(self) -> dict[str, str]:
        """Embedding model -> the space of its FP32's vectors."""
        return {
            v.record.model: v.record.space for v in self._readable() if v.record.variant == "fp32" and v.record.space
        }

    def source(self) -> SourceState | None:
        """Of a repository that is kept like another place."""
        return None if self._repository is None else SourceState.read(self._repository)

    def _readable(self) -> list[Variant]:
        try:
            return [] if self._repository is None else Repository(self._repository).readable()[0]
        except errors.UserError:
            return []

    def prove(self, name: str, digest: str) -> None:
        """Raises Forbidden unless all files of this variant are what passed the gate, with this digest of its model."""
        if self._repository is None:
            raise errors.Forbidden(
                f"'{name}' is not loaded: this gateway was started without --model-repository, so it cannot prove the files"
            )
        try:
            variant = Repository(self._repository).variant(name)
        except errors.UserError:
            raise errors.Forbidden(
                f"'{name}' is not loaded: the gateway's model repository has none that can be read"
            ) from None
        if variant.digest != digest:
            raise errors.Forbidden(
                f"'{name}' is not loaded: it was exported again since, and its server has not taken it"
            )
        try:
            variant.verify()
        except DigestMismatch as mismatch:
            raise errors.Forbidden(f"not loaded: {mismatch}") from None
        except OSError as error:
            raise errors.Forbidden(f"'{name}' is not loaded: a file cannot be read ({error.strerror})") from None

    def beside(self, served: routing.Variant) -> Beside:
        """Raises Unsupported where the gateway has no repository or lacks the variant, Internal where it has another one."""
        if self._repository is None:
            raise errors.Unsupported(
                "this gateway was started without --model-repository, so it can only pass tensors on; use /v2"
            )
        try:
            variant = Repository(self._repository).variant(served.name)
            if variant.digest == served.digest:
                return Beside(variant)
            earlier = next((record for record in variant.earlier() if record.digest == served.digest), None)
        except errors.UserError:
            raise errors.Unsupported(
                f"the gateway's model repository has no '{served.name}', so it can only pass tensors on; use /v2"
            ) from None
        if earlier is None:
            raise errors.Internal(
                f"the gateway's model repository has another '{served.name}' than Triton serves (digests differ)"
            )
        return Beside(replace(variant, record=earlier), is_earlier=True)
