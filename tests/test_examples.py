"""The programs of examples/ do what they say, with a `tandem up` of their own. The one with `openai`: tests/clients/test_openai.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.ports import free_ports
from tests.command import ROOT, tandem

pytestmark = [pytest.mark.slow, pytest.mark.triton]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs an example in a folder whose model_repo is served; gives what it printed."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "model_repo", folder / "model_repo")
    port, grpc_port = free_ports(2)
    state = {"TANDEM_STATE": str(folder / "state")}
    up = [sys.executable, "-m", "serving", "up", "--detach", "--no-measure", "--port", str(port)]
    environment = {**os.environ, **state}
    subprocess.run([*up, "--grpc-port", str(grpc_port)], cwd=folder, env=environment, check=True, capture_output=True)

    def example(name: str, *words: str) -> str:
        given = [it.format(port=port, grpc_port=grpc_port) for it in words]
        command = [sys.executable, str(ROOT / "examples" / name), *given]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield example
    assert tandem("stop", "--json", **state).returncode == 0


def test_a_digit_is_told_over_http_and_grpc(run: Run) -> None:
    said = run("digits.py", "--http", "127.0.0.1:{port}", "--grpc", "127.0.0.1:{grpc_port}")
    assert re.findall(r"^(HTTP|gRPC): (\d) by digits", said, re.MULTILINE) == [("HTTP", "2"), ("gRPC", "2")]


def test_a_drawn_picture_is_classified(run: Run) -> None:
    first, *_, last = run("classify_image.py", "--url", "http://127.0.0.1:{port}").splitlines()
    assert first.startswith("7: ")
    assert "cpu" in last


@pytest.mark.thorough  # an export and another `up`; a part of it: tests/local/test_run.py
def test_a_model_of_scikit_learn_is_served_with_its_own_answers(run: Run) -> None:
    said = run("wine.py", "--port", "{port}")
    [difference] = re.findall(r"^largest difference: (\S+)$", said, re.MULTILINE)
    assert float(difference) < 1e-5
    assert re.search(r"^one row, median: [\d.]+ ms .*, [\d.]+ ms ", said, re.MULTILINE)


@pytest.mark.thorough
def test_cards_are_weighed_by_published_figures(run: Run) -> None:
    rows = re.findall(r"^(\d+)/s: (\d+) × .+, \$([\d.]+) an hour$", run("which_card.py"), re.MULTILINE)
    assert [rate for rate, _, _ in rows] == ["1000", "10000", "100000"]
    prices = [float(price) for _, _, price in rows]
    assert prices == sorted(prices)
    assert "no card" in run("which_card.py", "--p99", "1ms", "--rates", "1000")


def test_the_page_of_examples_names_all_of_them() -> None:
    named = set(re.findall(r"\]\((\w+\.py)\)", (ROOT / "examples" / "README.md").read_text()))
    assert named == {path.name for path in Path(ROOT, "examples").glob("*.py")}
