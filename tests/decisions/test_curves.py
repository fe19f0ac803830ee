"""What a file of service times may say, and whose curve a name means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.decisions.curves import Curves, read_curves
from serving.errors import UserError

GOOD = 'version: 1\nname: t4\nvariants:\n  "*": [[1, 0.005], [9, 0.013]]\n'


def read(tmp_path: Path, text: str, name: str = "t4.yaml") -> Curves:
    (tmp_path / name).write_text(text)
    return read_curves(tmp_path / name)


def with_variants(**points: Any) -> str:
    return json.dumps({"version": 1, "name": "t4", "variants": {k.replace("_", "-"): v for k, v in points.items()}})


@pytest.mark.parametrize(
    ("name", "text"),
    [("t4.yaml", GOOD), ("t4.json", '{"version": 1, "name": "t4", "variants": {"*": [[1, 5e-3], [9, 13e-3]]}}')],
)
def test_a_good_file_is_a_name_and_curves(tmp_path: Path, name: str, text: str) -> None:
    curves = read(tmp_path, text, name)
    assert curves.name == "t4"
    assert curves.by_variant["*"].seconds(5) == pytest.approx(0.009)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a mapping"),
        ("a: [", "not valid YAML"),
        ("version: 2026-13-01", "line 1: "),
        ("version: !!float x", "not valid YAML"),
        ("version: !!timestamp x", "not valid YAML"),
        (with_variants(fp32=[[1, 10**400]]), "variants.fp32"),
        (GOOD.replace("version: 1", "version: 2"), "version: "),
        (GOOD.replace("version: 1", "version: true"), "version: "),
        (GOOD.replace("version: 1\n", ""), "'version' is missing"),
        (GOOD.replace("variants", "variant"), "unknown key 'variant'; did you mean 'variants'?"),
        (GOOD.replace("t4", "a b"), "name: 'a b' must be a word"),
        (GOOD.replace("t4", "4"), "name: must be text, not 4"),
        (GOOD.replace("t4", '"a\\r\\nb"'), "must be a word"),
        ("version: 1\nname: t4\nvariants: {}\n", "variants: give the points"),
        (with_variants(fp32=[]), "variants.fp32: "),
        (with_variants(fp32=[1, 0.005]), "variants.fp32[0]: must be a list"),
        (with_variants(fp32=[[1, 0.005, 2]]), "at most 2"),
        (GOOD.replace("0.005", "5e-3"), "must be a number, not '5e-3' (write it without quotes, and 5e-3 as 0.005)"),
        (with_variants(fp32=[[1, True]]), "variants.fp32[0][1]: must be a number"),
        (with_variants(fp32=[[1, 0]]), "positive"),
        (with_variants(fp32=[[2, 0.1], [1, 0.2]]), "ascend"),
    ],
)
def test_a_wrong_file_is_one_line_with_the_place_and_the_way_out(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"t4\.yaml") as error:
        read(tmp_path, text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml.*file"):
        read_curves(tmp_path / "none.yaml")


def test_json_that_is_none_is_told_as_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not valid JSON"):
        read(tmp_path, "{", "t4.json")


def test_a_name_means_its_own_curve_or_that_of_all_where_a_cpu_pool_would_serve_it(tmp_path: Path) -> None:
    curves = read(tmp_path, GOOD.replace("variants:", "variants:\n  int8: [[1, 0.002]]"))
    assert curves.named("int8").seconds(1) == 0.002
    assert curves.named("fp32").seconds(1) == curves.named("*").seconds(1) == 0.005


@pytest.mark.parametrize(
    ("name", "said"), [("fp16", "it has: int8, *"), ("int9", "did you mean 'int8'?"), ("digits-fp32", "no curve of")]
)
def test_a_name_without_a_curve_is_an_error_that_says_which_there_are(tmp_path: Path, name: str, said: str) -> None:
    curves = read(tmp_path, GOOD.replace("variants:", "variants:\n  int8: [[1, 0.002]]"))
    with pytest.raises(UserError, match=r"t4\.yaml") as error:
        curves.named(name)
    assert said in str(error.value)
