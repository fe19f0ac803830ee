"""Rollouts on a real Triton under load: a candidate with a wrong label map is found and taken back, a good one goes its way."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from serving.control.document import ModelControl, RolloutSettings, Target
from serving.control.stores import FileStore, store_at
from serving.decisions.rollout import Outcome
from serving.gateway.request import shared_judge
from serving.gateway.request.rollouts import Rollout, Rollouts
from serving.local.runs import Run, announce
from serving.ports import free_ports
from tests.command import tandem
from tests.gateway.conftest import SAMPLE, Running, gateway_before
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits
from tests.local.test_later_exports import DIGITS, Up, another
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.triton]

WRONG, DEAR, GOOD = 2, 3, 4  # the newest answers the rows of its gate before it is served, and a wrong one would not be


@cache
def with_a_wrong_label_map() -> bytes:
    """Digits whose classes stand one place further: 3 is told as 4."""
    model = onnx.load_from_string(DIGITS)
    model.graph.node[-1].output[0] = "right"
    model.graph.initializer.append(numpy_helper.from_array(np.roll(np.arange(10), 1), "places"))
    model.graph.node.append(helper.make_node("Gather", ["right", "places"], ["probabilities"], axis=1))
    return bytes(model.SerializeToString())


@cache
def dear() -> bytes:
    """Digits with the same answers, which take some 20 products of large matrices more."""
    model = onnx.load_from_string(DIGITS)
    graph, generator = model.graph, np.random.default_rng(1)
    nodes, before = [helper.make_node("Flatten", [graph.input[0].name], ["flat"], axis=1)], "flat"
    for number in range(20):
        shape = (64 if number == 0 else 512, 512)
        factor = generator.normal(size=shape).astype(np.float32) / 32
        graph.initializer.append(numpy_helper.from_array(factor, f"factor{number}"))
        nodes.append(helper.make_node("MatMul", [before, f"factor{number}"], [f"product{number}"]))
        before = f"product{number}"
    graph.initializer.append(numpy_helper.from_array(np.zeros((512, 10), np.float32), "nothing"))
    nodes.append(helper.make_node("MatMul", [before, "nothing"], ["zero"]))
    graph.node[-1].output[0] = "right"
    nodes.append(helper.make_node("Add", ["right", "zero"], ["probabilities"]))
    graph.node.extend(nodes)
    return bytes(model.SerializeToString())


def document(candidate: int, step: str, **settings: Any) -> str:
    rollout = {"candidate": {"version": candidate}, "step": step, "sample_ratio": 1.0, **settings}
    return json.dumps({"version": 1, "models": {"digits": {"pin": {"version": 1}, "rollout": rollout}}})


@dataclass
class Rolled:
    """A `tandem up` with four versions, and a client that asks 50 times a second."""

    up: Up
    place: str
    folder: Path
    answers: list[tuple[int, str]] = field(default_factory=list)  # status and version
    stop: threading.Event = field(default_factory=threading.Event)

    def ask_on(self) -> None:
        connection = http.client.HTTPConnection(self.up.url.removeprefix("http://"), timeout=60)
        while not self.stop.wait(0.02):
            connection.request("POST", "/v2/models/digits/infer", SAMPLE)
            answer = connection.getresponse()
            self.answers.append((answer.status, json.loads(answer.read()).get("model_version", "")))
        connection.close()

    def apply(self, text: str) -> None:
        file = self.folder / "new.yaml"
        file.write_text(text)
        done = tandem("apply", str(file), "--control", self.place, "--url", self.up.url)
        assert done.returncode == 0, done.stderr

    def next(self, number: int) -> set[str]:
        """Versions that answer requests from now on."""
        begin = len(self.answers) + 2
        wait_until(lambda: len(self.answers) >= begin + number, "more are answered")
        return {version for _, version in self.answers[begin:]}

    def rollout(self) -> dict[str, Any]:
        (told,) = self.up.ask("/admin/rollouts")[1]["rollouts"]
        return dict(told)

    def control(self) -> dict[str, Any]:
        return dict(self.up.ask("/admin/status")[1]["control"])


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def rolled(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rolled]:
    folder = tmp_path_factory.mktemp("rolled")
    repository = folder / "repository"
    for version, file in ((1, None), (WRONG, with_a_wrong_label_map()), (DEAR, dear()), (GOOD, another(3))):
        publish_digits(repository, precisions=["fp32"], version=version, model_file=file, num_kept=4)
    (folder / "tandem.yaml").write_text("version: 1\npools: {cpu: {versions: 4}}\n")
    (folder / "first.yaml").write_text("version: 1\nmodels: {digits: {pin: {version: 1}}}\n")
    assert tandem("apply", str(folder / "first.yaml"), "--control", redis.url).returncode == 0
    port = free_ports(1)[0]
    words = ["up", "--port", str(port), "--no-measure", "--model-repository", str(repository)]
    words += ["--config", str(folder / "tandem.yaml"), "--control", redis.url]
    program = Program(
        [sys.executable, "-m", "serving", *words], folder / "log", {"TANDEM_STATE": str(folder / "state")}
    )
    try:
        program.wait_for("Ctrl-C stops it")
        made = Rolled(Up(program, f"http://127.0.0.1:{port}", repository), redis.url, folder)
        asking = threading.Thread(target=made.ask_on)
        asking.start()
        yield made
        made.stop.set()
        asking.join(60)
        assert {status for status, _ in made.answers} == {200}
    finally:
        program.end()


def test_a_shadow_with_a_wrong_label_map_is_found_before_any_client_sees_it(rolled: Rolled) -> None:
    before = rolled.control()["revision"]["number"]
    rolled.apply(document(WRONG, "shadow"))
    wait_until(lambda: rolled.control()["revision"]["number"] == before + 2, "it is rolled back in the document")
    told = rolled.rollout()
    assert (told["step"], told["judgement"]["outcome"]) == ("rollback", "rolled_back")
    assert told["judgement"]["because"] == ["agreement"]
    assert told["judgement"]["num_compared"] < 100
    assert rolled.control()["revision"]["by"].startswith("gateway on ")
    assert rolled.next(20) == {"1"}
    assert str(WRONG) not in {version for _, version in rolled.answers}
    report = rolled.folder / "report.html"
    assert told["copies_device_s"] > 0
    assert told["copies_dollars"] is None  # its pools have no prices
    with urllib.request.urlopen(f"{rolled.up.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    (billed,) = (it for it in lines if it.startswith("tandem_tenant_device_seconds_total") and "(rollout)" in it)
    assert float(billed.split()[-1]) >= told["copies_device_s"] * (1 - 1e-9)  # added up in another order
    words = ("models", "rollout", "digits", "--output", str(report))
    other = rolled.folder / "state" / "runs" / "0"
    other.mkdir()
    with announce(other, Run("", f"http://127.0.0.1:{free_ports(1)[0]}", "")):  # one more, that does not answer yet
        assert tandem(*words, TANDEM_STATE=str(rolled.folder / "state")).returncode == 1
    assert tandem(*words, TANDEM_STATE=str(rolled.folder / "none")).returncode == 2
    assert "answers that differ" in report.read_text()
    assert "of servers" in report.read_text()
    kept = json.loads(tandem("history", "--control", rolled.place, "--json").stdout)["revisions"]
    assert "agreement" in kept[-1]["why"]


def test_a_good_candidate_goes_from_shadow_to_canary_to_all_and_back(rolled: Rolled) -> None:
    rolled.apply(document(GOOD, "shadow"))
    wait_until(lambda: (rolled.rollout()["judgement"] or {}).get("num_compared", 0) >= 50, "answers are judged")
    told = rolled.rollout()
    evidence = {it["measure"]: it for it in told["judgement"]["evidence"]}
    assert (told["judgement"]["outcome"], evidence["agreement"]["value"]) == ("held", 0)
    assert rolled.next(5) == {"1"}
    # Latency is not judged here: other work on this machine, for minutes, is not noise that a second's block holds.
    rolled.apply(document(GOOD, "canary", canary_ratio=0.4, rolls_back=False))
    assert rolled.next(40) == {"1", str(GOOD)}
    wait_until(lambda: (rolled.rollout()["judgement"] or {}).get("num_compared", 0) >= 10, "both arms are compared")
    arms = rolled.rollout()["judgement"]
    assert 0 < arms["num_candidate"] < arms["num_primary"]
    rolled.apply(document(GOOD, "promote"))
    assert rolled.next(30) == {str(GOOD)}
    assert tandem("models", "rollback", "digits", "--control", rolled.place, "--url", rolled.up.url).returncode == 0
    assert rolled.next(30) == {"1"}


@pytest.mark.thorough  # half a minute
def test_a_dearer_candidate_is_taken_back_by_what_its_executions_take(rolled: Rolled) -> None:
    rolled.apply(document(DEAR, "canary", canary_ratio=0.5, sample_ratio=0))
    wait_until(lambda: rolled.rollout()["step"] == "rollback", "it is taken back")
    told = rolled.rollout()["judgement"]
    assert "cost" in told["because"]
    cost = next(it for it in told["evidence"] if it["measure"] == "cost")
    assert cost["low"] > cost["limit"] == pytest.approx(1.05)
    assert cost["value"] > 1.3


@pytest.mark.thorough
def test_a_bad_canary_is_taken_back_here_while_redis_is_away(rolled: Rolled, redis: RedisServer) -> None:
    rolled.apply(document(WRONG, "canary", canary_ratio=0.3, sample_ratio=0.2))
    redis.kill()
    try:
        wait_until(lambda: rolled.control()["decided_here"] == {"digits": "rollback"}, "it is taken back")
        assert rolled.next(30) == {"1"}
        assert not rolled.control()["is_current"]
    finally:
        redis.start()
    wait_until(lambda: rolled.control()["is_current"], "the source is back")
    assert str(WRONG) in {version for _, version in rolled.answers}
    assert rolled.next(30) == {"1"}


def test_where_the_document_is_stands_on_no_command_line_of_a_gateway(rolled: Rolled) -> None:
    """It may hold a password."""
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in rolled.up.program.family()]
    gateways = [it for it in commands if b"\0gateway\0" in it]
    assert gateways
    assert not any(rolled.place.encode() in it for it in gateways)


def test_blocks_get_longer_so_that_evidence_is_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RolloutSettings(candidate=Target(version=2), step="canary")
    of = ModelControl(pin=Target(version=1), rollout=settings)
    made = Rollout("digits", of, settings, Target(version=1), cast("Rollouts", Costs()), Changes())
    monkeypatch.setattr(shared_judge, "NUM_ALIKE", 3)

    async def after(number: int) -> tuple[int, int]:
        for _ in range(number):
            for count in made.counts:
                for _ in range(300):
                    count.answered(0.01)
            await made.judge()
        judgement = (await made.told())["judgement"]
        return judgement["num_blocks"], judgement["num_candidate"]

    # The first block is whole once the second is begun, when nobody else has told anything.
    assert asyncio.run(after(3)) == (3, 900)
    assert asyncio.run(after(2 + 2 + 2)) == (6, 900 + 3 * 600)
    assert asyncio.run(after(4)) == (7, 900 + 3 * 600 + 1200)


def test_two_gateways_judge_as_one_and_one_that_is_killed_forgets_nothing(rolled: Rolled, tmp_path: Path) -> None:
    urls = [it["url"] for it in rolled.up.ask("/admin/status")[1]["pools"]["cpu"]["servers"]]
    rolled.apply(document(GOOD, "shadow"))

    def judged_by(gateway: Running) -> dict[str, Any]:
        (found,) = gateway.ask("/admin/rollouts").json()["rollouts"]
        return dict(found)

    def num(told: dict[str, Any]) -> int:
        return int((told["judgement"] or {}).get("num_compared", 0))

    with gateway_before(tmp_path, {"cpu": urls}, "--control", rolled.place) as second:
        # It gets no request, and knows what the other one compared.
        wait_until(lambda: num(judged_by(second)) >= 20, "it hears the other one")
        assert judged_by(second)["compared"] == 0
        for _ in range(30):
            assert second.infer(SAMPLE).status == 200
            time.sleep(0.05)
        wait_until(lambda: judged_by(second)["gateways"] == 2 == rolled.rollout()["gateways"], "both tell")
        assert num(judged_by(second)) > judged_by(second)["compared"] > 0
        before = num(judged_by(second))
        second.program.process.kill()
        second.program.process.wait()
    (tmp_path / "again").mkdir()
    with gateway_before(tmp_path / "again", {"cpu": urls}, "--control", rolled.place) as third:
        wait_until(lambda: num(judged_by(third)) >= before, "it has all that was seen before it was there")
        # A regression that only the other one sees is known to this one, and both take it back.
        rolled.apply(document(WRONG, "shadow"))
        # The step is in the document before this one has read all that led to it.
        wait_until(
            lambda: (
                (told := judged_by(third))["step"] == "rollback"
                and (told["judgement"] or {}).get("outcome") == "rolled_back"
            ),
            "it is told",
        )
        assert judged_by(third)["compared"] == 0
        wait_until(lambda: rolled.rollout()["step"] == "rollback", "at the other one, too")


def test_a_candidate_that_is_not_wherever_the_pinned_one_answers_is_not_promoted(rolled: Rolled) -> None:
    rolled.apply(document(9, "shadow"))  # which nothing serves
    with store_at(rolled.place) as store:
        wait_until(lambda: any("digits" in it.lacks for it in store.followers()), "it is told")
    file = rolled.folder / "new.yaml"
    file.write_text(document(9, "promote"))
    before = rolled.control()["revision"]["number"]
    for urls in ((), ("--url", rolled.up.url)):
        refused = tandem("apply", str(file), "--control", rolled.place, *urls)
        assert (refused.returncode, "0 of 1 servers of pool cpu" in refused.stderr) == (1, True), refused.stderr
    assert rolled.control()["revision"]["number"] == before


def test_the_same_candidate_tried_again_begins_without_evidence(rolled: Rolled, redis: RedisServer) -> None:
    rolled.apply(document(WRONG, "shadow", rolls_back=False))
    wait_until(lambda: (rolled.rollout()["judgement"] or {}).get("outcome") == "rolled_back", "it is found")
    rolled.apply(document(WRONG, "rollback", rolls_back=False))

    def head() -> Any:
        with redis.client() as client:
            return json.loads(cast("bytes", client.ask("LINDEX", "tandem:control:evidence:digits", 0)))[0]

    wait_until(lambda: head() == "", "what was seen is taken away")
    assert rolled.rollout()["judgement"]["outcome"] == "rolled_back"
    rolled.apply(document(WRONG, "shadow", rolls_back=False, sample_ratio=0.001))
    assert (rolled.rollout()["judgement"] or {"outcome": "held"})["outcome"] == "held"


@dataclass
class Costs:
    """What executions of a fleet take: the candidate's `times` as much. `missing`: why it cannot take over."""

    times: float = 1.0
    missing: dict[str, str] = field(default_factory=dict)

    def lacks(self) -> dict[str, str]:
        return self.missing

    async def spent(self, model: str, targets: object, seen: object) -> tuple[float, float, float]:
        del model, targets, seen
        return 100.0, 2.0 * self.times, 2.0

    def dollars(self, device_s: object) -> None:
        """Its pools have no prices."""


class Changes:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, step: str, why: str) -> None:
        assert why
        self.steps.append(step)


@pytest.mark.parametrize(
    ("step", "may_mix", "promotes", "ratio", "slower", "dearer", "expected"),
    [
        ("canary", True, True, 0.05, 1.0, 1.0, ["promote"]),
        pytest.param("canary", True, False, 0.05, 1.0, 1.0, [], marks=pytest.mark.thorough),
        ("shadow", True, True, 0.05, 1.0, 1.0, []),
        pytest.param("shadow", False, True, 0.05, 1.0, 1.0, ["promote"], marks=pytest.mark.thorough),
        pytest.param("canary", True, True, 0.5, 1.5, 1.0, ["rollback"], marks=pytest.mark.thorough),
        pytest.param("canary", True, True, 0.05, 1.5, 1.0, [], marks=pytest.mark.thorough),
        pytest.param("shadow", True, True, 0.05, 1.5, 1.0, [], marks=pytest.mark.thorough),
        ("canary", True, True, 0.5, 1.0, 1.3, ["rollback"]),
        ("canary", True, True, 0.05, 1.0, 1.3, []),
        pytest.param("canary", True, True, 0.5, 1.0, 1.04, ["promote"], marks=pytest.mark.thorough),
    ],
)
def test_what_is_proven_leads_to_the_next_step(
    step: Any, may_mix: bool, promotes: bool, ratio: float, slower: float, dearer: float, expected: list[str]
) -> None:
    given = {"candidate": Target(version=2), "step": step, "promotes": promotes, "canary_ratio": ratio}
    made, changes = judged(RolloutSettings(**given, sample_ratio=0), may_mix=may_mix, slower=slower, dearer=dearer)
    assert changes.steps == expected
    assert made.is_running == (expected != ["rollback"])
    assert made.gauge.outcome == ("rolled_back" if max(slower, dearer) > 1.1 else "promoted")  # told, whatever follows


@pytest.mark.thorough
def test_a_candidate_whose_answers_were_to_be_compared_and_never_were_is_held() -> None:
    made, changes = judged(RolloutSettings(candidate=Target(version=2), step="canary", promotes=True))
    assert changes.steps == []
    assert made.gauge.outcome == "held"
    told = asyncio.run(made.told())["judgement"]
    assert (told["outcome"], told["because"]) == ("held", ("answers",))


def test_how_much_dearer_a_candidate_may_be_is_said_with_it() -> None:
    given: dict[str, Any] = {"candidate": Target(version=2), "step": "canary", "canary_ratio": 0.5, "sample_ratio": 0}
    for most, outcome in ((1.4, "promoted"), (1.2, "rolled_back")):
        made, changes = judged(RolloutSettings(**given, max_cost_ratio=most), dearer=1.3)
        assert made.gauge.outcome == outcome
        assert changes.steps == ([] if outcome == "promoted" else ["rollback"]), (
            "unless it is allowed, nothing is promoted"
        )


def test_a_candidate_that_could_not_take_over_is_judged_on() -> None:
    given = RolloutSettings(candidate=Target(version=2), step="canary", promotes=True, sample_ratio=0)
    made, changes = judged(given, missing={"digits": "it is on 1 of 2 servers"})
    assert (changes.steps, made.is_running, made.gauge.outcome) == ([], True, "promoted")


def test_a_candidate_that_fails_while_its_promotion_waits_is_taken_back() -> None:
    given = RolloutSettings(candidate=Target(version=2), step="canary", promotes=True, sample_ratio=0)
    made, changes = judged(given)
    assert changes.steps == ["promote"]

    async def fail() -> None:
        for _ in range(100):
            for _ in range(50):
                made.counts[0].answered(0.01)
                made.counts[1].failed()
            await made.judge()

    asyncio.run(fail())
    assert changes.steps == ["promote", "rollback"]
    assert (made.is_running, made.gauge.outcome) == (False, "rolled_back")


@pytest.mark.parametrize(("slower", "dearer"), [(1.5, 1.0), pytest.param(1.0, 1.3, marks=pytest.mark.thorough)])
def test_what_turns_out_slower_or_dearer_while_its_promotion_waits_is_not_promoted(
    slower: float, dearer: float
) -> None:
    given = RolloutSettings(candidate=Target(version=2), step="canary", promotes=True, sample_ratio=0)
    made, changes = judged(given)
    assert changes.steps == ["promote"]
    made._shared = judged(given, slower=slower, dearer=dearer)[0]._shared  # what all gateways have seen by then

    async def go_on() -> None:
        for _ in range(3):
            for count in made.counts:
                count.answered(0.01)
            await made.judge()

    asyncio.run(go_on())
    assert changes.steps == ["promote", ""]
    assert (made.is_running, made.gauge.outcome) == (True, "rolled_back")


@pytest.mark.parametrize(
    ("fails", "outcome", "rolls_back", "expected"),
    [
        (True, "held", True, ["rollback"]),
        (True, "rolled_back", True, ["rollback"]),  # a small one that is slower, of which nothing follows
        (True, "held", False, []),
        (False, "held", True, []),
    ],
)
def test_what_is_proven_within_a_long_block_does_not_wait_for_its_end(
    tmp_path: Path, fails: bool, outcome: Outcome, rolls_back: bool, expected: list[str]
) -> None:
    settings = RolloutSettings(candidate=Target(version=2), step="canary", sample_ratio=0, rolls_back=rolls_back)
    of = ModelControl(pin=Target(version=1), rollout=settings)
    changes, store = Changes(), FileStore(tmp_path / "control.yaml")
    store.block_s = 15.0  # as a ConfigMap's
    made = Rollout("digits", of, settings, Target(version=1), cast("Rollouts", Costs()), changes, store=store)
    made._outcome = outcome

    async def go_on() -> int:
        for second in range(1, 41):
            for index, num in enumerate((190, 10)):
                for _ in range(num):
                    made.counts[index].failed() if fails and index else made.counts[index].answered(0.01)
            await made.judge()
            if changes.steps:
                return second
        return 0

    assert asyncio.run(go_on()) <= 5
    assert changes.steps == expected
    lines = (tmp_path / "control.yaml.digits.evidence").read_text().splitlines()[1:]
    # Of a good one at 15 and 30 s. The first that is told waits for others, and the second is proof; it is told once.
    assert len(lines) == {(True, True): 2, (True, False): 4, (False, True): 2}[fails, rolls_back]


def judged(
    settings: RolloutSettings,
    *,
    may_mix: bool = True,
    slower: float = 1.0,
    dearer: float = 1.0,
    missing: dict[str, str] | None = None,
) -> tuple[Rollout, Changes]:
    """After 400 seconds at most in which no answers were compared: ten more once all is proven."""
    changes, generator = Changes(), np.random.default_rng(1)
    of = ModelControl(pin=Target(version=1), may_mix=may_mix, rollout=settings)
    made = Rollout("digits", of, settings, Target(version=1), cast("Rollouts", Costs(dearer, missing or {})), changes)

    async def go_on() -> None:
        num_more = 10
        for _ in range(400):
            for index in range(2):
                for value in np.exp(generator.normal(size=50) * 0.3) * 0.01:
                    made.counts[index].answered(float(value) * (slower if index else 1.0))
            await made.judge()
            num_more -= made.gauge.outcome != "held"
            if not made.is_running or num_more == 0:
                return

    asyncio.run(go_on())
    return made, changes
