"""The walk of one request through the gateway's files stays short and goes down."""

from __future__ import annotations

from scripts.trace_walk import request


def test_a_request_is_read_through_few_files_and_hardly_any_of_them_twice() -> None:
    stays = request().below("gateway")
    assert len(stays) <= 20, stays
    assert len(stays) - len(set(stays)) <= 5, stays
