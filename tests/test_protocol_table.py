"""The page of what each protocol does: fresh, and only made from marks that say what it needs."""

from __future__ import annotations

import pytest

from scripts import protocol_table
from scripts.protocol_table import BadMark, Mark, marks_in, page

MARKED = """
@pytest.mark.protocol("v2 HTTP", "a", "supported", item=5)
def test_one(): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.protocol("keys", "b", "refused: no | why"))])
def test_two(x): ...

def not_a_test(): pytest.mark.protocol("keys", "c", "supported")
"""


def test_the_page_is_what_the_tests_say() -> None:
    assert (protocol_table.ROOT / protocol_table.PAGE).read_text("utf-8") == protocol_table.made(), (
        "run `make reference`"
    )


def test_marks_are_read_from_tests_and_from_rows_of_theirs() -> None:
    assert list(marks_in(MARKED, "t.py")) == [
        Mark("v2 HTTP", "a", "supported", 5, "t.py::test_one"),
        Mark("keys", "b", "refused: no | why", None, "t.py::test_two"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'v2 HTTP', 'a'", "SURFACE, FEATURE, OUTCOME"),
        ("'v2 HTTP', 'a', 'supported', 5", "SURFACE, FEATURE, OUTCOME"),
        ("'v2 HTTP', 'a', 'supported', items=5", "SURFACE, FEATURE, OUTCOME"),
        ("'v2 HTTP', name, 'supported'", "literals"),
        ("'v3', 'a', 'supported'", "no surface 'v3'"),
        ("'v2 HTTP', 'a', 'refused'", "refused: WHY"),
        ("'v2 HTTP', 'a', 'refused: '", "refused: WHY"),
    ],
)
def test_a_mark_that_the_table_cannot_use_is_an_error_with_its_test(arguments: str, said: str) -> None:
    with pytest.raises(BadMark, match=r"t\.py::test_x") as error:
        list(marks_in(f"@pytest.mark.protocol({arguments})\ndef test_x(): ...", "t.py"))
    assert said in str(error.value)


def test_tests_of_one_feature_share_a_row_and_must_agree() -> None:
    first, second = (
        Mark("keys", "a|b", "refused: w|y", None, "t.py::test_x"),
        Mark("keys", "a|b", "refused: w|y", None, "t.py::test_y"),
    )
    assert "| a\\|b | **refused**: w\\|y | [x](../t.py)<br>[y](../t.py) |" in page([first, second])
    with pytest.raises(BadMark, match="several ways"):
        page([first, Mark("keys", "a|b", "supported", None, "t.py::test_y")])
