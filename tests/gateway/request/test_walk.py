"""The walk of one request through the gateway's files stays short and goes down."""

from __future__ import annotations

from scripts.trace_walk import request


def test_a_request_is_read_through_few_files_and_hardly_any_of_them_twice() -> None:
    walk = request()
    stays = walk.below("gateway")
    num_returns = len(stays) - len(set(stays))
    found = f"{len(stays)} stays, {num_returns} returns, other rooms as one place each: {stays}; file by file: {walk}"
    assert len(stays) <= 20, found
    assert num_returns <= 5, found
