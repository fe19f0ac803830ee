// A chart of curves over time, with a cursor that a pointer or the arrow keys move. What the curves are is in live.js.

import { classed, el, svg } from "/ui/dom.js";
import { clock, minutes } from "/ui/words.js";

const HEIGHT = 190;
const MARGIN = { left: 46, right: 8, top: 18, bottom: 34 };
const STEPS = [1, 2, 2.5, 5, 10];

export class Chart {
  // `title` of the values' axis, with the unit; `format` of a value.
  constructor(parent, title, format) {
    this.title = title;
    this.format = format;
    this.svg = svg("svg", { role: "img", tabindex: 0, height: HEIGHT });
    this.legend = classed("legend", el("div"));
    this.at = null; // index that the cursor is at; null: the newest
    parent.className = "chart";
    parent.replaceChildren(this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.move(null));
    this.svg.addEventListener("blur", () => this.move(null));
    this.svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.move(Math.min(this.times.length - 1, Math.max(0, (this.at ?? this.times.length - 1) + by)));
    });
    new ResizeObserver(() => this.times && this.draw(this.times, this.curves)).observe(parent);
  }

  // `curves`: {name, mark, values, area, dashed}, a value for each time or null; areas are stacked in their order.
  draw(times, curves) {
    [this.times, this.curves] = [times, curves];
    const width = this.svg.parentElement.clientWidth;
    if (!width || !times.length) return;
    const inside = width - MARGIN.left - MARGIN.right;
    const [first, last] = [times[0], times.at(-1)];
    this.x = (t) => MARGIN.left + ((t - first) / (last - first || 1)) * inside;
    const tops = times.map((_, i) => Math.max(curves.filter((c) => c.area).reduce((sum, c) => sum + (c.values[i] ?? 0), 0), ...curves.map((c) => c.values[i] ?? 0)));
    const step = this.step(Math.max(...tops) || 1);
    const top = Math.ceil((Math.max(...tops) || 1) / step - 1e-9) * step;
    const y = (value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
      const label = svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" });
      label.textContent = Number(value.toPrecision(6));
      parts.push(label);
    }
    for (const t of this.ticks(first, last, inside)) {
      const label = svg("text", { x: this.x(t), y: HEIGHT - MARGIN.bottom + 15, "text-anchor": "middle" });
      label.textContent = minutes(t);
      parts.push(label);
    }
    const [over, under] = [svg("text", { x: 0, y: 9 }), svg("text", { x: width - MARGIN.right, y: HEIGHT - 3, "text-anchor": "end" })];
    over.textContent = this.title;
    under.textContent = "time of day";
    parts.push(over, under);
    let base = times.map(() => 0);
    for (const curve of curves) {
      const values = curve.values.map((v, i) => (v === null ? null : curve.area ? base[i] + v : v));
      if (curve.area) {
        const [up, down] = [times.map((t, i) => `${this.x(t)},${y(values[i] ?? base[i])}`), times.map((t, i) => `${this.x(t)},${y(base[i])}`).reverse()];
        parts.push(svg("path", { class: `area ${curve.mark}`, d: `M${[...up, ...down].join("L")}Z` }));
        base = times.map((_, i) => values[i] ?? base[i]);
      }
      let pen = "M";
      const d = values.map((v, i) => {
        if (v === null || (curve.area && !curve.values[i])) return (pen = "M"), "";
        const moved = `${pen}${this.x(times[i]).toFixed(1)},${y(v).toFixed(1)}`;
        pen = "L";
        return moved;
      });
      parts.push(svg("path", { class: `curve ${curve.mark} ${curve.dashed ? "dashed" : ""}`, d: d.join("") || "M0,0" }));
    }
    this.line = svg("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...parts, this.line);
    this.show();
  }

  step(most) {
    const rough = most / 3;
    const scale = 10 ** Math.floor(Math.log10(rough));
    return STEPS.find((s) => s * scale >= rough) * scale;
  }

  ticks(first, last, inside) {
    const every = [60, 120, 180, 300, 600].find((s) => ((last - first) / s) * 62 < inside) ?? 900;
    const found = [];
    for (let t = Math.ceil(first / every) * every; t <= last; t += every) found.push(t);
    return found;
  }

  point(offset) {
    if (!this.times?.length || !this.x) return;
    const near = this.times.reduce((best, t, i) => (Math.abs(this.x(t) - offset) < Math.abs(this.x(this.times[best]) - offset) ? i : best), 0);
    this.move(near);
  }

  move(at) {
    this.at = at;
    this.show();
  }

  show() {
    if (!this.times?.length || !this.line) return;
    const at = Math.min(this.at ?? this.times.length - 1, this.times.length - 1);
    this.line.setAttribute("visibility", this.at === null ? "hidden" : "visible");
    this.line.setAttribute("x1", this.x(this.times[at]));
    this.line.setAttribute("x2", this.x(this.times[at]));
    const items = this.curves.map((c) => el("span", "", classed(`key ${c.mark}`, el("i")), `${c.name} `, el("b", this.format(c.values[at]))));
    this.legend.replaceChildren(el("span", this.at === null ? "now" : clock(this.times[at])), ...items);
    this.svg.setAttribute("aria-label", `${this.title}; ${this.at === null ? "now" : clock(this.times[at])}: ${this.curves.map((c) => `${c.name} ${this.format(c.values[at])}`).join(", ")}`);
  }
}
