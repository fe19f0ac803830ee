"""A variant is written whole or not at all: killed at every step, interrupted, locked out, on a file system that cannot swap."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.export import publish as publishing
from serving.export.inventory import history
from serving.export.publish import LOCK_FILE, complete, next_version, publish, publish_all, remove, writing
from serving.repository import Record, Repository

from .conftest import MODEL_FILE, ROOT

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

NEW_MODEL = b"a new model"


def new_record(repository: Path, name: str = "digits-int8") -> tuple[Record, dict[str, bytes]]:
    """A variant with another model file."""
    variant = Repository(repository).variant(name)
    files = {
        path: (variant.directory / path).read_bytes() for path in ("labels.txt", "preprocessing.json", "sample.json")
    }
    return replace(variant.record, source="a test"), {MODEL_FILE: NEW_MODEL, **files}


def hidden(repository: Path) -> list[str]:
    return sorted(path.name for path in repository.iterdir() if path.name.startswith(".") and path.name != LOCK_FILE)


def test_a_published_variant_replaces_the_old_one_and_verifies(repository: Path) -> None:
    record, files = new_record(repository)
    with writing(repository, "digits"):
        variant = publish(repository, record, files)
    variant.verify()
    assert variant.record.source == "a test"
    assert (variant.directory / MODEL_FILE).read_bytes() == NEW_MODEL
    assert variant.config("cpu").parameters["tandem_digest"] == variant.digest
    assert hidden(repository) == []


def test_a_first_variant_makes_the_repository(repository: Path, tmp_path: Path) -> None:
    record, files = new_record(repository)
    with writing(tmp_path / "new" / "repo", "digits"):
        publish(tmp_path / "new" / "repo", record, files).verify()


def test_the_same_record_and_files_make_the_same_bytes(repository: Path) -> None:
    record, files = new_record(repository)
    assert complete(record, files) == complete(record, dict(reversed(files.items())))


# A writer is killed with SIGKILL at its first system call, at its second, … until one gets through. No part of the
# writer is replaced: an audit hook, which the interpreter calls before each of them, does the killing.
KILLER = """
import json, os, pathlib, shutil, signal, sys
from serving.export import publish as publishing
from serving.repository import Repository
from tests_export_publish import NEW_MODEL, hidden, new_record

source, scratch, what, every = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if what == "without the swap":
    publishing._exchange = lambda first, second: False
STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "ctypes.dlopen", "ctypes.dlsym")
ALL = ["digits-fp16", "digits-fp32", "digits-int8"]
seen = []
for kill_at in range(1, 1000, every):
    repository = scratch / str(kill_at)
    shutil.copytree(source, repository)
    record, files = new_record(repository)
    child = os.fork()
    if not child:
        count = 0
        def hook(event, args):
            global count
            if event in STEPS:  # the kill below is an event too
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        if what == "removing":
            publishing.remove(repository, dict.fromkeys(ALL, "digits"))
            os._exit(0)
        with publishing.writing(repository, "digits"):
            publishing.publish_all(repository, [(record, files), new_record(repository, "digits-fp32")])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    present = (repository / "digits-int8").is_dir()
    with publishing.writing(repository, "digits"):
        pass  # the next writer finishes what the killed one left
    names = ALL if what == "removing" else ["digits-int8", "digits-fp32"]
    variants = [variant for variant in Repository(repository).variants() if variant.name in names]
    for variant in variants:
        variant.verify()
    is_new = {(variant.directory / "1/model.onnx").read_bytes() == NEW_MODEL for variant in variants}
    if what == "removing":
        assert [variant.name for variant in variants] in ([], ALL), variants
        is_new = {not variants}
    assert len(is_new) == 1, "one variant is new and the other is old"
    seen.append([present, is_new.pop(), hidden(repository), status == 0])
    shutil.rmtree(repository)
    if status == 0:
        break
print(json.dumps(seen))
"""


@pytest.mark.parametrize(
    ("what", "every"),
    [
        ("swapping", 8),
        ("removing", 8),
        *(pytest.param(what, 1, marks=pytest.mark.thorough) for what in ("swapping", "without the swap", "removing")),
    ],
)
def test_killed_at_any_step_the_old_variant_or_the_new_one_is_there_whole(
    repository: Path, tmp_path: Path, what: str, every: int
) -> None:
    """`every`: steps from one kill to the next."""
    (tmp_path / "tests_export_publish.py").write_text(
        Path(__file__).read_text().replace("from .conftest", "from conftest")
    )
    done = subprocess.run(
        [sys.executable, "-c", KILLER, repository, tmp_path / "scratch", what, str(every)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, tmp_path, Path(__file__).parent)))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) > 20 / every  # steps at which it was killed
    assert all(leftovers == [] for _, _, leftovers, _ in seen)
    is_new = [new for _, new, _, _ in seen]
    assert is_new == sorted(is_new)  # old up to one step, new from there on
    assert is_new[0] is False
    assert is_new[-1] is True
    assert seen[-1][3]
    if what == "swapping":  # a reader finds the variant at every moment
        assert all(present for present, _, _, _ in seen)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["digits-fp32"], "digits-fp16, digits-int8 are judged beside digits-fp32"),
        (["stray"], "Tandem did not write it"),
    ],
)
def test_what_others_need_and_what_is_not_tandems_is_not_removed(
    repository: Path, names: list[str], says: str, content: Callable[[Path], dict[str, bytes]]
) -> None:
    (repository / "stray").mkdir()
    (repository / "stray" / "mine").write_text("the only copy")
    before = content(repository)
    with pytest.raises(UserError, match=says):
        remove(repository, dict.fromkeys(names, "digits"))
    assert content(repository) == before


def test_a_model_that_is_being_written_is_not_removed_and_another_is(repository: Path) -> None:
    record, files = new_record(repository)
    with writing(repository, "other"):
        publish(repository, replace(record, model="other"), files)
        with pytest.raises(UserError, match=r"another process .* other\b"):
            remove(repository, {"other-int8": "other"})
        remove(repository, {"digits-int8": "digits"})
    assert [variant.name for variant in Repository(repository).variants()] == [
        "digits-fp16",
        "digits-fp32",
        "other-int8",
    ]


def test_ctrl_c_while_writing_leaves_the_old_variant_and_nothing_else(
    repository: Path, content: Callable[[Path], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(repository)
    record, files = new_record(repository)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt), writing(repository, "digits"):
        publish(repository, record, files)
    assert content(repository) == before
    assert hidden(repository) == []


def test_ctrl_c_between_two_variants_that_change_places_finishes_both(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else FP32 and its variants would be of two versions until somebody exports again."""
    made = [new_record(repository, name) for name in ("digits-fp32", "digits-int8")]
    replaced, replace_one = [], publishing._replace

    def interrupted(target: Path, new: Path) -> None:
        replaced.append(target.name)
        if len(replaced) == 2:
            raise KeyboardInterrupt
        replace_one(target, new)

    monkeypatch.setattr(publishing, "_replace", interrupted)
    with pytest.raises(KeyboardInterrupt), writing(repository, "digits"):
        publish_all(repository, made)
    for name in ("digits-fp32", "digits-int8"):
        variant = Repository(repository).variant(name)
        variant.verify()
        assert variant.model_path.read_bytes() == NEW_MODEL
    assert hidden(repository) == []


def test_a_full_disk_is_one_line_and_leaves_the_repository_as_it_was(
    repository: Path, content: Callable[[Path], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(repository)
    record, files = new_record(repository)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(UserError, match=r"device.*repository"),
        writing(repository, "digits"),
    ):
        publish(repository, record, files)
    with pytest.raises(UserError, match="digits-int8"):
        remove(repository, {"digits-int8": "digits"})
    assert content(repository) == before


def test_a_broken_disk_is_the_environments(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    record, files = new_record(repository)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(EnvironmentFault, match="Input/output error"), writing(repository, "digits"):
        publish(repository, record, files)


def test_a_new_version_is_a_new_folder_and_one_earlier_model_stays_beside_it(repository: Path) -> None:
    record, files = new_record(repository)
    shared = {path: content for path, content in files.items() if path != MODEL_FILE}
    first, first_record = (
        (repository / "digits-int8" / MODEL_FILE).read_bytes(),
        Repository(repository).variant("digits-int8").record,
    )
    with writing(repository, "digits"):
        for version in (2, 3):
            new = replace(record, model_version=version)
            variant = publish(repository, new, {f"{version}/model.onnx": b"version %d" % version, **shared})
            variant.verify()
            earlier = variant.directory / f"{version - 1}/model.onnx"
            assert earlier.read_bytes() == (first if version == 2 else b"version 2")
    kept = sorted(str(path.relative_to(variant.directory)) for path in variant.directory.glob("[0-9]/*"))
    assert kept == ["1/tandem.json", "2/model.onnx", "2/tandem.json", "3/model.onnx"]
    versions = history(repository, "digits-int8")
    assert [(each.model_version, each.state) for each in versions] == [(3, "newest"), (2, "kept"), (1, "proof only")]
    assert [each.source for each in versions] == ["a test", "a test", first_record.source]
    assert versions[2].digest == first_record.digest
    assert "specific { versions: [3] }" in (variant.directory / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("num_kept", "kept"),
    [
        ([None] * 4, [4, 5]),
        ([3, 3, 3, 3], [3, 4, 5]),
        ([2, 3, 4, None], [2, 3, 4, 5]),  # as many as are there
        ([4, 4, 4, 1], [5]),
    ],
)
def test_the_files_of_as_many_versions_stay_as_are_asked_for(
    repository: Path, num_kept: list[int | None], kept: list[int]
) -> None:
    record, files = new_record(repository)
    shared = {path: content for path, content in files.items() if path != MODEL_FILE}
    with writing(repository, "digits"):
        for version, most in enumerate(num_kept, start=2):
            new = replace(record, model_version=version)
            variant = publish(repository, new, {f"{version}/model.onnx": b"version %d" % version, **shared}, most)
    variant.verify()
    assert sorted(int(path.parent.name) for path in variant.directory.glob("*/model.onnx")) == kept
    states = {each.model_version: each.state for each in history(repository, "digits-int8")}
    assert states == {5: "newest", **{n: "kept" if n in kept else "proof only" for n in (1, 2, 3, 4)}}


def test_the_same_fp32_file_keeps_its_version_and_another_one_gets_the_next(repository: Path) -> None:
    fp32 = (repository / "digits-fp32" / MODEL_FILE).read_bytes()
    assert next_version(repository, "digits", fp32) == 1
    assert next_version(repository, "digits", b"other") == 2
    assert next_version(repository, "new", fp32) == 1


def test_a_second_writer_is_turned_away_at_once_and_the_lock_ends_with_the_first(repository: Path) -> None:
    script = (
        "import pathlib, sys\nfrom serving.export.publish import writing\n"
        "with writing(pathlib.Path(sys.argv[1]), 'digits'):\n    print('locked', flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, repository],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=r"process.*exporting"), writing(repository, "digits"):
            pass
        other.kill()
    with writing(repository, "digits"):
        pass


def test_a_repository_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "model_repo").write_text("")
    with pytest.raises(UserError, match=r"write.*repository"), writing(tmp_path / "model_repo", "digits"):
        pass


def test_a_repository_that_is_a_link_to_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "model_repo").symlink_to(tmp_path / "gone")
    with (
        pytest.raises(UserError, match=r"link.*folder"),
        writing(tmp_path / "model_repo", "digits"),
    ):
        pass
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("kind", ["a folder", "a file"])
def test_what_tandem_did_not_write_is_never_replaced(repository: Path, kind: str) -> None:
    record, files = new_record(repository)
    theirs = repository / record.name
    shutil.rmtree(theirs)
    if kind == "a folder":
        (theirs / "1").mkdir(parents=True)
    mine = theirs / "1" / "model.onnx" if kind == "a folder" else theirs
    mine.write_bytes(b"my only copy")
    with (
        pytest.raises(UserError, match=r"tandem\.json.*Tandem"),
        writing(repository, "digits"),
    ):
        publish(repository, record, files)
    assert mine.read_bytes() == b"my only copy"
    assert hidden(repository) == []


def test_an_empty_folder_of_the_name_is_no_loss(repository: Path) -> None:
    record, files = new_record(repository)
    shutil.rmtree(repository / record.name)
    (repository / record.name).mkdir()
    with writing(repository, "digits"):
        publish(repository, record, files).verify()


def test_a_repository_that_was_made_for_nothing_is_gone_afterwards(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="refused"), writing(tmp_path / "new", "digits"):
        raise UserError("refused")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_that_was_there_stays(tmp_path: Path) -> None:
    with writing(tmp_path, "digits"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_writer_whose_lock_was_removed_meanwhile_makes_a_new_one(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, []

    def removed_first(file: object, kind: int) -> None:
        if not removed:
            removed.append(1)
            (repository / LOCK_FILE).unlink()
        lock(file, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(publishing.fcntl, "flock", removed_first)
    record, files = new_record(repository)
    with writing(repository, "digits"):
        publish(repository, record, files).verify()
    assert removed


def test_two_models_are_written_at_the_same_time_and_neither_removes_the_others_files(repository: Path) -> None:
    record, files = new_record(repository)
    fp32, shared = new_record(repository, "digits-fp32")
    with writing(repository, "digits"):
        with writing(repository, "other"):
            publish(repository, replace(fp32, model="other"), shared).verify()
            publish(repository, record, files).verify()
        with pytest.raises(UserError, match=r"process.*exporting"), writing(repository, "digits"):
            pass
        publish(repository, record, files).verify()
    assert hidden(repository) == []


def test_one_who_made_the_repository_for_nothing_leaves_it_to_whoever_came_since(
    repository: Path, tmp_path: Path
) -> None:
    record, files = new_record(repository, "digits-fp32")
    with contextlib.ExitStack() as second:
        with writing(tmp_path / "new", "first"):
            second.enter_context(writing(tmp_path / "new", "digits"))
        publish(tmp_path / "new", record, files).verify()


def test_the_swap_exists_on_this_file_system(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    assert publishing._exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "is").read_text() == "b"


def test_a_swap_that_fails_for_another_reason_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publishing._exchange(tmp_path / "a", tmp_path / "b")
