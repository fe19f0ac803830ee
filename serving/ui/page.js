// The page at `/`: which view is shown, and what all of them share: the status, asked again every 2 s.

import * as cost from "/ui/cost.js";
import * as decisions from "/ui/decisions.js";
import { $, classed, el, pairs } from "/ui/dom.js";
import { ask, isAllowed, onKey } from "/ui/key.js";
import * as live from "/ui/live.js";
import * as models from "/ui/models.js";
import * as rollouts from "/ui/rollouts.js";
import { choose, offer } from "/ui/try.js";
import { duration, number, percent } from "/ui/words.js";

const EVERY_MS = 2000; // soon enough to watch a pool come and go, and nothing beside one inference
const GIVE_UP_MS = 5000;
const VIEWS = ["live", "cost", "decisions", "models", "rollouts", "try"];
const HEALTH = { left_out: ", left out for a while", on_trial: ", on trial" };

const named = (device) => /name="(.*)"/.exec(device ?? "")?.[1];

let status = null;
let catalogue = null; // of the models that the status had when it was asked for
let isAsked = "";
let shown = "";
let answered = "";
let next = 0; // timer

function pool(name, p, variants) {
  const mine = variants.find((v) => v.pool === name);
  const servers = p.servers.map((s) => {
    const refused = Object.entries(s.refused).map(([model, why]) => `; refuses ${model}: ${why}`);
    refused.push(...Object.entries(s.not_loaded).map(([model, why]) => `; could not load ${model}: ${why}`));
    return el("li", `${s.alive ? "●" : "○"} ${s.url} ${s.alive ? `answers, Triton ${s.triton}` : "does not answer"}${HEALTH[s.health] ?? ""}${refused.join("")}`);
  });
  const conflicts = Object.entries(p.digest_conflicts).map(([model, c]) => el("li", `⚠ servers serve different files as ${model}: ${Object.entries(c.servers).map(([url, digest]) => `${url} ${digest.slice(0, 19)}`).join(", ")}; requests go to ${c.chosen.slice(0, 19)} alone`));
  const off = Object.entries(p.quarantined ?? {}).flatMap(([model, urls]) => Object.entries(urls).map(([url, why]) => el("li", `⚠ ${url} gets no requests for ${model}: ${why}`)));
  const unresolved = Object.entries(p.unresolved).map(([url, why]) => el("li", `○ ${url} cannot be looked up: ${why}`));
  const facts = el("dl", "", ...pairs([
    ["State", `${p.state === "ready" ? "●" : "○"} ${p.state} for ${duration(Math.max(0, (Date.now() - new Date(p.since)) / 1000))}`],
    ["Device", [p.device, named(mine?.device)].filter(Boolean).join(": ")],
    ["Share", `${percent(p.share)} of the requests may go there`],
    ["In flight", `${p.in_flight}, and ${p.queued} waiting`],
    ["Demand", `${number(p.demand_replicas, 2)} servers, were all of it here`],
    ["Price", p.price_per_hour === null ? "none set" : `${p.price_per_hour} an hour for each server`],
  ]));
  facts.append(el("dt", "Servers"), el("dd", "", el("ul", "", ...servers, ...unresolved, ...conflicts, ...off)));
  return classed("card", el("article", "", el("h4", name), facts));
}

function show(text) {
  answered = new Date().toLocaleTimeString();
  $("silent").hidden = true;
  status = JSON.parse(text);
  if (text !== shown) {
    shown = text;
    const variants = Object.values(status.models).flatMap((m) => m.variants);
    $("version").textContent = status.tandem + (status.closing ? ", stopping" : "");
    $("pools").replaceChildren(...Object.entries(status.pools).map(([name, p]) => pool(name, p, variants)));
  }
  if (view() === "rollouts") rollouts.show(status);
  know();
}

// The catalogue changes with what is served.
async function know() {
  const account = JSON.stringify(status.models);
  if (account !== isAsked) {
    isAsked = account;
    const reply = await ask("/admin/models").catch(() => null);
    if (reply?.ok) catalogue = await reply.json();
    else isAsked = "";
  }
  if (catalogue === null) return;
  models.show(status, catalogue);
  offer(status, catalogue);
}

function silent(error) {
  const last = answered ? `What stands here is from ${answered}. ` : "";
  const said = `The gateway does not answer (${error.message}). ${last}Asking again every ${EVERY_MS / 1000} s.`;
  if ($("silent").textContent !== said || $("silent").hidden) $("silent").textContent = said; // is read aloud once
  $("silent").hidden = false;
}

async function refresh() {
  clearTimeout(next);
  try {
    const reply = await ask("/admin/status", { signal: AbortSignal.timeout(GIVE_UP_MS) });
    if (!(await isAllowed(reply))) return wait();
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    show(await reply.text());
    listen();
  } catch (error) {
    silent(error);
  }
  clearTimeout(next);
  if (!document.hidden) next = setTimeout(refresh, EVERY_MS);
}

const listen = () => live.listen(!document.hidden && view() === "live" && $("key-form").hidden);

// Without being let in: what stands here may be for other eyes. It is asked again when there is another key.
function wait() {
  live.listen(false);
  [shown, isAsked, catalogue] = ["", "", null];
  $("silent").hidden = true;
  $("version").textContent = "";
  for (const name of ["pools", "tiles", "traffic", "states", "scaler", "errors", "cold-starts", "bill", "decisions"]) $(name).replaceChildren();
  models.clear("This gateway wants an API key.");
  rollouts.clear("");
  offer({ models: {}, pools: {} }, { models: {} });
}

// "#/decisions/4bf92f": no element has such an id, so the browser scrolls nowhere.
const words = () => location.hash.slice(2).split("/").map(decodeURIComponent);
const view = () => (VIEWS.includes(words()[0]) ? words()[0] : "live");

function turn() {
  const rest = words().slice(1);
  const now = view();
  for (const name of VIEWS) $(`view-${name}`).hidden = name !== now;
  for (const link of $("views").children) {
    if (link.hash === `#/${now}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `Tandem: ${$(`${now}-title`).textContent}`;
  if (now === "live") live.show();
  if (now === "cost") cost.show();
  if (now === "rollouts" && status !== null) rollouts.show(status);
  if (now === "decisions") {
    $("find-id").value = rest[0] ?? "";
    decisions.show(rest[0]);
  }
  if (now === "try" && rest[0]) choose(rest[0]);
  if (status !== null) listen();
}

addEventListener("hashchange", turn);
document.addEventListener("visibilitychange", () => (document.hidden ? listen() : refresh()));
onKey(() => (refresh(), turn()));
turn();
refresh();
