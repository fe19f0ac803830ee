"""How a source is spelled, and what is said of one that nothing reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.export.sources import split


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hf:models/minilm", ("hf", "models/minilm")),
        ("hf:org/name", ("hf", "org/name")),
        ("net.onnx", ("onnx", "net.onnx")),
        ("onnx:net.onnx", ("onnx", "net.onnx")),
        ("/tmp/a:b.onnx", ("onnx", "/tmp/a:b.onnx")),
        ("sklearn:trees.pkl", ("sklearn", "trees.pkl")),
        ("xgboost:trees.ubj", ("xgboost", "trees.ubj")),
        ("keras:net.keras", ("keras", "net.keras")),
        ("module:nets:make", ("module", "nets:make")),
        ("module:nets.py:make", ("module", "nets.py:make")),
        ("package.nets:make", ("module", "package.nets:make")),
    ],
)
def test_a_spelling_names_the_kind_and_the_rest(spec: str, expected: tuple[str, str]) -> None:
    assert split(spec) == expected


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("thing", "'thing' is not a source; sources are: hf:DIR_OR_ID"),
        ("", "'' is not a source"),
        ("hf:", "names nothing after 'hf:'"),
        ("sklern:x.pkl", "did you mean 'sklearn'"),
        ("net.pt", "module:FILE.py:FUNCTION"),
        ("net.hdf5", "did you mean tensorflow:net.hdf5?"),
        ("net-symbol.json", "MXNet's own exporter writes .onnx"),
        ("trees.pkl", "'trees.pkl' is not a source; did you mean sklearn:trees.pkl?"),
        ("net.keras", "did you mean keras:net.keras?"),
        ("trees.cbm", "did you mean catboost:trees.cbm?"),
        ("NET.ONNX", "its name has to end in .onnx, in small letters"),
        ("tf:saved", "is not a source"),
        ("net.tflite", "did you mean tensorflow:net.tflite?"),
        ("C:\\models\\net", "is not a source"),
    ],
)
def test_what_nothing_reads_is_refused_with_what_there_is(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        split(spec)


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [("config.json", "{}", "hf"), ("saved_model.pb", "", "tensorflow")],
)
def test_a_folder_without_the_kind_is_recognised(tmp_path: Path, file: str, content: str, kind: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=re.escape(f"{kind}:{tmp_path}")):
        split(str(tmp_path))


@pytest.mark.parametrize(("content", "kind"), [("tree\nversion=v4", "lightgbm"), ('{"learner":{', "xgboost")])
def test_trees_without_the_kind_are_recognised_by_their_first_bytes(tmp_path: Path, content: str, kind: str) -> None:
    trees = tmp_path / "trees.txt"
    trees.write_text(content)
    with pytest.raises(UserError, match=re.escape(f"{kind}:{trees}")):
        split(str(trees))
