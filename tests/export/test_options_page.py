"""The guide says of every option of `tandem export` what the code does with it: which sources read it, and that it is there."""

from __future__ import annotations

import re

import pytest

from serving.export.sources.checks import EVERY, KINDS, OPTIONS

from .conftest import ROOT

PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")
COLUMNS = {  # heading -> kinds of `applies`
    "`hf:` embedding": ("hf embedding",),
    "`hf:` images": ("hf images",),
    "`hf:` texts": ("hf texts",),
    "`digits`, `efficientnet-lite0`": ("digits", "efficientnet-lite0"),
    "`.onnx`, `tensorflow:`, `paddle:`": ("onnx", "tensorflow", "paddle"),
    "`sklearn:` and trees": ("sklearn", "xgboost", "lightgbm", "catboost"),
    "`--variant`": ("ready-made",),
}


def table() -> dict[str, frozenset[str]]:
    """Option -> the kinds of source that it stands for on the page."""
    section = PAGE.partition("## Options by source")[2].partition("\n## ")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.partition("| option | what it says")[0].splitlines()
        if line.startswith("|")
    )
    kinds = [COLUMNS.get(column, (column.strip("`:"),)) for column in head[1:]]
    assert {kind for column in kinds for kind in column} == set(KINDS)
    return {
        row[0].strip("`"): frozenset(k for said, column in zip(row[1:], kinds, strict=True) if said for k in column)
        for row in rows
    }


def test_the_table_of_options_is_that_of_the_code() -> None:
    narrow = {spelled: kinds for spelled, kinds in OPTIONS.values() if kinds != EVERY and spelled != "--variant"}
    assert table() == narrow


@pytest.mark.parametrize("option", sorted(spelled for spelled, _ in OPTIONS.values() if spelled.startswith("--")))
def test_every_option_is_in_the_guide(option: str) -> None:
    assert re.search(rf"`[^`]*{option}\b[^`]*`", PAGE) or f" {option} " in PAGE
