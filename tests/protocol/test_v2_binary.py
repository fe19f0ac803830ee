"""Binary requests always have parameters: the short way past them must refuse exactly what the long way refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from serving.errors import RequestError
from serving.protocol import v2

DECOY = '"parameters":{"binary_data":true}'


def binary(given: object, name: str = "x", datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    """The JSON part of a request whose tensor follows it."""
    return {"inputs": [{"name": name, "shape": [1, 2], "datatype": datatype, "parameters": given}], **more}


def refusal(request: dict[str, Any], *, long_way: bool = False) -> str | None:
    """`long_way`: an escape in it makes sure that it is parsed."""
    text = json.dumps(request)
    if long_way:
        text = text[:-1] + ', "id": "\\u0041"}'
    try:
        v2.check_head(text.encode())
    except RequestError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "request_",
    [
        binary({"binary_data_size": 8}),
        binary({"binary_data_size": 8}, outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
        binary({"binary_data_size": 8}, parameters={"binary_data_output": True}),
        binary({"binary_data_size": 8}, datatype="INT64"),
        binary({"binary_data_size": 8}, name=DECOY),
        binary({"binary_data_size": 8}, parameters={"mine": 1}),
    ],
)
def test_what_binary_requests_say_passes(request_: dict[str, Any]) -> None:
    assert refusal(request_) is None


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (binary({"shared_memory_region": "r"}), "shared memory"),
        (binary({"binary_data_size": 8, "shared_memory_region": "r"}), "shared memory"),
        (binary({"shared_memory_offset": 0, "binary_data_size": 8}), "shared memory"),
        (
            binary({"binary_data_size": 8}, outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]),
            "outputs[0]",
        ),
        (binary({"binary_data_size": 8}, parameters={"sequence_id": 1}), "sequence"),
        (binary({"binary_data_size": 8}, parameters={"binary_data_output": True, "triton_x": 1}), "reserved"),
        (binary({"shared_memory_region": "r"}, name=DECOY), "shared memory"),
        (binary({"shared_memory_region": DECOY}), "shared memory"),
        (binary({"shared_memory_region": "r"}, id=DECOY.replace('"', "'")), "shared memory"),
        (binary({"binary_data_size": {"shared_memory_region": 1}}, parameters={"headers": 1}), "reserved"),
    ],
)
def test_what_hides_among_them_is_refused(request_: dict[str, Any], said: str) -> None:
    assert said in str(refusal(request_))


NAMES = st.sampled_from(
    ["binary_data_size", "binary_data", "binary_data_output", "shared_memory_region", "timeout", "mine"]
)
VALUES = st.one_of(
    st.integers(-1, 9), st.booleans(), st.none(), st.just(DECOY), st.just({"parameters": {"binary_data": True}})
)
PARAMETERS = st.one_of(st.none(), st.dictionaries(NAMES, VALUES, max_size=2))


@drawn(PARAMETERS, PARAMETERS, PARAMETERS, st.sampled_from(["x", DECOY, "parameters"]))
def test_the_short_way_and_the_long_way_agree(first: object, second: object, top: object, name: str) -> None:
    request = binary(first, name, outputs=[{"name": "y", "parameters": second}], parameters=top)
    assert refusal(request) == refusal(request, long_way=True)
