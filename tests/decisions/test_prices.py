"""Prices of a million requests, the shipped list, lists of one's own over it, and what is wrong with a list, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from serving.decisions.prices import SHIPPED, exact, is_less, per_million, read_price_lists, read_prices
from serving.errors import UserError

OFFER = {"name": "rack", "per_hour": 0.05, "num_vcpus": 8}
GOOD = {"version": 1, "name": "mine", "source": "the bill", "date": "2026-11-01", "currency": "$", "offers": [OFFER]}


def write(tmp_path: Path, *, file: str = "mine.yaml", **change: object) -> Path:
    path = tmp_path / file
    path.write_text(yaml.safe_dump({key: value for key, value in {**GOOD, **change}.items() if value is not None}))
    return path


def test_the_shipped_list_says_whose_prices_of_which_day_and_holds_what_was_looked_up() -> None:
    prices = read_prices(None)
    assert (prices.date, prices.currency) == ("2026-07-20", "$")
    assert "AWS" in prices.source
    told = {offer.name: offer.per_hour for offer in prices.offers}
    assert (told["c7i.xlarge"], told["c7a.xlarge"], told["g4dn.xlarge"]) == (0.1785, 0.20528, 0.526)
    assert told["p5en.48xlarge"] / 8 == pytest.approx(7.912)
    assert SHIPPED.is_relative_to(Path(__file__).parents[2] / "serving"), "or no wheel has it"


def test_a_later_file_adds_and_replaces_and_the_oldest_day_counts(tmp_path: Path) -> None:
    mine = write(tmp_path, offers=[OFFER, {"name": "c7i.xlarge", "per_hour": 0.1, "num_vcpus": 4}])
    prices = read_price_lists([None, mine])
    told = {offer.name: offer.per_hour for offer in prices.offers}
    assert (told["rack"], told["c7i.xlarge"], told["g4dn.xlarge"]) == (0.05, 0.1, 0.526)
    assert (prices.date, prices.name) == ("2026-07-20", "AWS us-east-1, mine")
    assert [offer.name for offer in read_price_lists([mine]).offers] == ["rack", "c7i.xlarge"]
    assert read_price_lists([]) == read_prices(None)


def test_prices_in_two_currencies_never_meet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prices.*AWS us-east-1"):
        read_price_lists([None, write(tmp_path, currency="€")])


def test_an_unquoted_day_is_a_day(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("'2026-11-01'", "2026-11-01"))
    assert read_prices(path).date == "2026-11-01"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "not a price list of version 1"),
        ({"version": None}, "not a price list of version 1"),
        ({"curency": "$"}, "unknown key 'curency'; did you mean 'currency'?"),
        ({"date": "monday"}, "'monday' is no day such as 2026-07-20"),
        ({"date": None}, "'date' is missing"),
        ({"offers": []}, "offers: there is none"),
        ({"offers": [OFFER, OFFER]}, "rack is there twice"),
        ({"offers": [{**OFFER, "perhour": 1}]}, "offers[0]: unknown key 'perhour'; did you mean 'per_hour'?"),
        ({"offers": [{**OFFER, "per_hour": 0}]}, "a price is a number above 0"),
        ({"offers": [{**OFFER, "device": "gpu"}]}, "a gpu offer its cards"),
        ({"offers": [{**OFFER, "device": "gpu", "num_cards": 1}]}, "a gpu offer says which card it has"),
        ({"offers": [{**OFFER, "card": "T4"}]}, "and no other does"),
        ({"offers": [{**OFFER, "device": "tpu"}]}, "offers[0].device"),
        ({"offers": ["rack"]}, "offers[0]"),
    ],
)
def test_a_wrong_list_is_one_sentence_with_the_place_and_the_nearest_word(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    path = write(tmp_path, **change)
    with pytest.raises(UserError, match=r"mine\.yaml") as error:
        read_prices(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"read.*price"):
        read_prices(tmp_path / "none.yaml")


def test_a_million_requests_cost_the_time_that_they_take() -> None:
    assert per_million(3.6, 1000.0) == pytest.approx(1.0)
    assert per_million(0.526, 5808) == pytest.approx(0.025, abs=0.0005)  # an anchor: ResNet-50 on a T4


def test_three_servers_at_ten_cents_cost_as_much_as_one_at_thirty() -> None:
    assert 3 * 0.1 != 0.3
    assert 3 * exact(0.1) == exact(0.3)


def test_prices_that_differ_by_what_floats_leave_are_the_same() -> None:
    six_of_six = 6 * exact(3.4 / 6)
    assert not is_less(six_of_six, exact(3.4))
    assert not is_less(exact(3.4), six_of_six)
    assert is_less(exact(3.39), exact(3.4))
