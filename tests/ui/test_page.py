"""The page with real traffic in a real browser: what it shows is what was counted, whatever is served can be tried, and all can use it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from serving.ports import free_ports
from tests.cluster.objects import deployment, pod
from tests.cluster.scaler.test_cluster_state import listing
from tests.cluster.servers import answering
from tests.cluster.test_connection import kubeconfig
from tests.gateway.conftest import SAMPLE, TANDEM, Running, gateway_before, wait_for_model
from tests.local.harness import ROOT, Program, Served, undisturbed
from tests.ui.conftest import BROWSER, Page, wait_until

pytestmark = BROWSER
VIEWS = ("live", "cost", "decisions", "models", "rollouts", "try/digits")


@pytest.fixture(scope="module")
def served(
    digits: str,
    kinds: Served,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """Two pools with prices; the first has digits and its records, the second small models without any."""
    prices = {"cpu": 0.36, "kinds": 3.6}
    pools = {"cpu": [digits], "kinds": [f"http://{kinds.url}"]}
    options = ("--model-repository", str(ROOT / "model_repo"))
    folder = tmp_path_factory.mktemp("page")
    usage = {"place": str(folder / "usage.db")}
    with gateway_before(folder, pools, *options, prices=prices, usage=usage) as running:
        wait_for_model(running, kinds)
        yield running


def open_view(page: Page, running: Running, view: str) -> None:
    page.open("about:blank")
    page.open(f"http://{running.url}/#/{view}")
    page.wait("document.getElementById('pools')?.children.length > 0", "the page is there")
    if view.startswith("try"):
        name = view.partition("/")[2]
        page.wait(f"document.getElementById('model').value === '{name}'", "the model is chosen")
        page.wait("document.getElementById('widget').children.length > 0", "there is something to fill in")


# Every visible text whose colour is too near its ground, and every control that has no name; WCAG 2, AA.
CHECK = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const found = rgba(getComputedStyle(e).backgroundColor);
      if (found[3] > 250) return found;
    }
    return rgba(getComputedStyle(document.body).backgroundColor);
  };
  const wrong = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || e.closest(".unseen, .track, svg, #grid")) continue;
    if ([...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) {
      const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) wrong.push(`${ratio.toFixed(2)}: ${e.tagName} ${e.textContent.slice(0, 40)}`);
    }
    if (e.matches("input, select, textarea, button, a, summary")) {
      const name = e.getAttribute("aria-label") || e.innerText?.trim() || [...(e.labels ?? [])].map((l) => l.textContent.trim()).join("");
      if (!name) wrong.push(`no name: ${e.outerHTML.slice(0, 90)}`);
    }
    if (e.matches("svg[role=img], [role=img]") && !e.getAttribute("aria-label")) wrong.push(`no label: ${e.outerHTML.slice(0, 90)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) wrong.push(`wider than the screen: ${document.documentElement.scrollWidth} of ${innerWidth}`);
  return wrong;
})()"""


@pytest.mark.parametrize(("width", "is_dark"), [(1240, False), (390, True)])
def test_every_view_can_be_read_by_everybody_and_complains_of_nothing(
    page: Page, served: Running, width: int, is_dark: bool
) -> None:
    served.infer(SAMPLE)
    page.look(width, 850, is_dark=is_dark)
    for view in VIEWS:
        open_view(page, served, view)
        if view == "live":
            page.wait("document.querySelector('#traffic td') !== null", "what was counted is shown")
        if view == "cost":
            page.wait("document.querySelectorAll('#bill tr').length > 3", "the bill is shown")
        if view == "models":
            page.wait("document.querySelectorAll('.model').length > 3", "the models are shown")
        assert page.js(CHECK) == [], view
    page.open(f"http://{served.url}/docs")
    page.wait("document.querySelectorAll('#paths details').length > 20")
    assert page.js(CHECK) == []
    assert page.complaints == []


def test_the_first_paint_comes_within_a_second(page: Page, served: Running) -> None:
    paint = "performance.getEntriesByName('first-contentful-paint')"

    def took_s() -> float:
        open_view(page, served, "live")
        page.wait(f"{paint}.length === 1")
        return float(page.js(f"{paint}[0].startTime")) / 1000

    undisturbed(took_s, 1.0)


def test_live_shows_what_was_counted_and_goes_on(page: Page, served: Running) -> None:
    open_view(page, served, "live")
    page.wait("document.querySelector('#tiles dd') !== null", "the stream has begun")
    page.js("document.querySelector('[name=window][value=start]').click()")

    def errors() -> int:
        found = re.search(r"wrong requests\s+([\d,]+)", page.text("errors"))
        return int(found[1].replace(",", "")) if found else 0

    before = errors()
    for _ in range(3):
        assert served.infer(b"{}").status == 400
        assert served.infer(SAMPLE).status == 200
    wait_until(lambda: errors() >= before + 3, "three more wrong requests are shown")
    rows = page.js("[...document.querySelectorAll('#traffic tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    mine = next(row for row in rows if row[0] == "digits" and row[1] == "cpu")
    assert re.fullmatch(r"[\d.]+ (µs|ms|s)", mine[5])
    assert float(mine[8].replace(",", "")) > 0
    label = page.js("document.querySelector('#rate svg').getAttribute('aria-label')")
    assert label.startswith("requests/s; now: ")
    assert "ready" in page.js("document.querySelector('#states .track').getAttribute('aria-label')")


def test_the_bill_is_the_one_that_is_told_and_can_be_downloaded(page: Page, served: Running) -> None:
    served.infer(SAMPLE)

    def told() -> list[dict[str, float]]:
        lines: list[dict[str, float]] = json.loads(served.ask("/admin/cost").body)["lines"]
        return lines

    wait_until(lambda: any(line["model"] == "digits" and line["dollars"] > 0 for line in told()), "it is counted")
    open_view(page, served, "cost")
    page.wait("document.querySelectorAll('#bill tbody tr').length >= 3", "the bill is shown")
    heads = page.js("[...document.querySelectorAll('#bill th')].map((e) => e.innerText)")
    assert heads == ["Tenant", "Model", "Requests", "Servers’ time", "Used", "Idle", "Cold", "In all"]
    rows = page.js("[...document.querySelectorAll('#bill tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))")
    assert {(row[0], row[1]) for row in rows[:-2]} == {("–", line["model"]) for line in told()}
    assert [row[0] for row in rows[-2:]] == ["nobody", "paid"]
    *parts, paid = (float(row[-1].replace(",", "")) for row in rows)
    assert sum(parts) == pytest.approx(paid, rel=0.01)
    page.js("Object.assign(URL, { createObjectURL: (blob) => (globalThis.saved = blob.text(), '#') })")
    page.js("document.getElementById('cost-csv').click()")
    page.wait("globalThis.saved !== undefined", "it is downloaded")
    first, *lines = page.js("globalThis.saved").splitlines()
    assert first == "tenant,model,requests,device_s,tokens,used_dollars,idle_dollars,cold_dollars,dollars"
    assert len(lines) == len(rows) - 2
    page.js("document.getElementById('cost-by').value = 'model'")
    page.js("document.getElementById('cost-by').dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('#bill th').innerText === 'Model'", "it is asked anew")


def test_a_request_is_found_by_its_id(page: Page, served: Running) -> None:
    receipt = served.infer(SAMPLE).headers
    served.infer(SAMPLE)
    open_view(page, served, f"decisions/{receipt['tandem-request-id'][:20]}")
    page.wait("document.querySelectorAll('.decision[open]').length === 1", "one is found, and open")
    text = page.text("decisions")
    for said in (receipt["tandem-request-id"], "What became of it", "chosen", receipt["tandem-variant"]):
        assert said in text
    page.js("document.getElementById('find-last').click()")
    page.wait("document.querySelectorAll('.decision').length > 1", "the last ones are shown")


def test_the_catalogue_says_what_the_records_say(page: Page, served: Running) -> None:
    open_view(page, served, "models")
    page.wait("document.querySelectorAll('.model').length > 3", "the models are shown")
    text = page.text("models")
    record = json.loads((ROOT / "model_repo" / "digits-int8" / "tandem.json").read_text())
    assert f"top1 {record['gate']['checks'][0]['value']:.4g}" in text
    assert record["pools"]["gpu"]["reason"] in text
    assert "cpu: served" in text
    assert "double.any" in text  # of no record
    page.js("[...document.querySelectorAll('.model a')].find(a => a.hash === '#/try/digits').click()")
    page.wait("document.getElementById('grid')?.checkVisibility() === true", "it can be tried")


def asked(page: Page) -> str:
    page.js("document.getElementById('ask').click()")
    page.wait("document.getElementById('sides').children.length > 0", "it has answered")
    return page.text("answer")


def test_an_answer_from_two_places_side_by_side_and_as_code(page: Page, served: Running) -> None:
    open_view(page, served, "try/digits")
    page.js("document.getElementById('example').click()")
    page.wait("document.getElementById('sides').children.length === 1", "it has answered")
    assert "digits says 2" in page.text("answer")
    page.js(
        "const b = document.getElementById('side-b'); b.value = 'variant=fp32'; b.dispatchEvent(new Event('change'))"
    )
    page.wait("document.getElementById('sides').children.length === 2", "both have answered")
    assert re.search(r"[Ss]ame.*costs", page.text("answer"))
    page.js(
        "const a = document.getElementById('side-a'); a.value = 'variant=int8'; a.dispatchEvent(new Event('change'))"
    )
    page.js("document.querySelector('#code summary').click()")
    code: dict[str, str] = {}
    for language in ("curl", "python", "triton"):
        page.js(f"document.querySelector('[name=language][value={language}]').click()")
        page.wait("document.getElementById('snippet').textContent.length > 100")
        code[language] = page.js("document.getElementById('snippet').textContent")
    curled = subprocess.run(["bash", "-c", code["curl"]], capture_output=True, text=True, timeout=60, check=True)
    assert "tandem-variant: int8" in curled.stdout.lower()
    for language in ("python", "triton"):
        ran = subprocess.run([TANDEM[0], "-c", code[language]], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "probabilities" in ran.stdout


@pytest.mark.parametrize(
    ("name", "widget", "says"),
    [
        ("double.any", "Features", "y"),
        ("unbatched.any", "Tensors", "y"),
        ("types.any", "Tensors", "0.5"),
        ("digits", "Image", "digits says"),
    ],
)
def test_whatever_is_served_can_be_tried(page: Page, served: Running, name: str, widget: str, says: str) -> None:
    open_view(page, served, f"try/{name}")
    page.js(f"document.querySelector('[name=widget][value={widget}]')?.click()")
    page.js("document.getElementById('example').click()")
    page.wait("document.getElementById('sides').children.length === 1", "it has answered")
    assert page.js("document.querySelector('#sides dl').innerText").startswith("There and back")
    assert "tandem-pool" in page.js("document.querySelector('#sides details').textContent")
    assert says in page.text("answer") + page.text("sides")
    assert page.complaints == []


def test_texts_are_compared_with_each_other(page: Page, words: Running) -> None:
    open_view(page, words, "try/words")
    page.js("document.getElementById('texts').value = 'a harbour\\na harbour\\nthe sea'")
    assert "has answered" in asked(page)
    cells = page.js("[...document.querySelectorAll('.similar td')].map(c => c.innerText)")
    assert cells[1:3] == ["1.00", "1.00"]
    assert len(cells) == 12


def test_an_endpoint_can_be_tried_on_the_page_of_the_api(page: Page, served: Running) -> None:
    page.open(f"http://{served.url}/docs")
    page.wait("document.querySelectorAll('#paths details').length > 20")
    infer = (
        "[...document.querySelectorAll('#paths details')].find(d => d.innerText.includes('/v2/models/{model}/infer'))"
    )
    page.js(f"{infer}.open = true")
    page.wait(f"{infer}.querySelector('textarea').value.includes('inputs')", "an example is filled in")
    page.js(f"{infer}.querySelector('form').requestSubmit()")
    page.wait(f"{infer}.querySelector('pre')?.textContent.includes('probabilities')", "it is answered")
    said = page.js(f"{infer}.querySelector('[role=status]').innerText")
    assert said.startswith("200 ")
    assert "tandem-request-id" in said


@pytest.fixture(scope="module", autouse=True)  # it tells its first number after ten seconds, while other tests run
def scaled(digits: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Program, int]]:
    """A scaler with an API server that knows two nodes, its port, and a gateway that asks it."""
    pods = listing(*(pod("cpu", name=name, node=name) for name in ("a", "b")))
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("scaled")
    with (
        answering(200, listing(deployment("cpu", replicas=2)), pods=pods) as api,
        gateway_before(
            folder,
            {"cpu": [digits]},
            prices={"cpu": 0.25},
            of_pools={"cpu": {"min_replicas": 2, "max_replicas": 3}},
            scaler=f"http://127.0.0.1:{port}",
        ) as running,
    ):
        options = ["--config", str(folder / "tandem.yaml"), "--gateways", f"http://{running.url}", "--port", str(port)]
        environment = {"KUBECONFIG": str(kubeconfig(folder, f"http://{api}")), "NO_PROXY": "*"}
        scaler = Program([*TANDEM, "cluster", "scaler", *options], folder / "scaler.log", environment)
        try:
            yield running, scaler, port
        finally:
            scaler.end()


def test_nodes_and_money_come_from_the_scaler_and_its_silence_is_told(
    page: Page, scaled: tuple[Running, Program, int]
) -> None:
    running, scaler, port = scaled
    open_view(page, running, "live")
    row = "[...document.querySelectorAll('#scaler tbody tr')].map(r => [...r.cells].map(c => c.innerText))[0]"
    page.wait(f"{row}?.[1] === '2'", "a number is published, and shown")
    page.wait(f"{row}[3] === '2'", "the nodes are counted")
    pool, wanted, ready, nodes, per_hour, spent, *_ = page.js(row)
    assert (pool, wanted, ready, nodes, per_hour) == ("cpu", "2", "1", "2", "0.5")
    page.wait(f"Number({row}[5]) > {float(spent)}", "money is counted on")
    assert page.js(CHECK) == []
    assert page.complaints == []
    scaler.end()
    page.wait(f"document.getElementById('scaler').innerText.includes('127.0.0.1:{port}')", "its silence is told")
    assert page.js("document.querySelector('#scaler table')") is None
