"""Changes of the control document by commands: what they mend, what they refuse before anything is done, and what they say of it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from serving.cli import control
from serving.control.document import Target, parse
from serving.control.followers import Follower
from serving.control.stores import FileStore
from serving.ports import free_ports
from tests.command import tandem
from tests.local.repository import publish_digits


@contextlib.contextmanager
def answering(body: dict[str, Any]) -> Iterator[str]:
    """The address of a server that has one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


GOOD = "version: 1\nmodels: {digits: {pin: {version: 1}}}\n"


@pytest.mark.parametrize("broken", ["version: 1\nmodls: {}\n", None])
@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_a_document_that_is_wrong_or_gone_is_mended(tmp_path: Path, broken: str | None, verb: str) -> None:
    file, place = tmp_path / "new.yaml", tmp_path / "control.yaml"
    file.write_text(GOOD)
    assert tandem("apply", str(file), "--control", str(place)).returncode == 0
    if broken is None:
        place.unlink()
    else:
        place.write_text(broken)
    words = ["apply", str(file)] if verb == "apply" else ["undo"]
    done = tandem(*words, "--control", str(place))
    assert done.returncode == 0, done.stderr
    assert place.read_text() == GOOD


@pytest.mark.parametrize("text", ["version: 1\nmodls: {}\n", None])
def test_up_starts_nothing_where_the_document_is_missing_or_wrong(tmp_path: Path, text: str | None) -> None:
    place, state = tmp_path / "control.yaml", tmp_path / "state"
    if text is not None:
        place.write_text(text)
    publish_digits(tmp_path / "repository", precisions=["fp32"])
    words = ("--port", str(free_ports(1)[0]), "--model-repository", str(tmp_path / "repository"), "--no-measure")
    done = tandem("up", *words, "--control", str(place), TANDEM_STATE=str(state))
    assert (done.returncode, str(place) in done.stderr) == (2, True), done.stderr
    assert ("tandem models pin" in done.stderr) == (text is None)
    assert not state.exists()


def test_nothing_is_written_where_a_gateway_is_away(tmp_path: Path) -> None:
    file, place = tmp_path / "new.yaml", tmp_path / "control.yaml"
    file.write_text(GOOD)
    for words in (("apply", str(file)), ("models", "pin", "digits", "--version", "1")):
        done = tandem(*words, "--control", str(place), "--url", "http://127.0.0.1:1")
        assert (done.returncode, done.stdout) == (3, "")
        assert not place.exists()


@pytest.mark.parametrize(
    ("model", "version", "said"), [("digits", 1, None), ("digist", 1, "'digits'"), ("digits", 7, "version 7")]
)
def test_a_pin_of_what_the_repository_has_not_is_told(
    tmp_path: Path, model: str, version: int, said: str | None
) -> None:
    publish_digits(tmp_path / "repository", precisions=["fp32"])
    pin = ("models", "pin", model, "--version", str(version), "--control", str(tmp_path / "control.yaml"))
    for repository, told in (("repository", said), ("elsewhere", None)):
        done = tandem(*pin, "--model-repository", str(tmp_path / repository))
        assert done.returncode == 0
        assert told in done.stderr if told else not done.stderr


def test_a_rollback_tells_that_undo_brings_the_candidate_back(tmp_path: Path) -> None:
    file, place = tmp_path / "new.yaml", tmp_path / "control.yaml"
    canary = "{pin: {version: 1}, rollout: {candidate: {version: 2}, step: canary}}"
    file.write_text(f"version: 1\nmodels: {{digits: {canary}}}\n")
    assert "tandem undo" not in tandem("apply", str(file), "--control", str(place)).stdout
    done = tandem("models", "rollback", "digits", "--control", str(place))
    assert (done.returncode, "tandem undo" in done.stdout) == (0, True)
    assert tandem("undo", "--control", str(place)).returncode == 0
    assert place.read_text() == file.read_text()


@pytest.mark.parametrize("name", ["control.json", "control.yaml"])
def test_a_document_means_the_same_whatever_the_file_that_keeps_it_is_called(tmp_path: Path, name: str) -> None:
    file, place = tmp_path / "new.json", tmp_path / name
    file.write_text('{\n\t"version": 1,\n\t"models": {"digits": {"pin": {"version": 1}}}\n}')
    assert tandem("apply", str(file), "--control", str(place)).returncode == 0
    for version in (1, 2):
        with FileStore(place) as store:
            current = store.current()
            assert current is not None
            assert parse(current.text, store.name).models["digits"].pin == Target(version=version)
        assert tandem("models", "pin", "digits", "--version", "2", "--control", str(place)).returncode == 0


def test_a_report_of_a_rollout_of_which_nothing_was_seen_is_told_not_to_be_written(tmp_path: Path) -> None:
    rollout = {"model": "digits", "candidate": "version 2", "pinned": "version 1", "step": "shadow", "judgement": None}
    rollout |= {"copies_device_s": 0.0, "copies_dollars": None, "problem": None, "compared": 0, "skipped": 0}
    report = tmp_path / "report.html"
    with answering({"rollouts": [rollout]}) as url:
        done = tandem("models", "rollout", "digits", "--url", url, "--output", str(report))
    assert (done.returncode, str(report) in done.stderr, report.exists()) == (0, True, False)


def test_a_revision_that_no_gateway_can_have_is_taken_back_of_a_model_that_must_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, strict = tmp_path / "control.yaml", "version: 1\nmodels: {digits: {may_mix: false, pin: {version: %d}}}\n"
    for version in (1, 9):
        (tmp_path / "new.yaml").write_text(strict % version)
        assert tandem("apply", str(tmp_path / "new.yaml"), "--control", str(place)).returncode == 0
    first, _ = FileStore(place).history().revisions
    FileStore(place).announce(Follower("a:1", first.digest, 1, "revision 2 cannot be in force yet"))
    monkeypatch.setattr(control, "WAIT_S", 0.0)  # so that it is refused, or its own follower not waited for, at once
    (tmp_path / "new.yaml").write_text(strict % 2)
    for words in (("models", "pin", "digits", "--version", "2"), ("apply", str(tmp_path / "new.yaml"))):
        assert tandem(*words, "--control", str(place)).returncode == 1
        assert place.read_text() == strict % 9
    tandem("undo", "--control", str(place))
    assert place.read_text() == first.text
