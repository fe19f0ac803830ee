"""A local repository is kept like one in a bucket or a registry: only what is whole and proven, and nothing is lost with the source."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import json
import random
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, ClassVar

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.export import mirror
from serving.export.mirror import Mirror, followed, source_at
from serving.ports import free_ports
from serving.repository import Repository, file_digest
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits

needs_rclone = pytest.mark.skipif(shutil.which("rclone") is None, reason="needs rclone: apt-get install rclone")
needs_registry = pytest.mark.skipif(
    not (shutil.which("skopeo") and shutil.which("docker-registry")), reason="needs skopeo and docker-registry"
)
FP32, INT8 = "digits-fp32", "digits-int8"
publish_bare = functools.partial(publish_digits, is_bare=True)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    publish_bare(tmp_path / "there")
    return tmp_path / "there"


class Folder:
    """Reads a folder as rclone does, in this process: each start of rclone takes a tenth of a second of a processor."""

    def __init__(self, root: Path) -> None:
        self._root, self._paths = root, frozenset[str]()

    def stamps(self) -> dict[str, str]:
        if not self._root.is_dir():
            raise EnvironmentFault("directory not found")
        digests = {
            it.relative_to(self._root).as_posix(): file_digest(it) for it in self._root.rglob("*") if it.is_file()
        }
        self._paths = frozenset(digests)
        found: dict[str, list[tuple[str, str]]] = {}
        for path, digest in sorted(digests.items()):
            folder, _, rest = path.partition("/")
            if rest:
                found.setdefault(folder, []).append((rest, digest))
        return {folder: json.dumps(own) for folder, own in found.items()}

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[IO[bytes]]:
        if path not in self._paths:
            raise FileNotFoundError(path)
        with (self._root / path).open("rb") as stream:
            yield stream

    def copy(self, paths: Sequence[str], folder: Path) -> None:
        for path in self._paths.intersection(paths):
            shutil.copyfile(self._root / path, folder / path)


# With THOROUGH=1 every test that follows a place does so by rclone too.
@pytest.fixture(params=["a folder", pytest.param("rclone", marks=[pytest.mark.thorough, needs_rclone])])
def follow(request: pytest.FixtureRequest, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """Of `there` as rclone's remote `models`. An rclone lives for a moment: looking for garbage would be a quarter of what it takes."""
    monkeypatch.setenv("GOGC", "off")
    monkeypatch.setenv("RCLONE_CONFIG_MODELS_TYPE", "alias")
    monkeypatch.setenv("RCLONE_CONFIG_MODELS_REMOTE", str(there))
    if request.param == "a folder":
        monkeypatch.setattr(mirror, "source_at", lambda *_: Folder(there))
    return Mirror("rclone://models", tmp_path / "here", lambda _: None)


def by_rclone(test: Callable[..., None]) -> Callable[..., None]:
    """By rclone alone, in every run."""
    return needs_rclone(pytest.mark.parametrize("follow", ["rclone"], indirect=True)(test))


def versions(follow: Mirror) -> dict[str, int]:
    found = Repository(follow.repository).variants()
    for variant in found:
        variant.verify()
    return {variant.name: variant.record.model_version for variant in found}


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def break_file(there: Path, name: str) -> None:
    """Another file than its gate recorded."""
    model = Repository(there).variant(name).model_path
    model.rename(model.with_suffix(".was"))  # its inode may be shared
    model.write_bytes(model.with_suffix(".was").read_bytes()[:-1])
    model.with_suffix(".was").unlink()


@by_rclone
def test_what_appears_is_taken_what_changed_too_and_what_was_removed_goes(follow: Mirror, there: Path) -> None:
    state = follow.sync()
    assert (state.problem, state.refused, versions(follow)) == (None, {}, {FP32: 1, INT8: 1})
    first = (follow.repository / FP32 / "1" / "model.onnx").stat().st_ino
    publish_bare(there, version=2)
    publish_bare(there, "late", precisions=["fp32"])
    assert follow.sync().refused == {}
    assert versions(follow) == {FP32: 2, INT8: 2, "late-fp32": 1}
    assert (follow.repository / FP32 / "1" / "model.onnx").stat().st_ino == first  # it is not copied again
    shutil.rmtree(there / "late-fp32")
    follow.sync()
    assert versions(follow) == {FP32: 2, INT8: 2}
    assert not list(follow.repository.glob(f"{mirror.STAGE}*"))


@pytest.mark.parametrize("bad", [FP32, pytest.param(INT8, marks=pytest.mark.thorough)])
def test_what_is_broken_is_told_and_keeps_its_model_as_it_was_until_it_is_put_right(
    follow: Mirror, there: Path, bad: str
) -> None:
    follow.sync()
    publish_bare(there, version=2)
    good = (Repository(there).variant(bad).model_path).read_bytes()
    break_file(there, bad)
    publish_bare(there, "other", precisions=["fp32"])
    state = follow.sync()
    assert "not what its gate recorded" in state.refused[bad]
    assert (set(state.refused), versions(follow)) == ({FP32, INT8}, {FP32: 1, INT8: 1, "other-fp32": 1})
    assert follow.sync().refused == state.refused
    Repository(there).variant(bad).model_path.write_bytes(good)
    assert (follow.sync().refused, versions(follow)) == ({}, {FP32: 2, INT8: 2, "other-fp32": 1})


def test_what_is_there_in_part_is_taken_once_it_is_whole(follow: Mirror, there: Path, tmp_path: Path) -> None:
    publish_bare(tmp_path / "side", "late", precisions=["fp32"])
    follow.sync()
    (there / "late-fp32").mkdir()
    shutil.copy(tmp_path / "side" / "late-fp32" / "tandem.json", there / "late-fp32")
    assert set(follow.sync().refused) == {"late-fp32"}
    shutil.copytree(tmp_path / "side" / "late-fp32", there / "late-fp32", dirs_exist_ok=True)
    assert (follow.sync().refused, versions(follow)["late-fp32"]) == ({}, 1)


@pytest.mark.parametrize("is_record_first", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_who_looks_in_the_middle_of_an_upload_has_the_version_before_or_the_new_one_whole(
    follow: Mirror, there: Path, tmp_path: Path, is_record_first: bool
) -> None:
    publish_bare(there, "late", precisions=["fp32"])
    follow.sync()
    assert versions(follow)["late-fp32"] == 1
    new = tmp_path / "new"
    publish_bare(new, "late", precisions=["fp32"], version=2, model_file=b"another" * 100)
    files = sorted(
        (path for path in (new / "late-fp32").rglob("*") if path.is_file()),
        key=lambda it: ((it.name == "tandem.json") != is_record_first, str(it)),
    )
    assert len(files) > 2
    seen = []
    for path in files:
        place = there / "late-fp32" / path.relative_to(new / "late-fp32")
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)  # its inode may be shared
        for size in (path.stat().st_size // 2, path.stat().st_size):
            place.write_bytes(path.read_bytes()[:size])
            follow.sync()
            seen.append(versions(follow)["late-fp32"])  # whose files are all what its gate recorded
    assert (seen[0], seen[-1], sorted(seen), follow.sync().refused) == (1, 2, seen, {})
    assert is_record_first or seen[-2] == 1


@pytest.mark.parametrize(
    "what", [pytest.param("no JSON", marks=pytest.mark.thorough), "another's", "none", "a precision"]
)
def test_without_a_record_of_its_own_nothing_is_taken(follow: Mirror, there: Path, what: str) -> None:
    shutil.copytree(there / FP32, there / "stray-fp32")
    record = there / "stray-fp32" / "tandem.json"
    if what == "no JSON":
        record.write_text("{")
    if what == "none":
        record.unlink()
    if what == "a precision":
        record.write_text(record.read_text().replace('"variant": "fp32"', '"variant": "../x"'))
    assert (set(follow.sync().refused), versions(follow)) == ({"stray-fp32"}, {FP32: 1, INT8: 1})


@by_rclone
def test_a_source_that_is_away_or_empty_takes_nothing_away(follow: Mirror, there: Path) -> None:
    follow.sync()
    there.rename(there.with_name("gone"))
    problem = str(follow.sync().problem)
    assert "not found" in problem
    assert re.search(r"\d:\d", problem) is None  # one that is as before is told once, so it has no time of day
    there.mkdir()
    assert "holds no model" in str(follow.sync().problem)
    assert versions(follow) == {FP32: 1, INT8: 1}
    there.rmdir()
    there.with_name("gone").rename(there)
    assert follow.sync().problem is None


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_is_wrong_with_a_source_that_nothing_was_taken_of_is_told_once(
    is_broken: bool, follow: Mirror, there: Path, tmp_path: Path
) -> None:
    if is_broken:
        break_file(there, FP32)
    else:
        there.rename(there.with_name("gone"))
    said: list[str] = []
    with pytest.raises(EnvironmentFault, match="not what its gate recorded" if is_broken else "not found"):
        followed("rclone://models", tmp_path / "cache", said.append)
    assert said == []
    del follow


def test_of_earlier_versions_as_many_are_kept_as_are_asked_for(follow: Mirror, there: Path, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        publish_bare(there, precisions=["fp32"], version=version, num_kept=3)
    places = {1: tmp_path / "one", 2: tmp_path / "two", 3: tmp_path / "three"}
    for num_kept, place in places.items():
        assert Mirror("rclone://models", place, lambda _: None, num_kept).sync().refused == {}
        kept = sorted(path.parent.name for path in (place / FP32).glob("*/model.onnx"))
        assert kept == [str(version) for version in range(4 - num_kept, 4)]
        variant = Repository(place).variant(FP32)
        variant.verify()
        assert [variant.has_files_of(version) for version in (1, 2)] == [num_kept >= 3, num_kept >= 2]
        assert [record.model_version for record in variant.earlier()] == [2, 1]
    (places[3] / FP32 / "1" / "model.onnx").write_bytes(b"another")
    with pytest.raises(UserError):
        Repository(places[3]).variant(FP32).verify()


def test_a_copy_that_was_killed_is_cleared_away(follow: Mirror, there: Path) -> None:
    follow.sync()
    (follow.repository / mirror.STAGE / FP32).mkdir(parents=True)
    shutil.copytree(there / FP32, follow.repository / f".{FP32}.new")
    (follow.repository / ".tandem-source.json").write_text("{")  # a disk that was lost
    publish_bare(there, version=2)
    assert (follow.sync().problem, versions(follow)) == (None, {FP32: 2, INT8: 2})


def test_what_a_killed_copy_had_linked_is_never_written_to(follow: Mirror, there: Path) -> None:
    follow.sync()
    staged = follow.repository / mirror.STAGE / FP32 / "1"
    staged.mkdir(parents=True)
    (staged / "model.onnx").hardlink_to(follow.repository / FP32 / "1" / "model.onnx")
    publish_bare(there, version=2)
    (there / FP32 / "1" / "model.onnx").unlink()
    (there / FP32 / "1" / "model.onnx").write_bytes(b"half of i")
    assert (follow.sync().refused, versions(follow)) == ({}, {FP32: 2, INT8: 2})


def test_models_that_were_exported_into_the_folder_are_not_replaced(follow: Mirror) -> None:
    publish_bare(follow.repository, version=3)
    assert "choose another folder" in str(follow.sync().problem)
    assert versions(follow) == {FP32: 3, INT8: 3}


@pytest.mark.parametrize("path", ["1/model.onnx/x", "."])
def test_a_record_of_files_that_cannot_be_keeps_out_its_own_model_alone(follow: Mirror, there: Path, path: str) -> None:
    publish_bare(there, "bad", precisions=["fp32"])
    record = there / "bad-fp32" / "tandem.json"
    told = json.loads(record.read_text())
    told["files"][path] = "0" * 64
    record.write_text(json.dumps(told))
    assert (set(follow.sync().refused), versions(follow)) == ({"bad-fp32"}, {FP32: 1, INT8: 1})


def test_a_record_without_an_end_is_not_read(follow: Mirror, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (there / "huge-fp32").mkdir()
    shutil.copy(there / FP32 / "tandem.json", there / "huge-fp32")
    monkeypatch.setattr(mirror, "MAX_RECORD_BYTES", (there / FP32 / "tandem.json").stat().st_size)
    assert "MB or more" in follow.sync().refused["huge-fp32"]


def test_a_folder_that_is_somebody_elses_is_left_alone(follow: Mirror, tmp_path: Path) -> None:
    (follow.repository / FP32).mkdir(parents=True)
    (follow.repository / FP32 / "thesis.txt").write_text("the only copy")
    assert "Tandem did not write it" in str(follow.sync().problem)
    assert (follow.repository / FP32 / "thesis.txt").is_file()
    follow.sync()
    assert "came from" in str(Mirror("rclone://models/other", follow.repository, lambda _: None).sync().problem)


@needs_rclone
def test_a_server_that_dies_while_it_sends_leaves_what_was_taken(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    command = ["rclone", "serve", "webdav", str(there), "--config=", f"--addr=127.0.0.1:{port}", "--dir-cache-time=0"]
    monkeypatch.setenv("RCLONE_CONFIG_DAV_TYPE", "webdav")
    monkeypatch.setenv("RCLONE_CONFIG_DAV_URL", f"http://127.0.0.1:{port}")
    server = Program(command, tmp_path / "log")
    follow = Mirror("rclone://dav", tmp_path / "here", lambda _: None)
    try:
        wait_until(lambda: listens(port), "it listens")
        assert (follow.sync().problem, versions(follow)) == (None, {FP32: 1, INT8: 1})
        publish_bare(there, version=2)
        copy = mirror.Bucket.copy

        def dying(self: mirror.Bucket, paths: list[str], folder: Path) -> None:
            server.end()
            copy(self, paths, folder)

        with monkeypatch.context() as patch:
            patch.setattr(mirror.Bucket, "copy", dying)
            assert follow.sync().problem
        assert versions(follow) == {FP32: 1, INT8: 1}
    finally:
        server.end()


def test_an_address_that_names_nothing_is_refused(tmp_path: Path) -> None:
    for place in (
        "s3://",
        "ftp://host/models",
        "models",
        "oci://ada:lovelace@host/models:1",
        "s3://ada:lovelace@models",
    ):
        with pytest.raises(UserError) as refused:
            source_at(place, tmp_path)
        assert "lovelace" not in str(refused.value)


@needs_rclone
def test_the_clouds_addresses_are_given_to_rclone_with_their_own_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of an S3 server that is not there: rclone has understood the address when it is that server which does not answer."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ada")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lovelace")
    with pytest.raises(EnvironmentFault, match="connection refused"):
        source_at("s3://models/digits", tmp_path).stamps()


class Listing(http.server.BaseHTTPRequestHandler):
    """What S3 says of a bucket with one file, whose sender calls it old."""

    asked: ClassVar[list[str]] = []
    put = "2026-11-25T00:00:00.000Z"

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        file = f"<Key>d-fp32/tandem.json</Key><LastModified>{self.put}</LastModified><ETag>&quot;a&quot;</ETag><Size>5</Size>"
        self.answer(
            f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{file}</Contents></ListBucketResult>".encode()
        )

    def answer(self, body: bytes) -> None:
        self.asked.append(self.command)
        self.send_response(200)
        for name, value in {"Content-Length": len(body), "x-amz-meta-mtime": "1600000000.5", "ETag": '"a"'}.items():
            self.send_header(name, str(value))
        self.send_header("Last-Modified", "Wed, 25 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@needs_rclone
def test_a_look_at_a_bucket_is_one_request_and_sees_what_was_put_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ada")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lovelace")
        source = source_at("s3://models", tmp_path)
        first = source.stamps()
        assert Listing.asked == ["GET"]
        monkeypatch.setattr(Listing, "put", "2026-11-26T00:00:00.000Z")
        assert source.stamps().keys() == first.keys()
        assert source.stamps() != first
        server.shutdown()


# -- a registry ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, (port,) = tmp_path_factory.mktemp("registry"), free_ports(1)
    storage = {"filesystem": {"rootdirectory": str(folder / "data")}}
    config = {"version": "0.1", "log": {"level": "warn"}, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}
    (folder / "config.yml").write_text(json.dumps(config))
    process = Program(["docker-registry", "serve", str(folder / "config.yml")], folder / "log")
    try:
        wait_until(lambda: listens(port), "it listens")
        yield f"127.0.0.1:{port}"
    finally:
        process.end()


def layer(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue())


def contents(folder: Path, inside: str = "") -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {f"{inside}{path.relative_to(folder)}": path.read_bytes() for path in files}


def push(registry: str, tag: str, layers: list[bytes], folder: Path) -> str:
    """An OCI artifact of these layers."""
    shutil.rmtree(folder, ignore_errors=True)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def stored(data: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(data)}

    own = "application/vnd.oci.image"
    config = stored(b"{}", "application/vnd.oci.empty.v1+json")
    parts = [stored(data, f"{own}.layer.v1.tar+gzip") for data in layers]
    manifest = {"schemaVersion": 2, "mediaType": f"{own}.manifest.v1+json", "config": config, "layers": parts}
    index = {"schemaVersion": 2, "manifests": [stored(json.dumps(manifest).encode(), f"{own}.manifest.v1+json")]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    place = f"{registry}/team/models:{tag}"
    words = ["copy", "--quiet", "--dest-tls-verify=false", f"oci:{folder}", f"docker://{place}"]
    subprocess.run(["skopeo", *words], check=True, capture_output=True)
    return f"oci+http://{place}"


@needs_registry
@pytest.mark.parametrize("inside", [pytest.param("", marks=pytest.mark.thorough), "model_repo/"])
def test_an_artifact_is_taken_and_what_its_tag_means_next(
    registry: str, there: Path, tmp_path: Path, inside: str
) -> None:
    tag = "flat" if not inside else "packed"
    place = push(registry, tag, [layer(contents(there, inside))], tmp_path / "oci")
    follow = Mirror(place, tmp_path / "here", lambda _: None)
    assert (follow.sync(), versions(follow))[1] == {FP32: 1, INT8: 1}
    publish_bare(there, version=2)
    push(registry, tag, [layer(contents(there, inside))], tmp_path / "oci")
    assert (follow.sync().refused, versions(follow)) == ({}, {FP32: 2, INT8: 2})
    publish_bare(there, version=3)
    break_file(there, FP32)
    push(registry, tag, [layer(contents(there, inside))], tmp_path / "oci")
    assert (set(follow.sync().refused), versions(follow)) == ({FP32, INT8}, {FP32: 2, INT8: 2})


@needs_registry
def test_layers_lie_over_each_other_and_nothing_leaves_the_folder(registry: str, there: Path, tmp_path: Path) -> None:
    below = layer(contents(there) | {"old-fp32/tandem.json": b"{"})
    above = layer({"old-fp32/.wh.tandem.json": b"", "../.wh.here": b""})
    place = push(registry, "layers", [below, above], tmp_path / "oci")
    follow = Mirror(place, tmp_path / "here", lambda _: None)
    assert (follow.sync().refused, versions(follow)) == ({}, {FP32: 1, INT8: 1})
    push(registry, "layers", [below, above, layer({"../../escaped": b""})], tmp_path / "oci")
    assert (bool(follow.sync().problem), versions(follow)) == (True, {FP32: 1, INT8: 1})
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("above", "left"),
    [
        (("a/.wh..wh..opq", "a/new"), {"a/new", "c/old"}),
        (("a/new", "a/.wh..wh..opq"), {"a/new", "c/old"}),  # what a layer brings itself stays, however it is ordered
        ((".wh..wh..opq", "a/b/new"), {"a/b/new"}),
        (("a/.wh.b",), {"a/old", "c/old"}),
        (("a/b/new", "a/.wh.b"), {"a/b/new", "a/old", "c/old"}),
        (("../.wh..wh..opq",), {"a/old", "a/b/old", "c/old"}),
    ],
)
def test_a_layer_takes_away_what_was_below_it(tmp_path: Path, above: tuple[str, ...], left: set[str]) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    for names in (("a/old", "a/b/old", "c/old"), above):
        (tmp_path / "layer").write_bytes(layer(dict.fromkeys(names, b"")))
        mirror.unpack(tmp_path / "layer", folder)
    assert {str(it.relative_to(folder)) for it in folder.rglob("*") if it.is_file()} == left
    assert all(any(it.iterdir()) for it in folder.rglob("*") if it.is_dir())  # no folder of nothing
    assert (tmp_path / "layer").exists()


def is_no_deflate(packed: bytes) -> bool:
    try:
        gzip.decompress(packed)
    except zlib.error:
        return True
    except (OSError, EOFError):
        pass
    return False


def damaged() -> bytes:
    good = layer({"digits-fp32/1/model.onnx": random.Random(1).randbytes(100_000).hex().encode()})
    middle = len(good) // 2
    ends = (good[:middle] + random.Random(seed).randbytes(400) + good[middle + 400 :] for seed in range(1000))
    return next(it for it in ends if is_no_deflate(it))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "../tree2/x", "a"])
def test_a_layer_that_leads_out_of_the_folder_or_cannot_lie_over_another_is_told(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "tree"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "tree2").mkdir()
    (tmp_path / "layer").write_bytes(layer({name: b"new"}))
    with pytest.raises(EnvironmentFault, match="a layer is no tar"):
        mirror.unpack(tmp_path / "layer", folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "layer"]


def test_a_sparse_file_of_a_layer_does_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(50_000_000)
    subprocess.run(["tar", "-S", "-cf", tmp_path / "layer", "-C", tmp_path, "hole"], check=True)
    with pytest.raises(EnvironmentFault, match="'hole' is sparse"):
        mirror.unpack(tmp_path / "layer", tmp_path / "tree")
    assert not list((tmp_path / "tree").iterdir())


def test_a_layer_that_is_damaged_in_its_middle_is_told(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(damaged())
    with pytest.raises(EnvironmentFault, match=r"no tar or tar\.gz"):
        mirror.unpack(tmp_path / "layer", tmp_path / "tree")


@needs_registry
@pytest.mark.thorough
def test_a_damaged_layer_of_a_registry_is_told(registry: str, tmp_path: Path) -> None:
    place = push(registry, "damaged", [damaged()], tmp_path / "oci")
    assert "no tar or tar.gz" in str(Mirror(place, tmp_path / "here", lambda _: None).sync().problem)
