// How the pages put things on the screen. Text is only ever set as text, so nothing that a server says can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function el(tag, text, ...children) {
  const made = document.createElement(tag);
  made.textContent = text ?? "";
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function classed(name, element) {
  element.className = name;
  return element;
}

export const tag = (text, kind = "") => classed(`tag ${kind}`, el("span", text));

export const pairs = (rows) => rows.flatMap(([name, value]) => [el("dt", name), value instanceof Node ? el("dd", "", value) : el("dd", value)]);

// `numbers`: the columns, counted from 0, that hold numbers. A cell is a text or a node.
export function table(heads, rows, numbers = []) {
  const cell = (kind) => (value, i) => {
    const made = value instanceof Node ? el(kind, "", value) : el(kind, value);
    return numbers.includes(i) ? classed("number", made) : made;
  };
  const head = el("tr", "", ...heads.map(cell("th")));
  for (const one of head.children) one.scope = "col";
  return el("table", "", el("thead", "", head), el("tbody", "", ...rows.map((r) => el("tr", "", ...r.map(cell("td"))))));
}
