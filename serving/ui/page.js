// The page at `/`: what is served and why, asked again every 2 s. Drawing and asking a model are in try.js.

import { $, classed, el, pairs, table } from "/ui/dom.js";
import { ask, isAllowed, onKey } from "/ui/key.js";
import { offer } from "/ui/try.js";

const EVERY_MS = 2000; // soon enough to watch a pool come and go, and nothing beside one inference
const GIVE_UP_MS = 5000;
const WHERE = { only_pool: "the only pool that serves it", first_ready: "several are ready; each request goes to the cheapest that will be in time" };
const WHY = {
  named_by_hand: "tandem.yaml names it",
  measured_fastest: "measured to be the fastest on this processor",
  none_measured_faster: "no other variant is measured to be faster on this processor",
  only_variant: "no FP32 is served there",
};

const HEALTH = { left_out: ", left out for a while", on_trial: ", on trial" };

const named = (device) => /name="(.*)"/.exec(device ?? "")?.[1];
const speed = (v) => (v.variant === "fp32" ? "1 (the yardstick)" : v.speed_ratio === null ? "not measured to be faster" : `${v.speed_ratio.toFixed(2)} × as fast`);

function pool(name, p, variants) {
  const mine = variants.find((v) => v.pool === name);
  const servers = p.servers.map((s) => {
    const refused = Object.entries(s.refused).map(([model, why]) => `; refuses ${model}: ${why}`);
    refused.push(...Object.entries(s.not_loaded).map(([model, why]) => `; could not load ${model}: ${why}`));
    return el("li", `${s.alive ? "●" : "○"} ${s.url} ${s.alive ? `answers, Triton ${s.triton}` : "does not answer"}${HEALTH[s.health] ?? ""}${refused.join("")}`);
  });
  const conflicts = Object.entries(p.digest_conflicts).map(([model, c]) => el("li", `⚠ servers serve different files as ${model}: ${Object.entries(c.servers).map(([url, digest]) => `${url} ${digest.slice(0, 19)}`).join(", ")}; requests go to ${c.chosen.slice(0, 19)} alone`));
  const unresolved = Object.entries(p.unresolved).map(([url, why]) => el("li", `○ ${url} cannot be looked up: ${why}`));
  const state = classed("state", el("span", `${p.state === "ready" ? "●" : "○"} ${p.state} since ${new Date(p.since).toLocaleTimeString()}`));
  const facts = el("dl", "", ...pairs([
    ["Device", [p.device, named(mine?.device)].filter(Boolean).join(": ")],
    ["Share", `${Math.round(p.share * 100)} % of the traffic may go there`],
    ["In flight", p.in_flight],
    ["Queued", p.queued],
    ["Demand", `${p.demand_replicas.toPrecision(2)} servers, were all of it here`],
    ["Price", p.price_per_hour === null ? "none set" : `${p.price_per_hour} an hour`],
  ]));
  facts.append(el("dt", "Servers"), el("dd", "", el("ul", "", ...servers, ...unresolved, ...conflicts)));
  return classed("card", el("article", "", el("h3", name, " ", state), facts));
}

function model(name, m) {
  const now = m.public;
  const means = now
    ? `“${name}” means ${now.variant} on pool ${now.pool} now. Pool: ${WHERE[now.reason] ?? now.reason}. Variant: ${WHY[now.preference] ?? now.preference}.`
    : `“${name}” is not served now.`;
  const rows = m.variants.map((v) => [v.name, v.pool, v.engine, speed(v)]);
  const missing = m.account.filter((f) => f.state !== "served").map((f) => el("p", `Not served: ${f.name} version ${f.version} on pool ${f.pool}: ${f.reason}`));
  return el("article", "", el("h3", name), el("p", means), ...missing, table(["Variant", "Pool", "Engine", "Speed against FP32"], rows));
}

let shown = "";
let answered = "";
let next = 0; // timer

function show(text) {
  answered = new Date().toLocaleTimeString();
  $("silent").hidden = true;
  if (text === shown) return; // what someone is reading or selecting stays
  shown = text;
  const status = JSON.parse(text);
  const variants = Object.values(status.models).flatMap((m) => m.variants);
  const models = Object.entries(status.models).map(([name, m]) => model(name, m));
  $("version").textContent = status.tandem + (status.closing ? ", stopping" : "");
  $("pools").replaceChildren(...Object.entries(status.pools).map(([name, p]) => pool(name, p, variants)));
  $("models").replaceChildren(...(models.length ? models : [el("p", "No variant with a passed gate is seen yet.")]));
  offer([...Object.keys(status.models), ...new Set(variants.map((v) => v.name))]);
}

function silent(error) {
  const last = answered ? `What stands here is from ${answered}. ` : "";
  const said = `The gateway does not answer (${error.message}). ${last}Asking again every ${EVERY_MS / 1000} s.`;
  if ($("silent").textContent !== said || $("silent").hidden) $("silent").textContent = said; // is read aloud once
  $("silent").hidden = false;
}

async function refresh() {
  try {
    const reply = await ask("/admin/status", { signal: AbortSignal.timeout(GIVE_UP_MS) });
    if (!(await isAllowed(reply))) return wait();
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    show(await reply.text());
  } catch (error) {
    silent(error);
  }
  clearTimeout(next);
  next = setTimeout(refresh, EVERY_MS);
}

// Without being let in: what stands here may be for other eyes. It is asked again when there is another key.
function wait() {
  clearTimeout(next);
  shown = "";
  $("silent").hidden = true;
  $("version").textContent = "";
  $("pools").replaceChildren();
  $("models").replaceChildren(el("p", "This gateway wants an API key."));
  offer([]);
}

onKey(refresh);
refresh();
