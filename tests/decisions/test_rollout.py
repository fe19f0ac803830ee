"""What a candidate is judged to be, out of blocks of requests."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from serving.decisions import rollout_report
from serving.decisions.rollout import (
    Arm,
    Block,
    Judge,
    Judgement,
    Losses,
    Margins,
    Outcome,
    judged,
    superiority,
)

NUM = 40  # requests of an arm in a block
COPIES = rollout_report.copies_text(12.34, 0.0056)


def blocks(
    num: int,
    *,
    wrong: float = 0.0,
    slower: float = 1.0,
    failed: float = 0.0,
    dearer: float = 1.0,
    replicas: Sequence[str] = ("a", "b"),
    bad_replica: str = "",
    seed: int = 1,
) -> list[Block]:
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        mood = float(np.exp(generator.normal() * 0.5))  # of the whole machine: both arms have it
        times_s = [0.01 * mood * np.exp(generator.normal(size=NUM) * 0.3) for _ in range(2)]
        losses = [
            Losses("agreement", _losses(generator, wrong if bad_replica in ("", it) else 0.0), it) for it in replicas
        ]
        num_failed = int(generator.binomial(NUM, failed))
        candidate = Arm((times_s[0][num_failed:] * slower).tolist(), NUM, num_failed, NUM * mood * dearer)
        made.append(Block(candidate, Arm(times_s[1].tolist(), NUM, 0, NUM * mood), losses))
    return made


def _losses(generator: np.random.Generator, wrong: float) -> list[float]:
    return [float(it) for it in generator.random(10) < wrong]


def _slower(arm: Arm, times: float) -> Arm:
    return replace(arm, latencies_s=[it * times for it in arm.latencies_s])


def judge_of(of: Sequence[Block], margins: Margins | None = None) -> Judgement:
    return judged(of, Judge(margins, measures_cost=True))


@pytest.mark.parametrize(
    ("planted", "outcome", "because"),
    [
        ({"seed": 3}, "promoted", ()),  # after 262 blocks
        ({"wrong": 0.03}, "rolled_back", ("agreement",)),
        ({"slower": 1.2}, "rolled_back", ("latency",)),
        ({"failed": 0.02}, "rolled_back", ("errors",)),
        ({"dearer": 1.2}, "rolled_back", ("cost",)),
        pytest.param({"slower": 0.7, "dearer": 0.7}, "promoted", (), marks=pytest.mark.thorough),
    ],
)
def test_a_candidate_is_taken_back_for_what_it_does_worse_and_only_then(
    planted: dict[str, float], outcome: Outcome, because: tuple[str, ...]
) -> None:
    found = judge_of(blocks(300, **planted))  # type: ignore[arg-type]
    assert (found.outcome, found.because) == (outcome, because)
    for it in found.evidence:
        assert it.low <= it.value <= it.high
        assert (it.finding == "worse") == (it.low > it.limit)
        assert (it.finding == "fine") == (it.high < it.limit)


def test_what_was_not_shown_yet_is_held_and_named() -> None:
    found = judge_of(blocks(20))
    assert found.outcome == "held"
    assert {"agreement", "latency", "errors"} <= set(found.because)
    assert (found.num_candidate, found.num_primary, found.num_compared, found.num_blocks) == (800, 800, 400, 20)


def test_a_candidate_whose_answers_nobody_compares_is_held_for_ever() -> None:
    found = judge_of([replace(block, losses=()) for block in blocks(275, slower=0.7, dearer=0.7)])
    assert (found.outcome, found.because) == ("held", ("agreement",))
    assert found.num_compared == 0


def test_one_replica_that_is_off_is_named_where_all_together_would_pass() -> None:
    """One of twelve, wrong in 5 % of its answers: 0.4 % of all, which is within the limit."""
    names = [f"pod-{number}" for number in range(12)]
    found = judge_of(blocks(250, wrong=0.05, replicas=names, bad_replica="pod-7"))
    assert found.outcome == "rolled_back"
    worse = [it for it in found.evidence if it.finding == "worse"]
    assert [(it.measure, it.replica) for it in worse] == [("agreement", "pod-7")]
    assert worse[0].value == pytest.approx(0.05, abs=0.04)


def test_a_candidate_that_never_answers_is_taken_back_within_a_few_blocks() -> None:
    found = judge_of(blocks(100, failed=1.0))
    assert (found.outcome, found.because) == ("rolled_back", ("errors",))
    assert found.num_candidate <= 3 * NUM


@pytest.mark.parametrize(
    ("plant", "replica"),
    [({}, ""), ({"failed": 0.02}, ""), ({"wrong": 0.05}, ""), ({"wrong": 0.2}, "b"), ({"slower": 2.0}, "")],
)
def test_what_the_next_block_would_prove_is_known_before_and_asking_changes_nothing(
    plant: dict[str, float], replica: str
) -> None:
    judge, other, sure = Judge(), Judge(), []
    for block in blocks(60, bad_replica=replica, **plant):  # type: ignore[arg-type]
        sure.append(judge.would_be_sure([block]))
        judge.observe(block)
        other.observe(block)
        assert judge.judgement(with_intervals=False) == other.judgement(with_intervals=False)
        worse = judge.outcome() == "rolled_back" and not {"latency", "slowest"} & set(
            judge.judgement(with_intervals=False).because
        )
        assert sure[-1] == worse
        if worse:
            break
    assert sure[-1] == (bool(plant) and "slower" not in plant)


def test_load_that_moves_both_arms_alike_says_nothing() -> None:
    of = blocks(100)
    rising = [Block(_slower(b.candidate, 1 + n / 20), _slower(b.primary, 1 + n / 20)) for n, b in enumerate(of)]
    found = judged(rising, Judge(metrics=()))
    assert "latency" not in {it.measure for it in found.evidence if it.finding == "worse"}


def test_small_blocks_are_joined_and_the_same_blocks_make_the_same_judgement() -> None:
    of = blocks(100, slower=1.2)
    halves = [
        Block(replace(b.candidate, latencies_s=b.candidate.latencies_s[p], num=NUM // 2, cost=None),
              replace(b.primary, latencies_s=b.primary.latencies_s[p], num=NUM // 2, cost=None), b.losses if p.start else ())
        for b in of for p in (slice(0, 10), slice(10, 20))
    ]  # fmt: skip
    found = judged(halves, Judge())
    assert found == judged(halves, Judge())
    assert found.outcome == "rolled_back"
    assert next(it.num for it in found.evidence if it.measure == "latency") == found.num_blocks // 2


def test_a_judgement_is_data() -> None:
    told = json.loads(json.dumps(asdict(judge_of(blocks(100, wrong=0.03)))))
    assert told["outcome"] == "rolled_back"
    assert {"measure", "finding", "value", "low", "high", "limit", "num", "of", "replica"} == set(told["evidence"][0])


@pytest.mark.parametrize(
    ("ours", "ratio", "expected"),
    [([1, 2, 3], 1.0, 0.5), ([2, 4, 6], 2.0, 0.5), ([4, 5, 6], 1.0, 1.0), ([0, 0, 0], 1.0, 0.0)],
)
def test_superiority_is_one_half_where_neither_is_slower(ours: list[float], ratio: float, expected: float) -> None:
    assert superiority(np.array(ours, float), np.array([1.0, 2.0, 3.0]), ratio) == pytest.approx(expected)


@pytest.mark.parametrize(
    "given",
    [{"latency_ratio": 1.0}, {"latency_ratio": math.nan}, {"tail_share": 0}, {"error_share": 1}, {"loss": {"x": 0}}],
)
def test_a_margin_that_means_nothing_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="want"):
        Margins(**given)  # type: ignore[arg-type]


def test_answers_by_an_unknown_metric_are_refused() -> None:
    with pytest.raises(ValueError, match="cosine"):
        Judge(metrics=("agreement",)).observe(Block(Arm((), 0), Arm((), 0), [Losses("cosine", [0.1])]))
    with pytest.raises(ValueError, match="shape"):
        Judge(metrics=("shape",))


def test_the_report_tells_the_numbers_of_the_judgement() -> None:
    found = judge_of(blocks(100, wrong=0.03))
    worse = next(it for it in found.evidence if it.measure == "agreement")
    text, page = rollout_report.as_text(found, "new", "old"), rollout_report.render(found, "<new>", "old", COPIES)
    assert COPIES in page
    for number in (f"{worse.value:.2%}", f"{worse.low:.2%}", f"{found.num_candidate:,}", f"{found.num_compared:,}"):
        assert number in text
        assert number in page
    assert not {"|", "**"} & set(text.split())
    assert "&lt;new&gt;" in page
    assert "<new>" not in page


@pytest.mark.parametrize("num", [0, 3, 40])
def test_a_report_of_a_rollout_that_just_began_can_be_made(num: int) -> None:
    found = judge_of(blocks(num))
    assert found.outcome == "held"
    assert "NaN" not in rollout_report.render(found, "new", "old", COPIES).replace("nan", "NaN")
