// "Try it": an 8×8 grid to draw on, and a real inference through the same path that every client takes.

import { $, classed, el, pairs } from "/ui/dom.js";
import { ask as fetchWithKey } from "/ui/key.js";

const SIDE = 8;
const SHAPE = [-1, 1, SIDE, SIDE];
const RECEIPT = ["tandem-pool", "tandem-device", "tandem-variant", "tandem-engine", "tandem-model-digest", "tandem-gate", "tandem-reason", "server-timing", "tandem-error", "retry-after"];
const REACH = 1.4; // pixels from the pen to where it leaves no ink: strokes two pixels wide, as in the images the model learned from
const FALL = 1.5; // ink lost per pixel from there inwards; by trial with 13 scripted digits, of which 12 were read right

const pixels = new Float32Array(SIDE * SIDE); // 0 paper … 1 ink
const inputs = new Map(); // model name -> name of its input, null where it takes something else
let current = 0; // the pixel that the keyboard is on
let newest = 0; // only the answer to the newest question is shown

const cells = Array.from(pixels, () => classed("cell", el("div")));
cells.forEach((cell) => cell.setAttribute("role", "gridcell"));
for (let row = 0; row < SIDE; row++) {
  const line = classed("row", el("div", "", ...cells.slice(row * SIDE, (row + 1) * SIDE)));
  line.setAttribute("role", "row");
  $("grid").append(line);
}
pixels.forEach((_, i) => ink(i, 0));
cells[current].tabIndex = 0;

function ink(i, value) {
  pixels[i] = value;
  cells[i].style.setProperty("--ink", `${Math.round(value * 100)}%`);
  cells[i].setAttribute("aria-label", `row ${Math.floor(i / SIDE) + 1}, column ${(i % SIDE) + 1}: ${Math.round(value * 100)} % ink`);
}

function pen(event) {
  const box = $("grid").getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * SIDE - 0.5;
  const y = ((event.clientY - box.top) / box.height) * SIDE - 0.5;
  pixels.forEach((was, i) => {
    const value = Math.min(1, FALL * (REACH - Math.hypot(x - (i % SIDE), y - Math.floor(i / SIDE))));
    if (value > was) ink(i, value);
  });
}

function move(to) {
  cells[current].tabIndex = -1;
  current = to;
  cells[current].tabIndex = 0;
  cells[current].focus();
}

const KEYS = {
  ArrowLeft: () => current % SIDE > 0 && move(current - 1),
  ArrowRight: () => current % SIDE < SIDE - 1 && move(current + 1),
  ArrowUp: () => current >= SIDE && move(current - SIDE),
  ArrowDown: () => current < SIDE * (SIDE - 1) && move(current + SIDE),
  Home: () => move(current - (current % SIDE)),
  End: () => move(current - (current % SIDE) + SIDE - 1),
  " ": () => ink(current, pixels[current] > 0 ? 0 : 1),
  Enter: () => ask(),
};

$("grid").addEventListener("keydown", (event) => {
  if (!(event.key in KEYS) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  KEYS[event.key]();
});
$("grid").addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  event.preventDefault();
  $("grid").setPointerCapture(event.pointerId);
  pen(event);
});
$("grid").addEventListener("pointermove", (event) => {
  if ($("grid").hasPointerCapture(event.pointerId)) [event, ...(event.getCoalescedEvents?.() ?? [])].forEach(pen);
});
$("grid").addEventListener("pointerup", () => ask());
$("ask").addEventListener("click", () => ask());
$("model").addEventListener("change", () => pixels.some(Boolean) && ask());
$("clear").addEventListener("click", () => {
  newest++;
  pixels.forEach((_, i) => ink(i, 0));
  answer("Nothing asked yet.", [], []);
});

// The models among `names` that take one such image; asked for once each, when a name is first seen.
export async function offer(names) {
  for (const name of names.filter((n) => !inputs.has(n))) {
    const reply = await fetchWithKey(`/v2/models/${encodeURIComponent(name)}`).catch(() => null);
    if (reply?.status === 404) $("try-none").textContent = "Models are asked at the address for clients; this one is for operators.";
    if (reply?.status === 403) $("try-none").textContent = "This API key may not ask these models.";
    if (!reply?.ok) continue;
    const { inputs: [first, ...more] } = await reply.json();
    const fits = first.datatype === "FP32" && !more.length && String(first.shape) === String(SHAPE);
    inputs.set(name, fits ? first.name : null);
  }
  const fitting = names.filter((n) => inputs.get(n));
  if (String(fitting) !== String(Array.from($("model").options, (o) => o.value))) {
    const chosen = $("model").value;
    $("model").replaceChildren(...fitting.map((n) => new Option(n, n, false, n === chosen)));
  }
  $("try").hidden = !fitting.length;
  $("try-none").hidden = fitting.length > 0;
}

async function ask() {
  const name = $("model").value;
  const mine = ++newest;
  const input = { name: inputs.get(name), datatype: "FP32", shape: [1, ...SHAPE.slice(1)], data: Array.from(pixels) };
  try {
    const reply = await fetchWithKey(`/v2/models/${encodeURIComponent(name)}/infer`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ inputs: [input] }),
    });
    const body = await reply.json();
    if (mine !== newest) return;
    const receipt = RECEIPT.filter((h) => reply.headers.has(h)).map((h) => [h, reply.headers.get(h)]);
    if (!reply.ok) return answer(`${reply.status}: ${body.error}`, [], receipt);
    const scores = body.outputs[0].data;
    const best = scores.indexOf(Math.max(...scores));
    answer(`${name} says ${best} (${body.outputs[0].name}: ${scores[best].toFixed(3)})`, scores, receipt);
  } catch (error) {
    if (mine === newest) answer(`No answer: ${error.message}`, [], []);
  }
}

function answer(sentence, scores, receipt) {
  const best = Math.max(...scores);
  const bars = scores.map((score, label) => {
    const bar = classed("bar", el("span"));
    bar.style.width = `${Math.max(0, Math.min(1, score)) * 100}%`;
    const line = el("li", "", el("b", label), classed("track", el("span", "", bar)), el("span", score.toFixed(3)));
    return score === best ? classed("best", line) : line;
  });
  $("answer").textContent = sentence;
  $("scores").replaceChildren(...bars);
  $("receipt-title").hidden = !receipt.length;
  $("receipt").replaceChildren(...pairs(receipt));
}
