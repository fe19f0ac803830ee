// "Cost": what servers cost by who used them, as `tandem cost` prints it, out of /admin/cost.

import { $, classed, el, table } from "/ui/dom.js";
import { ask, isAllowed } from "/ui/key.js";
import { duration, number } from "/ui/words.js";

const NUMBERS = ["Requests", "Servers’ time", "Used", "Idle", "Cold", "In all"];

const address = () => `/admin/cost?by=${encodeURIComponent($("cost-by").value)}&since=${$("cost-since").value}`;

// What a gateway answers that keeps no counts is told as it says it.
async function read(accept) {
  const reply = await ask(address(), { headers: { Accept: accept } });
  if (!(await isAllowed(reply))) return null;
  if (!reply.ok) throw new Error((await reply.json()).error);
  return reply;
}

export async function show() {
  const asked = address();
  let told;
  try {
    told = await (await read("application/json"))?.json();
  } catch (error) {
    $("cost-about").textContent = "";
    return $("bill").replaceChildren(classed("soft", el("p", error.message)));
  }
  if (told === undefined || asked !== address()) return; // not allowed, or asked anew meanwhile
  const names = $("cost-by").value.split(",");
  const heads = [...names.map((name) => name[0].toUpperCase() + name.slice(1)), ...NUMBERS, ...(told.joules ? ["kWh"] : [])];
  const energy = (joules) => (told.joules ? [number(joules / 3.6e6)] : []);
  const rows = told.lines.map((line) => [
    ...names.map((name) => line[name] || "–"), number(line.requests), duration(line.device_s), ...["used_dollars", "idle_dollars", "cold_dollars", "dollars"].map((it) => number(line[it])), ...energy(line.joules),
  ]);
  const rest = names.slice(1).map(() => "");
  const unused = told.unused_idle_dollars + told.unused_cold_dollars;
  rows.push(["nobody", ...rest, "", "", "", number(told.unused_idle_dollars), number(told.unused_cold_dollars), number(unused), ...energy(told.unused_joules)]);
  rows.push(["paid", ...rest, "", "", "", "", "", number(told.paid_dollars), ...energy(told.joules)]);
  const unpriced = told.pools_without_price.length ? ` Pools without a price cost nothing here: ${told.pools_without_price.join(", ")}.` : "";
  const note = `A line pays for the time that its requests took, also where they were late, and for idle and cold time in proportion to it; all lines and what nobody used add up to price times hours, in the currency of tandem.yaml.${unpriced}`;
  $("cost-about").textContent = `since ${new Date(told.since).toLocaleString()}: ${number(told.paid_hours)} hours of servers`;
  $("bill").replaceChildren(table(heads, rows, heads.map((_, i) => i).slice(names.length)), classed("soft", el("p", note)));
}

async function download() {
  const text = await (await read("text/csv").catch(() => null))?.text();
  if (text === undefined) return show();
  const link = el("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `cost-${$("cost-by").value.replaceAll(",", "-")}-${$("cost-since").value}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

for (const name of ["cost-by", "cost-since"]) $(name).addEventListener("change", show);
$("cost-form").addEventListener("submit", (event) => event.preventDefault());
$("cost-csv").addEventListener("click", download);
