"""What `make soak` plans and concludes, by tables and without a clock; and one short soak with everything real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.soak.fates import Fate, Kill, Losses, fate
from loadtest.bench.soak.growth import MIN_LIFE_S, THIS, VALUES, WARM_UP_S, Growth, Lives, Sample, role
from loadtest.bench.soak.plan import SURGE_S, Kind, Victim, arrivals, events
from loadtest.bench.soak.run import SoakTally
from loadtest.processes import Process
from loadtest.sending.sender import Load
from loadtest.sending.sent_request import Shot

ROOT = Path(__file__).parents[3]
AT_S = 100.0
MEMORY = VALUES["memory"]


def shot(status: int | None = 200, ended_s: float = AT_S + 1, took_s: float = 2.0, **how: Any) -> Shot:
    return Shot(ended_s - took_s, ended_s - took_s, ended_s, status, **how)


def honest(status: int, kind: str) -> Shot:
    return shot(status, tandem_error=kind, retry_after="1")


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (shot(), Fate.ANSWERED),
        (honest(503, "overloaded"), Fate.REFUSED),
        (honest(503, "not_ready"), Fate.REFUSED),
        (shot(429), Fate.REFUSED),
        (honest(504, "deadline_expired"), Fate.LATE),
        (shot(None, is_sent=False), Fate.TURNED_AWAY),
        (shot(None), Fate.LOST),
        (honest(503, "upstream_lost"), Fate.LOST),
        (shot(503, tandem_error="overloaded"), Fate.LOST),  # it does not say when to come again
        (shot(500), Fate.LOST),
        (shot(400), Fate.LOST),
    ],
)
def test_what_is_accepted_and_not_answered_is_lost(ended: Shot, expected: Fate) -> None:
    assert fate(ended) is expected


def test_a_loss_counts_for_what_was_killed_last_before_it_ended_unless_that_was_long_ago() -> None:
    kills = [Kill(AT_S, AT_S, Victim.SERVER), Kill(AT_S + 40, AT_S + 40, Victim.MODEL)]
    ended = [shot(500, at_s) for at_s in (AT_S - 1, AT_S + 1, AT_S + 39, AT_S + 41, AT_S + 42)]
    found = Losses()
    found.add(ended, kills)
    assert found.num_lost == found.num_accepted == 5
    killed = Counter(who for who, _ in found.lost.elements())
    assert killed == {"nobody": 2, Victim.SERVER.value: 1, Victim.MODEL.value: 2}


def test_what_a_killed_gateway_held_is_counted_apart_and_what_came_after_its_end_is_lost() -> None:
    kills = [Kill(AT_S, AT_S + 0.1, Victim.GATEWAY)]
    held, after, refused = shot(None), shot(None, AT_S + 4, 2.0), shot(None, is_sent=False)
    found = Losses()
    found.add([held, after, refused, honest(503, "not_ready")], kills)
    assert (found.held, found.num_lost, found.num_accepted) == (1, 1, 2)
    assert found.refused == {("the gateway", "not_ready"): 1}


def test_an_hour_kills_everything_and_lets_a_gateway_live_long_enough_to_be_seen_to_grow() -> None:
    plan = events(3600, 60)
    kills = Counter(event.victim for event in plan if event.kind is Kind.KILL)
    assert kills.total() == 59
    assert kills[Victim.GATEWAY] == 2
    assert min(kills[victim] for victim in Victim if victim is not Victim.GATEWAY) == 11
    assert [event.at_s for event in plan if event.kind is Kind.RELOAD][:2] == [270, 570]
    assert [event.at_s for event in plan if event.kind is Kind.FLOOD][:2] == [115, 415]
    assert sum(event.kind is Kind.SLOW for event in plan) == 59
    assert [event.at_s for event in plan] == sorted(event.at_s for event in plan)


def test_the_last_kill_leaves_time_for_what_it_does() -> None:
    assert [event.at_s for event in events(90, 10) if event.kind is Kind.KILL][-1] == 80
    assert events(10, 60) == []


def test_requests_come_in_a_surge_around_each_kill() -> None:
    times = list(arrivals(200, 10, 400, [50, 150], seed=0))
    in_surge = sum(abs(at_s - kill_s) <= SURGE_S / 2 for at_s in times for kill_s in (50, 150))
    assert in_surge == pytest.approx(2 * 400 * SURGE_S, rel=0.2)
    assert len(times) - in_surge == pytest.approx(2000, rel=0.1)
    assert times == sorted(times)


def life(grows: float, lasting_s: float = 900.0, noise: int = 0, from_mb: int = 100) -> list[Sample]:
    """Samples of a process that grows by so many MB an hour after its warm-up, with a flood in the middle."""
    times = [5.0 * number for number in range(int(lasting_s / 5))]
    return [
        Sample(at_s, int((from_mb + grows * at_s / 3600 + (noise if 0.4 < at_s / lasting_s < 0.5 else 0)) * 1e6), 20, 5)
        for at_s in times
    ]


@pytest.mark.parametrize("grows", [0.0, 60.0])
def test_growth_is_seen_past_a_flood_and_over_several_lives(grows: float) -> None:
    lives = Lives()
    lives.of[1, 1], lives.of[2, 1] = life(grows, noise=80), life(grows, noise=50, from_mb=200)
    assert lives.slope(MEMORY) == pytest.approx(grows, abs=1.0)
    assert lives.slope(VALUES["descriptors"]) == 0.0


def test_the_first_flood_lifts_for_good_and_connections_for_a_while_and_neither_is_growth() -> None:
    floods = [200.0, 500.0, 800.0]
    samples = [
        Sample(
            at_s,
            (110 if at_s < floods[0] else 122) * 10**6,
            600 if any(flood <= at_s < flood + 90 for flood in floods) else 40,
            5,
        )
        for at_s in (5.0 * number for number in range(180))
    ]
    lives = Lives(floods, {(1, 1): samples})
    assert lives.slope(MEMORY) == lives.slope(VALUES["descriptors"]) == 0.0
    assert [one.memory_bytes for one in lives.ends_of_longest()] == [122 * 10**6] * 2
    leaking = [Sample(one.at_s, one.memory_bytes + int(one.at_s * 20_000), one.num_descriptors, 5) for one in samples]
    assert Lives(floods, {(1, 1): leaking}).slope(MEMORY) == pytest.approx(72, abs=1)


def test_what_lived_too_short_says_nothing_of_growth() -> None:
    lives = Lives()
    lives.of[1, 1] = life(1000.0, lasting_s=WARM_UP_S + MIN_LIFE_S - 10)
    assert lives.slope(MEMORY) is None
    assert lives.ends_of_longest()[1] == lives.of[1, 1][-1]


def test_servers_are_told_apart_by_their_command_line_and_logs_are_counted(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.log").write_text("1234567890")
    ours, stub = ("/usr/bin/python3", "-m", "serving"), "/b/triton_python_backend_stub"
    commands = [(*ours, "up"), (*ours, "triton", "--pool"), (*ours, "gateway"), (*ours, "models"), ("/bin/bash", "-c")]
    commands += [("/t/tritonserver", "--x"), (stub, "/repo/digits-int8/1/model.onnx", "region")]
    assert [role(Process(1, 0, 0, is_alive=True, command=command)) for command in commands] == [
        "tandem up",
        "pool's supervisor",
        "gateway",
        None,
        None,
        "tritonserver",
        "stub of digits-int8",
    ]
    growth = Growth()
    growth.take([os.getpid()], [tmp_path], 5.0)
    assert growth.log_bytes == [(5.0, 10)]
    assert growth.log_slope() is None
    assert growth.roles[THIS].latest().memory_bytes > 0


def test_logs_have_a_slope_too() -> None:
    growth = Growth(log_bytes=[(5.0 * number, 1000 * number) for number in range(200)])
    assert growth.log_slope() == pytest.approx(720_000)


def test_a_soak_keeps_counts_and_no_requests() -> None:
    """Each kill's outage lasts until the first answer after which nothing but answers came, before the next kill."""
    found, load = SoakTally(), Load()
    for number, ends_s in enumerate([(1.0, 2.0), (0.5, 3.0, 4.0)]):
        at_s = AT_S + 10 * number
        load.shots += [shot(200 if number == 0 or end_s > 2 else 500, at_s + end_s) for end_s in ends_s]
        found.kills.append(Kill(at_s, at_s, Victim.SERVER))
        found.count(load.take())
        assert load.shots == []
    assert found.mix.num_sent == found.lag.total == 5
    assert found.took.total == 4
    assert found.mix.num_lost_to(Victim.SERVER.value) == 1
    assert found.outages_s == {Victim.SERVER.value: [1.0, 3.0]}
    assert found.longest_outages_s() == {Victim.SERVER.value: 3.0}


@pytest.mark.triton
@pytest.mark.campaigns
@pytest.mark.thorough
@pytest.mark.timeout(150)  # a minute of load, what is started and stopped around it, and a busy machine
def test_a_short_soak_kills_everything_and_counts_what_became_of_all_requests(tmp_path: Path) -> None:
    """How much is lost and how soon what was killed is back is for `make soak`, on a machine with nothing else to do."""
    file = tmp_path / "soak.json"
    options = ["--minutes", "1.1", "--period-s", "9", "--json", str(file), "--keep", str(tmp_path / "kept")]
    command = [sys.executable, "-m", "loadtest.bench.soak", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=145, check=False)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(file.read_text())
    assert result["kills"].keys() == {victim.value for victim in Victim}
    for kind in ("mix", "flood"):
        counts = result[kind]
        assert sum(counts["fates"].values()) == counts["num_sent"] > 0
        assert counts["fates"]["answered"] > 0
        assert sum(lost["count"] for lost in counts["lost"]) + counts["held"] == counts["fates"]["lost"]
    assert {"gateway", "tandem up", "pool's supervisor", "tritonserver"} <= result["processes"].keys()
    outcomes = {verdict["name"]: verdict["outcome"] for verdict in result["verdicts"]}
    assert outcomes["processes and segments left"] == outcomes["logs"] == "met"
    assert outcomes["what was to be done and could not be"] == "met"
    assert all(verdict["name"] in done.stdout for verdict in result["verdicts"])
