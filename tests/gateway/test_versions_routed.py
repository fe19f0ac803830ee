"""Two versions of a model on a real Triton, routed by a control document while requests are answered: splits, pins, promotion, rollback."""

from __future__ import annotations

import contextlib
import http.client
import io
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from serving.control.stores import FileStore
from serving.ports import free_ports
from serving.repository import Repository
from tests.command import tandem
from tests.gateway.conftest import SAMPLE, gateway_before
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits
from tests.local.test_later_exports import Up, another

pytestmark = [pytest.mark.slow, pytest.mark.triton]

NUM_USERS = 200
PIN = "version: 1\nmodels: {digits: {pin: {version: %d}}}\n"
SPLIT = "version: 1\nmodels: {digits: {sticky_by: 'header:x-user', split: {new: {version: 2, weight: %g}, old: {version: 1, weight: %g}}}}\n"


class Answer(NamedTuple):
    status: int
    number: int  # of the request, in the order in which they were sent
    revision: str
    version: str  # as the receipt says
    arm: str
    model_version: str  # as Triton says
    digest: str


@dataclass
class Routed:
    """A `tandem up` that follows `control`, and what its clients were answered, in the order in which they asked."""

    up: Up
    control: Path
    digests: dict[str, str]
    answers: list[Answer] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask_on(self) -> None:
        connection = http.client.HTTPConnection(self.up.url.removeprefix("http://"), timeout=60)
        while not self.stop.wait(0.005):  # or four of them keep all cores busy
            number = next(self.numbers)
            connection.request("POST", "/v2/models/digits/infer", SAMPLE, {"x-user": str(number % NUM_USERS)})
            answer = connection.getresponse()
            body = json.loads(answer.read())
            revision, version, arm = (answer.headers.get(f"tandem-{it}", "") for it in ("revision", "version", "arm"))
            digest = answer.headers.get("tandem-model-digest", "").removeprefix("sha256:")
            self.answers.append(
                Answer(answer.status, number, revision, version, arm, body.get("model_version", ""), digest)
            )
        connection.close()

    def do(self, *words: str) -> dict[str, Any]:
        """A change, which this gateway has once it returns."""
        done = tandem(*words, "--control", str(self.control), "--url", self.up.url, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def apply(self, text: str) -> None:
        file = self.control.with_name("new.yaml")
        file.write_text(text)
        self.do("apply", str(file))

    def next(self, number: int) -> list[Answer]:
        """Answers to requests that are sent from now on."""
        had, begin = len(self.answers), next(self.numbers)

        def later() -> list[Answer]:
            found = [it for it in self.answers[had:] if it.number > begin]
            return found[:number] if len(found) >= number else []

        return list(wait_until(later, "more are answered"))


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    folder = tmp_path_factory.mktemp("routed")
    repository, control = folder / "repository", folder / "control.yaml"
    publish_digits(repository, precisions=["fp32"])
    publish_digits(repository, precisions=["fp32"], version=2, model_file=another(2))
    (folder / "tandem.yaml").write_text("version: 1\npools: {cpu: {versions: 2}}\n")
    control.write_text(PIN % 1)
    port = free_ports(1)[0]
    words = ["up", "--port", str(port), "--no-measure", "--model-repository", str(repository)]
    words += ["--config", str(folder / "tandem.yaml"), "--control", str(control)]
    program = Program(
        [sys.executable, "-m", "serving", *words], folder / "log", {"TANDEM_STATE": str(folder / "state")}
    )
    threads: list[threading.Thread] = []
    try:
        program.wait_for("Ctrl-C stops it")
        variant = Repository(repository).variant("digits-fp32")
        digests = {str(it.model_version): it.digest for it in (variant.record, *variant.earlier())}
        made = Routed(Up(program, f"http://127.0.0.1:{port}", repository), control, digests)
        threads += [threading.Thread(target=made.ask_on) for _ in range(4)]
        for thread in threads:
            thread.start()
        yield made
        made.stop.set()
        for thread in threads:
            thread.join(60)
        # Whatever was changed meanwhile: no request failed, and none was answered by two versions.
        assert {it.status for it in made.answers} == {200}
        assert all(it.version == it.model_version and it.digest == made.digests[it.version] for it in made.answers)
    finally:
        program.end()


def versions(answers: list[Answer]) -> set[str]:
    return {it.version for it in answers}


def test_a_pin_holds_an_older_version_though_a_newer_one_is_served(routed: Routed) -> None:
    assert versions(routed.next(200)) == {"1"}
    asked = routed.up.ask("/v2/models/digits/versions/2/infer", SAMPLE)
    assert asked[1]["model_version"] == "2"  # whoever names a version gets it


def test_images_are_classified_by_an_older_version_too(routed: Routed) -> None:
    image = io.BytesIO()
    Image.new("L", (8, 8), 200).save(image, "PNG")
    connection = http.client.HTTPConnection(routed.up.url.removeprefix("http://"), timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/classify/digits", image.getvalue(), {"content-type": "image/png"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["tandem-version"]) == (200, "1")
        assert len(json.loads(answer.read())["results"]) == 1


def test_a_split_is_sticky_and_who_is_on_the_new_arm_stays_there_while_it_grows(routed: Routed) -> None:
    on_new: set[int] = set()
    for weight in (10, 40):
        routed.apply(SPLIT % (weight, 100 - weight))
        answers = routed.next(600)
        arms: dict[int, set[str]] = {}
        for it in answers:
            arms.setdefault(it.number % NUM_USERS, set()).add(it.arm)
            assert it.version == {"new": "2", "old": "1"}[it.arm]
        assert all(len(it) == 1 for it in arms.values())
        now = {user for user, arm in arms.items() if arm == {"new"}}
        assert on_new <= now
        assert abs(len(now) / len(arms) - weight / 100) < 0.08
        on_new = now


def test_a_promotion_a_rollback_and_an_undo_are_whole_while_requests_go_on(routed: Routed) -> None:
    for version in ("1", "2", "1", "2"):
        routed.do("models", "pin", "digits", "--version", version)
        assert versions(routed.next(100)) == {version}
    routed.do("models", "rollback", "digits")
    assert versions(routed.next(100)) == {"1"}
    routed.do("undo")
    assert versions(routed.next(100)) == {"2"}
    for revision in {it.revision for it in routed.answers} - {""}:
        seen = {it.version for it in routed.answers if it.revision == revision and not it.arm}
        assert len(seen) <= 1, revision


def test_status_tells_the_revision_in_force_and_what_answers(routed: Routed) -> None:
    state = str(routed.control.with_name("state"))
    ask = lambda *words: tandem("status", *words, TANDEM_STATE=state)  # noqa: E731
    rollout = "rollout: {candidate: {version: 2}, step: canary, canary_ratio: 0.3}"
    routed.apply(f"version: 1\nmodels: {{digits: {{pin: {{version: 1}}, {rollout}}}}}\n")
    assert "version 1 stable 70 %, version 2 canary 30 %" in ask().stdout
    routed.apply(PIN % 1)
    [run] = json.loads(ask("--json").stdout)["runs"]
    assert run["control"]["models"] == {"digits": [{"arm": "pinned", "version": 1, "variant": None, "ratio": 1.0}]}
    revision = run["control"]["revision"]
    assert f"{revision['number']}-{revision['digest'][7:19]}" in ask().stdout


def test_models_show_tells_what_is_pinned_what_answers_and_what_is_kept(routed: Routed) -> None:
    def told() -> Any:
        words = ("models", "show", "digits", "--model-repository", str(routed.up.repository), "--url", routed.up.url)
        return json.loads(tandem(*words, "--json").stdout), tandem(*words).stdout

    routed.apply(PIN % 1)
    found, text = told()
    assert found["kept"] == {"digits-fp32": [1]}
    assert [(it["arm"], it["version"]) for it in found["answers"]] == [("pinned", 1)]
    assert "digits: pinned to version 1 at" in text
    routed.apply(SPLIT % (0.25, 0.75))
    found, _ = told()
    assert {it["arm"]: (it["version"], it["ratio"]) for it in found["answers"]} == {"new": (2, 0.25), "old": (1, 0.75)}


def test_a_revision_waits_for_what_it_names_to_be_served(routed: Routed) -> None:
    routed.apply(PIN % 2)
    before = routed.up.ask("/admin/status")[1]["control"]["revision"]["number"]
    routed.control.write_text(PIN % 3)
    wait_until(
        lambda: "version 3" in (routed.up.ask("/admin/status")[1]["control"]["problem"] or ""), "it says why it waits"
    )
    assert versions(routed.next(100)) == {"2"}
    publish_digits(routed.up.repository, precisions=["fp32"], version=3, model_file=another(3))
    variant = Repository(routed.up.repository).variant("digits-fp32")
    routed.digests["3"] = variant.digest
    wait_until(lambda: routed.up.ask("/admin/status")[1]["control"]["is_current"], "it is in force")
    assert routed.up.ask("/admin/status")[1]["control"]["revision"]["number"] == before + 1
    assert versions(routed.next(100)) == {"3"}


@pytest.mark.thorough
def test_a_gateway_that_starts_while_nothing_serves_what_is_pinned_answers_by_what_was_before(
    routed: Routed, tmp_path: Path
) -> None:
    routed.apply(PIN % 2)
    before = FileStore(routed.control).history().current.number
    triton = routed.up.ask("/admin/status")[1]["pools"]["cpu"]["servers"][0]["url"]
    routed.control.write_text(PIN % 99)
    with gateway_before(tmp_path, {"cpu": [triton]}, "--control", str(routed.control)) as restarted:
        answer = restarted.infer(SAMPLE)
        assert (answer.status, answer.json()["model_version"]) == (200, "2")
        assert answer.headers["Tandem-Revision"].startswith(f"{before}-")
        told = restarted.ask("/admin/status").json()["control"]
        assert (told["is_current"], told["unanswered"], "version 99" in told["problem"]) == (False, {}, True)
        assert restarted.ask("/v2/health/ready").status == 200
        routed.control.write_text(f"{PIN % 2}# again\n")
        wait_until(
            lambda: restarted.infer(SAMPLE).headers["Tandem-Revision"].startswith(f"{before + 1}-"), "it follows"
        )
    wait_until(lambda: routed.up.ask("/admin/status")[1]["control"]["is_current"], "so does the other one")
    # Where nothing was before, it says what it cannot answer.
    alone = tmp_path / "alone.yaml"
    alone.write_text(PIN % 99)
    with gateway_before(tmp_path, {"cpu": [triton]}, "--control", str(alone)) as restarted:
        assert restarted.infer(SAMPLE).status == 503
        assert restarted.ask("/v2/health/ready").status == 503
        told = restarted.ask("/admin/status").json()["control"]
        assert (told["is_current"], told["unanswered"]) == (False, {"digits": "version 99"})
        alone.write_text(PIN % 2)
        wait_until(lambda: restarted.infer(SAMPLE).status == 200, "it answers")
        assert restarted.ask("/v2/health/ready").status == 200
