"""Whatever stands in a file of ours is read as it is written, or refused with its place: file, line and path."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from serving.documents.nearest import closest, nearest
from serving.documents.reader import parse_document, path, read_document
from serving.errors import UserError


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    name: str | None = None

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError("a rate is not negative")


class Limits(BaseModel):
    most: int = Field(default=1, ge=1)


@dataclass(frozen=True, slots=True)
class Plan:
    version: Literal[1]
    runs: tuple[Run, ...] = ()
    limits: Limits = field(default_factory=Limits)
    tags: dict[str, Run] | None = None
    points: list[tuple[int, float]] | Run | None = None


def read(text: str, *, is_json: bool = False, **how: bool) -> Plan:
    return parse_document(text, "plan.yaml", is_json=is_json).values(Plan, **how)


NAMES = st.text("abcdefg", min_size=1, max_size=6)
RUNS = st.builds(Run, st.floats(0, 1e9), st.none() | NAMES)
PLANS = st.builds(
    Plan,
    st.just(1),
    st.lists(RUNS, max_size=3).map(tuple),
    st.builds(Limits, most=st.integers(1, 2**40)),
    st.none() | st.dictionaries(NAMES, RUNS, max_size=3),
    st.none() | RUNS | st.lists(st.tuples(st.integers(0, 99), st.floats(0, 1)), min_size=1, max_size=3),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["version", "runs", "rate", "x"]) | NAMES, inner, max_size=3)
    ),
    max_leaves=8,
)


def plain(plan: Plan) -> Any:
    return TypeAdapter(Plan).dump_python(plan, mode="json")


def assert_read_or_refused(text: str, is_json: bool) -> None:
    try:
        problem = ""
        read(text, is_json=is_json)
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.startswith("plan.yaml") and "\n" not in problem)


@given(plan=PLANS, is_json=st.booleans())
def test_what_is_written_is_read(plan: Plan, is_json: bool) -> None:
    text = json.dumps(plain(plan)) if is_json else yaml.safe_dump(json.loads(json.dumps(plain(plan))))
    assert read(text, is_json=is_json) == plan


@given(data=JSON, is_json=st.booleans())
def test_whatever_the_data_it_is_a_value_or_one_line_that_names_the_file(data: Any, is_json: bool) -> None:
    text = json.dumps(data) if is_json else yaml.safe_dump(data)
    assert_read_or_refused(text, is_json)


@given(text=st.text(max_size=40) | st.text("[]{}:-'\"!&*<# \n\t1a.e", max_size=30), is_json=st.booleans())
def test_whatever_the_text_nothing_but_our_error_comes_out(text: str, is_json: bool) -> None:
    assert_read_or_refused(text, is_json)


@given(plan=PLANS, name=NAMES, index=st.integers(0, 2))
def test_an_unknown_name_anywhere_is_fatal_with_its_place(plan: Plan, name: str, index: int) -> None:
    data = json.loads(json.dumps(plain(plan)))
    places = [
        (),
        *(("runs", i) for i in range(len(plan.runs))),
        ("limits",),
        *(("tags", tag) for tag in plan.tags or ()),
    ]
    place = places[index % len(places)]
    at: Any = data
    for part in place:
        at = at[part]
    at[name] = 1
    for text, is_json in ((json.dumps(data), True), (yaml.safe_dump(data), False)):
        with pytest.raises(UserError, match="unknown key") as refused:
            read(text, is_json=is_json)
        assert path(place) in str(refused.value)
        line = "" if is_json else str(refused.value).split("line ")[1].split(":")[0]
        assert is_json or text.splitlines()[int(line) - 1].lstrip(" -").startswith(f"{name}:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nrunns: []\n", ["line 2: unknown key 'runns'; did you mean 'runs'?"]),
        ("version: 1\nruns:\n- {rate: 1}\n- {rat: 1}\n", ["line 4: runs[1]: ", "did you mean 'rate'?"]),
        ("version: 1\nruns:\n- name: a\n", ["line 3: runs[0]: 'rate' is missing"]),
        ("version: 1\nruns:\n- {rate: '1'}\n", ["line 3: runs[0].rate: ", "not '1'"]),
        ("version: 1\nruns:\n- {rate: true}\n", ["line 3: runs[0].rate: "]),
        ("version: 1\nruns:\n- {rate: -1}\n", ["line 3: runs[0]: a rate is not negative"]),
        ("version: 1\nlimits:\n  most: 0\n", ["line 3: limits.most: ", "1, not 0"]),
        ("version: 1\npoints: [[1, x]]\n", ["line 2: points[0][1]: "]),
        ("version: 1\nversion: 1\n", ["line 2", "'version' is given twice"]),
        ("version: 1\nx: {a: 1, a: 1}\n", ["line 2", "'a' is given twice"]),
        ("version: 1\n  x: [\n", ["line 2", "not valid YAML"]),
        ("version: 1\nx: !!set {a}\n", ["line 2", "not valid YAML"]),
        ("version: 1\nx: !!int a\n", ["line 2: not valid YAML"]),
        ("version: 1\nx: &a [*a]\n", ["not valid YAML"]),
        ("version: 1\nx: \x00\n", ["line 2", "not valid YAML"]),
        ("version: 1\n? [a]\n: 1\n", ["line 2", "a name must be text"]),
        (f"version: 1\nx: {'[' * 1000}\n", ["not valid YAML"]),
        ("- 1\n", ["plan.yaml: "]),
        ("", ["plan.yaml: "]),
        ("version: 2\n", ["line 1: version: "]),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        read(text)
    assert [word for word in words if word not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"version": 1,\n"runs": [}', "plan.yaml, line 2: not valid JSON"),
        ('{"version": 1, "version": 1}', "'version' is given twice"),
        ('{"version": 1, "runs": [{"rate": NaN}]}', "plan.yaml: runs[0].rate: must be a number, not nan"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_wrong_json_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        read(text, is_json=True)
    assert words in str(refused.value)


def test_a_day_is_text_and_a_merged_name_counts_once() -> None:
    document = parse_document("day: 2026-07-20\nbase: &b {x: 1}\nmore: {<<: *b, y: 2}\n", "f", is_json=False)
    assert document.data == {"day": "2026-07-20", "base": {"x": 1}, "more": {"x": 1, "y": 2}}


def test_numbers_as_text_are_read_where_the_reader_says_so_and_secrets_are_not_quoted() -> None:
    assert read("version: 1\nruns: [{rate: '2'}]\n", strict=False).runs == (Run(2.0),)
    for text, place in (("runs: [{rate: true}]", "runs[0].rate"), ("limits: {most: on}", "limits.most")):
        with pytest.raises(UserError, match=re.escape(f": {place}: ")):
            read(f"version: 1\n{text}\n", strict=False)
    with pytest.raises(UserError) as refused:
        read("version: 1\nruns: [{rate: hush}]\n", quote=False)
    assert "hush" not in str(refused.value)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"read.*none\.yaml"):
        read_document(tmp_path / "none.yaml", "the plan")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"read.*plan"):
        read_document(tmp_path / "bytes.yaml", "the plan")


def test_the_nearest_word_is_found_in_any_case_of_letters() -> None:
    assert closest("max_Batchh", ["MAX_BATCH", "other"]) == "MAX_BATCH"
    assert closest("zebra", ["cpu", "gpu"]) is None
    assert nearest("zebra", {"gpu", "cpu"}) == "; known are cpu, gpu"
