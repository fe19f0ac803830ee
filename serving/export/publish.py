"""Writes the variants of a model into a repository: whole or not at all, whatever interrupts it.

They are built in hidden siblings, flushed to disk, and then change places with the old ones, one step each; a journal
lets the next writer finish what a killed one began. A lock keeps a second writer of the same model out for the length of an
export, and one of the whole repository every other writer for the moment of writing. Gates are not here. Rule: nothing
outside a hidden name is ever written to, only renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TextIO

from serving.decisions.engines import BASELINE
from serving.errors import EnvironmentFault, UserError
from serving.repository import RECORD_FILE, Record, Repository, Variant, file_digest
from serving.repository.layout import JOURNAL_FILE, config_files

# In JOURNAL_FILE: {variant: SHA-256 of its new record, or REMOVED}, while they change places or are taken out.
REMOVED = ""
LOCK_FILE = ".tandem-lock"
KEPT_VERSIONS = 2  # whose files are kept, the newest among them: enough to go back by hand, and disks are finite
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h: swap two names atomically
_USERS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)  # the user can mend these

Publication = tuple[Record, Mapping[str, bytes | Path]]  # content, or the file that has it


@contextmanager
def writing(repository: Path, *models: str) -> Iterator[None]:
    """Makes the block the only writer of these models; others may write other models meanwhile.

    Finishes what a killed writer left. A repository that it makes, and in which nothing was published, is gone afterwards.
    """
    is_new = not repository.exists()
    with contextlib.ExitStack() as locks:
        with _locked(repository):
            _recover(repository)
            for model in models:
                locks.enter_context(_lock_of(repository, model))
        try:
            yield
        finally:
            with _locked(repository):
                for model in models:
                    _lock_file(repository, model).unlink(missing_ok=True)
                if is_new:
                    _remove_unused(repository)


def _lock_of(repository: Path, model: str) -> TextIO:
    """Locks a model. Lock files are opened and removed only inside the repository's lock, so that nobody locks a removed one."""
    lock = _lock_file(repository, model).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UserError(
            f"another process is exporting {model} into {repository}: wait for it, or give another --model"
        ) from None
    return lock


def _lock_file(repository: Path, model: str) -> Path:
    return repository / f"{LOCK_FILE}-{model}"


@contextmanager
def _locked(repository: Path) -> Iterator[None]:
    """Makes the block the only one that changes names in the repository; waits for others."""
    if repository.is_file() or (repository.is_symlink() and not repository.exists()):
        kind = "a link to nothing" if repository.is_symlink() else "a file"
        raise UserError(f"cannot write to the repository {repository}: it is {kind}, not a folder")
    with _lock(repository):
        yield


def _lock(repository: Path) -> TextIO:
    """Locks the repository itself. A lock that was removed with an unused repository meanwhile is made anew."""
    while True:
        try:
            repository.mkdir(parents=True, exist_ok=True)
            lock = (repository / LOCK_FILE).open("w")
        except FileNotFoundError:
            continue  # removed between the two
        except OSError as error:
            raise UserError(f"cannot write to the repository {repository}: {error.strerror}") from None
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), (repository / LOCK_FILE).stat()):
                return lock
        lock.close()


def remove_abandoned(repository: Path) -> None:
    """Removes a new repository in which nothing is published and nobody works, for a process that ends without unwinding."""
    files = list(repository.iterdir()) if repository.is_dir() else []
    if len(files) <= 2 and all(path.name.startswith(LOCK_FILE) for path in files):  # its own, and of its model
        shutil.rmtree(repository, ignore_errors=True)


def _remove_unused(repository: Path) -> None:
    """Call it inside the lock. Parent folders that were made as well stay: somebody may want them."""
    if [path.name for path in repository.iterdir()] == [LOCK_FILE]:
        (repository / LOCK_FILE).unlink()
        with contextlib.suppress(OSError):  # another process has come in since
            repository.rmdir()


def next_version(repository: Path, model: str, fp32: bytes) -> int:
    """Returns 1 for a new model, the present version for the same FP32 file, else one more."""
    directory = repository / f"{model}-fp32"
    if not (directory / RECORD_FILE).is_file():
        return 1
    present = Repository(repository).variant(directory.name).record
    return present.model_version + (present.digest != sha256(fp32).hexdigest())


def publish(
    repository: Path, record: Record, files: Mapping[str, bytes | Path], num_kept: int | None = None
) -> Variant:
    """`publish_all` of one variant."""
    return publish_all(repository, [(record, files)], num_kept)[0]


def publish_all(repository: Path, publications: Sequence[Publication], num_kept: int | None = None) -> list[Variant]:
    """Writes variants. `files`: path inside one -> content, without configurations and record; `record.files` is filled in.

    The files of the newest `num_kept` versions stay in its folder, the new one among them, and the records of all. None: of as many as
    are there, and of the one before at least. Call it inside `writing`.
    """
    with _locked(repository):
        _write_all(repository, publications, num_kept)
    return [Repository(repository).variant(record.name) for record, _ in publications]


def _write_all(repository: Path, publications: Sequence[Publication], num_kept: int | None) -> None:
    names, journal = [record.name for record, _ in publications], repository / JOURNAL_FILE
    check_replaceable(repository, names)
    try:
        _change_places(
            repository, {record.name: _prepare(repository, record, files, num_kept) for record, files in publications}
        )
    except KeyboardInterrupt:
        _recover(repository)  # with a journal, the few renames that are left; without one, nothing has changed places
        raise
    except OSError as error:
        raise _fault("write", names, repository, error) from None
    finally:
        if not journal.exists():
            _remove_unfinished(repository)


def _change_places(repository: Path, made: Mapping[str, str]) -> None:
    """`made`: variant -> SHA-256 of its new record, in its hidden folder, or REMOVED."""
    _write_journal(repository, made)
    for name, digest in made.items():
        if digest == REMOVED:
            _remove(repository / name)
        else:
            _replace(repository / name, repository / f".{name}.new")
    (repository / JOURNAL_FILE).unlink()


def replace_all(repository: Path, changes: Mapping[str, Path | None]) -> None:
    """Puts whole folders of variants (name -> folder, on the same disk) in place of those that are there, or takes them out (None).

    All of them or none, as `publish_all` does; no other process writes these models meanwhile.
    """
    check_replaceable(repository, list(changes))
    with writing(repository), _locked(repository):
        try:
            made = dict.fromkeys(changes, REMOVED)
            for name, folder in changes.items():
                if folder is not None:
                    made[name] = file_digest(folder / RECORD_FILE)
                    folder.rename(repository / f".{name}.new")
            _change_places(repository, made)
        except OSError as error:
            raise _fault("write", list(changes), repository, error) from None
        finally:
            if not (repository / JOURNAL_FILE).exists():
                _remove_unfinished(repository)


def remove(repository: Path, models: Mapping[str, str]) -> None:
    """Takes variants (name -> model) out, all of them or none: a journal lets the next writer finish what a killed one began.

    Raises UserError where one is being written, is not Tandem's, or is what others of its model are judged beside.
    """
    check_replaceable(repository, list(models))
    here = [variant for variant in Repository(repository).readable()[0] if variant.name not in models]
    for model in {model for name, model in models.items() if name == f"{model}-{BASELINE}"}:
        if others := [variant.name for variant in here if variant.record.model == model]:
            raise UserError(
                f"{', '.join(others)} are judged beside {model}-{BASELINE}; remove the whole model: {model}"
            )
    with writing(repository, *sorted(set(models.values()))), _locked(repository):
        try:
            _change_places(repository, dict.fromkeys(models, REMOVED))
        except OSError as error:
            raise _fault("remove", list(models), repository, error) from None
        finally:
            if not (repository / JOURNAL_FILE).exists():
                _remove_unfinished(repository)


def _remove(target: Path) -> None:
    """The name ends in one step; what was behind it is deleted under a name that every writer clears away."""
    gone = target.with_name(f".{target.name}.new")
    if target.exists():
        target.rename(gone)
        _sync(target.parent)
    shutil.rmtree(gone, ignore_errors=True)


def check_replaceable(repository: Path, names: Sequence[str]) -> None:
    """Raises UserError for a folder of one of these names that Tandem did not write."""
    for target in (repository / name for name in names):
        is_empty = target.is_dir() and not any(target.iterdir())
        if (
            os.path.lexists(target) and not is_empty and not (target / RECORD_FILE).is_file()
        ):  # it may be somebody's only copy
            raise UserError(
                f"{target} is there already and has no {RECORD_FILE}, so Tandem did not write it: move it away, or give another "
                "--model; the repository is as it was"
            )


def complete(
    record: Record, files: Mapping[str, bytes | Path], kept: Mapping[str, str] | None = None
) -> tuple[Record, dict[str, bytes | Path]]:
    """Returns the record with every digest, and every file of the variant, generated ones included.

    `kept`: path -> digest of files that are in the directory already.
    """
    contents, kept = dict(files), dict(kept or {})
    record = replace(record, files=_digests(contents, kept))  # the configurations state the model's digest
    contents |= {path: text.encode() for path, text in config_files(record).items()}
    record = replace(record, files=_digests(contents, kept))
    return record, {**contents, RECORD_FILE: record.to_json().encode()}


def _digests(contents: Mapping[str, bytes | Path], kept: Mapping[str, str]) -> dict[str, str]:
    digests = {path: _digest(content) for path, content in contents.items()}
    return dict(sorted({**digests, **kept}.items()))


def _digest(content: bytes | Path) -> str:
    return file_digest(content) if isinstance(content, Path) else sha256(content).hexdigest()


def _prepare(repository: Path, record: Record, files: Mapping[str, bytes | Path], num_kept: int | None) -> str:
    """Writes the new variant beside the old one, under its hidden name. Returns the SHA-256 of its record."""
    new = repository / f".{record.name}.new"
    new.mkdir()
    kept = _keep_versions(repository / record.name, new, record.model_version, num_kept)
    _, contents = complete(record, files, kept)
    _write(new, contents)
    return _digest(contents[RECORD_FILE])


def _keep_versions(old: Path, new: Path, version: int, num_kept: int | None) -> dict[str, str]:
    """Links the files of versions before, and the records of all earlier ones, into the new directory. Returns path -> digest."""
    numbers = sorted((int(path.name) for path in old.glob("[0-9]*") if path.name.isdecimal()), reverse=True)
    found = {number: [path for path in (old / str(number)).rglob("*") if path.is_file()] for number in numbers}
    num_whole = sum(any(path.name != RECORD_FILE for path in files) for files in found.values())
    num_earlier = (max(KEPT_VERSIONS, num_whole) if num_kept is None else num_kept) - 1
    sources: dict[str, Path] = {}
    for place, earlier in enumerate(number for number in numbers if number < version):
        files = found[earlier]
        kept = files if place < num_earlier else [path for path in files if path.name == RECORD_FILE]
        sources |= {path.relative_to(old).as_posix(): path for path in kept}
    with contextlib.suppress(
        UserError, OSError
    ):  # the record of one that an older Tandem wrote is no proof to this one
        before = Record.from_json((old / RECORD_FILE).read_text(encoding="utf-8")).model_version
        if before < version:
            sources[f"{before}/{RECORD_FILE}"] = old / RECORD_FILE
    for path, source in sources.items():
        (new / path).parent.mkdir(parents=True, exist_ok=True)
        _link(source, new / path)
    return {path: file_digest(new / path) for path in sources}


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _write(directory: Path, contents: Mapping[str, bytes | Path]) -> None:
    for path, content in contents.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_file(file, content)
    for folder in [directory, *(path for path in directory.rglob("*") if path.is_dir())]:
        _sync(folder)


def _write_file(file: Path, content: bytes | Path) -> None:
    with file.open("wb") as stream:
        if isinstance(content, Path):
            with content.open("rb") as source:
                shutil.copyfileobj(source, stream, 2**24)
        else:
            stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _fault(verb: str, names: Sequence[str], repository: Path, error: OSError) -> UserError | EnvironmentFault:
    is_begun = (repository / JOURNAL_FILE).exists()
    state = "the next export finishes it" if is_begun else "the repository is as it was"
    kind = UserError if error.errno in _USERS else EnvironmentFault
    return kind(f"cannot {verb} {', '.join(names)} in {repository}: {error.strerror}; {state}")


def _write_journal(repository: Path, journal: Mapping[str, str]) -> None:
    unfinished = (repository / JOURNAL_FILE).with_suffix(".new")
    _write_file(unfinished, json.dumps(journal).encode())
    unfinished.rename(repository / JOURNAL_FILE)
    _sync(repository)


def _replace(target: Path, new: Path) -> None:
    if not target.exists():
        new.rename(target)
    elif not _exchange(target, new):
        # A file system without the exchange (some network ones): a reader can find neither for a moment, and
        # `_recover` brings the old one back if we die just then.
        old = target.with_name(f".{target.name}.old")
        target.rename(old)
        new.rename(target)
        _sync(target.parent)
        shutil.rmtree(old)
    _sync(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two directories in one step; returns False where kernel, C library or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    result = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(first))


def _recover(repository: Path) -> None:
    """Finishes or undoes what a killed writer left: with a journal all its variants go in, without one none does."""
    for old in repository.glob(".*.old"):
        target = repository / old.name.removeprefix(".").removesuffix(".old")
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)
    for name, digest in _journal(repository).items():
        new = repository / f".{name}.new"
        record = new / RECORD_FILE
        if digest == REMOVED:
            _remove(repository / name)
        elif record.is_file() and file_digest(record) == digest:  # else it has changed places already
            _replace(repository / name, new)
    (repository / JOURNAL_FILE).unlink(missing_ok=True)
    _remove_unfinished(repository)


def _remove_unfinished(repository: Path) -> None:
    for new in repository.glob(".*.new"):
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            new.unlink()


def _journal(repository: Path) -> dict[str, str]:
    """A journal that cannot be read was being written: nothing has changed places yet."""
    try:
        journal: dict[str, str] = json.loads((repository / JOURNAL_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return journal


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
