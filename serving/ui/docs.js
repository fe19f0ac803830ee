// The page at `/docs`: /openapi.json as a list of paths with their sentences.

import { $, el, pairs } from "/ui/dom.js";

const TITLES = {
  v2: "Inference and models (v2)", openai: "OpenAI’s paths", classify: "Images", health: "Health", admin: "For the operator", pages: "Pages",
};

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
  return el("details", "", ...parts);
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
