"""What a verdict says: one paragraph, from values, that names whose figures it rests on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from loadtest.verdict import page
from loadtest.verdict.report import Source
from serving.decisions.prices import Offer
from serving.decisions.profile import LoadPoint, MaxRate
from tests.loadtest.verdict.made import (
    HERE,
    OBJECTIVE_S,
    PRICES,
    THERE,
    a_check,
    cpu_profile,
    gpu_profile,
    made,
    rate,
    server,
)


def test_the_paragraph_names_the_variant_its_p99_its_price_and_from_where_a_card_pays() -> None:
    said = made(check=a_check(200)).paragraph
    on_cpu, card = said.split("; ", 1)
    assert re.findall(r"does not pay|INT8|\$?\d[\d.]*(?:/s| ms)?", on_cpu)[:5] == [
        "does not pay",
        "INT8",
        "0.9822",  # its accuracy
        "200/s",
        "99",
    ]
    assert "7.1 ms" in on_cpu
    assert "$0.18 " in on_cpu
    assert re.search(r"T4 \(t4\.large, \$0\.53 .*Processor Y .*3 October 2026\).* 840/s", card)


def test_a_card_that_pays_beside_cpus_alone_is_not_said_to_pay_from_a_higher_rate_on() -> None:
    card = gpu_profile(servers=(server("fp16", "cuda", "gpu", rate(2000, spread=0.001), 0.002),))
    slow = cpu_profile(servers=(server("int8", "cpu", "cpu", rate(400, spread=0.001), 0.002),))
    dear = replace(PRICES, offers=(PRICES.offers[0], replace(PRICES.offers[1], per_hour=0.8)))
    sources = Source(slow, "here"), Source(card, "given", "t4.json")
    report = made(*sources, rates=((24, 1650.0),), prices=dear)
    assert report.verdict.break_even_rps is not None
    assert report.verdict.break_even_rps > 1650
    assert report.word == "pays"
    assert "cards alone" in report.paragraph


def test_of_several_cards_the_one_that_pays_first_is_named_and_not_the_one_that_is_cheapest_when_full() -> None:
    """MLPerf's L40S was said to pay from 252/s on at $1.86 an hour, where it was the A10G at $1.01."""
    big = replace(server("fp16", "cuda", "gpu", rate(60_000), 0.002), device_name="NVIDIA L40S")
    offers = (*PRICES.offers, Offer("l40s.large", 1.86, 4, "gpu", 1, "L40S"))
    sources = [Source(cpu_profile(), "here"), Source(gpu_profile(), "given", "t4.json")]
    sources.append(
        Source(gpu_profile(servers=(big,), machine=replace(THERE, cards=("NVIDIA L40S",))), "given", "l40s.json")
    )
    said = made(*sources, prices=replace(PRICES, offers=offers)).paragraph
    assert re.search(r"T4 \(t4\.large, \$0\.53 .* 840/s", said)
    assert "L40S" not in said
    assert "l40s.large, t4.large" in page.render(made(*sources, prices=replace(PRICES, offers=offers)))


def test_published_figures_are_told_with_whose_they_are() -> None:
    note = "MLPerf Inference, datacenter, server scenario. Tandem did not measure it."
    card = Source(gpu_profile(provenance="published", note=note), "shipped", "x.json")
    said = made(Source(cpu_profile(), "here"), card).paragraph
    assert "MLPerf Inference, 21 November 2026" in said
    other = replace(card, profile=replace(card.profile, note="MLPerf Inference, another.", machine=HERE))
    unpriced = replace(
        other, profile=replace(other.profile, servers=(replace(other.profile.servers[0], device_name="NVIDIA H9"),))
    )
    told = made(Source(cpu_profile(), "here"), card, unpriced).caveats
    assert sum("server scenario" in one for one in told) == 1  # once, though the plan tells it too
    assert any(one.startswith("NVIDIA H9: ") for one in told)


@pytest.mark.parametrize(
    ("said", "words"), [(True, "before the server's own work"), (False, "could make it late"), (None, "of them.")]
)
def test_a_check_says_whether_its_generator_went_before_all_other_work(said: bool | None, words: str) -> None:
    assert any(words in one for one in made(check=a_check(200, is_real_time=said)).caveats)


def test_without_a_check_it_is_planned_and_not_said_to_be_served() -> None:
    said = made(not_run="--no-check was given").paragraph
    assert re.search("serve 200/s .* 20 ms", said)
    assert "--no-check was given" in said


def test_a_void_check_is_said_and_its_p99_is_not() -> None:
    void = a_check(200, void="the generator lagged", voids=("the generator lagged",), is_met=False)
    report = made(check=void)
    assert "7.1 ms" not in report.paragraph
    assert ": the generator lagged." in report.paragraph
    assert "p99_s" not in report.numbers
    assert report.is_met  # nobody has seen it miss


def test_a_check_that_missed_is_said_and_fails() -> None:
    report = made(check=a_check(200, is_met=False, late_or_lost_ratio=0.034))
    assert "3.4% of the answers" in report.paragraph
    assert not report.is_met


def test_a_missing_card_says_how_to_get_its_profile() -> None:
    report = made(Source(cpu_profile(), "here"))
    assert report.word == "inconclusive"
    assert re.search("GPU.*`tandem profile digits`.*--profile", report.paragraph)


def test_a_profile_for_another_objective_says_which_one_is_missing() -> None:
    other = replace(rate(6000), objective_s=0.1)
    card = gpu_profile(servers=(server("fp16", "cuda", "gpu", other, 0.002),))
    report = made(Source(cpu_profile(), "here"), Source(card, "given", "t4.json"))
    assert re.search("GPU.*`tandem profile digits --p99 20ms`", report.paragraph)


@pytest.mark.parametrize(
    ("provenance", "says"),
    [("published", "published figures"), ("emulated", "emulated: its times follow a file")],
)
def test_figures_from_a_file_are_a_what_if_and_never_pay(provenance: str, says: str) -> None:
    for at, answer in ((200.0, "the GPU would not pay."), (3000.0, "the GPU would pay.")):
        report = made(
            Source(cpu_profile(), "here"),
            Source(gpu_profile(provenance=provenance), "given", "x.json"),
            rates=((24, at),),
        )
        assert report.word == "inconclusive (what-if)"
        assert report.paragraph.startswith("Inconclusive (what-if): ")
        assert says in report.paragraph
        assert f"files hold, {answer}" in report.paragraph
        assert "the gpu pays" not in page.render(report).lower()


def test_where_nothing_meets_the_objective_the_best_that_was_seen_is_told() -> None:
    slow = cpu_profile(servers=(server("int8", "cpu", "cpu", MaxRate(OBJECTIVE_S, 1, 0.0, None, None), 0.05, load=()),))
    report = made(Source(slow, "here"))
    assert not report.is_met
    assert re.search("200/s .* 20 ms", report.paragraph)


def test_one_run_of_each_rate_is_too_few_and_says_so() -> None:
    few = cpu_profile(servers=(server("int8", "cpu", "cpu", rate(600, num_runs=1), 0.003),))
    report = made(Source(few, "here"), Source(gpu_profile(), "given", "t4.json"))
    assert report.word == "inconclusive"
    assert "int8 on cpu, 2 × 2: 1, " in report.paragraph


def test_a_day_that_lies_on_both_sides_of_the_break_even_depends_and_says_on_what() -> None:
    report = made(rates=((16, 100), (8, 3000)))
    assert report.word == "depends"
    assert re.search("GPU is cheaper .*3,000/s", report.paragraph)


def test_random_weights_and_shares_of_a_machine_are_caveats() -> None:
    untrained = cpu_profile(servers=(server("int8", "cpu", "cpu", rate(600), 0.003, is_untrained=True),))
    said = " ".join(made(Source(untrained, "here")).caveats)
    assert "random weights" in said.lower() or "weights are random" in said.lower()


def test_a_card_without_a_price_says_how_to_give_one() -> None:
    without = replace(PRICES, offers=PRICES.offers[:1])
    report = made(prices=without)
    assert report.word == "inconclusive"
    assert re.search("'NVIDIA T4'.*--instance gpu=NAME", report.paragraph)


def test_a_slow_model_whose_rate_stands_on_few_requests_is_inconclusive_and_says_so() -> None:
    """Three runs of sixteen requests, none late, told a p99 of one in a hundred."""
    slow = rate(1.0)
    few = tuple(LoadPoint(run, 1, 16, run, 0.003, None, 0, OBJECTIVE_S, True) for run in slow.runs)
    cpu = cpu_profile(servers=(server("int8", "cpu", "cpu", slow, 0.003, load=few),))
    report = made(Source(cpu, "here"), Source(gpu_profile(), "given", "t4.json"), rates=((24, 0.5),))
    assert report.word == "inconclusive"
    assert re.search(r"\b48\b.* p99 .*\b299\b", report.paragraph)
    many = tuple(replace(point, num_due=100) for point in few)
    cpu = cpu_profile(servers=(server("int8", "cpu", "cpu", slow, 0.003, load=many),))
    assert (
        made(Source(cpu, "here"), Source(gpu_profile(), "given", "t4.json"), rates=((24, 0.5),)).word == "does_not_pay"
    )


def test_a_price_whose_machine_is_guessed_says_so_beside_it() -> None:
    family = replace(cpu_profile(), machine=replace(cpu_profile().machine, processor="Processor"))
    assert "a guess" not in made(Source(cpu_profile(), "here")).sentence
    known = replace(PRICES, offers=(replace(PRICES.offers[0], processor="Else 5"), *PRICES.offers[1:]))
    said = made(Source(family, "here"), prices=known).sentence
    assert f"an hour (a guess: priced as {PRICES.offers[0].name})" in said
