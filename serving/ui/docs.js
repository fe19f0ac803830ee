// The page at `/docs`: /openapi.json as a list of paths with their sentences, and a place to try each.

import { $, classed, el, pairs } from "/ui/dom.js";
import { ask, isAllowed } from "/ui/key.js";
import { bytes, duration } from "/ui/words.js";

const TITLES = {
  v2: "Inference and models (v2)", openai: "OpenAI’s paths", classify: "Images", health: "Health", admin: "For the operator", pages: "Pages",
};
const JSON_TYPE = "application/json";
const SHOWN = 20000; // characters of an answer
const EXAMPLES = { "/v1/embeddings": { model: "", input: ["a text", "another text"] }, "/v2/repository/index": {} };

let number = 0; // of fields, for their ids
let known = null; // {model, request}: one that is served, with an example; asked for when somebody tries something

async function example() {
  known ??= ask("/admin/models").then(async (reply) => {
    const models = reply.ok ? (await reply.json()).models : {};
    const [model, m] = Object.entries(models).find(([, one]) => one.example) ?? Object.entries(models)[0] ?? ["", null];
    return { model, request: m?.example?.request ?? { inputs: [] }, texts: Object.keys(models).find((name) => models[name].takes === "texts") ?? "" };
  }, () => ({ model: "", request: { inputs: [] }, texts: "" }));
  return known;
}

function field(name, kind, hint = "") {
  const made = el(kind);
  made.id = `field-${number++}`;
  const label = el("label", `${name}${hint}`);
  label.htmlFor = made.id;
  return { name, made, all: el("div", "", label, " ", made) };
}

// A form that sends what stands in it, as anybody would.
function trial(method, path, o) {
  const fields = (o.parameters ?? []).map((p) => ({ ...field(p.name, "input", p.required ? "" : " (may be empty)"), where: p.in }));
  const takesJson = JSON_TYPE in (o.requestBody?.content ?? {});
  const body = takesJson ? field("Body", "textarea", `, ${JSON_TYPE}`) : null;
  const send = classed("main", el("button", "Send"));
  const answer = el("div");
  answer.setAttribute("role", "status");
  const form = el("form", "", ...fields.map((f) => f.all), ...(body ? [body.all] : []), el("p", "", send), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const [query, headers] = [new URLSearchParams(), {}];
    for (const { name, made, where } of fields) {
      if (where === "path") target = target.replace(`{${name}}`, encodeURIComponent(made.value));
      else if (made.value && where === "query") query.set(name, made.value);
      else if (made.value) headers[name] = made.value;
    }
    if (body) headers["Content-Type"] = JSON_TYPE;
    const began = performance.now();
    try {
      const reply = await ask(target + (query.size ? `?${query}` : ""), { method: method.toUpperCase(), headers, ...(body ? { body: body.made.value } : {}) });
      await isAllowed(reply.clone());
      const text = await reply.text();
      const pre = el("pre", pretty(text).slice(0, SHOWN));
      pre.tabIndex = 0;
      answer.replaceChildren(el("p", `${reply.status} ${reply.statusText}, ${bytes(text.length)} after ${duration((performance.now() - began) / 1000)}`), el("dl", "", ...pairs([...reply.headers])), pre);
    } catch (error) {
      answer.replaceChildren(el("p", `No answer: ${error.message}`));
    }
  });
  const fill = async () => {
    const { model, request, texts } = await example();
    for (const { name, made } of fields) if (name === "model" && !made.value) made.value = model;
    for (const { name, made } of fields) if (name === "version" && !made.value) made.value = "1";
    if (body && !body.made.value) body.made.value = JSON.stringify(path.endsWith("/infer") ? request : path === "/v1/embeddings" ? { ...EXAMPLES[path], model: texts || model } : (EXAMPLES[path] ?? {}), null, 1);
  };
  return { form, fill };
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

function operation(method, path, o) {
  const parts = [el("summary", "", el("code", `${method.toUpperCase()} ${path}`), el("span", o.summary))];
  if (o.description) parts.push(el("p", o.description));
  const taken = (o.parameters ?? []).map((p) => [p.name, `${p.description ?? "Part of the path."} (${p.in}${p.required ? ", required" : ""})`]);
  const bodies = Object.keys(o.requestBody?.content ?? {});
  if (bodies.length) taken.push(["body", bodies.join(" or ")]);
  if (taken.length) parts.push(el("h4", "Takes"), el("dl", "", ...pairs(taken)));
  const answers = Object.entries(o.responses).map(([status, r]) => [status, r.description]);
  parts.push(el("h4", "Answers"), el("dl", "", ...pairs(answers)));
  const headers = Object.entries(o.responses["200"]?.headers ?? {}).map(([name, h]) => [name, h.description]);
  if (headers.length) parts.push(el("h4", "Headers of the answer"), el("dl", "", ...pairs(headers)));
  const made = el("details", "", ...parts);
  if (!o.description && (!bodies.length || bodies.includes(JSON_TYPE))) { // what is described so is at another address
    const { form, fill } = trial(method, path, o);
    made.append(el("h4", "Try it"), form);
    made.addEventListener("toggle", () => made.open && fill());
  }
  return made;
}

try {
  const reply = await fetch("/openapi.json");
  if (!reply.ok) throw new Error(`status ${reply.status}`);
  const api = await reply.json();
  const paths = Object.entries(api.paths).sort(([a], [b]) => a.localeCompare(b));
  const all = paths.flatMap(([path, item]) => Object.entries(item).map(([method, o]) => [o.tags[0], operation(method, path, o)]));
  for (const [tag, title] of Object.entries(TITLES)) {
    const mine = all.filter(([t]) => t === tag).map(([, made]) => made);
    $("paths").append(el("h2", title), ...mine);
  }
  $("version").textContent = api.info.version;
  $("about").textContent = api.info.description;
} catch (error) {
  $("about").textContent = `/openapi.json cannot be read (${error.message}).`;
}
