"""A pool comes slowly, goes at once, and does not flap; demand adds up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.bridge import LAST_RESORT, Bridge, Demand, Rules, step

RULES = Rules(settle_s=2.0, ramp_s=10.0, max_switches_per_hour=2)


def run(*looks: tuple[float, int, int | None], rules: Rules = RULES) -> Bridge:
    """Looks of (time, answering, wanted)."""
    bridge = Bridge()
    for now, answering, wanted in looks:
        bridge = step(bridge, now, answering, wanted, rules)
    return bridge


@pytest.mark.parametrize("options", [{"settle_s": -1}, {"ramp_s": -1}, {"max_switches_per_hour": 0}])
def test_rules_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="settle_s and ramp_s"):
        Rules(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        ([(0.0, 0, 0)], "cold"),
        ([(0.0, 0, None)], "waking"),  # nobody scales it: it is wanted whenever it is not there
        ([(0.0, 0, 1)], "waking"),
        ([(0.0, 0, 1), (9.0, 1, 1)], "warming"),
        ([(9.0, 1, 1), (10.9, 1, 1)], "warming"),
        ([(9.0, 1, 1), (11.0, 1, 1)], "ready"),
        ([(9.0, 1, 1), (10.0, 0, 1), (11.5, 1, 1), (12.0, 1, 1)], "warming"),  # a break begins it anew
        ([(9.0, 1, 1), (11.0, 1, 1), (12.0, 0, 1)], "waking"),
        ([(9.0, 1, 1), (11.0, 1, 1), (12.0, 1, 0)], "draining"),
        ([(9.0, 1, 1), (11.0, 1, 1), (12.0, 1, 0), (13.0, 0, 0)], "cold"),
        ([(9.0, 1, 1), (11.0, 1, 1), (12.0, 1, 0), (13.0, 1, 1)], "warming"),
    ],
)
def test_states_follow_what_answers_and_what_is_wanted(looks: list[tuple[float, int, int | None]], state: str) -> None:
    assert run(*looks).state == state


@pytest.mark.parametrize(("after_s", "share"), [(0.0, LAST_RESORT), (2.5, 0.25), (10.0, 1.0), (500.0, 1.0)])
def test_the_share_rises_once_it_is_ready(after_s: float, share: float) -> None:
    assert run((0.0, 1, 1), (2.0, 1, 1), (2.0 + after_s, 1, 1)).share == share


@pytest.mark.parametrize("last", [(20.0, 0, 1), (20.0, 1, 0), (20.0, 0, 0)])
def test_traffic_leaves_at_once(last: tuple[float, int, int]) -> None:
    assert run((0.0, 1, 1), (2.0, 1, 1), (15.0, 1, 1), last).share == 0.0


def flap(times: int) -> list[tuple[float, int, int | None]]:
    return [look for n in range(times) for look in ((10.0 * n, 1, 1), (10.0 * n + 2, 1, 1), (10.0 * n + 4, 0, 1))]


def test_a_pool_that_comes_and_goes_gets_only_what_nobody_else_takes() -> None:
    bridge = run(*flap(2), (50.0, 1, 1), (60.0, 1, 1))
    assert (bridge.state, bridge.share, len(bridge.switches)) == ("warming", LAST_RESORT, 2)


def test_flapping_is_forgiven_after_an_hour() -> None:
    assert run(*flap(2), (50.0, 1, 1), (3602.5, 1, 1)).state == "ready"


LOOKS = st.lists(st.tuples(st.floats(0.1, 60), st.integers(0, 2), st.none() | st.integers(0, 1)), max_size=300)


@settings(deadline=None)  # of one example: machines are busy
@given(LOOKS)
def test_handovers_within_an_hour_are_bounded_and_what_does_not_answer_gets_nothing(
    looks: list[tuple[float, int, int | None]],
) -> None:
    bridge, now, handovers = Bridge(), 0.0, []
    for pause_s, answering, wanted in looks:
        now += pause_s
        after = step(bridge, now, answering, wanted, RULES)
        if after.state == "ready" and bridge.state != "ready":
            handovers.append(now)
        bridge = after
        assert 0.0 <= bridge.share <= 1.0
        assert answering or bridge.share == 0.0
        assert sum(at > now - 3600 for at in handovers) <= RULES.max_switches_per_hour


def test_demand_is_the_servers_that_steady_traffic_keeps_busy() -> None:
    demand = Demand()
    for n in range(20_000):
        demand.note(n / 100, 0.025)  # 100 a second, 25 ms each
    assert demand.replicas(200.0) == pytest.approx(2.5, rel=0.01)


def test_demand_is_forgotten_when_nothing_comes() -> None:
    demand = Demand()
    demand.note(0.0, 5.0)
    assert demand.replicas(200.0) < 1e-6
    assert Demand().replicas(5.0) == 0.0


@settings(deadline=None)  # of one example: machines are busy
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=50))
def test_demands_of_two_gateways_add_up(requests: list[tuple[float, float, bool]]) -> None:
    one, two, both, now = Demand(), Demand(), Demand(), 0.0
    for pause_s, cost_s, is_first in requests:
        now += pause_s
        (one if is_first else two).note(now, cost_s)
        both.note(now, cost_s)
    assert one.replicas(now) + two.replicas(now) == pytest.approx(both.replicas(now))
