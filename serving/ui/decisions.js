// "Why did my request go there?": what the gateway remembers of its last requests, out of /admin/decisions.

import { $, classed, el, pairs, table } from "/ui/dom.js";
import { ask, isAllowed } from "/ui/key.js";
import { clock, duration, number } from "/ui/words.js";

const REASONS = {
  only_pool: "no other pool serves it", cheapest_in_time: "the cheapest that would be in time", spill: "cheaper ones would have been late",
  bridged: "in place of a pool that is cold", pinned: "the request named it",
};
const VERDICTS = {
  chosen: "chosen", dearer: "in time too, and dearer", late: "would have been late", no_server: "had no server",
  warming: "takes only a share of the requests while it warms up",
};

function candidates(d) {
  if (!d.candidates.length) return classed("soft", el("p", "What the other pools would have taken was not forecast: above 200 requests a second only a sample is, and each request whose traceparent has the sampled flag."));
  const longest = Math.max(...d.candidates.map((c) => c.predicted_s ?? 0)) || 1;
  const rows = d.candidates.map((c) => {
    const meter = classed(`meter ${c.verdict === "chosen" ? "s0" : "s1"}`, el("i"));
    meter.style.setProperty("width", `${((c.predicted_s ?? 0) / longest) * 100}%`);
    return [c.pool, c.variant, el("span", duration(c.predicted_s), meter), c.price_per_million === null ? "–" : number(c.price_per_million), VERDICTS[c.verdict]];
  });
  return classed("scroll", el("div", "", table(["Pool", "Variant", "Predicted", "Price per million", "What became of it"], rows, [3])));
}

function one(d) {
  const where = d.pool === null ? d.outcome : `${d.pool}, ${d.variant}`;
  const why = d.reason === null ? (d.error ?? "") : REASONS[d.reason];
  const took = d.actual_s === null ? d.outcome : duration(d.actual_s);
  const summary = el("summary", "", el("span", clock(d.at)), el("code", d.id.slice(0, 12)), el("span", d.model), el("span", where), classed("soft", el("span", why)), classed("number", el("span", took)));
  const facts = [
    ["Id", el("code", d.id)],
    ["Rows", number(d.rows)],
    ["Predicted", duration(d.predicted_s)],
    ["Took", d.actual_s === null ? "–" : `${duration(d.actual_s)}: waited ${duration(d.queue_s)}, then ${duration(d.backend_s)} at the server`],
    ["Deadline", duration(d.deadline_s)],
    ["Price", d.price_per_million === null ? "no prices set" : `${number(d.price_per_million)} per million such requests, of the device’s time alone`],
  ];
  if (d.servers_lost) facts.push(["Servers that lost it", d.servers_lost]);
  if (d.error) facts.push(["Error", d.error]);
  return classed("decision", el("details", "", summary, el("dl", "", ...pairs(facts)), el("h4", "The pools that could have answered"), candidates(d)));
}

export async function show(id = "") {
  const reply = await ask(`/admin/decisions?limit=50&id=${encodeURIComponent(id)}`).catch(() => null);
  if (reply === null || !(await isAllowed(reply))) return;
  const { decisions } = await reply.json();
  const made = decisions.map(one);
  if (id && made.length === 1) made[0].open = true;
  $("decisions").replaceChildren(...made);
  $("found").textContent = decisions.length
    ? id ? `${decisions.length} of the last 8,192 inferences` : `The last ${decisions.length}, the newest first; open one for the pools that could have answered`
    : id ? "None of the last 8,192 inferences has this id: it went to another gateway, was refused before a pool was chosen, or is too long ago" : "No request came yet";
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("find-id").value.trim().toLowerCase();
  location.hash = id ? `#/decisions/${id}` : "#/decisions";
  show(id);
});
$("find-last").addEventListener("click", () => {
  $("find-id").value = "";
  location.hash = "#/decisions";
  show();
});
