"""What an hour of the machine costs that was measured on."""

from __future__ import annotations

import pytest

from loadtest.claims.experiments import prices
from serving.decisions.prices import Offer, PriceList, read_prices
from serving.measure.machine import Machine

SETS = ("avx512_vnni", "avx512_bf16")


def test_a_processor_costs_its_cores_share_of_the_offer_that_has_it() -> None:
    (price,) = prices(read_prices(None), Machine("AMD EPYC 9R14", SETS, 2.0, "Linux"))
    assert price.offer == "c7a.xlarge"
    assert price.per_hour == pytest.approx(0.20528 / 2)
    assert price.date == "2026-07-20"


@pytest.mark.parametrize(
    ("processor", "words"), [("AMD EPYC", "names its family alone"), ("Loongson 3A6000", "a guess: no offer")]
)
def test_an_offer_that_may_be_of_another_processor_says_so(processor: str, words: str) -> None:
    (price,) = prices(read_prices(None), Machine(processor, SETS, 2.0, "Linux"))
    assert words in price.offer


def test_a_card_costs_its_part_of_an_offer_with_several() -> None:
    machine = Machine("AMD EPYC 9R14", SETS, 2.0, "Linux", ("Tesla T4, driver 570, 16 GB",))
    listed = PriceList("l", "s", "2026-01-01", "$", (Offer("four", 4.0, 96, "gpu", 4, "T4"),))
    (price,) = prices(listed, machine)
    assert (price.device, price.per_hour) == ("gpu", 1.0)


def test_a_card_that_is_not_on_the_list_has_no_price() -> None:
    machine = Machine("AMD EPYC 9R14", SETS, 2.0, "Linux", ("Radeon, driver 1, 8 GB",))
    assert [price.device for price in prices(read_prices(None), machine)] == ["cpu"]
