"""`module:`: what is turned away before any of the user's code runs. Needs no torch; what runs is in test_module_call.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.progress import silent
from serving.export.sources import torch_module

TRAP = "raise SystemExit('ran')\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "trap.py").write_text(TRAP)
    return tmp_path


def refusal(rest: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        torch_module.load(rest, SourceOptions(**options), silent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("rest", ["trap:net", "trap.py:net", "package.that.is.nowhere:net"])
def test_without_trust_nothing_is_imported(rest: str) -> None:
    assert "add --trust" in refusal(rest)
    assert "trap" not in sys.modules


@pytest.mark.parametrize("rest", ["trap", "trap:", ":net", "trap:net()", "trap:a.b", "trap:1"])
def test_a_spelling_without_a_callable_is_told_how_it_goes(rest: str) -> None:
    assert "module:FILE.py:CALLABLE" in refusal(rest, is_trusted=True)


@pytest.mark.parametrize("rest", ["a/b:net", "a-b:net", "../trap:net", "trap..x:net"])
def test_what_is_no_modules_name_is_told_so(rest: str) -> None:
    assert "a Python module" in refusal(rest, is_trusted=True)


def test_a_file_that_is_not_there_is_named() -> None:
    assert refusal("nowhere/net.py:make", is_trusted=True).endswith("no file nowhere/net.py")


def test_an_unknown_task_is_named_with_the_nearest() -> None:
    assert "'classification'" in refusal("trap:net", is_trusted=True, task="clasification")


@pytest.mark.parametrize(
    ("option", "spelled"),
    [
        ({"pooling": "mean"}, "--pooling"),
        ({"is_normalised": True}, "--normalise"),
        ({"max_length": 8}, "--max-length"),
        ({"image_size": 8}, "--image-size"),
    ],
)
def test_an_option_of_another_kind_of_source_is_an_error(option: dict[str, Any], spelled: str) -> None:
    assert f"{spelled} does not apply" in refusal("trap:net", is_trusted=True, **option)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert re.search(r"-m pip install -e '.*\[export\]'", refusal("nets.somewhere:net", is_trusted=True))
