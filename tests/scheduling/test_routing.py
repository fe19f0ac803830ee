"""Where a request goes: tables, and properties over random fleets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import BadRequest, NotFound, NotReady, RequestError
from serving.scheduling.routing import (
    Decision,
    Fleet,
    Pins,
    Pool,
    Variant,
    chosen_digest,
    decide,
    declared_spaces,
    preference_for,
    preferred,
)


def variant(
    precision: str, *, model: str = "digits", speed: float | None = None, by_hand: bool | None = None
) -> Variant:
    return Variant(f"{model}-{precision}", model, precision, "cpu", "00", "cpu", speed, by_hand)


FP32, INT8, FAST_INT8, FP16 = variant("fp32"), variant("int8"), variant("int8", speed=1.8), variant("fp16")
CPU = Pool("cpu", True, (FP32, FAST_INT8))
GPU = Pool("gpu", True, (FP32, FP16))
BOTH = Fleet((CPU, GPU), frozenset({"digits", "digits-fp32", "digits-int8", "digits-fp16"}))
# The CPU pool came back and has loaded nothing of digits yet.
OTHER = variant("fp32", model="other")
RELOADING = Fleet((Pool("cpu", True, (OTHER,), (*CPU.variants, OTHER)), GPU), BOTH.known)


@pytest.mark.parametrize(
    ("variants", "chosen", "why"),
    [
        ([FP32], "fp32", "none_measured_faster"),
        ([FP32, INT8], "fp32", "none_measured_faster"),  # unmeasured, or not clearly faster
        ([INT8, FP32], "fp32", "none_measured_faster"),
        ([variant("fp32", speed=1.0), INT8], "fp32", "none_measured_faster"),
        ([FP32, FAST_INT8], "int8", "measured_fastest"),
        ([FP32, FAST_INT8, variant("bf16", speed=2.5)], "bf16", "measured_fastest"),
        ([INT8], "int8", "only_variant"),
        ([variant("fp32", by_hand=True), variant("int8", speed=1.8, by_hand=False)], "fp32", "named_by_hand"),
        ([variant("fp32", by_hand=False), variant("int8", by_hand=True)], "int8", "named_by_hand"),
    ],
)
def test_a_public_name_means_the_variant_its_gates_prefer_and_says_why(
    variants: list[Variant], chosen: str, why: str
) -> None:
    found = preferred(variants)
    assert found is not None
    assert (found.variant, preference_for(found)) == (chosen, why)


def vectors(precision: str, space: str, *, speed: float | None = None, by_hand: bool | None = None) -> Variant:
    return replace(variant(precision, model="minilm", speed=speed, by_hand=by_hand), space=space)


def told(*variants: Variant, among: Sequence[Variant] = (), in_repository: str | None = None) -> list[Variant]:
    """With what is known of all spaces."""
    spaces = declared_spaces([*variants, *among], {"minilm": in_repository} if in_repository else {})
    return [replace(v, in_space=v.space == spaces[v.model]) for v in variants]


SHARED, OWN = "one", "another"  # what a space is called says nothing
FP32_VECTORS, OWN_VECTORS = vectors("fp32", SHARED), vectors("int8", OWN, speed=2.5)


@pytest.mark.parametrize(
    ("variants", "chosen"),
    [
        (told(FP32_VECTORS, OWN_VECTORS), "fp32"),
        (told(FP32_VECTORS, vectors("bf16", SHARED, speed=1.9), OWN_VECTORS), "bf16"),
        (told(FP32_VECTORS, vectors("int8", SHARED, speed=2.5)), "int8"),
        (told(vectors("fp32", SHARED, by_hand=False), vectors("int8", OWN, by_hand=True)), "int8"),
        (told(OWN_VECTORS), "int8"),  # nobody has another
        (told(OWN_VECTORS, vectors("bf16", SHARED), vectors("fp16", SHARED)), "fp16"),  # without FP32 what most have
        (told(OWN_VECTORS, among=[FP32_VECTORS]), None),  # FP32 is on another pool, or was
        (told(OWN_VECTORS, in_repository=SHARED), None),  # or will be: nobody has shown it since the start
        (told(OWN_VECTORS, vectors("bf16", SHARED), in_repository=SHARED), "bf16"),
        (told(FP32_VECTORS, OWN_VECTORS, in_repository="of an earlier export"), "fp32"),
    ],
)
def test_a_public_name_never_means_vectors_of_another_space_unless_by_hand(
    variants: list[Variant], chosen: str | None
) -> None:
    found = preferred(variants)
    assert (found.variant if found else None) == chosen


def test_vectors_of_another_space_are_never_given_under_the_public_name_when_its_own_are_away() -> None:
    [own] = told(OWN_VECTORS, among=[FP32_VECTORS])
    fleet = Fleet((Pool("cpu", True, (own,)), Pool("gpu", False, (FP32_VECTORS,))), frozenset({"minilm"}))
    with pytest.raises(NotReady):
        decide(fleet, "minilm")
    assert [d.variant.variant for d in decide(fleet, "minilm", Pins(variant="int8"))] == ["int8"]
    assert [d.variant.variant for d in decide(fleet, "minilm-int8")] == ["int8"]


@pytest.mark.parametrize(
    ("fleet", "name", "pins", "expected"),
    [
        (Fleet((CPU,)), "digits", Pins(), [("cpu", "int8", "only_pool")]),
        (BOTH, "digits", Pins(), [("cpu", "int8", "first_ready"), ("gpu", "fp32", "next_ready")]),
        (BOTH, "digits-fp32", Pins(), [("cpu", "fp32", "pinned"), ("gpu", "fp32", "pinned")]),
        (BOTH, "digits-fp16", Pins(), [("gpu", "fp16", "pinned")]),
        (BOTH, "digits", Pins(pool="gpu"), [("gpu", "fp32", "pinned")]),
        (BOTH, "digits", Pins(variant="fp16"), [("gpu", "fp16", "pinned")]),
        (BOTH, "digits", Pins(pool="gpu", variant="fp16"), [("gpu", "fp16", "pinned")]),
        (BOTH, "digits-int8", Pins(variant="int8"), [("cpu", "int8", "pinned")]),
        (Fleet((Pool("cpu", False, (FP32,)), GPU)), "digits", Pins(), [("gpu", "fp32", "only_pool")]),
    ],
)
def test_requests_go_where_they_should(
    fleet: Fleet, name: str, pins: Pins, expected: list[tuple[str, str, str]]
) -> None:
    assert [(d.pool, d.variant.variant, d.reason) for d in decide(fleet, name, pins)] == expected


@pytest.mark.parametrize(
    ("fleet", "name", "pins", "error", "said"),
    [
        (BOTH, "digit", Pins(), NotFound, "no model 'digit'"),
        (BOTH, "digits", Pins(pool="tpu"), BadRequest, "cpu, gpu"),
        (BOTH, "digits", Pins(variant="bf16"), BadRequest, "fp16, fp32, int8"),
        (
            BOTH,
            "digits",
            Pins(pool="cpu", variant="fp16"),
            BadRequest,
            "as fp16 is not served by pool 'cpu'; it is by: gpu",
        ),
        (BOTH, "digits-int8", Pins(variant="fp32"), BadRequest, "contradict"),
        (BOTH, "digits-int8", Pins(pool="gpu"), BadRequest, "by: cpu"),
        (RELOADING, "digits", Pins(pool="cpu"), NotReady, "not ready"),
        (RELOADING, "digits-int8", Pins(), NotReady, "not ready"),
        (RELOADING, "digits", Pins(variant="int8"), NotReady, "int8"),
        (RELOADING, "digits-int8", Pins(pool="cpu"), NotReady, "not ready"),
        (RELOADING, "digits", Pins(pool="cpu", variant="bf16"), BadRequest, "fp16, fp32, int8"),
        (RELOADING, "digits", Pins(pool="cpu", variant="fp16"), BadRequest, "it is by: gpu"),
        (Fleet((CPU, Pool("gpu", False)), frozenset({"digits"})), "digits", Pins(pool="gpu"), NotReady, "not ready"),
        (Fleet((Pool("cpu", False, (FP32,)),), frozenset({"digits"})), "digits", Pins(), NotReady, "not ready"),
        (Fleet((Pool("cpu", True, ()),), frozenset({"digits"})), "digits", Pins(), NotReady, "not ready"),
        (
            Fleet((Pool("cpu", False),)),
            "anything",
            Pins(),
            NotReady,
            "not ready",
        ),  # nothing was ever seen: still starting
    ],
)
def test_requests_that_go_nowhere_say_why(
    fleet: Fleet, name: str, pins: Pins, error: type[RequestError], said: str
) -> None:
    with pytest.raises(error) as raised:
        decide(fleet, name, pins)
    assert said in str(raised.value)
    assert (raised.value.retry_after_s is not None) == (error is NotReady)


PRECISIONS = st.sampled_from(["fp32", "fp16", "int8", "bf16"])
VARIANTS = st.builds(
    variant, PRECISIONS, model=st.sampled_from(["digits", "other"]), speed=st.none() | st.floats(1.0, 9.0)
)
POOLS = st.builds(
    Pool, st.sampled_from(["cpu", "gpu", "third"]), st.booleans(), st.lists(VARIANTS, max_size=5).map(tuple)
)
FLEETS = st.builds(Fleet, st.lists(POOLS, max_size=3, unique_by=lambda p: p.name).map(tuple))
NAMES = st.sampled_from(["digits", "digits-int8", "other", "other-fp16", "nobody"])
PINS = st.builds(Pins, st.none() | st.sampled_from(["cpu", "gpu"]), st.none() | PRECISIONS)


@given(FLEETS, NAMES, PINS)
def test_nothing_is_ever_sent_to_a_pool_that_is_down_or_lacks_the_variant_or_against_a_pin(
    fleet: Fleet, name: str, pins: Pins
) -> None:
    try:
        decisions = decide(fleet, name, pins)
    except RequestError:
        return
    pools = {pool.name: pool for pool in fleet.pools}
    assert decisions
    for d in decisions:
        assert isinstance(d, Decision)
        assert pools[d.pool].ready
        assert d.variant in pools[d.pool].variants
        assert name in (d.variant.model, d.variant.name)
        assert pins.pool in (None, d.pool)
        assert pins.variant in (None, d.variant.variant)
    assert decisions == decide(fleet, name, pins)


@pytest.mark.parametrize(
    ("num_servers", "before", "chosen"),
    [
        ({"old": 3}, None, "old"),
        ({"old": 2, "new": 1}, "old", "old"),  # a roll-out begins
        ({"old": 2, "new": 2}, "old", "old"),  # half-way: no move without need
        ({"old": 1, "new": 2}, "old", "new"),
        ({"old": 1, "new": 2}, "new", "new"),
        ({"old": 2, "new": 2}, "new", "new"),  # a rollback begins
        ({"old": 3, "new": 1}, "new", "old"),
        ({"old": 2, "new": 2}, None, "new"),  # a gateway without a past: the first by its letters
        ({"b": 1, "a": 1}, "gone", "a"),  # what had the requests is served no more
        ({"new": 1}, "old", "new"),  # all servers of the other have died
    ],
)
def test_of_several_digests_the_one_that_most_servers_have_gets_the_requests(
    num_servers: dict[str, int], before: str | None, chosen: str
) -> None:
    assert chosen_digest(num_servers, before) == chosen
    assert chosen_digest(dict(reversed(num_servers.items())), before) == chosen
