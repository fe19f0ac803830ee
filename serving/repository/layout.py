"""Where things lie in a model repository, and whether they are still what was gated.

    <model>-<variant>/{config.pbtxt, configs/<pool>.pbtxt, <version>/model.onnx, tandem.json}

and, where a model has them, warmup/<input>.bin, labels.txt, sample.json, preprocessing.json with a tokenizer's file, and
gate.npz (in FP32's).

A directory without tandem.json has no proof and is never served. Writing is `export/publish.py`'s. Rule: a public
name is read from a record, never split off a directory's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.repository.record import UNTRAINED, Record
from serving.repository.triton_config import ModelConfig

RECORD_FILE = "tandem.json"
JOURNAL_FILE = ".tandem-journal"  # there while a writer's variants change places (`export/publish.py`)
SOURCE_FILE = ".tandem-source.json"  # of one that is kept like another place (`export/mirror.py`)
CONFIG_FILE = "config.pbtxt"
LABELS_FILE = "labels.txt"
SAMPLE_FILE = "sample.json"
PREPROCESSING_FILE = "preprocessing.json"
GATE_DATA_FILE = "gate.npz"  # what the gate ran on, so that `tandem verify` can run it again
Stamp = tuple[int, int, int]  # inode, time of change in ns, bytes
TRIAL = ".trial"  # ends the name in Triton of what answers its gate's rows before it is served
PRECISIONS = ("fp32", "bf16", "tf32", "fp16", "int8")

_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # what begins with a dot is hidden, and passed over
_MAX_MODEL_NAME = 200  # letters: file systems take 255, and a variant in the making has more to its name


class DigestMismatch(UserError):
    """A file is not what the gate saw. `file` is its path inside the variant's directory."""

    def __init__(self, variant: str, file: str, problem: str) -> None:
        super().__init__(f"{variant}: {file} {problem}; it is not served until it is exported again or restored")
        self.variant = variant
        self.file = file
        self.problem = problem


def pool_config_file(pool: str) -> str:
    return f"configs/{pool}.pbtxt"


def check_model_name(name: str) -> str:
    """The name, if clients may be given it. Names that end in a precision belong to variants."""
    if not _MODEL_NAME.fullmatch(name):
        raise UserError(
            f"model name {name!r}: use letters, digits, '.', '_' and '-', and begin with none of '.' and '-'"
        )
    if len(name) > _MAX_MODEL_NAME:
        raise UserError(f"model name {name[:40]!r}… has {len(name)} letters; at most {_MAX_MODEL_NAME} are allowed")
    if ending := next((p for p in PRECISIONS if name.endswith(f"-{p}")), None):
        raise UserError(f"model name {name!r} ends in the precision -{ending}, which names a variant; leave it off")
    return name


def model_of(variant: str) -> str:
    """The public name, which ends in no precision."""
    model, _, precision = variant.rpartition("-")
    return model if precision in PRECISIONS else variant


def check_variant(variant: str) -> str:
    if variant not in PRECISIONS:
        raise UserError(f"unknown variant {variant!r}{nearest(variant, PRECISIONS)}")
    return variant


def default_repository() -> Path:
    """model_repo here, else beside a checkout's package, else inside an installed one; the first if there is none."""
    here, package = Path.cwd() / "model_repo", Path(__file__).resolve().parents[1]
    return next((path for path in (here, package.parent / "model_repo", package / "model_repo") if path.is_dir()), here)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(directory: Path) -> dict[str, str]:
    """Path inside the directory -> SHA-256, of every file but the record, hidden ones left out."""
    return {path: file_digest(directory / path) for path in _files(directory)}


def _files(directory: Path) -> Iterator[str]:
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_file() and not hidden and relative.as_posix() != RECORD_FILE:
            yield relative.as_posix()


@dataclass(frozen=True, slots=True)
class SourceState:
    """Of a repository that is kept like another place, at the last look. `problem` None: that was read, and is here but for `refused`."""

    source: str
    problem: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)  # variant -> why it is not taken
    stamps: Mapping[str, str] = field(default_factory=dict)  # variant -> what told its content there from another
    taken: tuple[str, ...] = ()
    looked: str = ""  # ISO time

    @classmethod
    def read(cls, repository: Path) -> SourceState | None:
        """None of one that is like no other place."""
        try:
            found = json.loads((repository / SOURCE_FILE).read_text(encoding="utf-8"))
            return cls(**{**found, "taken": tuple(found["taken"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def earlier_version(path: str, record: Record) -> int | None:
    """Of a file of a version before the record's, which may be there or not; None of all others, the earlier records among them."""
    folder, _, name = path.partition("/")
    is_earlier = folder.isdecimal() and name != RECORD_FILE and int(folder) < record.model_version
    return int(folder) if is_earlier else None


@dataclass(frozen=True, slots=True)
class Variant:
    """One gated precision of a model, as it lies on disk. `name` is also its name in Triton."""

    name: str
    directory: Path
    record: Record

    @property
    def digest(self) -> str:
        """SHA-256 of the model file, as the gate recorded it."""
        return self.record.digest

    @property
    def model_path(self) -> Path:
        return self.directory / self.record.model_file

    @property
    def loadable_pools(self) -> tuple[str, ...]:
        return tuple(pool for pool, gate in self.record.pools.items() if gate.is_loadable)

    def earlier(self) -> list[Record]:
        """The records of its earlier versions, the newest first. Raises RecordError for one that cannot be read."""
        paths = [path for path in self.record.files if path.endswith(f"/{RECORD_FILE}")]
        records = [Record.from_json((self.directory / path).read_text(encoding="utf-8"), path) for path in paths]
        return sorted(records, key=lambda record: record.model_version, reverse=True)

    def size_bytes(self) -> int:
        """Of the model file, and of the weights beside it where one file does not hold them."""
        return sum(path.stat().st_size for path in self.model_path.parent.iterdir() if path.suffix != ".json")

    def has_files_of(self, version: int) -> bool:
        """Whether the files of an earlier version are kept here."""
        own = [path for path in self.record.files if earlier_version(path, self.record) == version]
        return bool(own) and all((self.directory / path).is_file() for path in own)

    def verify_served(self) -> None:
        """`verify`; where a later version was put beside it, of the files alone that a server of this one reads."""
        try:
            self.verify()
        except DigestMismatch:
            try:
                is_followed = self._read_again().model_version > self.record.model_version
            except (OSError, UserError, UnicodeDecodeError):
                is_followed = False
            if not is_followed:
                raise
            for path in self.record.files:
                if path.startswith(f"{self.record.model_version}/") or path == self.record.labels:
                    self._verify_file(path)

    def _read_again(self) -> Record:
        return Record.from_json((self.directory / RECORD_FILE).read_text(encoding="utf-8"))

    def _verify_file(self, path: str) -> None:
        file = self.directory / path
        if not file.is_file():
            raise DigestMismatch(self.name, path, "is missing")
        if file_digest(file) != self.record.files[path]:
            raise DigestMismatch(self.name, path, "changed after its gate")

    def verify(self) -> None:
        """Raises DigestMismatch for the first file that changed, went missing or was added since the gate.

        Those of earlier versions may be missing: only some are kept.
        """
        recorded = self.record.files
        for path in recorded:
            if earlier_version(path, self.record) is None or (self.directory / path).is_file():
                self._verify_file(path)
        for path in _files(self.directory):
            if path not in recorded:
                raise DigestMismatch(self.name, path, "was added after the gate")

    def config(
        self,
        pool: str,
        *,
        engine: str | None = None,
        num_instances: int = 1,
        num_threads: int = 1,
        allow_spinning: bool = False,
    ) -> ModelConfig:
        """What Triton is told on this pool. `num_threads` is per instance: instances × threads = the pool's cores.

        `engine` stands in for the one that won where the variant was exported.
        """
        return model_config(
            self.record,
            pool,
            engine=engine,
            num_instances=num_instances,
            num_threads=num_threads,
            allow_spinning=allow_spinning,
        )

    def config_files(self) -> dict[str, str]:
        """Path inside the directory -> text of every generated configuration."""
        return config_files(self.record)


def model_config(
    record: Record,
    pool: str,
    *,
    engine: str | None = None,
    num_instances: int,
    num_threads: int,
    allow_spinning: bool,
) -> ModelConfig:
    if pool not in record.pools:
        raise UserError(f"{record.name} knows nothing of pool {pool!r}{nearest(pool, list(record.pools))}")
    gate = record.pools[pool]
    return ModelConfig(
        name=record.name,
        engine=engine or gate.engine,
        variant=record.variant,
        version=record.model_version,
        max_batch_size=record.max_batch_size,
        queue_delay_us=record.queue_delay_us,
        warmup_batch_sizes=record.warmup_batch_sizes,
        inputs=record.inputs,
        outputs=record.outputs,
        labels=record.labels,
        num_instances=num_instances,
        warmup=record.warmup,
        parameters={
            "intra_op_thread_count": str(num_threads),
            "inter_op_thread_count": "1",
            "execution_mode": "0",  # sequential: parallel branches would use more threads than the pool has cores
            "session.intra_op.allow_spinning": "1" if allow_spinning else "0",
            "tandem_model": record.model,
            "tandem_variant": record.variant,
            "tandem_engine": engine or gate.engine,
            "tandem_digest": record.digest,
            "tandem_gate": UNTRAINED if record.is_untrained and gate.is_loadable else gate.status,
            **({"tandem_space": record.space} if record.space else {}),
        },
    )


def config_files(record: Record) -> dict[str, str]:
    """A file for every pool: where one is missing, Triton takes config.pbtxt, which is the first allowed pool's."""
    texts = {
        pool: model_config(record, pool, num_instances=1, num_threads=1, allow_spinning=False).to_pbtxt()
        for pool in record.pools
    }
    first = next((pool for pool, gate in record.pools.items() if gate.is_loadable), None)
    if first is None:
        raise UserError(f"{record.name} may run on no pool, so it cannot be in a repository")
    return {CONFIG_FILE: texts[first], **{pool_config_file(pool): text for pool, text in texts.items()}}


@dataclass(frozen=True, slots=True)
class Repository:
    """A directory of variants. Hidden directories are writers' work in progress and are passed over."""

    path: Path

    def variants(self) -> list[Variant]:
        """Every gated variant, by name. A record that cannot be read is an error, not an absence."""
        return [self._read(directory) for directory in self._directories() if (directory / RECORD_FILE).is_file()]

    def readable(self) -> tuple[list[Variant], dict[str, str]]:
        """(the gated variants whose record can be read, directory -> why another's cannot), for whoever goes on with the rest."""
        variants, unreadable = [], {}
        for directory in self._directories():
            if (directory / RECORD_FILE).is_file():
                try:
                    variants.append(self._read(directory))
                except UserError as error:
                    unreadable[directory.name] = str(error)
        return variants, unreadable

    def ungated(self) -> list[str]:
        """Names of directories without a record: never served."""
        return [directory.name for directory in self._directories() if not (directory / RECORD_FILE).is_file()]

    def variant(self, name: str) -> Variant:
        directories = {directory.name: directory for directory in self._directories()}
        if name not in directories:
            hint = nearest(name, list(directories)) if directories else "; it is empty"
            raise UserError(f"{self.path} has no variant {name!r}{hint}")
        if not (directories[name] / RECORD_FILE).is_file():
            raise UserError(f"{directories[name]} has no {RECORD_FILE}, so nothing proves it; use `tandem export`")
        return self._read(directories[name])

    def stamps(self, with_files: Collection[str] = ()) -> dict[str, Stamp] | None:
        """Variant -> what tells its record from an earlier one without reading it. None while a writer changes places.

        Of those in `with_files` all files that can be read count, so that one that is put right is noticed. Raises UserError where
        there is no repository, and OSError where a record is there and cannot be read, as on a volume that was lost.
        """
        if (self.path / JOURNAL_FILE).exists():
            return None
        stamps = {}
        for directory in self._directories():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                stat = (directory / RECORD_FILE).stat()
                stamps[directory.name] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                if directory.name in with_files:
                    with contextlib.suppress(OSError):
                        files = [stat, *((directory / path).stat() for path in _files(directory))]
                        stamps[directory.name] = (
                            stat.st_ino,
                            max(file.st_ctime_ns for file in files),
                            sum(file.st_size for file in files),
                        )
        return stamps

    def _directories(self) -> list[Path]:
        if not self.path.is_dir():
            raise UserError(f"there is no model repository at {self.path}; name one, or make one with `make models`")
        return sorted(path for path in self.path.iterdir() if path.is_dir() and not path.name.startswith("."))

    def _read(self, directory: Path) -> Variant:
        file = directory / RECORD_FILE
        try:
            record = Record.from_json(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read: {error}") from None
        if record.name != directory.name:
            raise UserError(
                f"{file} is the record of {record.name}, but lies in {directory.name}; rename the directory"
            )
        check_model_name(record.model)
        check_variant(record.variant)
        if record.model_file not in record.files:
            raise UserError(f"{file} has no digest of {record.model_file}; export the model again")
        return Variant(directory.name, directory, record)
