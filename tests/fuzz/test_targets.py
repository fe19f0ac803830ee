"""Hundreds of wrong and odd inputs for everything that reads a client's bytes, the same ones in every run; and those once found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.protocol import v2
from serving.protocol.v2 import Binary, Head
from tests.fuzz.seeds import WORDS, seeds
from tests.fuzz.targets import TARGETS, Finding, v2_head, v2_json_tensors

FOUND = Path(__file__).parent / "found"  # <target>.<what it was>: bytes that were once a finding
MANY = settings(
    max_examples=100 if os.environ.get("THOROUGH") else 30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        ["timeout", "priority", "classification", "binary_data", "binary_data_size", "binary_data_output", "sequence_id",
         "shared_memory_region", "Shared_Memory_offset", "headers", "a"]
    ),
    JSON | st.integers(-2, 2000),
    max_size=3,
)  # fmt: skip
NUMBERS = st.lists(
    st.integers(-300, 300) | st.integers(-(2**64), 2**65) | st.floats(allow_nan=False, allow_infinity=False), max_size=6
)
TENSOR = st.fixed_dictionaries(
    {
        "name": st.just("x") | JSON,
        "shape": st.lists(st.integers(0, 6), max_size=3) | JSON,
        "datatype": st.sampled_from(["FP32", "FP64", "INT8", "INT64", "UINT8", "UINT64", "BOOL", "BYTES", "FP16"])
        | JSON,
    },
    optional={"data": NUMBERS | st.lists(NUMBERS, max_size=3) | JSON, "parameters": PARAMETERS | JSON},
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(TENSOR, max_size=3) | JSON},
    optional={"id": JSON, "parameters": PARAMETERS | JSON, "outputs": st.lists(TENSOR, max_size=2) | JSON},
)


@st.composite
def mutated(draw: st.DrawFn, target: str) -> bytes:
    """A seed with a few pieces cut out, put in or repeated."""
    data = draw(st.sampled_from(seeds(target)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from([b"", data[at:end] * 2]) | st.sampled_from(WORDS) | st.binary(max_size=4))
        data = data[:at] + piece + data[end:]
    return data


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_comes_is_read_or_refused(target: str) -> None:
    @MANY
    @given(mutated(target))
    def run(data: bytes) -> None:
        TARGETS[target](data)

    run()


@pytest.mark.parametrize("target", ["v2_head", "v2_explain", "v2_json_tensors"])
def test_json_of_the_right_form_and_any_content_is_read_or_refused(target: str) -> None:
    @MANY
    @given(REQUEST)
    def run(request: Any) -> None:
        TARGETS[target](json.dumps(request).encode())

    run()


@pytest.mark.parametrize("file", sorted(FOUND.glob("*")), ids=lambda file: file.name)
def test_what_was_once_found_is_found_no_more(file: Path) -> None:
    TARGETS[file.name.split(".")[0]](file.read_bytes())


def test_the_targets_would_find_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that looks at nothing lets these pass, and each is seen."""
    monkeypatch.setattr("serving.protocol.v2.check_head", lambda head, size=None: v2.Head({}))
    for bad in (
        b'{"inputs":[{"parameters":{"\\u0053hared_memory_region":"r"}}]}',
        b'{"inputs":[{"shape":[100000,100000]}]}',
        b'{"parameters":{"timeout":5}}',
        b'{"parameters":{"timeout":5},"parameters":{"shared_memory_x":1}}',
    ):
        with pytest.raises(Finding):
            v2_head(bad)


def test_the_target_of_json_tensors_would_find_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b'{"inputs":[{"name":"x","parameters":{"binary_data_size":4}}]}'
    wrong = Binary(head, Head({}), [[bytes(4)]])
    monkeypatch.setattr("serving.protocol.v2.to_binary", lambda *_: wrong)
    with pytest.raises(Finding, match="numbers"):
        v2_json_tensors(b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}')
