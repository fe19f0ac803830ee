"""A metric of the user's: trusted before it is opened, and everything wrong in it named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.errors import UserError
from serving.export.gates.custom import custom_checks, load_metric

GOOD = "def good(reference, answers, labels):\n    return float((answers[0] == reference[0]).mean())\n"
ONES = [np.ones((4, 2), np.float32)]
HALF = [np.array([[1, 1], [1, 1], [0, 0], [0, 0]], np.float32)]


def metric(tmp_path: Path, text: str, name: str = "good") -> Any:
    (tmp_path / "metric.py").write_text(text)
    return load_metric(f"{tmp_path}/metric.py:{name}", is_trusted=True)


def test_a_number_is_told_beside_the_references_own(tmp_path: Path) -> None:
    [check] = custom_checks(metric(tmp_path, GOOD), ONES, HALF, None)
    assert (check.metric, check.value, check.limit, check.reference) == ("good", 0.5, None, 1.0)
    assert check.has_passed


@pytest.mark.parametrize(("limit", "is_minimum", "passes"), [(0.4, True, True), (0.6, True, False), (0.6, False, True)])
def test_a_limit_decides(tmp_path: Path, limit: float, is_minimum: bool, passes: bool) -> None:
    text = (
        f"def good(reference, answers, labels):\n    return {{'share': (answers[0].mean(), {limit}, {is_minimum})}}\n"
    )
    [check] = custom_checks(metric(tmp_path, text), ONES, HALF, None)
    assert (check.metric, check.has_passed, check.is_default_limit) == ("share", passes, False)


def test_labels_and_all_outputs_are_given(tmp_path: Path) -> None:
    text = "def good(reference, answers, labels):\n    return len(reference) * 100 + len(answers) * 10 + labels.sum()\n"
    [check] = custom_checks(metric(tmp_path, text), ONES, HALF, np.array([1, 2]))
    assert check.value == 113


def test_it_may_import_and_define_what_it_likes(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport numpy as np\n"
        "@dataclass\nclass Share:\n    of: float\n"
        "def good(reference, answers, labels):\n    return Share(np.float32(0.25)).of\n"
    )
    assert custom_checks(metric(tmp_path, text), ONES, HALF, None)[0].value == 0.25


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("metric.py", r"--metric metric.py: want FILE.py:NAME"),
        ("metric:good", r"want FILE.py:NAME"),
        ("metric.py:", r"want FILE.py:NAME"),
        ("metric.py:a b", r"want FILE.py:NAME"),
        ("nowhere.py:good", r"nowhere.py is not there"),
        ("metric.py:god", r"has no function 'god'; did you mean 'good'"),
        ("metric.py:NUMBER", r"has no function 'NUMBER'"),
    ],
)
def test_a_metric_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, says: str
) -> None:
    (tmp_path / "metric.py").write_text(f"NUMBER = 1\n{GOOD}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        load_metric(spec, is_trusted=True)


def test_code_that_nobody_trusts_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n{GOOD}")
    with pytest.raises(UserError, match=r"runs.*metric.py.*--trust"):
        load_metric(f"{tmp_path}/metric.py:good", is_trusted=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def good(:\n", "line 1: SyntaxError"),
        ("import nowhere_at_all\n", "line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("\n\n1 / 0\n", "line 3: ZeroDivisionError"),
    ],
)
def test_a_file_that_does_not_import_names_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        metric(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("answers[7]", "line 2: IndexError"),
        ("answers[0] @ answers[0]", "line 2: ValueError"),
        ("None", "good is NoneType; want a number, or {name"),
        ("'high'", "good is str; want a number"),
        ("{}", "it gave no number"),
        ("{'a': 1}", "'a' is 1; want a number, or {name"),
        ("{'a': (1, 2)}", r"'a' is \(1, 2\)"),
        ("{'a': (1, 2, 'up')}", r"'a' is \(1, 2, 'up'\)"),
        ("{'a': ('x', 2, True)}", "a is str"),
        ("{'a': (1, None, True)}", "the limit of a is NoneType"),
        ("{'a': (1, float('nan'), True)}", "the limit of a is nan"),
        ("{7: (1, 2, True)}", "the name 7 of a number is not text"),
        ("{'top1': (1, 0, True)}", "'top1' is the name of a number of Tandem's own"),
    ],
)
def test_what_is_no_number_is_named(tmp_path: Path, body: str, says: str) -> None:
    function = metric(tmp_path, f"def good(reference, answers, labels):\n    return {body}\n")
    with pytest.raises(UserError, match=says) as caught:
        custom_checks(function, ONES, HALF, None)
    assert "\n" not in str(caught.value)


def test_a_metric_that_ends_the_program_is_an_error_and_not_a_quiet_success(tmp_path: Path) -> None:
    function = metric(tmp_path, "import sys\ndef good(reference, answers, labels):\n    sys.exit(0)\n")
    with pytest.raises(UserError, match="line 3: SystemExit: 0"):
        custom_checks(function, ONES, HALF, None)
    with pytest.raises(UserError, match="line 1: SystemExit"):
        metric(tmp_path, "raise SystemExit")
