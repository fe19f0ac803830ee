"""paddle:PATH: what is turned away before PaddlePaddle is fetched. What becomes of models: recipes/test_paddle.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.export import sources
from serving.export.exported_model import SourceOptions
from serving.export.sources import paddle_model
from serving.export.sources.checks import paddle_files


def model(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).write_bytes(b"")
    return folder


@pytest.mark.parametrize("program", ["net.pdmodel", "inference.json"])
def test_a_folder_or_a_program_means_the_program_with_its_weights(tmp_path: Path, program: str) -> None:
    weights = str(Path(program).with_suffix(".pdiparams"))
    model(tmp_path, program, weights, "config.json")
    for named in (tmp_path, tmp_path / program):
        assert paddle_files(named) == (tmp_path / program, tmp_path / weights)
        sources.check(f"paddle:{named}", SourceOptions())


@pytest.mark.parametrize(
    ("files", "named", "says"),
    [
        ((), "", r"is no model of PaddlePaddle, which is a program \(\.pdmodel or \.json\)"),
        (("net.pdmodel",), "net.pdmodel", "with its weights"),
        (("net.pdmodel",), "", "with its weights"),
        (("net.pdparams",), "net.pdparams", "is no model of PaddlePaddle"),
        (("a.json", "a.pdiparams", "b.json", "b.pdiparams"), "", r"several models: name one, paddle:\S+a\.json or "),
        ((), "nowhere.json", "there is no file"),
    ],
)
def test_what_is_no_model_of_paddlepaddle_is_refused(
    tmp_path: Path, files: tuple[str, ...], named: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        sources.check(f"paddle:{model(tmp_path, *files) / named}", SourceOptions())


def test_a_folder_of_paddlepaddle_without_the_kind_is_recognised(tmp_path: Path) -> None:
    model(tmp_path, "net.json", "net.pdiparams")
    with pytest.raises(UserError, match=re.escape(f"did you mean paddle:{tmp_path}?")):
        sources.split(str(tmp_path))


def test_a_python_without_paddlepaddle_is_told(tmp_path: Path) -> None:
    model(tmp_path, "net.json", "net.pdiparams")
    options = SourceOptions(framework_python=Path(sys.executable))
    with pytest.raises(UserError, match=r"net\.json: No module named 'paddle2onnx'"):
        paddle_model.load(tmp_path, options, lambda *_: None)
    with pytest.raises(EnvironmentFault, match="`tandem export`"):
        paddle_model.load(tmp_path, SourceOptions(), lambda *_: None)
