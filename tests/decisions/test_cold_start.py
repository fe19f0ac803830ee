"""A cold start by phase: what nobody saw is left out, what was given up says so, and only pools from nothing have one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.decisions.cold_start import MOST_KEPT, PHASES, ColdStart, PoolSnapshot, Server, follow, measured_s

DECIDED = 1000.5
POD = Server("gpu-a", 1002.0, 1003.0, 1060.0, 1062.0, 1100.0, 1110.0)
WHOLE = ColdStart("gpu", DECIDED, POD, warm_at=1113.0, answered_at=1114.0)
COLD = PoolSnapshot(num_wanted=1, num_ready=0, is_warm=False, has_answered=False)


def test_a_cold_start_falls_into_phases_that_add_up() -> None:
    phases = WHOLE.phases
    assert phases == {
        "decision": 1.5, "node": 60.0, "image": 38.0, "load": 10.0, "warm_up": 3.0, "first_answer": 1.0, "total": 113.5,
    }  # fmt: skip
    assert tuple(phases) == PHASES
    assert sum(phases.values()) == 2 * phases["total"]


@pytest.mark.parametrize(
    ("server", "left_out"),
    [
        pytest.param(None, {"decision", "node", "image", "load", "warm_up"}, id="no API"),
        pytest.param(replace(POD, scheduled_at=None), {"node", "image"}, id="not seen scheduled"),
        pytest.param(replace(POD, node_created_at=None, node_ready_at=None), set(), id="nodes may not be seen"),
        pytest.param(replace(POD, ready_at=None), {"load", "warm_up"}, id="its readiness was lost"),
    ],
)
def test_a_phase_whose_end_nobody_saw_is_left_out(server: Server | None, left_out: set[str]) -> None:
    phases = replace(WHOLE, server=server).phases
    assert set(PHASES) - set(phases) == left_out
    assert phases["total"] == 113.5


def test_the_measured_one_is_the_median_of_the_last_until_traffic_went_there() -> None:
    def took(seconds: float, pool: str = "gpu") -> ColdStart:
        return ColdStart(pool, 1000.0, warm_at=1000.0 + seconds, answered_at=9000.0)

    assert measured_s([ColdStart("gpu", 1000.0), took(40.0, "cpu")], "gpu") is None
    assert measured_s([took(9000.0), *map(took, (90.0, 200.0, 110.0, 100.0, 120.0))], "gpu") == 110.0


def test_clocks_that_differ_make_no_phase_negative() -> None:
    early = replace(POD, created_at=1000.0, ready_at=1120.0)
    phases = replace(WHOLE, server=early).phases
    assert (phases["decision"], phases["warm_up"]) == (0.0, 0.0)


def follow_all(*looks: tuple[float, int, PoolSnapshot], old: tuple[ColdStart, ...] = ()) -> tuple[ColdStart, ...]:
    """Looks as (now, what was wanted before, what is seen now)."""
    for now, before, seen in looks:
        old = follow(old, now, {"gpu": before}, {"gpu": seen})
    return old


def test_it_is_followed_from_the_decision_to_the_first_good_answer() -> None:
    on_its_way = replace(POD, scheduled_at=None, started_at=None, ready_at=None)
    looks = [
        (DECIDED, 0, COLD),
        (1005.0, 1, replace(COLD, servers=(on_its_way,))),
        (1112.0, 1, replace(COLD, num_ready=1, servers=(POD,))),
        (1113.0, 1, replace(COLD, num_ready=1, is_warm=True, servers=(POD,))),
        (1114.0, 1, replace(COLD, num_ready=1, is_warm=True, has_answered=True, servers=(POD,))),
        (1115.0, 1, replace(COLD, num_ready=1, is_warm=True, has_answered=True, servers=())),
    ]
    assert follow_all(*looks) == (WHOLE,)
    assert not follow_all(*looks[:4])[0].is_over


def test_what_ends_before_it_answers_was_given_up() -> None:
    (found,) = follow_all((DECIDED, 0, COLD), (1050.0, 1, replace(COLD, num_wanted=0)))
    assert found.is_given_up
    assert "total" not in found.phases


def test_a_pool_that_is_let_go_while_it_still_answers_is_not_given_up_yet() -> None:
    (found,) = follow_all((DECIDED, 0, COLD), (1050.0, 1, replace(COLD, num_wanted=0, num_ready=1)))
    assert not found.is_over


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        pytest.param(1, COLD, id="it was wanted before"),
        pytest.param(0, replace(COLD, num_ready=1), id="one answers still"),
        pytest.param(0, replace(COLD, num_wanted=0), id="none is wanted"),
    ],
)
def test_only_a_pool_that_comes_from_nothing_starts_cold(before: int, seen: PoolSnapshot) -> None:
    assert follow_all((DECIDED, before, seen)) == ()


def test_what_was_wanted_before_the_scaler_began_is_no_decision_of_its() -> None:
    assert follow((), DECIDED, {}, {"gpu": COLD}) == ()


def test_an_answer_that_came_before_it_was_warm_is_anothers() -> None:
    (found,) = follow_all((DECIDED, 0, COLD), (1001.0, 1, replace(COLD, has_answered=True)))
    assert found.answered_at is None


def test_a_pod_of_before_is_not_taken_for_this_ones() -> None:
    old_pod = Server("left-over", created_at=900.0, ready_at=901.0)
    (found,) = follow_all((DECIDED, 0, COLD), (1001.0, 1, replace(COLD, servers=(old_pod,))))
    assert found.server is None


def test_a_pod_whose_second_was_cut_off_is_this_ones() -> None:
    (found,) = follow_all((DECIDED, 0, COLD), (1001.0, 1, replace(COLD, servers=(Server("a", created_at=1000.0),))))
    assert found.server is not None


def test_of_several_pods_the_one_that_is_ready_first_counts_and_stays() -> None:
    slow = replace(POD, name="slow", ready_at=None)
    later = replace(POD, name="later", ready_at=1120.0)
    opened = follow_all((DECIDED, 0, COLD), (1111.0, 1, replace(COLD, servers=(slow, POD))))
    (found,) = follow_all((1121.0, 1, replace(COLD, servers=(later, replace(POD, ready_at=None)))), old=opened)
    assert found.server == POD


def test_a_container_that_starts_again_has_started_when_it_first_did() -> None:
    loading = replace(POD, ready_at=None)
    opened = follow_all((DECIDED, 0, COLD), (1101.0, 1, replace(COLD, servers=(loading,))))
    (found,) = follow_all((1121.0, 1, replace(COLD, servers=(replace(POD, started_at=1105.0),))), old=opened)
    assert found.server == POD


def test_only_so_many_are_kept_and_the_newest_of_them() -> None:
    over = tuple(replace(WHOLE, decided_at=float(n)) for n in range(MOST_KEPT))
    found = follow_all((DECIDED, 0, COLD), old=over)
    assert (len(found), found[0].decided_at, found[-1].decided_at) == (MOST_KEPT, 1.0, DECIDED)


def test_a_pool_that_a_look_does_not_tell_of_stays_as_it_was() -> None:
    opened = follow_all((DECIDED, 0, COLD))
    assert follow(opened, 2000.0, {"gpu": 1}, {}) == opened
