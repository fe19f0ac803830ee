"""What gateways say together: one that dies leaves neither a hole nor a hump, and what is missing never counts as nothing."""

from __future__ import annotations

from math import exp

import pytest

from serving.decisions.demand import FRESH_S, GONE_S, SILENT_S, Demand, Gateways, Total, total_of, update
from serving.scheduling.bridge import WINDOW_S


def said(replicas: float, ready: int = 1) -> dict[str, Demand]:
    return {"gpu": Demand(replicas, replicas / 2, ready)}


class Bed:
    """Gateways A and B, a look a second."""

    def __init__(self, **at_first: float) -> None:
        self.now, self.state = 100.0, Gateways()
        self.look(**at_first)

    def look(self, *, unheard: str = "", are_named: bool = True, **demands: float) -> Total:
        """Each name is an address that DNS gives; those of `unheard` are given and do not answer."""
        heard = {name: said(value) for name, value in demands.items()}
        self.state = update(self.state, self.now, [*demands, *unheard], heard, are_named)
        self.now += 1.0
        return total_of(self.state, self.now - 1.0)


def gpu(of: Total) -> float:
    assert of.demands is not None
    return of.demands["gpu"].replicas


def test_demands_add_up_and_servers_do_not() -> None:
    state = update(Gateways(), 0.0, ["A", "B"], {"A": said(0.5, 2), "B": said(0.25, 1)})
    assert total_of(state, 0.0) == Total({"gpu": Demand(0.75, 0.375, 2)}, (), may_lower=True)


def test_what_is_an_upper_bound_adds_up_and_is_filled_up_like_what_is_known() -> None:
    both = {"A": {"gpu": Demand(1.0, 0.0, 0)}, "B": {"gpu": Demand(4.0, 0.0, 0, 4.0)}}
    state = update(Gateways(), 0.0, ["A", "B"], both)
    moved = update(state, 1.0, ["A", "B"], {"A": {"gpu": Demand(1.5, 0.0, 0)}})
    for now, of in ((0.0, state), (1.0, moved)):
        demands = total_of(of, now).demands
        assert demands is not None
        assert (demands["gpu"].replicas, demands["gpu"].unseen_replicas) == (5.0, 4.0)


def test_what_some_pools_share_adds_up_for_each_set_of_pools() -> None:
    both = {
        "A": {"l4": Demand(1.0, 0.0, 0, 0.0, {"a100,l4": 0.5})},
        "B": {"l4": Demand(2.0, 0.0, 0, 0.0, {"a100,l4": 1.0, "cpu,l4": 0.25})},
    }
    state = update(Gateways(), 0.0, ["A", "B"], both)
    moved = update(state, 1.0, ["A", "B"], {"A": {"l4": Demand(1.5, 0.0, 0, 0.0, {"a100,l4": 0.75})}})
    for now, of in ((0.0, state), (1.0, moved)):
        demands = total_of(of, now).demands
        assert demands is not None
        assert demands["l4"].shared_replicas == {"a100,l4": 1.5, "cpu,l4": 0.25}


def test_a_gateway_that_misses_one_look_changes_nothing() -> None:
    bed = Bed(A=1.0, B=0.5)
    found = bed.look(A=1.0, unheard="B")
    assert gpu(found) == 1.5
    assert found.may_lower  # it is fresh still


def test_one_that_has_just_fallen_silent_is_not_counted_beside_its_clients_who_moved() -> None:
    bed = Bed(A=1.0, B=1.0)
    assert [gpu(bed.look(A=1.0 + moved, unheard="B")) for moved in (0.1, 0.2, 0.3, 1.0)] == [2.0] * 4


def test_the_only_gateway_may_miss_a_look_beside_one_that_never_answered() -> None:
    bed = Bed(A=1.0)
    assert gpu(bed.look(unheard="AN")) == 1.0
    fresh = Bed()
    fresh.look(A=1.0, unheard="N")
    assert gpu(fresh.look(unheard="AN")) == 1.0


def test_a_silent_gateway_counts_with_its_last_demand_and_nothing_goes_down_meanwhile() -> None:
    bed = Bed(A=1.0, B=0.5)
    bed.now += FRESH_S
    found = bed.look(A=1.0, unheard="B")
    assert (gpu(found), found.may_lower, found.missed) == (1.5, False, ("B",))


def test_what_shows_up_at_the_others_is_not_counted_twice() -> None:
    bed = Bed(A=1.0, B=0.5)
    bed.now += FRESH_S
    assert gpu(bed.look(A=1.3, unheard="B")) == 1.5
    assert gpu(bed.look(A=1.5, unheard="B")) == 1.5
    assert gpu(bed.look(A=1.9, unheard="B")) == 1.9  # more than all of them had: that is growth


def test_a_gateway_that_stays_silent_is_given_up() -> None:
    bed = Bed(A=1.0, B=0.5)
    bed.now += SILENT_S
    found = bed.look(A=1.0, unheard="B")
    assert (gpu(found), found.may_lower) == (1.0, True)


def test_what_all_said_together_is_known_anew_without_one_that_was_given_up() -> None:
    bed = Bed(A=1.0, B=1.0, X=0.1)
    bed.now += SILENT_S
    bed.look(A=3.0, B=3.0, unheard="X")
    assert gpu(bed.look(A=3.0, unheard="BX")) == 6.0


def test_a_gateway_that_dies_leaves_neither_a_hole_nor_a_hump() -> None:
    """Its clients go to A, whose meter fills as B's would have emptied."""
    bed = Bed(A=1.0, B=1.0)
    for second in range(1, 60):
        found = bed.look(A=2.0 - exp(-second / WINDOW_S))
        assert gpu(found) == pytest.approx(2.0, abs=0.06)
        assert found.may_lower == (second > GONE_S)


def test_the_demand_of_one_that_left_with_its_clients_fades_like_its_own_meter() -> None:
    bed = Bed(A=1.0, B=1.0)
    found = [bed.look(A=1.0) for _ in range(40)]
    assert gpu(found[0]) == pytest.approx(1.0 + exp(-1 / WINDOW_S))
    assert [gpu(it) for it in found] == sorted((gpu(it) for it in found), reverse=True)
    assert gpu(found[-1]) == 1.0
    assert "B" not in bed.state.known


def test_one_that_was_silent_for_long_before_it_left_has_shown_up_elsewhere() -> None:
    bed = Bed(A=1.0, B=1.0)
    for _ in range(40):
        bed.look(A=2.0, unheard="B")
    found = bed.look(A=2.0)
    assert gpu(found) == 2.0
    assert not found.may_lower


def test_one_that_comes_back_under_its_address_counts_as_it_says_now() -> None:
    bed = Bed(A=1.0, B=1.0)
    bed.look(A=1.0)
    found = bed.look(A=1.0, B=0.1)
    assert (gpu(found), found.may_lower) == (1.1, True)


def test_a_gateway_that_flaps_moves_nothing() -> None:
    bed = Bed(A=1.0, B=1.0)
    for turn in range(100):
        found = bed.look(A=1.0, B=1.0) if turn % 10 == 0 else bed.look(A=1.0, unheard="B")
        assert gpu(found) == 2.0


def test_a_gateway_that_flaps_in_and_out_of_dns_raises_nothing() -> None:
    bed = Bed(A=1.0, B=1.0)
    found = [bed.look(A=1.0, B=1.0) if turn % 10 < 5 else bed.look(A=1.0) for turn in range(100)]
    assert all(1.0 + exp(-5 / WINDOW_S) <= gpu(it) <= 2.0 for it in found)


def test_a_new_gateway_that_has_not_answered_yet_lets_nothing_go_down() -> None:
    bed = Bed(A=1.0)
    found = bed.look(A=1.0, unheard="N")
    assert (gpu(found), found.missed, found.may_lower) == (1.0, ("N",), False)
    bed.look(A=1.0)
    assert bed.look(A=1.0).may_lower  # it left before it ever said a word


def test_one_that_never_answers_is_not_waited_for_for_ever() -> None:
    bed = Bed(A=1.0)
    bed.look(A=1.0, unheard="N")
    bed.now += SILENT_S
    assert bed.look(A=1.0, unheard="N").may_lower


def test_when_nobody_answers_nothing_is_known_and_hearing_begins_anew() -> None:
    bed = Bed(A=1.0)
    assert bed.state.heard_since == 100.0
    bed.now += FRESH_S
    assert bed.look(unheard="A").demands is None
    assert bed.state.heard_since is None
    bed.now += 7
    bed.look(A=0.2)
    assert bed.state.heard_since == bed.now - 1


def test_without_any_address_nothing_is_known_and_nothing_is_nothing() -> None:
    bed = Bed(A=1.0)
    assert bed.look() == Total(None, ("A",), may_lower=False)
    assert Bed().look() == Total(None, (), may_lower=False)


def test_names_that_cannot_be_looked_up_let_nothing_go_down() -> None:
    bed = Bed(A=1.0)
    found = bed.look(A=0.5, are_named=False)
    assert (gpu(found), found.may_lower) == (0.5, False)
    assert bed.look(A=0.5).may_lower


def test_a_pool_that_only_one_gateway_names_is_summed_as_far_as_it_goes() -> None:
    heard = {"A": said(0.5), "B": {**said(0.5), "cpu": Demand(3.0, 0.0, 4)}}
    found = total_of(update(Gateways(), 0.0, ["A", "B"], heard), 0.0)
    assert found.demands == {"gpu": Demand(1.0, 0.5, 1), "cpu": Demand(3.0, 0.0, 4)}
