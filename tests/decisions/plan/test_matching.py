"""Which offer stands for a machine: by its words, by its family and instruction sets, by hand; a card for no other card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.decisions.prices import Match, Offer, PriceList, match, pool_of, read_prices
from serving.measure.machine import Machine
from tests.decisions.plan.figures import EPYC, PRICES, T4, profile, server

SHIPPED = read_prices(None)
ZEN4 = ("avx2", "avx512_vnni", "avx512_bf16")
SPR = (*ZEN4, "avx_vnni", "amx_int8")


def cpu(name: str, sets: tuple[str, ...] = (), cores: float = 4.0, prices: PriceList = SHIPPED) -> Match | None:
    made = profile(server("cpu", 100), machine=Machine(name, sets, cores, "Linux"))
    return match(made, made.servers[0], prices)


def gpu(name: str, cores: float = 4.0) -> Match | None:
    made = profile(server("gpu", 100, device_name=name), machine=replace(T4, cards=(), num_cores=cores))
    return match(made, made.servers[0], SHIPPED)


@pytest.mark.parametrize(
    ("name", "sets", "offer", "fit"),
    [
        ("AMD EPYC 9R14", (), "c7a.xlarge", "named"),
        ("Intel(R) Xeon(R) Platinum 8488C", (), "c7i.xlarge", "named"),
        ("Intel(R) Xeon(R) 6975P-C", (), "c8i.4xlarge", "named"),
        ("aarch64 implementer 0x41 part 0xd4f", (), "c8g.4xlarge", "named"),
        ("AMD EPYC", ZEN4, "c7a.xlarge", "alike"),
        ("AMD EPYC Processor", (*ZEN4, "avx_vnni"), "c8a.4xlarge", "alike"),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", SPR, "c7i.xlarge", "alike"),
        ("unknown", SPR, "c7i.xlarge", "alike"),
        ("AMD EPYC 7742 64-Core Processor", ZEN4, None, "guess"),
        ("AMD EPYC", ("avx2",), None, "guess"),
        ("Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", ("avx512_vnni",), None, "guess"),
    ],
)
def test_a_processor_is_found_by_its_name_else_by_family_and_instruction_sets_else_it_is_a_guess(
    name: str, sets: tuple[str, ...], offer: str | None, fit: str
) -> None:
    found = cpu(name, sets)
    assert found is not None
    assert found.fit == fit
    assert offer is None or found.offer.name == offer


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("Tesla T4", "g4dn.xlarge"),
        ("NVIDIA A10G", "g5.xlarge"),
        ("NVIDIA L4", "g6.xlarge"),
        ("NVIDIA L40S", "g6e.xlarge"),
        ("NVIDIA A100-SXM4-40GB", "p4d.24xlarge"),
        ("NVIDIA A100-SXM4-80GB", "p4de.24xlarge"),
        ("NVIDIA H100 80GB HBM3", "p5.4xlarge"),
        ("NVIDIA H200", "p5en.48xlarge"),
        ("NVIDIA A10", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_card_is_its_own_and_no_other(name: str, offer: str | None) -> None:
    found = gpu(name)
    assert (found and found.offer.name) == offer


@pytest.mark.parametrize(("device", "engine"), [("emulated-t4", "cpu"), ("emulated-gpu", "emulated-t4")])
def test_an_emulated_card_is_the_one_that_its_file_is_named_for(device: str, engine: str) -> None:
    made = profile(server(device, 100, engine=engine, device_name="AMD EPYC"), machine=EPYC)
    found = match(made, made.servers[0], SHIPPED)
    assert found is not None
    assert found.offer.name == "g4dn.xlarge"


def test_a_card_of_eight_costs_its_share() -> None:
    found = gpu("NVIDIA H200", cores=16)
    assert found is not None
    assert (found.share, found.per_hour, found.lacks_cores) == (1 / 8, pytest.approx(7.912), False)


def test_a_machine_with_as_many_cores_is_taken_where_there_is_one_and_told_where_there_is_none() -> None:
    more, too_many = gpu("Tesla T4", cores=8), gpu("Tesla T4", cores=64)
    assert more is not None
    assert too_many is not None
    assert (more.offer.name, more.lacks_cores) == ("g4dn.2xlarge", False)
    assert (too_many.offer.name, too_many.lacks_cores) == ("g4dn.xlarge", True)


@pytest.mark.parametrize(("cores", "offer", "share"), [(2, "c7a.xlarge", 0.5), (16, "c7a.4xlarge", 1.0), (0, "c7a.xlarge", 1.0)])  # fmt: skip
def test_cores_are_a_share_of_an_offer_that_has_as_many(cores: float, offer: str, share: float) -> None:
    found = cpu("AMD EPYC 9R14", cores=cores)
    assert found is not None
    assert (found.offer.name, found.share) == (offer, share)


def test_an_offer_of_ones_own_without_a_processor_stands_for_any_that_no_other_names() -> None:
    own = replace(SHIPPED, offers=(*SHIPPED.offers, Offer("rack", 0.05, 8)))
    unknown, known = cpu("Core i7", prices=own), cpu("AMD EPYC 9R14", prices=own)
    assert unknown is not None
    assert known is not None
    assert (unknown.offer.name, unknown.fit) == ("rack", "any")
    assert known.offer.name == "c7a.xlarge"


def test_an_offer_named_by_hand_goes_before_all_words_and_only_for_its_pool() -> None:
    made = profile(server("cpu", 100), machine=EPYC)
    found = match(made, made.servers[0], SHIPPED, {"cpu": "c7i.xlarge", "gpu": "g6.xlarge"})
    assert found is not None
    assert (found.offer.name, found.fit) == ("c7i.xlarge", "chosen")


def test_without_a_machine_of_the_kind_there_is_no_price() -> None:
    assert cpu("AMD EPYC 9R14", prices=replace(PRICES, offers=PRICES.offers[1:])) is None


@pytest.mark.parametrize(
    ("device", "pool"),
    [("cpu", "cpu"), ("gpu", "gpu"), ("emulated-gpu", "gpu"), ("emulated-t4", "gpu"), ("emulated-cpu", "cpu")],
)
def test_an_emulated_device_is_of_the_kind_that_its_name_tells(device: str, pool: str) -> None:
    assert pool_of(server(device, 1)) == pool
