"""Keeps a local model repository like one that lies in a bucket or a registry, for servers that read disks alone.

A variant is taken once it is whole and every file is what its gate recorded: each is hashed in a folder of its own, and what is broken
never gets a name that a server looks at. The variants of a model that changed change places together, or none does (`publish.py`).
Reading a bucket is rclone's, a registry skopeo's. Rule: a source that is away, empty or broken takes nothing away; why stands in
SOURCE_FILE, for whoever tells it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NoReturn, Protocol, cast

from serving.children import OwnChild
from serving.errors import EnvironmentFault, TandemError, UserError
from serving.export.publish import KEPT_VERSIONS, replace_all
from serving.repository import RECORD_FILE, Record, Repository, file_digest
from serving.repository.layout import SOURCE_FILE, SourceState, check_model_name, check_variant, earlier_version

OPAQUE = ".wh..wh..opq"  # nothing that layers before had in its folder is there
STAGE = ".tandem-incoming"  # in the local repository, so that a rename puts a folder in place
EVERY_S = 5.0  # a look is one listing, or one manifest (guess, not measured)
LONGEST_WAIT_S = 60.0  # while it cannot be read or kept: what fills the disk is not copied every few seconds (guess)
ANSWER_S = 120.0  # that a listing may take (guess, not measured)
COPY_S = 3600.0  # that an artifact may take; skopeo itself waits for ever for a registry that is silent (guess, not measured)
CHUNK_BYTES = 2**20
MAX_RECORD_BYTES = 16 * 2**20  # digits' has 8 KB (guess)
NO_FILE = (errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
SCHEMES = ("s3://", "gs://", "rclone://", "oci://", "oci+http://")
# Without these rclone said nothing for two minutes about a server that was down; with them it ended after 2 s (1.60).
RCLONE = ("rclone", "--config=", "--low-level-retries=3", "--retries=1", "--contimeout=10s", "--timeout=60s")
# What has changed since the listing is no fault of the store's: digests tell. Times are those of the copy: Triton loads what is newer.
COPY = (
    "copy",
    "--files-from-raw=-",
    "--no-check-dest",
    "--ignore-size",
    "--ignore-checksum",
    "--local-no-check-updated",
    "--local-no-set-modtime",
)

NO_REMOTE = "didn't find section in config file"  # rclone's words
Say = Callable[[str], None]


class Source(Protocol):
    """Another place that holds a repository. Both raise EnvironmentFault where it does not answer, or says no."""

    def stamps(self) -> dict[str, str]:
        """Folder -> what tells its content from another without reading it."""

    def stream(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file, as `digits-fp32/1/model.onnx`. Raises FileNotFoundError where the last look found none."""

    def copy(self, paths: Sequence[str], folder: Path) -> None:
        """Files to the same places in `folder`, whose folders are there. One that the last look did not find is left out."""


def is_source(place: str) -> bool:
    return place.startswith(SCHEMES)


def source_at(place: str, scratch: Path) -> Source:
    """`scratch`: a folder that it may make and remove. Raises UserError for what is no address, or whose program is not installed."""
    scheme, _, rest = place.partition("://")
    if not is_source(place) or not rest.strip("/"):
        raise UserError(f"{place!r} is no model repository; sources are {', '.join(f'{it}…' for it in SCHEMES)}")
    if (
        "@" in rest.partition("/")[0] or "secret_access_key" in rest
    ):  # whoever lists processes, or reads logs, would see it
        raise UserError("an address holds no credentials; give them as AWS_…, RCLONE_CONFIG_…, or by `skopeo login`")
    if scheme.startswith("oci"):
        return Registry(rest, scratch, is_plain=scheme == "oci+http")
    if scheme == "rclone":  # REMOTE/PATH, whose settings are RCLONE_CONFIG_REMOTE_… of the environment
        return Bucket(rest.replace("/", ":", 1) if "/" in rest else f"{rest}:")
    return Bucket(f"{_remote(scheme)}:{rest.rstrip('/')}")


def _remote(scheme: str) -> str:
    """With the credentials that the clouds' own programs take: variables, files, or the machine's role."""
    if scheme == "gs":
        return ":gcs,env_auth=true"
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    options = [f"provider={'Other' if endpoint else 'AWS'}", "env_auth=true"]
    options += [f'endpoint="{endpoint}"'] if endpoint else []
    options += [f"region={region}"] if region else []
    return f":s3,{','.join(options)}"


class Bucket:
    """`remote`: as rclone names it, with the path."""

    def __init__(self, remote: str) -> None:
        _require("rclone", "rclone.org; Debian: apt-get install rclone")
        self._remote = remote
        self._paths = frozenset[str]()  # that the last look found

    def stamps(self) -> dict[str, str]:
        # The time at which it was put there: what a client says of a file's age may stay as it was, and S3 is asked for each one's.
        words = ["lsjson", "--recursive", "--files-only", "--no-mimetype", "--use-server-modtime", self._remote]
        files: dict[str, list[tuple[str, int, str]]] = {}
        listed = json.loads(_output([*RCLONE, *words]))
        self._paths = frozenset(entry["Path"] for entry in listed)
        for entry in listed:
            folder, _, path = entry["Path"].partition("/")
            if path:
                files.setdefault(folder, []).append((path, entry["Size"], entry["ModTime"]))
        return {folder: _hash(json.dumps(sorted(own)).encode()) for folder, own in files.items()}

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[IO[bytes]]:
        if path not in self._paths:
            raise FileNotFoundError(path)
        place = f"{self._remote}{'' if self._remote.endswith(':') else '/'}{path}"
        command, pipe = [*RCLONE, "cat", place], subprocess.PIPE
        with OwnChild(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=_environment()) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                yield process.stdout
                said = process.stderr.read()
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise EnvironmentFault(f"{path} cannot be read: {_last(said)}")

    def copy(self, paths: Sequence[str], folder: Path) -> None:
        """By one rclone, several at a time: its start takes a tenth of a second, and a connection to a store as long again."""
        if wanted := "".join(f"{path}\n" for path in paths if path in self._paths and "\n" not in path):
            _output([*RCLONE, *COPY, self._remote, str(folder)], None, wanted.encode())


class Registry:
    """An image or artifact whose layers hold the repository, at their root or in one folder. `reference`: HOST/NAME:TAG, or @DIGEST."""

    def __init__(self, reference: str, scratch: Path, *, is_plain: bool) -> None:
        _require("skopeo", "github.com/containers/skopeo; Debian: apt-get install skopeo")
        self._reference, self._scratch, self._is_plain = reference, scratch, is_plain
        self._digest, self._stamps = "", dict[str, str]()  # of what was unpacked last

    def stamps(self) -> dict[str, str]:
        tls = f"--tls-verify={not self._is_plain}".lower()
        digest = _hash(_output(["skopeo", "inspect", tls, "--raw", f"docker://{self._reference}"]))
        if digest != self._digest:
            records = self._root(digest).glob(f"*/{RECORD_FILE}")
            # A record names all other files by their digests, so those that are as before need not be read again.
            self._stamps = {record.parent.name: file_digest(record) for record in records}
            self._digest = digest
        return dict(self._stamps)

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[IO[bytes]]:
        file = self._root(self._digest) / path
        if not file.is_file() or file.is_symlink():
            raise FileNotFoundError(path)
        with file.open("rb") as stream:
            yield stream

    def copy(self, paths: Sequence[str], folder: Path) -> None:
        for path in paths:
            with (
                contextlib.suppress(FileNotFoundError),
                self.stream(path) as stream,
                (folder / path).open("wb") as file,
            ):
                shutil.copyfileobj(stream, file, CHUNK_BYTES)

    def _root(self, digest: str) -> Path:
        """Unpacked, once."""
        tree = self._scratch / digest
        if not tree.is_dir():
            shutil.rmtree(self._scratch, ignore_errors=True)
            layers, unfinished = self._scratch / "layers", self._scratch / "unfinished"
            unfinished.mkdir(parents=True)
            name = self._reference.partition("@")[0]
            name = name[: name.rindex(":")] if ":" in name.rpartition("/")[2] else name
            tls = f"--src-tls-verify={not self._is_plain}".lower()
            # Of what the digest names, whatever the tag means by now; skopeo compares each layer with its own.
            words = ["copy", "--quiet", tls, f"docker://{name}@sha256:{digest}", f"dir:{layers}"]
            _output(["skopeo", *words], COPY_S)
            try:
                digests = [str(it["digest"]) for it in json.loads((layers / "manifest.json").read_text())["layers"]]
            except (LookupError, TypeError):
                raise EnvironmentFault("its manifest lists no layers") from None
            for layer in digests:
                unpack(layers / layer.partition(":")[2], unfinished)
            shutil.rmtree(layers)
            unfinished.rename(tree)
        inside = [it for it in tree.iterdir() if it.is_dir()]
        has_models = any(tree.glob(f"*/{RECORD_FILE}"))
        return inside[0] if len(inside) == 1 and not has_models else tree


def unpack(layer: Path, folder: Path) -> None:
    """A layer over those before it. Raises EnvironmentFault for one that is no tar file, or is packed otherwise."""
    try:
        with layer.open("rb") as packed:
            is_gzip = packed.read(2) == b"\x1f\x8b"
        with (
            gzip.open(layer) if is_gzip else layer.open("rb") as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            own = set[Path]()  # files of this layer, whatever of those before it is taken away later
            for member in tar:
                place = Path(member.name)
                if place.name.startswith(".wh."):  # a layer takes away what one before it had, or all of a folder
                    is_whole = place.name == OPAQUE
                    gone = folder / (place.parent if is_whole else place.parent / place.name.removeprefix(".wh."))
                    if gone.resolve().is_relative_to(folder.resolve()):
                        _take_away(gone, own, has_itself=not is_whole)
                elif member.isfile() or member.isdir():
                    # By hand, because tarfile has no filter that keeps a member inside the folder before Python 3.11.4.
                    if member.sparse is not None:
                        raise tarfile.ExtractError(f"'{member.name}' is sparse, and might fill the disk")
                    target = (folder / member.name.lstrip("/")).resolve()
                    if not target.is_relative_to(folder.resolve()):
                        raise tarfile.ExtractError(f"'{member.name}' leads out of the folder")
                    if member.isdir():
                        target.mkdir(parents=True, exist_ok=True)
                        continue
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with cast(IO[bytes], tar.extractfile(member)) as packed_file, target.open("wb") as file:
                        shutil.copyfileobj(packed_file, file)
                    own.add(target)
    except (
        tarfile.TarError,
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        FileExistsError,
        NotADirectoryError,
        IsADirectoryError,
    ) as error:
        raise EnvironmentFault(f"a layer is no tar or tar.gz file that can be unpacked: {error}") from None


def _take_away(gone: Path, own: set[Path], *, has_itself: bool) -> None:
    """A file, or what is below a folder, but for these. `has_itself`: the folder too, where nothing is left."""
    for path in [*sorted(gone.rglob("*"), reverse=True), *([gone] if has_itself else [])]:
        if path.is_dir():
            with contextlib.suppress(OSError):  # it holds what stays
                path.rmdir()
        elif path.resolve() not in own:
            path.unlink(missing_ok=True)


def _require(program: str, how: str) -> None:
    if shutil.which(program) is None:
        raise UserError(f"reading models from there needs {program}, which is not installed ({how})")


def _output(command: list[str], timeout_s: float | None = ANSWER_S, written: bytes = b"") -> bytes:
    try:
        pipe = subprocess.PIPE
        with OwnChild(command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment()) as process:
            try:
                found, said = process.communicate(written, timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"no answer within {timeout_s:.0f} s") from None
    if process.returncode:
        raise EnvironmentFault(_last(said))
    return found


def _environment() -> dict[str, str]:
    """AWS's variable of certificates under rclone's own name: by the other, rclone 1.60 refuses to start ("unsupported transport")."""
    found = dict(os.environ)
    if (bundle := found.pop("AWS_CA_BUNDLE", "")) and "RCLONE_CA_CERT" not in found:
        found["RCLONE_CA_CERT"] = bundle
    return found


def _last(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    last = (
        re.sub(r"^[\d/]+ [\d:]+ ", "", lines[-1])[:500] if lines else "it says nothing"
    )  # without rclone's date: news once
    return f"{last}: RCLONE_CONFIG_REMOTE_TYPE and its like say what REMOTE is" if last.endswith(NO_REMOTE) else last


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Refused(Exception):
    """A variant that is not what its gate recorded, and will not be until it is changed."""


class Mirror:
    """`repository`: the local folder. `num_kept`: versions of each variant whose files are kept there, the newest among them.

    `adopts`: what it holds at the first look came from there, by another program.
    """

    def __init__(
        self, place: str, repository: Path, say: Say, num_kept: int = KEPT_VERSIONS, *, adopts: bool = False
    ) -> None:
        self.repository = repository
        self._adopts = adopts
        self._place, self._say, self._num_kept = place, say, num_kept
        self._stage = repository / STAGE
        self._source = source_at(place, self._stage / "source")
        self._said: dict[str, str] = {}

    def follow(self) -> NoReturn:
        wait_s = EVERY_S
        while True:
            time.sleep(wait_s)
            try:
                is_read = self.sync().problem is None
            except Exception as error:  # a mistake of ours: models go on coming once it is over
                is_read = False
                self._say(f"{self._place} was not looked at: {error!r}")
            wait_s = EVERY_S if is_read else min(2 * wait_s, LONGEST_WAIT_S)

    def sync(self, *, may_raise: bool = False) -> SourceState:
        """Looks once, and takes what is new. What is wrong is said and in the result; nothing is raised for it.

        `may_raise`: EnvironmentFault, in place of saying it, where nothing was ever taken.
        """
        with self._locked() as before:
            shutil.rmtree(
                self._stage, ignore_errors=True
            )  # of one that was killed: its files may be links to those that are served
            try:
                after = self._sync(before)
            except (TandemError, OSError, ValueError) as error:
                after = replace(before, problem=f"{self._place}: {getattr(error, 'strerror', None) or error}")
            finally:
                shutil.rmtree(self._stage, ignore_errors=True)
            after = replace(after, looked=datetime.now(UTC).isoformat(timespec="seconds"))
            with contextlib.suppress(OSError):  # a full disk: what was taken is looked at again
                self._keep(after)
        if may_raise and not after.taken:
            reasons = "; ".join(f"{name}: {why}" for name, why in after.refused.items())
            raise EnvironmentFault(after.problem or f"{self._place}: nothing of it can be served: {reasons}")
        stays = "; what was taken before stays" if after.taken else ""
        news = {**after.refused, **({"": f"{after.problem}{stays}"} if after.problem else {})}
        for name, reason in news.items():
            if self._said.get(name) != reason:
                self._say(f"not taken: {name}: {reason}" if name else reason)
        if "" in self._said and "" not in news:
            self._say(f"{self._place} is read again")
        self._said = news
        return after

    @contextlib.contextmanager
    def _locked(self) -> Iterator[SourceState]:
        """One at a time, whatever processes follow the same place."""
        self.repository.mkdir(parents=True, exist_ok=True)
        with (self.repository / f"{SOURCE_FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield SourceState.read(self.repository) or SourceState(self._place)

    def _keep(self, state: SourceState) -> None:
        unfinished = self.repository / f"{SOURCE_FILE}.new"
        unfinished.write_text(json.dumps(asdict(state)))
        unfinished.rename(self.repository / SOURCE_FILE)

    def _sync(self, before: SourceState) -> SourceState:
        if before.source != self._place:
            raise UserError(f"{self.repository} holds what came from {before.source}; choose another folder")
        here = {it.name: it.record for it in Repository(self.repository).readable()[0]}
        if not (self.repository / SOURCE_FILE).exists():
            if here and not self._adopts:
                raise UserError(
                    f"{self.repository} holds models that came from elsewhere; choose another folder, or, where another program copied "
                    f"them from {self._place}, tandem models mirror --adopt"
                )
            self._keep(before)  # from now on what is here came from there
        stamps = self._source.stamps()
        if not stamps:
            raise EnvironmentFault("it holds no model")
        lost = set(before.taken) - here.keys()
        changed = sorted(name for name, stamp in stamps.items() if before.stamps.get(name) != stamp or name in lost)
        models = {_model(name, here) for name in changed}
        changed += [
            name for name in before.refused if name in stamps.keys() - set(changed) and _model(name, here) in models
        ]
        made, refused, wanted = dict[str, Record](), dict[str, str](), dict[str, list[str]]()
        for name in changed:
            try:
                made[name] = self._record(name)
                wanted[name] = self._staged(name, made[name], here.get(name))
            except _Refused as error:
                refused[name] = str(error)
        self._source.copy([f"{name}/{path}" for name, paths in wanted.items() for path in paths], self._stage)
        for name, paths in wanted.items():
            try:
                self._check(name, made[name], paths)
            except _Refused as error:
                refused[name] = str(error)
        made = {name: record for name, record in made.items() if name not in refused}
        models = {_model(name, here) for name in refused}
        for name in [name for name, record in made.items() if record.model in models]:
            refused[name] = "another variant of its model is not taken, and they change together"
            del made[name]
        changes: dict[str, Path | None] = {name: self._stage / name for name in made}
        changes |= dict.fromkeys(set(before.taken) & here.keys() - stamps.keys())
        if changes:
            replace_all(self.repository, changes)
        for name in changes:
            what = f"version {made[name].model_version} is taken" if name in made else "it is there no more; removed"
            self._say(f"{name}: {what} ({self._place})")
        still = {name: why for name, why in before.refused.items() if name in stamps.keys() - set(changed)}
        taken = tuple(sorted((set(before.taken) | made.keys()) & stamps.keys()))
        return SourceState(self._place, refused=still | refused, stamps=stamps, taken=taken)

    def _record(self, name: str) -> Record:
        """Raises _Refused, and EnvironmentFault where the source is lost."""
        try:
            with self._source.stream(f"{name}/{RECORD_FILE}") as stream:
                if len(text := stream.read(MAX_RECORD_BYTES)) == MAX_RECORD_BYTES:
                    raise _Refused(f"its {RECORD_FILE} has {MAX_RECORD_BYTES >> 20} MB or more, which is no record")
            record = Record.from_json(text.decode(), f"{name}/{RECORD_FILE}")
            check_model_name(record.model)
            check_variant(record.variant)
        except FileNotFoundError:
            raise _Refused(f"it has no {RECORD_FILE}, so nothing proves it") from None
        except (UserError, UnicodeDecodeError) as error:
            raise _Refused(str(error)) from None
        if record.name != name:
            raise _Refused(f"its {RECORD_FILE} is the record of {record.name}")
        if record.model_file not in record.files:
            raise _Refused(f"its {RECORD_FILE} has no digest of {record.model_file}")
        if not any(gate.is_loadable for gate in record.pools.values()):
            raise _Refused("its gate lets it run on no pool")
        (self._stage / name).mkdir(parents=True)
        (self._stage / name / RECORD_FILE).write_bytes(text)
        return record

    def _staged(self, name: str, record: Record, here: Record | None) -> list[str]:
        """Links what is here already into the stage; the files that are not. Raises _Refused where some cannot be beside others."""
        folder, missing = self._stage / name, list[str]()
        for path in self._kept(record):
            try:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                if here is None or here.files.get(path) != record.files[path] or not self._link(name, path, record):
                    (folder / path).touch(exist_ok=False)  # for those after it, which may have the name of its folder
                    missing.append(path)
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                raise _Refused(f"{path!r} can be no file beside the others") from None
        for path in missing:
            (folder / path).unlink()
        return missing

    def _check(self, name: str, record: Record, paths: Sequence[str]) -> None:
        """That these files came, each as its gate recorded it. Raises _Refused."""
        for path in paths:
            try:
                with (self._stage / name / path).open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    os.fsync(file.fileno())
            except FileNotFoundError:
                raise _Refused(f"{path} is not there, or not yet") from None
            if digest != record.files[path]:
                raise _Refused(f"{path} is not what its gate recorded, or not all of it is there yet")

    def _kept(self, record: Record) -> list[str]:
        """Its files, without those of versions that are kept no more."""
        versions = {path: version for path in record.files if (version := earlier_version(path, record)) is not None}
        kept = sorted(set(versions.values()), reverse=True)[: self._num_kept - 1]
        return [
            path for path in record.files if versions.get(path, kept[0] if kept else 0) in kept or path not in versions
        ]

    def _link(self, name: str, path: str, record: Record) -> bool:
        """Whether the same file is here already."""
        with contextlib.suppress(OSError):
            if file_digest(self.repository / name / path) == record.files[path]:
                (self._stage / name / path).hardlink_to(self.repository / name / path)
                return True
        return False


def _model(name: str, here: Mapping[str, Record]) -> str:
    """The public name; of a variant that was never read, what stands before the precision."""
    return here[name].model if name in here else name.rpartition("-")[0]


def local_folder(place: str, cache: Path) -> Path:
    """Where a source is kept on this machine."""
    return cache / "repositories" / _hash(place.encode())[:16]


def followed(place: str, cache: Path, say: Say) -> Path:
    """The folder that is kept like a source from now on, as long as this process runs.

    Raises EnvironmentFault where it never could be read; what was taken before is served where it is away now.
    """
    mirror = Mirror(place, local_folder(place, cache), say)
    mirror.sync(may_raise=True)
    threading.Thread(target=mirror.follow, name="mirror", daemon=True).start()
    return mirror.repository
