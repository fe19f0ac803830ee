"""Versions served beside each other, and `tandem models` beside a `tandem up` that runs: states, history, and what is not removed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.ports import free_ports
from serving.repository import Repository
from tests.command import tandem
from tests.export.gates.nets import net
from tests.local.harness import ROOT, Program, wait_until
from tests.local.repository import publish_digits
from tests.local.test_later_exports import SAMPLE, Up, another

pytestmark = [pytest.mark.slow, pytest.mark.triton]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    repository = folder / "repository"
    publish_digits(repository, precisions=["fp32"])
    publish_digits(repository, precisions=["fp32"], version=2, model_file=another(2))
    publish_digits(repository, "other", precisions=["fp32"])
    with up_on(repository, num_versions=2) as running:
        yield running


@contextlib.contextmanager
def up_on(repository: Path, num_versions: int) -> Iterator[Up]:
    folder = repository.parent
    (folder / "tandem.yaml").write_text(f"version: 1\npools: {{cpu: {{versions: {num_versions}}}}}\n")
    port = free_ports(1)[0]
    words = ["up", "--port", str(port), "--no-measure", "--model-repository", str(repository)]
    words += ["--config", str(folder / "tandem.yaml")]
    program = Program(
        [sys.executable, "-m", "serving", *words], folder / "log", {"TANDEM_STATE": str(folder / "state")}
    )
    try:
        program.wait_for("Ctrl-C stops it")
        yield Up(program, f"http://127.0.0.1:{port}", repository)
    finally:
        program.end()


def answers(up: Up, *versions: int) -> list[tuple[int, str]]:
    """Status and digest of each version; 0 asks for none."""
    paths = [f"/v2/models/digits/{f'versions/{version}/' if version else ''}infer" for version in versions]
    replies = [up.ask(path, SAMPLE) for path in paths]
    return [(status, headers.get("tandem-model-digest", "").removeprefix("sha256:")) for status, _, headers in replies]


def digests(up: Up) -> list[str]:
    """Of the versions of digits that are kept, the newest first."""
    variant = Repository(up.repository).variant("digits-fp32")
    return [variant.digest, *(record.digest for record in variant.earlier())]


def models(up: Up, *words: str) -> tuple[int, str]:
    state = {"TANDEM_STATE": str(up.repository.parent / "state")}
    done = tandem("models", *words, "--model-repository", str(up.repository), **state)
    return done.returncode, done.stdout + done.stderr


def told(up: Up, *words: str) -> Any:
    return json.loads(models(up, *words, "--json")[1])


def test_each_version_answers_under_its_own_path_with_its_own_digest(up: Up) -> None:
    second, first = digests(up)
    assert answers(up, 0, 2, 1) == [(200, second), (200, second), (200, first)]
    assert answers(up, 3)[0][0] == 404
    rows = [row for row in up.ask("/v2/repository/index", b"")[1] if row["name"] == "digits"]
    assert [(row["version"], row["state"]) for row in rows] == [("1", "READY"), ("2", "READY")]
    assert up.ask("/v2/models/digits")[1]["versions"] == ["1", "2"]
    assert [up.ask(f"/v2/models/digits/versions/{version}/ready")[0] for version in (1, 2, 3)] == [200, 200, 404]


def test_models_says_what_is_served_and_history_which_versions_there_were(up: Up) -> None:
    status, said = models(up)
    lines = [line.split() for line in said.splitlines()]
    assert (status, [(line[0], line[1], line[-1]) for line in lines[2:]]) == (
        0,
        [("digits", "2", "served"), ("other", "1", "served")],
    )
    [entry] = told(up, "show", "digits")["account"]
    assert (entry["name"], entry["state"], entry["gateway"]) == ("digits-fp32", "served", up.url)
    versions = told(up, "history", "digits")["versions"]
    assert [(each["model_version"], each["state"]) for each in versions] == [(2, "newest"), (1, "kept")]
    assert models(up, "show", "digit")[0] == 2


def test_a_third_version_takes_the_place_of_the_first_while_it_runs(up: Up) -> None:
    publish_digits(up.repository, precisions=["fp32"], version=3, model_file=another(3))
    wait_until(lambda: answers(up, 0) == [(200, up.exported("digits-fp32"))], "the third version answers")
    third, second, _ = digests(up)
    assert answers(up, 3, 2) == [(200, third), (200, second)]
    assert answers(up, 1)[0][0] == 404  # not 503, which would keep everybody away from the others for a moment


def test_what_is_served_is_removed_only_if_that_is_asked_for_and_is_unloaded_then(up: Up) -> None:
    status, said = models(up, "rm", "other")
    assert (status, "--served" in said, up.url in said) == (2, True, True)
    assert (up.repository / "other-fp32").is_dir()
    assert models(up, "rm", "other", "--served") == (0, "removed other-fp32\n")
    up.program.wait_for("no longer served: other-fp32: in no repository any more")
    wait_until(lambda: up.ask("/v2/health/ready")[0] == 200, "nobody waits for it")
    assert up.ask("/v2/models/other/infer", SAMPLE)[0] == 404
    assert models(up, "rm", "other")[0] == 2


def test_without_a_server_what_is_there_is_proven_and_is_removed(tmp_path: Path) -> None:
    publish_digits(tmp_path / "repository")
    where = ["--model-repository", str(tmp_path / "repository")]
    state = {"TANDEM_STATE": str(tmp_path / "state")}
    assert tandem("models", *where, **state).stdout.splitlines()[2].split()[-1] == "proven"
    file = tmp_path / "repository" / "digits-int8" / "tandem.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "needs": ["amx"]}))
    left_out = json.loads(tandem("models", "show", "digits", "--json", *where, **state).stdout)["left_out"]
    assert list(left_out) == ["digits-int8"]
    assert "amx" in left_out["digits-int8"]
    assert tandem("models", "rm", "digits-fp32", *where, **state).returncode == 2  # INT8 is judged beside it
    assert tandem("models", "rm", "digits", *where, **state).stdout == "removed digits-fp32\nremoved digits-int8\n"
    assert Repository(tmp_path / "repository").variants() == []


def export_times(repository: Path, factor: int, *words: str) -> None:
    """The next version of `times`, whose answer is its input times the factor."""
    file = repository.parent / "times.onnx"
    file.write_bytes(net("y = Mul(x, k)", "(float[batch,4] x) => (float[batch,4] y)", k=float(factor)))
    quick = ["--i-accept-ungated", "--precision", "fp32", "--engine", "cpu", "--seconds", "0.01"]
    command = [
        sys.executable,
        "-m",
        "serving",
        "export",
        str(file),
        *quick,
        *words,
        "--model-repository",
        str(repository),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_three_versions_that_an_export_keeps_answer_beside_each_other(tmp_path: Path) -> None:
    repository, ones = tmp_path / "repository", [1.0] * 4
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ones}]}).encode()

    def factors(*versions: int) -> list[float | None]:
        """What each version multiplies by; 0 asks for none, and None is one that is not there."""
        paths = [f"/v2/models/times/{f'versions/{version}/' if version else ''}infer" for version in versions]
        replies = [running.ask(path, body) for path in paths]
        assert all(status in (200, 404) for status, _, _ in replies), replies
        return [said["outputs"][0]["data"][0] if status == 200 else None for status, said, _ in replies]

    for factor in (2, 3, 5):
        export_times(repository, factor, "--keep-versions", "3")
    with up_on(repository, num_versions=3) as running:
        assert factors(0, 3, 2, 1, 4) == [5, 5, 3, 2, None]
        assert [row["version"] for row in running.ask("/v2/repository/index", b"")[1] if row["name"] == "times"] == [
            "1",
            "2",
            "3",
        ]
        export_times(repository, 7)  # as many versions are kept as there were
        wait_until(
            lambda: running.ask("/v2/models/times/versions/4/infer", body)[0] == 200, "the fourth version answers"
        )
        assert factors(0, 4, 3, 2, 1) == [7, 7, 5, 3, None]
