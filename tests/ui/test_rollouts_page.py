"""What answers, on the page: the control document and a rollout are shown, and a pin, a step and a rollback change it."""

from __future__ import annotations

from pathlib import Path

from serving.control.document import ModelControl, parse
from serving.control.stores import FileStore
from tests.gateway.conftest import SAMPLE, gateway_before
from tests.ui.conftest import BROWSER, Page, wait_until
from tests.ui.test_page import CHECK, open_view

pytestmark = BROWSER


def press(page: Page, name: str) -> None:
    """Twice: what changes everybody's answers asks whether it is meant."""
    found = f"[...document.querySelectorAll('#control-models button')].find(b => b.textContent.startsWith('{name}'))"
    page.wait(f"{found} !== undefined", f"{name} is offered")
    page.js(f"{found}.click()")
    page.js(f"{found}.click()")


def test_pins_steps_and_rollbacks(page: Page, digits: str, tmp_path: Path) -> None:
    place = tmp_path / "control.yaml"
    rollout = "pin: {variant: fp32}, rollout: {candidate: {variant: int8}, step: shadow, sample_ratio: 1}"
    place.write_text(f"version: 1\nmodels: {{digits: {{{rollout}}}, toString: {{pin: {{version: 1}}}}}}\n")

    def model() -> ModelControl:
        return parse(place.read_text(), "x").models["digits"]

    with gateway_before(tmp_path, {"cpu": [digits]}, "--control", str(place)) as running:
        open_view(page, running, "rollouts")
        page.wait("document.getElementById('control-models').children.length > 0", "models are shown")
        assert "Rollout of int8 beside fp32, step shadow" in page.text("control-models")

        def has_evidence() -> bool:
            running.infer(SAMPLE)  # a busy machine compares some only
            return bool(page.js("document.querySelectorAll('#control-evidence td').length"))

        wait_until(has_evidence, "evidence is shown")
        assert "agreement" in page.text("control-evidence")
        assert page.js(CHECK) == []
        press(page, "Canary")
        wait_until(lambda: model().rollout is not None and model().arms, "it is a canary")
        wait_until(lambda: FileStore(place).history().current.by == "the page", "who changed it is noted")
        page.wait("document.getElementById('control-models').innerText.includes('step canary')", "the page follows")
        # Of what somebody changed meanwhile the page tells, and changes nothing.
        before = place.read_text()
        page.js(
            'const ask = fetch; window.fetch = (path, o) => path === \'/admin/control\' ? ask(path, {...o, body: o.body.replace(/"revision":"/, \'"revision":"9\')}) : ask(path, o)'
        )
        press(page, "Promote")
        page.wait("document.getElementById('control-said').innerText.includes('is in force by now')", "it is told")
        assert place.read_text() == before
        page.js("window.fetch = ask")
        press(page, "Roll back")
        wait_until(lambda: model().arms == {}, "it is taken back")
        page.wait("document.getElementById('control-models').innerText.includes('step rollback')", "the page follows")
        page.js("document.querySelector('#control-models input[type=text]').value = 'int8'")
        press(page, "Pin")
        wait_until(lambda: model().rollout is None, "it is pinned")
        assert str(model().pin) == "int8"
    bad = [it for it in page.complaints if "409" not in it]
    assert bad == []
