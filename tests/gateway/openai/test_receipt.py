"""A request whose groups were answered in different places says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from serving.gateway.openai.embeddings import _receipt


def reply(pool: bytes, reason: bytes, began: float, answered: float) -> Any:
    receipt = [(b"tandem-pool", pool), (b"tandem-variant", b"fp32"), (b"tandem-reason", reason)]
    return SimpleNamespace(receipt=receipt, began=began, answered=answered)


def test_each_value_is_told_once_in_the_order_of_the_groups() -> None:
    replies = [
        reply(b"gpu", b"cheapest_in_time", 10.002, 10.010),
        reply(b"cpu", b"spill", 10.003, 10.030),
        reply(b"gpu", b"cheapest_in_time", 10.011, 10.015),
    ]
    told = dict(_receipt(replies, 10.0, 10.001))
    assert told[b"tandem-pool"] == b"gpu, cpu"
    assert told[b"tandem-variant"] == b"fp32"
    assert told[b"tandem-reason"] == b"cheapest_in_time, spill"
    timing = dict(part.split(b";dur=") for part in told[b"server-timing"].split(b", "))
    assert (timing[b"prepare"], timing[b"queue"], timing[b"backend"]) == (b"1.000", b"1.000", b"28.000")
