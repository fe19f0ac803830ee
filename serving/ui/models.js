// "Models": of each, its variants with proof, speed here, size and version, what was refused and why, and whether it is served.

import { $, classed, el, pairs, table, tag } from "/ui/dom.js";
import { bytes, duration, number } from "/ui/words.js";

const WHERE = { only_pool: "the only pool that serves it", first_ready: "several are ready, and each request goes to the cheapest that will be in time" };
const WHY = {
  named_by_hand: "tandem.yaml names it",
  measured_fastest: "measured to be the fastest on this processor",
  none_measured_faster: "no other variant is measured to be faster on this processor",
  only_variant: "no FP32 is served there",
};
const STATES = { served: "served", loading: "being loaded", draining: "answers its last requests", not_loaded: "could not be loaded", away: "away", unloaded: "unloaded", waiting: "waits for a server" };

const BASES = { labels: "right answers that came with the data", agreement: "the reference’s own answers", nothing: "no proof: somebody accepted it", "untrained: speed only": "random weights: there is nothing to be right about" };

function proof(v) {
  const first = v.gate.checks[0];
  if (!first) return BASES[v.gate.basis] ?? v.gate.basis;
  const beside = first.reference === null || v.variant === "fp32" ? "" : `, FP32 ${number(first.reference, 4)}`;
  return el("span", `${first.metric} ${number(first.value, 4)}${beside} `, el("small", `on ${number(v.gate.num_samples)} rows`));
}

function speed(v, processor) {
  const here = v.speed.filter((s) => s.processor === processor);
  if (!here.length) return classed("soft", el("span", "not measured here"));
  return el("span", "", ...here.map((s) => el("div", `batch ${s.batch_size}: ${duration(s.latency_s)} `, el("small", v.variant === "fp32" ? s.engine : `${number(s.ratio)} × FP32 (${number(s.ratio_low)}–${number(s.ratio_high)})`))));
}

function pools(v, account) {
  const served = account.filter((a) => a.name === v.name).map((a) => tag(`${a.pool}: ${STATES[a.state] ?? a.state}`, ["served", "draining"].includes(a.state) ? "good" : "bad"));
  const gates = Object.entries(v.pools).filter(([, g]) => g.status !== "passed").map(([pool, g]) => el("div", "", el("small", `${pool}: ${g.status.replace("_", " ")}: ${g.reason}`)));
  return el("span", "", ...served.flatMap((t) => [t, " "]), ...gates);
}

function checks(v) {
  const rows = v.gate.checks.map((c) => [c.metric, number(c.value, 6), c.limit === null ? "told only" : `${c.is_minimum ? "at least" : "at most"} ${number(c.limit, 6)}`, c.reference === null ? "–" : number(c.reference, 6)]);
  return el("details", "", el("summary", `Gate of ${v.name}`), table(["Check", "Value", "Limit", "Reference"], rows, [1, 2, 3]), el("dl", "", ...pairs([
    ["Judged by", BASES[v.gate.basis] ?? v.gate.basis], ["Data", v.gate.dataset], ["Judged on", v.gate.judged_on || "not recorded"], ["Digest", el("code", v.digest)],
    ...Object.entries(v.pools).map(([pool, g]) => [`Pool ${pool}`, `${g.status.replace("_", " ")}: ${g.reason}`]),
  ])));
}

function card(name, known, status, processor) {
  const account = status?.account ?? [];
  const served = account.filter((a) => a.state === "served").length;
  const link = el("a", "Try it");
  link.href = `#/try/${encodeURIComponent(name)}`;
  const title = el("h3", name, ...(known ? [tag(known.task)] : []), tag(served ? "served" : "not served", served ? "good" : "bad"), ...(served ? [link] : []));
  const parts = [title];
  if (known) parts.push(classed("soft", el("p", known.source)));
  const now = status?.public;
  parts.push(el("p", now ? `“${name}” means ${now.variant} on pool ${now.pool} now. Pool: ${WHERE[now.reason] ?? now.reason}. Variant: ${WHY[now.preference] ?? now.preference}.` : `“${name}” is not served now.`));
  const missing = account.filter((f) => f.state !== "served" && f.state !== "draining" && (f.state !== "loading" || !account.some((a) => a.name === f.name && a.state === "served"))).map((f) => el("p", `Not served: ${f.name} version ${f.version} on pool ${f.pool}: ${f.reason}`));
  parts.push(...missing);
  if (known) {
    const rows = known.variants.map((v) => [el("b", v.variant), proof(v), speed(v, processor), bytes(v.size_bytes), el("span", `${v.model_version} `, classed("date", el("small", v.created.slice(0, 10)))), pools(v, account)]);
    const scroll = classed("scroll", el("div", "", table(["Variant", "Accuracy", "Speed on this processor", "Size", "Version", "Pools"], rows, [3])));
    parts.push(scroll);
    const refused = Object.entries(known.not_made).map(([variant, why]) => el("p", `No ${variant.toUpperCase()}: ${why}`));
    parts.push(...refused, ...known.variants.filter((v) => v.gate.checks.length).map(checks));
  } else {
    const rows = (status?.variants ?? []).map((v) => [v.name, v.pool, v.engine, v.variant === "fp32" ? "1 (the yardstick)" : v.speed_ratio === null ? "not measured to be faster" : `${number(v.speed_ratio)} × FP32`]);
    parts.push(table(["Variant", "Pool", "Engine", "Speed"], rows));
  }
  return classed("card model", el("article", "", ...parts));
}

let shown = "";

// `status` as /admin/status says it, `catalogue` as /admin/models does.
export function show(status, catalogue) {
  const text = JSON.stringify([status.models, catalogue]);
  if (text === shown) return; // what someone is reading or selecting stays
  shown = text;
  const names = [...new Set([...Object.keys(status.models), ...Object.keys(catalogue.models)])].sort();
  const unreadable = Object.entries(catalogue.unreadable).map(([name, why]) => el("p", `${name || "The repository"} cannot be read: ${why}`));
  const cards = names.map((name) => card(name, catalogue.models[name], status.models[name], catalogue.processor));
  $("models").replaceChildren(...unreadable, ...(cards.length ? cards : [el("p", "No variant with a passed gate is seen yet.")]));
  $("models-about").textContent = catalogue.repository ? `in ${catalogue.repository}; this processor: ${catalogue.processor}` : "this gateway has no model repository, so it knows what its servers say alone";
}

export function clear(text) {
  shown = "";
  $("models").replaceChildren(el("p", text));
  $("models-about").textContent = "";
}
