// "Rollouts": the control document that is in force, what answers by it, and what candidates are judged to be; pins and steps change it.

import { $, classed, el, table, tag } from "/ui/dom.js";
import { ask, isAllowed } from "/ui/key.js";
import { number, percent } from "/ui/words.js";

const NEXT = { shadow: ["canary", "promote", "rollback"], canary: ["promote", "rollback"], promote: ["rollback"], rollback: ["shadow"] };
const KINDS = { promoted: "good", rolled_back: "bad", held: "" };
const FINDINGS = { worse: "worse", fine: "within the limit", open: "not shown yet" };
const SHARES = new Set(["agreement", "cosine", "recall", "error", "slowest", "errors"]);

let shown = ""; // of the cards, in which somebody may be typing
let revision = "";

const target = (t) => [t.version === null ? "" : `version ${t.version}`, t.variant ?? ""].filter(Boolean).join(" as ") || "newest version";

async function change(wanted) {
  const reply = await ask("/admin/control", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ revision, ...wanted }) }).catch((error) => error);
  if (reply instanceof Response && !(await isAllowed(reply))) return;
  const told = reply instanceof Response ? await reply.json().catch(() => ({ error: `status ${reply.status}` })) : { error: reply.message };
  $("control-said").textContent = told.error ?? `Revision ${told.revision} is written; gateways have it within two seconds.`;
  $("control-said").hidden = false;
}

// What changes everybody's answers is asked for twice.
function button(text, wanted) {
  const made = el("button", text);
  made.type = "button";
  made.addEventListener("blur", () => (made.textContent = text));
  made.addEventListener("click", () => {
    if (made.textContent === text) return (made.textContent = `${text}: sure?`);
    made.textContent = text;
    change(wanted());
  });
  return made;
}

function card(model, arms, rollout) {
  const version = el("input");
  [version.type, version.min, version.size] = ["number", "1", 4];
  const variant = el("input");
  [variant.type, variant.size] = ["text", 6];
  const pin = () => ({ model, pin: { version: version.value ? Number(version.value) : null, variant: variant.value.trim() || null } });
  const line = classed("line", el("div", "", el("label", "Version ", version), el("label", "variant ", variant), button("Pin", pin)));
  const now = arms.map((arm) => el("li", `${target(arm)}: ${arm.ratio === 0 ? arm.arm : percent(arm.ratio)}`));
  const steps = (rollout ? NEXT[rollout.step] : []).filter((step) => step !== "rollback").map((step) => button(step[0].toUpperCase() + step.slice(1), () => ({ model, step })));
  const about = rollout ? [el("p", `Rollout of ${rollout.candidate} beside ${rollout.pinned}, step ${rollout.step} `)] : [];
  const back = arms.length ? [button("Roll back", () => ({ model, is_rollback: true }))] : [];
  return classed("card", el("article", "", el("h3", model), now.length ? el("ul", "", ...now) : el("p", "The document says nothing of it: its newest version answers."), ...about, line, classed("line", el("div", "", ...steps, ...back))));
}

const value = (it, name) => (it === null ? "–" : SHARES.has(name) ? percent(it) : number(it));

function evidence(rollout) {
  const judged = rollout.judgement;
  const title = el("h3", `${rollout.candidate} of ${rollout.model} beside ${rollout.pinned} `);
  if (!judged) return el("article", "", title, el("p", "Nothing was judged yet."));
  title.append(tag(judged.outcome.replace("_", " "), KINDS[judged.outcome]));
  const rows = judged.evidence.map((it) => [it.replica ? `${it.measure} of ${it.replica}` : it.measure, FINDINGS[it.finding], value(it.value, it.measure), `${value(it.low, it.measure)} to ${value(it.high, it.measure)}`, value(it.limit, it.measure), `${number(it.num)} ${it.of}`]);
  const why = judged.because.length ? `${judged.outcome === "held" ? "Not shown yet: " : "Because of: "}${judged.because.join(", ")}. ` : "";
  const rests = `${why}It rests on ${number(judged.num_candidate)} requests of the candidate, ${number(judged.num_primary)} of what is pinned and ${number(judged.num_compared)} comparisons, by ${rollout.gateways} gateway${rollout.gateways === 1 ? "" : "s"} over restarts. Copies of requests took ${number(rollout.copies_device_s)} s of servers here.`;
  const parts = [title, el("p", rests), ...(rollout.problem ? [el("p", `Judged by this gateway alone: ${rollout.problem}`)] : [])];
  const scroll = classed("scroll", el("div", "", table(["Measure", "Finding", "Seen", "The truth is within", "Limit", "Rests on"], rows, [2, 3, 4])));
  [scroll.tabIndex, scroll.ariaLabel] = [0, `Evidence of ${rollout.model}`];
  scroll.setAttribute("role", "region");
  return el("article", "", ...parts, scroll);
}

// `status` as /admin/status says it
export async function show(status) {
  const control = status.control;
  if (control === null) {
    clear("This gateway follows no control document: start it with --control.");
    return;
  }
  const reply = await ask("/admin/rollouts").catch(() => null);
  if (!reply?.ok) return;
  const { rollouts } = await reply.json();
  revision = control.revision === null ? "" : `${control.revision.number}-${control.revision.digest.slice("sha256:".length).slice(0, 12)}`;
  const who = control.revision?.number ? `, by ${control.revision.by}${control.revision.why ? `: ${control.revision.why}` : ""}` : "";
  const lacks = Object.values(control.lacks).map((it) => `. Not to be promoted: ${it}`);
  $("control-about").textContent = `revision ${revision || "not read yet"}${who}, in ${control.source.replace("the control document ", "")}${control.problem ? `. ${control.problem}` : ""}${lacks.join("")}`;
  const names = [...new Set([...Object.keys(control.models), ...Object.keys(status.models)])].sort();
  const of = new Map(rollouts.map((it) => [it.model, it]));
  const arms = new Map(Object.entries(control.models)); // a model may be called "toString", which every object has
  const text = JSON.stringify([revision, names, control.models, rollouts.map((it) => it.step)]);
  if (text !== shown) $("control-models").replaceChildren(...names.map((name) => card(name, arms.get(name) ?? [], of.get(name))));
  shown = text;
  $("control-evidence").replaceChildren(...rollouts.map(evidence));
}

export function clear(text) {
  [shown, revision] = ["", ""];
  for (const name of ["control-models", "control-evidence"]) $(name).replaceChildren();
  $("control-about").textContent = text;
  $("control-said").hidden = true;
}
