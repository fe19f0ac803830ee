"""What is exported while `tandem up` runs is taken by itself, and by an explicit load; what does not load leaves the earlier one serving."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.ports import free_ports
from serving.repository import Repository
from tests.local.harness import ROOT, Program, wait_until
from tests.local.repository import BROKEN, digits_of_other_labels, publish_digits

pytestmark = [pytest.mark.slow, pytest.mark.triton]

SAMPLE = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
eventually = partial(wait_until, every_s=0.1)  # an inference or two each time
DIGITS = (ROOT / "model_repo" / "digits-fp32" / "1" / "model.onnx").read_bytes()


INT8 = (ROOT / "model_repo" / "digits-int8" / "1" / "model.onnx").read_bytes()
UNKNOWN_FIELD = bytes([0xFA, 0x7F, 0x01, 0])  # which protobuf passes over


def another(number: int) -> bytes:
    """Digits' FP32 with another digest: an unknown field, which protobuf passes over."""
    return DIGITS + bytes([0xFA, 0x7F, 0x01, number])


@dataclass(frozen=True, slots=True)
class Up:
    """A `tandem up` that runs, and its repository."""

    program: Program
    url: str
    repository: Path

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, Any, dict[str, str]]:
        request = urllib.request.Request(f"{self.url}{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return (
                    answer.status,
                    json.loads(answer.read() or b"{}"),
                    {k.lower(): v for k, v in answer.headers.items()},
                )
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}"), {k.lower(): v for k, v in error.headers.items()}

    def digest(self, model: str) -> str | None:
        """Of the file that answers; None where none does."""
        status, _, headers = self.ask(f"/v2/models/{model}/infer", SAMPLE)
        return headers["tandem-model-digest"].removeprefix("sha256:") if status == 200 else None

    def exported(self, name: str) -> str:
        return Repository(self.repository).variant(name).digest

    def load(self, model: str) -> tuple[int, Any]:
        return self.ask(f"/v2/repository/models/{model}/load", b"{}")[:2]


def tritons(up: Up) -> set[int]:
    """The numbers of its tritonservers."""
    found = set[int]()
    for pid in up.program.family():
        with contextlib.suppress(OSError):  # it ends meanwhile
            if Path(f"/proc/{pid}/comm").read_text() == "tritonserver\n":
                found.add(pid)
    return found


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    publish_digits(folder / "repository", precisions=["fp32"])
    port = free_ports(1)[0]
    words = ["up", "--port", str(port), "--no-measure", "--model-repository", str(folder / "repository")]
    program = Program(
        [sys.executable, "-m", "serving", *words], folder / "log", {"TANDEM_STATE": str(folder / "state")}
    )
    try:
        program.wait_for("Ctrl-C stops it")
        yield Up(program, f"http://127.0.0.1:{port}", folder / "repository")
    finally:
        program.end()


def test_a_new_model_a_new_variant_and_a_new_version_are_taken_by_themselves(up: Up) -> None:
    publish_digits(up.repository, "late", precisions=["fp32"])
    eventually(lambda: up.digest("late") == up.exported("late-fp32"), "a new model answers")
    publish_digits(up.repository, precisions=["int8"])
    eventually(lambda: up.digest("digits-int8"), "a new variant answers")
    publish_digits(up.repository, precisions=["fp32"], version=2, model_file=another(2))
    eventually(lambda: up.digest("digits-fp32") == up.exported("digits-fp32"), "the new version answers")
    # INT8 is of version 1 still, and a start would not load it either.
    eventually(lambda: up.digest("digits-int8") is None, "the variant of the old version is unloaded")
    publish_digits(up.repository, precisions=["int8"], version=2)
    eventually(lambda: up.digest("digits-int8"), "it is back with its model's version")
    up.program.wait_for("served: late-fp32")


def test_an_explicit_load_of_what_was_exported_since_loads_it(up: Up) -> None:
    publish_digits(up.repository, "asked", precisions=["fp32", "int8"])
    assert up.load("asked") == (200, {})
    assert up.digest("asked-fp32") == up.exported("asked-fp32")
    publish_digits(up.repository, "asked", precisions=["fp32"], version=2, model_file=another(3))
    assert up.load("asked-fp32") == (200, {})
    assert up.digest("asked-fp32") == up.exported("asked-fp32")


@pytest.mark.thorough
def test_a_new_version_that_does_not_load_leaves_the_old_one_serving_and_is_told(up: Up) -> None:
    publish_digits(up.repository, "kept", precisions=["fp32"])
    assert up.load("kept") == (200, {})
    before = up.exported("kept-fp32")
    publish_digits(up.repository, "kept", precisions=["fp32"], version=2, model_file=BROKEN)
    up.program.wait_for("not served: kept-fp32: ")
    assert up.digest("kept") == before
    rows = [row for row in up.ask("/v2/repository/index", b"")[1] if row["name"] == "kept"]
    assert [(row["version"], row["state"]) for row in rows] == [("1", "READY"), ("2", "UNAVAILABLE")]
    assert up.ask("/v2/health/ready")[0] == 200
    status, told = up.load("kept")
    assert (status, "Protobuf parsing failed" in told["error"]) == (500, True)
    publish_digits(up.repository, "kept", precisions=["fp32"], version=3, model_file=another(4))
    eventually(lambda: up.digest("kept") == up.exported("kept-fp32"), "what was mended is taken")


def test_a_version_whose_answers_are_off_here_answers_nobody_and_the_old_one_goes_on(up: Up) -> None:
    publish_digits(up.repository, "judged", version=1)
    assert up.load("judged") == (200, {})
    before = {name: up.exported(f"judged-{name}") for name in ("fp32", "int8")}
    publish_digits(up.repository, "judged", precisions=["fp32"], version=2, model_file=digits_of_other_labels())
    seen = set()

    def is_refused() -> bool:
        seen.add(up.digest("judged-fp32"))
        return up.program.says("not served: judged-fp32: ")

    wait_until(is_refused, "it is refused")
    publish_digits(up.repository, "judged", precisions=["int8"], version=2, model_file=INT8 + UNKNOWN_FIELD)
    up.program.wait_for("not served: judged-int8: ")
    assert seen == {before["fp32"]}
    assert {name: up.digest(f"judged-{name}") for name in before} == before
    rows = {(r["version"], r["state"]) for r in up.ask("/v2/repository/index", b"")[1] if r["name"] == "judged-fp32"}
    assert rows == {("1", "READY"), ("2", "UNAVAILABLE")}
    account = up.ask("/admin/status")[1]["models"]["judged"]["account"]
    told = {(it["name"], it["version"]): it["reason"] for it in account if it["state"] == "not_loaded"}
    assert "rows that its gate kept are off" in told["judged-fp32", "2"]
    assert "judged-fp32 of its version" in told["judged-int8", "2"]
    assert up.ask("/v2/health/ready")[0] == 200
    killed = tritons(up)
    os.kill(max(killed), signal.SIGKILL)
    eventually(lambda: tritons(up) - killed, "there is a new one")
    back = {name: eventually(partial(up.digest, f"judged-{name}"), "it answers") for name in before}
    assert back == before  # by its own files, which are kept beside the newer ones
    publish_digits(up.repository, "judged", precisions=["fp32"], version=2, model_file=another(6))
    eventually(lambda: up.digest("judged-fp32") == up.exported("judged-fp32"), "it is put right")
    eventually(lambda: up.digest("judged-int8") == up.exported("judged-int8"), "and so is what is judged beside it")
    publish_digits(up.repository, "judged", precisions=["fp32"], version=3, model_file=another(7))
    publish_digits(up.repository, "judged", precisions=["int8"], version=3, model_file=digits_of_other_labels())
    eventually(lambda: up.digest("judged-fp32") == up.exported("judged-fp32"), "FP32 of the third version is served")
    eventually(lambda: up.digest("judged-int8") is None, "INT8 is neither of the third nor of the second")


def test_what_is_taken_out_of_the_repository_is_unloaded_and_forgotten(up: Up) -> None:
    publish_digits(up.repository, "short", precisions=["fp32"])
    assert up.load("short") == (200, {})
    shutil.rmtree(up.repository / "short-fp32")
    eventually(lambda: up.ask("/v2/models/short/infer", SAMPLE)[0] == 404, "nobody knows it any more")
    eventually(lambda: up.ask("/v2/health/ready")[0] == 200, "nobody waits for it")


@pytest.mark.thorough
def test_what_no_triton_loads_is_missed_until_its_folder_is_removed(up: Up) -> None:
    publish_digits(up.repository, "never", precisions=["fp32"], model_file=BROKEN)
    up.program.wait_for("not served: never-fp32: ")
    assert up.ask("/v2/health/ready")[0] == 503
    shutil.rmtree(up.repository / "never-fp32")
    up.program.wait_for("no longer served: never-fp32: in no repository any more")
    eventually(lambda: up.ask("/v2/health/ready")[0] == 200, "nobody waits for it")


def test_a_repository_that_cannot_be_read_or_is_missing_takes_nothing_away(up: Up) -> None:
    publish_digits(up.repository, "unread", precisions=["fp32"])
    assert up.load("unread") == (200, {})
    record, beside = up.repository / "unread-fp32" / "tandem.json", up.repository.parent
    lost, aside = beside / "lost", beside / "aside"
    lost.symlink_to("x" * 300)  # no file can have that name; as the errors of a volume that was lost
    aside.hardlink_to(record)
    [log] = beside.glob("state/runs/*/triton-cpu.log")

    def num_said(part: str) -> int:
        return log.read_text().count(part)

    lost.replace(record)
    try:
        wait_until(lambda: num_said("cannot be read, and what is loaded stays: "), "it is told")
        assert up.digest("unread")
    finally:
        aside.replace(record)
    publish_digits(up.repository, "next", precisions=["fp32"])
    eventually(lambda: up.digest("next"), "it is read again")
    known, away = num_said("cannot be read, and what is loaded stays: "), beside / "away"
    up.repository.rename(away)
    try:
        wait_until(lambda: num_said("cannot be read, and what is loaded stays: ") > known, "it is told again")
        assert up.ask("/v2/models/unread/infer", SAMPLE)[0] == 200
    finally:
        away.rename(up.repository)
    publish_digits(up.repository, "next", precisions=["fp32"], version=2, model_file=another(8))
    eventually(lambda: up.digest("next") == up.exported("next-fp32"), "it is followed again")
    assert not num_said("unread-fp32: its folder was removed")


def test_what_is_refused_is_told_and_keeps_nothing_else_from_being_taken(up: Up) -> None:
    shutil.copytree(up.repository / "digits-fp32", up.repository / "copied-fp32")  # whose record names another
    up.program.wait_for("not served: copied-fp32: ")
    publish_digits(up.repository, "beside", precisions=["fp32"])
    assert up.load("beside") == (200, {})
    status, told, _ = up.ask("/v2/models/copied/infer", SAMPLE)
    assert (status, "record of digits-fp32" in told["error"]) == (503, True)
    assert up.ask("/v2/health/ready")[0] == 503
    shutil.rmtree(up.repository / "copied-fp32")
    eventually(lambda: up.ask("/v2/models/copied/infer", SAMPLE)[0] == 404, "nobody knows it any more")
    eventually(lambda: up.ask("/v2/health/ready")[0] == 200, "nobody waits for it")


@pytest.mark.thorough
def test_what_is_copied_file_by_file_is_served_once_it_is_whole(up: Up) -> None:
    side = up.repository.parent / "elsewhere"
    publish_digits(side, "slow", precisions=["fp32"])
    (up.repository / "slow-fp32").mkdir()
    shutil.copy2(side / "slow-fp32" / "tandem.json", up.repository / "slow-fp32")
    up.program.wait_for("not served: slow-fp32: ")
    shutil.copytree(side / "slow-fp32", up.repository / "slow-fp32", dirs_exist_ok=True)
    eventually(lambda: up.digest("slow") == up.exported("slow-fp32"), "it is whole")
    eventually(lambda: up.ask("/v2/health/ready")[0] == 200, "nothing is missing")


def test_what_no_gate_has_passed_and_what_changed_after_it_is_not_taken(up: Up) -> None:
    side = up.repository.parent / "side"
    publish_digits(side, "changed", precisions=["fp32"])
    (side / "changed-fp32" / "1" / "model.onnx").write_bytes(another(5))  # not what the gate saw
    (side / "changed-fp32").rename(up.repository / "changed-fp32")
    (side / "stray-fp32" / "1").mkdir(parents=True)
    (side / "stray-fp32" / "1" / "model.onnx").write_bytes(DIGITS)
    (side / "stray-fp32").rename(up.repository / "stray-fp32")
    status, told = up.load("changed")
    assert (status, "changed after" in told["error"]) == (403, True)
    assert up.load("stray-fp32")[0] == 403
    publish_digits(up.repository, "after", precisions=["fp32"])
    assert up.load("after") == (200, {})  # so that the others have been looked at as well
    assert [up.digest(name) for name in ("changed", "changed-fp32", "stray-fp32")] == [None] * 3
    assert up.ask("/v2/models/digits/infer", SAMPLE)[0] == 200


@pytest.mark.thorough
def test_a_repository_that_is_emptied_is_served_no_more_and_filled_again_it_is(up: Up) -> None:
    for folder in up.repository.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    up.program.wait_for("no longer served: digits-fp32: in no repository any more")
    publish_digits(up.repository, precisions=["fp32"])
    eventually(lambda: up.digest("digits"), "it is back")
    eventually(lambda: up.ask("/v2/health/ready")[0] == 200, "nothing is missing")
