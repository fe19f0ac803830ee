"""Three pools of different size and price, and a model that only cards serve at first, on real processes behind simulated pods.

Order and far bounds are judged; the report has the seconds.
"""

from __future__ import annotations

import pytest

from tests.cluster.hybrid.chart import CPU, GPU
from tests.cluster.hybrid.three_pools import ALONE, FALLS, LARGE, LARGE_LOAD, SMALL_LOAD, errors, late
from tests.cluster.test_hybrid import RUN_S, Report, played

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(RUN_S + 30)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return played(tmp_path_factory.mktemp("three-pools"), "--three-pools")


def test_each_load_has_its_cheapest_mix_in_time_and_nothing_is_left(report: Report) -> None:
    print(report["marks"])
    assert not report["failed"]
    assert late(report) == []
    assert report["looks"][-1]["claims"] == 0


def test_a_model_that_only_cards_serve_wakes_one_and_is_told_not_to_be_ready_until_then(report: Report) -> None:
    assert errors(report) == []
    assert report["phases"][ALONE]["errors"] > 0, "those that came before a card were told so"
    assert set(report["phases"][ALONE]["pools"]) <= {GPU, LARGE}


def test_the_cards_answer_what_they_were_bought_for(report: Report) -> None:
    answers = {name: report["phases"][name]["pools"] for name in (SMALL_LOAD, LARGE_LOAD, FALLS)}
    assert answers[SMALL_LOAD].keys() == {CPU, GPU}
    assert answers[LARGE_LOAD][LARGE] > 0
    assert answers[FALLS][CPU] > 0
