// "Playground": a real inference of any model, through the same path that every client takes; from two places side by side.

import { snippet } from "/ui/code.js";
import { $, classed, el, pairs, table } from "/ui/dom.js";
import { decoded } from "/ui/halves.js";
import { ask as fetchWithKey, hasKey } from "/ui/key.js";
import { widgetsFor } from "/ui/widgets.js";
import { duration, number } from "/ui/words.js";

const RECEIPT = ["tandem-pool", "tandem-device", "tandem-variant", "tandem-engine", "tandem-dtype", "tandem-model-digest", "tandem-gate", "tandem-reason", "tandem-revision", "tandem-version", "tandem-arm", "tandem-request-id", "server-timing", "tandem-error", "retry-after"];
const NUM_SHOWN = 5; // classes
const SAME = 1e-4; // relative, of two answers: what orders of summation differ by, and not what a precision costs; a guess, not measured

let newest = 0; // only the answer to the newest question is shown
let catalogue = { models: {} };
let variants = []; // of all models, as the status has them
let wanted = ""; // model that a link named
let metadata = null; // of the chosen model
let widget = null;

// -- what can be asked ------------------------------------------------------------------------------------------------

export function offer(status, known) {
  catalogue = known;
  variants = Object.entries(status.models).flatMap(([name, m]) => m.variants.map((v) => ({ ...v, model: name })));
  const names = [...new Set(variants.map((v) => v.model))].sort();
  const is = Array.from($("model").options, (o) => o.value);
  $("try").hidden = !names.length;
  $("try-none").hidden = names.length > 0;
  if (String(names) !== String(is)) {
    const chosen = names.includes(wanted) ? wanted : $("model").value;
    $("model").replaceChildren(...names.map((n) => new Option(n, n, false, n === chosen)));
  }
  if (names.length && metadata?.name !== $("model").value) take();
  else if (names.length) sides();
}

export function choose(name) {
  wanted = name;
  if (!Array.from($("model").options, (o) => o.value).includes(name) || $("model").value === name) return;
  $("model").value = name;
  take();
}

async function take() {
  const name = $("model").value;
  const reply = await fetchWithKey(`/v2/models/${encodeURIComponent(name)}`).catch(() => null);
  if ($("model").value !== name) return;
  if (!reply?.ok) {
    $("try").hidden = true;
    $("try-none").hidden = false;
    $("try-none").textContent = reply?.status === 404 ? "Models are asked at the address for clients; this one is for operators." : reply?.status === 403 ? "This API key may not ask these models." : "The model cannot be asked now.";
    return;
  }
  metadata = await reply.json();
  const known = catalogue.models[name];
  $("model-about").textContent = [known?.task, metadata.inputs.map((i) => `${i.name} ${i.datatype} [${i.shape}]`).join(", ")].filter(Boolean).join("; ");
  const found = widgetsFor(metadata, known);
  const choices = found.map(([title, make], i) => {
    const radio = el("input");
    [radio.type, radio.name, radio.value, radio.checked] = ["radio", "widget", title, i === 0];
    radio.addEventListener("change", () => put(make));
    return el("label", "", radio, ` ${title}`);
  });
  $("widgets").replaceChildren($("widgets").firstElementChild, ...choices);
  $("widgets").hidden = found.length < 2;
  sides();
  put(found[0][1]);
}

function put(make) {
  widget = make(() => run());
  widget.place($("widget"));
  nothing();
}

function nothing() {
  newest++;
  $("answer").textContent = "Nothing asked yet.";
  $("sides").replaceChildren();
  code();
}

// Where it can be asked: anywhere, each pool, each variant, each variant on each pool.
function sides() {
  const own = variants.filter((v) => v.model === $("model").value);
  const unique = (of) => [...new Set(own.map(of))].sort();
  const [pools, precisions] = [unique((v) => v.pool), unique((v) => v.variant)];
  const options = [["where it is cheapest", ""]];
  if (pools.length > 1) options.push(...pools.map((pool) => [`pool ${pool}`, `pool=${pool}`]));
  if (precisions.length > 1) options.push(...precisions.map((variant) => [`variant ${variant}`, `variant=${variant}`]));
  if (pools.length > 1 && precisions.length > 1) options.push(...own.map((v) => [`${v.variant} on ${v.pool}`, `pool=${v.pool}&variant=${v.variant}`]).sort());
  for (const [id, all] of [["side-a", options], ["side-b", [["nothing", "-"], ...options]]]) {
    const is = Array.from($(id).options, (o) => o.value);
    if (String(is) === String(all.map(([, value]) => value))) continue;
    const before = is.length ? $(id).value : all[0][1];
    $(id).replaceChildren(...all.map(([text, value]) => new Option(text, value, false, value === before)));
  }
}

function pinsOf(value) {
  const pins = new URLSearchParams(value);
  return Object.fromEntries([["Tandem-Pool", pins.get("pool")], ["Tandem-Variant", pins.get("variant")]].filter(([, v]) => v));
}

// -- asking -----------------------------------------------------------------------------------------------------------

async function one(request, pins) {
  const began = performance.now();
  const reply = await fetchWithKey(request.path, { method: "POST", headers: { "Content-Type": request.type, ...request.headers, ...pins }, body: request.body });
  const body = await decoded(reply);
  const took = (performance.now() - began) / 1000;
  const receipt = RECEIPT.filter((h) => reply.headers.has(h)).map((h) => [h, reply.headers.get(h)]);
  const id = reply.headers.get("tandem-request-id");
  const told = id && (await fetchWithKey(`/admin/decisions?id=${id}`).catch(() => null));
  const decisions = told?.ok ? (await told.json()).decisions : [];
  return {
    ok: reply.ok, status: reply.status, body, took, receipt, id,
    pool: reply.headers.get("tandem-pool"), variant: reply.headers.get("tandem-variant"), reason: reply.headers.get("tandem-reason"),
    backendS: decisions.reduce((sum, d) => sum + (d.backend_s ?? 0), 0) || null,
    price: decisions.length && decisions.every((d) => d.price_per_million !== null) ? decisions.reduce((sum, d) => sum + d.price_per_million, 0) : null,
  };
}

async function run() {
  const name = $("model").value;
  const mine = ++newest;
  try {
    const request = widget.request(name);
    code();
    const places = [$("side-a").value, $("side-b").value].filter((value) => value !== "-");
    const answers = [];
    for (const value of places) answers.push({ ...(await one(request, pinsOf(value))), place: value }); // one after the other: neither takes the other's time
    if (mine === newest) show(name, request, answers);
  } catch (error) {
    if (mine !== newest) return;
    $("answer").textContent = `No answer: ${error.message}`;
    $("sides").replaceChildren();
  }
}

// -- answers ----------------------------------------------------------------------------------------------------------

const areProbabilities = (data) => data.every((v) => v >= 0) && Math.abs(data.reduce((a, b) => a + b, 0) - 1) < 0.01;

// The scores of one row, if that is what an answer holds: [[label, score]…], the best first.
function scoresOf(name, { body }) {
  if (body.results) return (body.results[0].labels ?? []).map((l) => [l.label ?? `class ${l.index}`, l.score]);
  const known = catalogue.models[name];
  if (known && known.task !== "classification") return null;
  const scores = body.outputs?.find((o) => /^(FP|BF)/.test(o.datatype) && o.shape.length === 2 && o.shape[0] === 1 && o.shape[1] > 1);
  if (!scores || (!known && !areProbabilities(scores.data))) return null;
  return scores.data.map((s, i) => [known?.labels?.[i] ?? String(i), s]).sort((a, b) => b[1] - a[1]);
}

function vectorsOf({ body }) {
  return body.data?.[0]?.embedding ? body.data.map((d) => d.embedding) : null;
}

const cosine = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0) / (Math.hypot(...a) * Math.hypot(...b) || 1);

function similar(texts, vectors) {
  const rows = vectors.map((v, i) => [texts[i], ...vectors.map((w) => {
    const value = cosine(v, w);
    const cell = el("span", value.toFixed(2));
    cell.dataset.warm = Math.round(Math.max(0, value) * 100);
    return cell;
  })]);
  const made = classed("similar", table(["cosine", ...texts.map((_, i) => String(i + 1))], rows));
  for (const span of made.querySelectorAll("[data-warm]")) span.parentElement.style.setProperty("--warm", `${span.dataset.warm}%`);
  return classed("scroll", el("div", "", made));
}

function bars(scores) {
  const best = scores[0]?.[1];
  return classed("scores", el("ol", "", ...scores.slice(0, NUM_SHOWN).map(([label, score]) => {
    const bar = classed("bar", el("span"));
    bar.style.setProperty("width", `${Math.max(0, Math.min(1, score)) * 100}%`);
    const line = el("li", "", el("span", label), classed("track", el("span", "", bar)), classed("number", el("span", score.toFixed(3))));
    return score === best ? classed("best", line) : line;
  })));
}

function shownOf(name, request, answer) {
  if (!answer.ok) return el("p", `${answer.status}: ${answer.body.error?.message ?? answer.body.error}`);
  const scores = scoresOf(name, answer);
  if (scores) return bars(scores);
  const vectors = vectorsOf(answer);
  if (vectors) return similar(request.texts, vectors);
  const rows = (answer.body.outputs ?? []).map((o) => [o.name, `${o.datatype} [${o.shape}]`, `${o.data.slice(0, 6).map((v) => (typeof v === "number" ? number(v, 4) : v)).join(", ")}${o.data.length > 6 ? ", …" : ""}`]);
  return classed("scroll", el("div", "", table(["Output", "Type and shape", "Values"], rows)));
}

const flat = (answer) => (answer.body.outputs ?? []).flatMap((o) => o.data).concat((vectorsOf(answer) ?? []).flat(), (answer.body.results?.[0]?.labels ?? []).map((l) => l.score));

// One sentence: the same? how fast? how dear?
function compared(name, [a, b]) {
  const [left, right] = [flat(a), flat(b)];
  const most = Math.max(...left.map((v) => (typeof v === "number" ? Math.abs(v) : 0)), 0) || 1;
  const off = left.length === right.length ? Math.max(0, ...left.map((v, i) => (typeof v === "number" ? Math.abs(v - right[i]) : v === right[i] ? 0 : Infinity))) : Infinity;
  const [first, second] = [scoresOf(name, a)?.[0]?.[0], scoresOf(name, b)?.[0]?.[0]];
  const same = off === 0 ? "The same answer, bit for bit" : off / most <= SAME ? `The same answer, to ${number(off, 2)}` : first !== undefined && first === second ? `The same class; scores differ by ${number(off, 2)} at most` : first !== undefined ? `Different classes: ${first} and ${second}` : `Answers differ by ${number(off, 2)} at most`;
  const word = (ratio, what) => (Math.abs(ratio - 1) > 0.005 ? `${number(ratio, 2)} × ${what}` : what);
  const parts = [same];
  if (a.backendS && b.backendS) parts.push(`the second took ${word(b.backendS / a.backendS, "as long")} at its server this time`);
  if (a.price && b.price) parts.push(`costs ${word(b.price / a.price, "as much")}`);
  return `${parts.join("; ")}.`;
}

function side(name, request, answer) {
  const title = answer.pool ? `${answer.variant} on ${answer.pool}` : "no answer";
  const facts = [["There and back", duration(answer.took)], ["At the server", duration(answer.backendS)], ["Price per million", answer.price === null ? "no prices set" : number(answer.price)]];
  const parts = [el("h4", title), shownOf(name, request, answer), el("dl", "", ...pairs(facts))];
  const receipt = el("dl", "", ...pairs(answer.receipt));
  const all = el("details", "", el("summary", "Receipt"), receipt);
  if (answer.id) {
    const link = el("a", "Why did it go there?");
    link.href = `#/decisions/${answer.id}`;
    all.append(el("p", "", link));
  }
  return classed("card", el("article", "", ...parts, all));
}

function show(name, request, answers) {
  const [first] = answers;
  const best = first.ok && scoresOf(name, first)?.[0];
  const said = !first.ok ? `${first.status}: ${first.body.error?.message ?? first.body.error}` : best ? `${name} says ${best[0]} (${best[1].toFixed(3)}).` : `${name} has answered.`;
  $("answer").textContent = answers.length > 1 && answers.every((a) => a.ok) ? `${said} ${compared(name, answers)}` : said;
  $("sides").replaceChildren(...answers.map((answer) => side(name, request, answer)));
}

// -- as code ----------------------------------------------------------------------------------------------------------

function code() {
  if (!$("code").open || widget === null) return;
  $("copied").textContent = "";
  try {
    $("snippet").textContent = snippet(document.querySelector("[name=language]:checked").value, widget.request($("model").value), pinsOf($("side-a").value), hasKey());
  } catch (error) {
    $("snippet").textContent = `# ${error.message}`;
  }
}

$("model").addEventListener("change", () => {
  location.hash = `#/try/${encodeURIComponent($("model").value)}`;
  take();
});
$("ask").addEventListener("click", run);
$("clear").addEventListener("click", () => {
  widget.clear();
  nothing();
});
$("example").addEventListener("click", async () => {
  await widget.example(catalogue.models[$("model").value]);
  run();
});
for (const id of ["side-a", "side-b"]) $(id).addEventListener("change", () => ($("sides").children.length ? run() : code()));
$("code").addEventListener("toggle", code);
for (const choice of document.querySelectorAll("[name=language]")) choice.addEventListener("change", code);
$("widget").addEventListener("input", code);
$("copy").addEventListener("click", async () => {
  const done = await navigator.clipboard?.writeText($("snippet").textContent).then(() => true, () => false);
  if (!done) getSelection().selectAllChildren($("snippet"));
  $("copied").textContent = done ? "Copied." : "Selected: copy it with Ctrl-C.";
});
