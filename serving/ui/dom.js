// How the pages put things on the screen. Text is only ever set as text, so nothing that a server says can become markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, text, ...children) {
  const made = document.createElement(tag);
  made.textContent = text ?? "";
  made.append(...children);
  return made;
}

export function classed(name, element) {
  element.className = name;
  return element;
}

export const pairs = (rows) => rows.flatMap(([name, value]) => [el("dt", name), el("dd", value)]);

export function table(heads, rows) {
  const head = el("tr", "", ...heads.map((h) => el("th", h)));
  for (const cell of head.children) cell.scope = "col";
  return el("table", "", el("thead", "", head), el("tbody", "", ...rows.map((r) => el("tr", "", ...r.map((c) => el("td", c))))));
}
