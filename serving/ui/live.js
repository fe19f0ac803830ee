// "Live": rates, times, errors, prices and states of the last 15 minutes and since the start, out of /admin/live's events.

import { Chart } from "/ui/chart.js";
import { $, classed, el, pairs, table } from "/ui/dom.js";
import { ask, isAllowed } from "/ui/key.js";
import { clock, duration, minutes, number, percent } from "/ui/words.js";

const BIN_S = 10; // of the curves: of less a quiet pool has too few requests to say anything
const AGAIN_MS = 2000;
const ERRORS = {
  client_error: "wrong requests", rate_limited: "over a client's limit", shed: "refused: too much to do, or nobody there",
  expired: "deadline passed", cancelled: "client left", backend_error: "failed at a server",
};
const PHASES = ["cold", "waking", "warming"];

let kept = null; // what `start` said, and since then
let stop = null; // of the stream that is read
let charts = null;

const key = ([model, variant, pool]) => `${model}\n${variant}\n${pool}`;

function add(sums, rows) {
  for (const [model, variant, pool, outcomes, buckets, queueS, backendS] of rows) {
    const at = key([model, variant, pool]);
    const old = sums.get(at) ?? { model, variant, pool, outcomes: outcomes.map(() => 0), buckets: buckets.map(() => 0), queueS: 0, backendS: 0 };
    sums.set(at, {
      model, variant, pool,
      outcomes: old.outcomes.map((n, i) => n + outcomes[i]),
      buckets: old.buckets.map((n, i) => n + buckets[i]),
      queueS: old.queueS + queueS, backendS: old.backendS + backendS,
    });
  }
  return sums;
}

// As Prometheus' histogram_quantile: on a straight line within a bucket.
export function quantile(buckets, bounds, q) {
  const total = buckets.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let rank = q * total;
  for (let i = 0; i < bounds.length; i++) {
    if (rank <= buckets[i]) return (bounds[i - 1] ?? 0) + ((bounds[i] - (bounds[i - 1] ?? 0)) * rank) / buckets[i];
    rank -= buckets[i];
  }
  return Infinity;
}

const joined = (rows, of) => rows.reduce((sum, row) => sum.map((n, i) => n + row[of][i]), rows[0]?.[of].map(() => 0) ?? []);
const numOk = (row) => row.outcomes[kept.outcomes.indexOf("ok")];
const numAll = (row) => row.outcomes.reduce((a, b) => a + b, 0);

// -- reading ----------------------------------------------------------------------------------------------------------

async function read(signal) {
  const reply = await ask("/admin/live", { headers: { Accept: "text/event-stream" }, signal });
  if (!(await isAllowed(reply)) || !reply.ok) return;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) take(text.slice(0, end));
  }
}

function take(event) {
  const data = JSON.parse(event.slice(event.indexOf("data: ") + 6));
  if (event.startsWith("event: start")) {
    kept = { ...data, sums: add(new Map(), data.totals), servers: { ...data.server_s } };
  } else if (event.startsWith("event: scaler")) {
    kept.scaler = data;
  } else {
    kept.samples.push(data);
    kept.samples = kept.samples.slice(-Math.round(kept.kept_s / kept.every_s));
    add(kept.sums, data.series);
    for (const [pool, p] of Object.entries(data.pools)) {
      kept.servers[pool] = (kept.servers[pool] ?? 0) + p.servers * data.seconds;
      const changes = (kept.changes[pool] ??= []);
      if (changes.at(-1)?.[1] !== p.state) changes.push([p.since, p.state]);
    }
  }
  show();
}

// A tab that nobody sees listens to nothing: a browser has six connections to one gateway.
export async function listen(isWanted) {
  if (!isWanted) return stop?.abort();
  if (stop && !stop.signal.aborted) return;
  const mine = (stop = new AbortController());
  while (!mine.signal.aborted) {
    await read(mine.signal).catch(() => null);
    if (mine.signal.aborted) return;
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

// -- showing ----------------------------------------------------------------------------------------------------------

function span() {
  if (document.querySelector("[name=window]:checked").value === "start") {
    const seconds = (kept.samples.at(-1)?.at ?? kept.began) - kept.began;
    return { rows: [...kept.sums.values()], seconds, servers: kept.servers };
  }
  const sums = new Map();
  const servers = {};
  let seconds = 0;
  for (const sample of kept.samples) {
    add(sums, sample.series);
    seconds += sample.seconds;
    for (const [pool, p] of Object.entries(sample.pools)) servers[pool] = (servers[pool] ?? 0) + p.servers * sample.seconds;
  }
  return { rows: [...sums.values()], seconds, servers };
}

export function show() {
  if (!kept || $("view-live").hidden) return;
  charts ??= { rate: new Chart($("rate"), "requests/s", (v) => (v === null ? "–" : number(v))), latency: new Chart($("latency"), "milliseconds", (v) => (v === null ? "–" : `${number(v)} ms`)) };
  const { rows, seconds, servers } = span();
  const newest = kept.samples.at(-1);
  $("live-age").textContent = `the gateway has run for ${duration((newest?.at ?? kept.began) - kept.began)}`;
  tiles(rows, seconds, servers, newest);
  curves();
  states();
  scaler();
  traffic(rows, seconds, servers);
  errors(rows);
}

function cost(servers) {
  const priced = Object.entries(servers).filter(([pool]) => kept.prices[pool] != null);
  return priced.length ? priced.reduce((sum, [pool, s]) => sum + (kept.prices[pool] * s) / 3600, 0) : null;
}

function tiles(rows, seconds, servers, newest) {
  const [ok, all] = [rows.reduce((n, r) => n + numOk(r), 0), rows.reduce((n, r) => n + numAll(r), 0)];
  const buckets = joined(rows, "buckets");
  const spent = cost(servers);
  const now = Object.values(newest?.pools ?? {});
  const hourly = cost(Object.fromEntries(Object.entries(newest?.pools ?? {}).map(([name, p]) => [name, p.servers * 3600])));
  const facts = [
    ["Requests", number(seconds ? ok / seconds : 0), "/s"],
    ["p50", duration(quantile(buckets, kept.bounds_s, 0.5)), ""],
    ["p99", duration(quantile(buckets, kept.bounds_s, 0.99)), ""],
    ["Not answered", all ? percent((all - ok) / all) : "–", ""],
    ["Waiting now", number(now.reduce((n, p) => n + p.queued, 0)), `${number(now.reduce((n, p) => n + p.in_flight, 0))} at servers`],
    ["Servers now", number(now.reduce((n, p) => n + p.servers, 0)), hourly === null ? "" : `${number(hourly)} an hour`],
    ["Price per million", spent === null ? "–" : ok ? number((spent / ok) * 1e6) : "–", spent === null ? "no prices set" : "in all"],
  ];
  $("tiles").replaceChildren(...facts.map(([name, value, unit]) => el("div", "", el("dt", name), el("dd", value, " ", el("small", unit)))));
}

const sum = (values) => (values.some((v) => v == null) ? null : values.reduce((a, b) => a + b, 0)); // unknown where a part is

function scaler() {
  $("scaler-part").hidden = kept.scaler === null;
  if (kept.scaler === null) return;
  if (kept.scaler.problem) return $("scaler").replaceChildren(classed("soft", el("p", kept.scaler.problem)));
  const pools = Object.entries(kept.scaler.pools).sort();
  const facts = (p) => [number(p.wanted), number(p.ready), number(p.nodes), number(p.per_hour), number(p.spent)];
  const why = (d) => (d ? `${clock(d.decided_at)}: ${d.before} → ${d.after}, ${d.sentence}` : "no change yet");
  const cold = (c) => (c ? Object.entries(c.phases_s).map(([phase, s]) => `${phase.replace("_", " ")} ${duration(s)}`).join(", ") || "waiting for a pod" : "none");
  const rows = pools.map(([name, p]) => [name, ...facts(p), why(p.decision), cold(p.cold_start)]);
  const all = pools.map(([, p]) => p);
  if (rows.length > 1) rows.push(["all", ...facts(Object.fromEntries(["wanted", "ready", "nodes", "per_hour", "spent"].map((f) => [f, sum(all.map((p) => p[f]))]))), "", ""]);
  const heads = ["Pool", "Servers wanted", "answering", "Nodes", "An hour", `Spent since ${clock(kept.scaler.began)}`, "Last change", "Last cold start"];
  const held = [kept.scaler.holds && `No number is published: ${kept.scaler.holds}.`, kept.scaler.keeps && `No number goes down: ${kept.scaler.keeps}.`].filter(Boolean);
  const note = `${held.join(" ")} Paid for is what is wanted or still answers, by the prices of tandem.yaml; a node with pods of two pools counts for both.`;
  $("scaler").replaceChildren(table(heads, rows, [1, 2, 3, 4, 5]), classed("soft", el("p", note.trim())));
}

const MARKS = ["s0", "s1", "s2", "s3", "s4"];
const mark = (pool) => MARKS[Math.max(0, Object.keys(kept.changes).sort().indexOf(pool)) % MARKS.length];

function curves() {
  const bins = new Map();
  for (const sample of kept.samples) {
    const at = Math.floor(sample.at / BIN_S) * BIN_S;
    const bin = bins.get(at) ?? { seconds: 0, rows: [] };
    bin.seconds += sample.seconds;
    bin.rows.push(...sample.series);
    bins.set(at, bin);
  }
  const all = [...bins].sort(([a], [b]) => a - b).filter(([, bin], i, every) => i < every.length - 1 || bin.seconds >= BIN_S / 2 || every.length < 3);
  const times = all.map(([at]) => at + BIN_S / 2);
  const ok = kept.outcomes.indexOf("ok");
  const rate = (of) => all.map(([, bin]) => bin.rows.reduce((n, row) => n + of(row), 0) / bin.seconds);
  const pools = Object.keys(kept.changes).sort();
  charts.rate.draw(times, [
    ...pools.map((pool) => ({ name: pool, mark: mark(pool), area: true, values: rate((row) => (row[2] === pool ? row[3][ok] : 0)) })),
    { name: "not answered", mark: "s4", dashed: true, values: rate((row) => row[3].reduce((a, b) => a + b, 0) - row[3][ok]) },
  ]);
  const quantiles = (q) => all.map(([, bin]) => {
    const at = quantile(bin.rows.reduce((sum, row) => sum.map((n, i) => n + row[4][i]), kept.bounds_s.map(() => 0).concat(0)), kept.bounds_s, q);
    return at === null ? null : Math.min(at, 10) * 1000;
  });
  charts.latency.draw(times, [
    { name: "p50", mark: "s0", values: quantiles(0.5) },
    { name: "p99", mark: "s1", dashed: true, values: quantiles(0.99) },
  ]);
}

function states() {
  const last = kept.samples.at(-1)?.at ?? kept.began;
  const first = Math.max(kept.began, last - kept.kept_s);
  const strips = Object.entries(kept.changes).sort().flatMap(([pool, changes]) => {
    const track = classed("track", el("div"));
    const told = [];
    changes.forEach(([since, state], i) => {
      const [from, to] = [Math.max(first, since), Math.min(last, changes[i + 1]?.[0] ?? last)];
      if (to <= from && i < changes.length - 1) return;
      const part = classed(`state-${state}`, el("span", to - from > 0.07 * (last - first) ? state : ""));
      part.style.setProperty("left", `${((from - first) / (last - first || 1)) * 100}%`);
      part.style.setProperty("width", `${((to - from) / (last - first || 1)) * 100}%`);
      part.title = `${state} from ${clock(from)} for ${duration(to - from)}`;
      told.push(part.title);
      track.append(part);
    });
    track.setAttribute("role", "img");
    track.setAttribute("aria-label", `${pool}: ${told.join("; ")}`);
    return [el("span", pool), track];
  });
  const axis = classed("axis", el("div", "", el("span", minutes(first)), el("span", "time of day"), el("span", minutes(last))));
  $("states").replaceChildren(classed("strip", el("div", "", ...strips, el("span"), axis)));
  const colds = Object.entries(kept.changes).flatMap(([pool, changes]) => changes.flatMap(([since, state], i) => {
    if (state !== "ready" || !PHASES.includes(changes[i - 1]?.[1])) return [];
    const phases = [];
    for (let j = i - 1; j >= 0 && ["waking", "warming"].includes(changes[j][1]); j--) phases.unshift(`${changes[j][1]} ${duration(changes[j + 1][0] - changes[j][0])}`);
    return [[since, pool, phases.join(", ") || "at once"]];
  }));
  colds.sort(([a], [b]) => b - a);
  $("cold-starts").replaceChildren(colds.length ? table(["Warm at", "Pool", "Phases"], colds.slice(0, 8).map(([at, ...rest]) => [clock(at), ...rest])) : classed("soft", el("p", "No pool was cold.")));
}

function traffic(rows, seconds, servers) {
  const busy = {};
  for (const row of rows) busy[row.pool] = (busy[row.pool] ?? 0) + row.backendS;
  const all = rows.reduce((n, row) => n + numOk(row), 0);
  const shown = rows.filter((row) => row.model).sort((a, b) => numAll(b) - numAll(a)).map((row) => {
    const [ok, price] = [numOk(row), kept.prices[row.pool]];
    const spent = price == null || !busy[row.pool] ? null : ((price * (servers[row.pool] ?? 0)) / 3600) * (row.backendS / busy[row.pool]);
    return [
      row.model, row.pool, row.variant, number(seconds ? ok / seconds : 0), all ? percent(ok / all) : "–",
      duration(quantile(row.buckets, kept.bounds_s, 0.5)), duration(quantile(row.buckets, kept.bounds_s, 0.99)), percent((numAll(row) - ok) / (numAll(row) || 1)), spent === null || !ok ? "–" : number((spent / ok) * 1e6),
    ];
  });
  const heads = ["Model", "Pool", "Variant", "Requests/s", "Share", "p50", "p99", "Not answered", "Price per million"];
  const note = "Times are read from buckets, as Prometheus does. A price is what the pool’s servers cost in this time, idle time included, by each row’s share of their work, for a million requests; in the currency of tandem.yaml.";
  $("traffic").replaceChildren(shown.length ? table(heads, shown, [3, 4, 5, 6, 7, 8]) : classed("soft", el("p", "No request came yet.")), ...(shown.length ? [classed("soft", el("p", note))] : []));
}

function errors(rows) {
  const sums = joined(rows, "outcomes");
  const found = kept.outcomes.map((kind, i) => [ERRORS[kind], sums[i]]).filter(([words, n]) => words && n);
  $("errors").replaceChildren(found.length ? el("dl", "", ...pairs(found.map(([words, n]) => [words, number(n)]))) : classed("soft", el("p", "Every request was answered.")));
}

for (const choice of document.querySelectorAll("[name=window]")) choice.addEventListener("change", show);
