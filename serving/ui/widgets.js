// What a person fills in for a model, by what it takes: a drawing, an image, texts, a table of features, or any tensors as JSON.
// Each widget makes `parent` its place, and gives {path, body, type, v2}: v2 is the request where it is one of that protocol.

import { classed, el } from "/ui/dom.js";
import { encoded } from "/ui/halves.js";

const REACH = 1.4; // pixels from the pen to where it leaves no ink: strokes two pixels wide, as in the images the model learned from
const FALL = 1.5; // ink lost per pixel from there inwards; by trial with 13 scripted digits, of which 12 were read right
const MAX_SIDE = 32; // of a drawing: a cell each
const MAX_FEATURES = 200;
const TEXTS = ["A boat leaves the harbour.", "The ship sails out to sea.", "Bread bakes in the oven."];
const NUMBERS = /^(FP|INT|UINT|BF)/;
const JSON_TYPE = "application/json";

const model = (name) => encodeURIComponent(name);
const v2 = (name, inputs) => ({ path: `/v2/models/${model(name)}/infer`, body: JSON.stringify({ inputs }), type: JSON_TYPE, v2: { inputs } });

// Shape with every open size as small as it goes.
const closed = (shape, batch) => shape.map((n, i) => (n > 0 ? n : i === 0 ? batch : 4));
const size = (shape) => shape.reduce((a, b) => a * b, 1);

export function widgetsFor(metadata, known) {
  const [first, ...more] = metadata.inputs;
  const found = [];
  const [batch, channels, height, width] = first.shape;
  const isGrey = first.shape.length === 4 && batch === -1 && channels === 1 && height > 1 && height <= MAX_SIDE && width > 1 && width <= MAX_SIDE;
  if (isGrey && first.datatype === "FP32" && !more.length) found.push(["Draw", (asked) => new Drawing(metadata.name, first, asked)]);
  if (known?.takes === "images") found.push(["Image", (asked) => new Picture(metadata.name, asked)]);
  if (known?.takes === "texts" && known.task === "embedding") found.push(["Texts", () => new Texts(metadata.name)]);
  if (!more.length && first.shape.length === 2 && first.shape[1] > 0 && first.shape[1] <= MAX_FEATURES && NUMBERS.test(first.datatype)) found.push(["Features", (asked) => new Features(metadata.name, first, known, asked)]);
  found.push(["Tensors", () => new Tensors(metadata, known)]);
  return found;
}

class Drawing {
  constructor(name, input, asked) {
    [this.name, this.input, this.asked] = [name, input, asked];
    [this.rows, this.columns] = input.shape.slice(2);
    this.pixels = new Float32Array(this.rows * this.columns); // 0 paper … 1 ink
    this.current = 0; // the pixel that the keyboard is on
  }

  place(parent) {
    const how = el("p", "Draw with the pen. With a keyboard: arrows move, Space inks or clears a pixel, Enter asks.");
    how.id = "how";
    const grid = (this.grid = el("div"));
    grid.id = "grid";
    grid.setAttribute("role", "grid");
    grid.setAttribute("aria-label", `${this.rows} by ${this.columns} pixels`);
    grid.setAttribute("aria-describedby", "how");
    this.cells = Array.from(this.pixels, () => classed("cell", el("div")));
    this.cells.forEach((cell) => cell.setAttribute("role", "gridcell"));
    for (let row = 0; row < this.rows; row++) {
      const line = classed("row", el("div", "", ...this.cells.slice(row * this.columns, (row + 1) * this.columns)));
      line.setAttribute("role", "row");
      grid.append(line);
    }
    this.pixels.forEach((value, i) => this.ink(i, value));
    this.cells[0].tabIndex = 0;
    grid.addEventListener("keydown", (event) => this.press(event));
    grid.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      grid.setPointerCapture(event.pointerId);
      this.pen(event);
    });
    grid.addEventListener("pointermove", (event) => {
      if (grid.hasPointerCapture(event.pointerId)) [event, ...(event.getCoalescedEvents?.() ?? [])].forEach((one) => this.pen(one));
    });
    grid.addEventListener("pointerup", () => this.asked());
    parent.replaceChildren(classed("soft", how), grid);
  }

  ink(i, value) {
    this.pixels[i] = value;
    this.cells[i].style.setProperty("--ink", `${Math.round(value * 100)}%`);
    this.cells[i].setAttribute("aria-label", `row ${Math.floor(i / this.columns) + 1}, column ${(i % this.columns) + 1}: ${Math.round(value * 100)} % ink`);
  }

  pen(event) {
    const box = this.grid.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.columns - 0.5;
    const y = ((event.clientY - box.top) / box.height) * this.rows - 0.5;
    const reach = (REACH * this.columns) / 8;
    this.pixels.forEach((was, i) => {
      const value = Math.min(1, FALL * (reach - Math.hypot(x - (i % this.columns), y - Math.floor(i / this.columns))));
      if (value > was) this.ink(i, value);
    });
  }

  press(event) {
    const [at, columns] = [this.current, this.columns];
    const keys = {
      ArrowLeft: () => at % columns > 0 && this.move(at - 1),
      ArrowRight: () => at % columns < columns - 1 && this.move(at + 1),
      ArrowUp: () => at >= columns && this.move(at - columns),
      ArrowDown: () => at < this.cells.length - columns && this.move(at + columns),
      Home: () => this.move(at - (at % columns)),
      End: () => this.move(at - (at % columns) + columns - 1),
      " ": () => this.ink(at, this.pixels[at] > 0 ? 0 : 1),
      Enter: () => this.asked(),
    };
    if (!(event.key in keys) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  move(to) {
    this.cells[this.current].tabIndex = -1;
    this.current = to;
    this.cells[to].tabIndex = 0;
    this.cells[to].focus();
  }

  fill(data) {
    data.slice(0, this.pixels.length).forEach((value, i) => this.ink(i, Math.min(1, Math.max(0, value))));
  }

  example(known) {
    const data = known?.example?.request.inputs[0].data;
    if (data) this.fill(data);
  }

  clear() {
    this.fill(Array.from(this.pixels, () => 0));
  }

  request(name) {
    return v2(name, [{ name: this.input.name, datatype: "FP32", shape: [1, ...this.input.shape.slice(1)], data: Array.from(this.pixels, (p) => Number(p.toFixed(4))) }]);
  }
}

class Picture {
  constructor(name, asked) {
    [this.name, this.asked, this.file] = [name, asked, null];
  }

  place(parent) {
    const choose = el("input");
    choose.type = "file";
    choose.accept = "image/*";
    choose.id = "image";
    const label = el("label", "Drop an image here, or choose one:");
    label.htmlFor = "image";
    this.about = classed("soft", el("p", "Resized and normalised by the gateway, as at the gate."));
    const drop = classed("drop", el("div", "", label, choose, (this.canvas = el("canvas"))));
    this.canvas.hidden = true;
    choose.addEventListener("change", () => this.take(choose.files[0]));
    drop.addEventListener("dragover", (event) => (event.preventDefault(), drop.classList.add("over")));
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      this.take(event.dataTransfer.files[0]);
    });
    parent.replaceChildren(drop, this.about);
  }

  async take(file) {
    if (!file) return;
    this.file = file;
    const bitmap = await createImageBitmap(file).catch(() => null);
    this.canvas.hidden = bitmap === null;
    this.about.textContent = bitmap === null ? `${file.name}: no image that this browser knows` : `${file.name}, ${bitmap.width} × ${bitmap.height}`;
    if (bitmap !== null) {
      const shrink = Math.min(1, 480 / Math.max(bitmap.width, bitmap.height));
      [this.canvas.width, this.canvas.height] = [Math.max(1, bitmap.width * shrink), Math.max(1, bitmap.height * shrink)];
      this.canvas.getContext("2d").drawImage(bitmap, 0, 0, this.canvas.width, this.canvas.height);
    }
    this.asked();
  }

  // Of no one's: lines and circles in colours, so that there is something to send.
  async example() {
    const drawn = el("canvas");
    [drawn.width, drawn.height] = [224, 224];
    const pen = drawn.getContext("2d");
    const sky = pen.createLinearGradient(0, 0, 0, 224);
    sky.addColorStop(0, "steelblue");
    sky.addColorStop(1, "wheat");
    pen.fillStyle = sky;
    pen.fillRect(0, 0, 224, 224);
    pen.fillStyle = "gold";
    pen.arc(150, 80, 32, 0, 7);
    pen.fill();
    const blob = await new Promise((done) => drawn.toBlob(done, "image/png"));
    await this.take(new File([blob], "example.png", { type: "image/png" }));
  }

  clear() {
    this.file = null;
    this.canvas.hidden = true;
    this.about.textContent = "No image chosen.";
  }

  request(name) {
    if (this.file === null) throw new Error("choose an image first");
    return { path: `/v1/classify/${model(name)}`, body: this.file, type: this.file.type || "application/octet-stream", file: this.file.name };
  }
}

class Texts {
  constructor(name) {
    this.name = name;
  }

  place(parent) {
    const label = el("label", "Texts, one on each line");
    label.htmlFor = "texts";
    this.area = el("textarea");
    [this.area.id, this.area.rows] = ["texts", 6];
    this.example();
    parent.replaceChildren(label, this.area);
  }

  example() {
    this.area.value = TEXTS.join("\n");
  }

  clear() {
    this.area.value = "";
  }

  request(name) {
    this.texts = this.area.value.split("\n").map((t) => t.trim()).filter(Boolean);
    if (!this.texts.length) throw new Error("write a text first");
    return { path: "/v1/embeddings", body: JSON.stringify({ model: name, input: this.texts }), type: JSON_TYPE, texts: this.texts };
  }
}

class Features {
  constructor(name, input, known, asked) {
    [this.name, this.input, this.asked] = [name, input, asked];
    this.known = known;
  }

  place(parent) {
    this.fields = Array.from({ length: this.input.shape[1] }, (_, i) => {
      const field = el("input");
      [field.type, field.step, field.value, field.id] = ["number", "any", "0", `feature-${i}`];
      field.addEventListener("keydown", (event) => event.key === "Enter" && this.asked());
      return field;
    });
    const labels = this.fields.map((field, i) => {
      const label = el("label", `${this.input.name} ${i + 1}`, field);
      label.htmlFor = field.id;
      return label;
    });
    parent.replaceChildren(classed("features", el("div", "", ...labels)));
    this.example(this.known);
  }

  fill(values) {
    this.fields.forEach((field, i) => (field.value = String(Number(Number(values[i] ?? 0).toPrecision(6)))));
  }

  example(known) {
    this.fill(known?.example?.request.inputs[0].data?.flat() ?? []);
  }

  clear() {
    this.fill([]);
  }

  request(name) {
    const data = this.fields.map((field) => Number(field.value));
    return v2(name, [{ name: this.input.name, datatype: this.input.datatype, shape: [1, data.length], data }]);
  }
}

class Tensors {
  constructor(metadata, known) {
    [this.metadata, this.known] = [metadata, known];
  }

  place(parent) {
    const label = el("label", `The request, as the v2 protocol has it: ${this.metadata.inputs.map((i) => `${i.name} ${i.datatype} [${i.shape}]`).join(", ")}`);
    label.htmlFor = "tensors";
    this.area = el("textarea");
    [this.area.id, this.area.rows, this.area.spellcheck] = ["tensors", 14, false];
    this.example(this.known);
    parent.replaceChildren(label, this.area);
  }

  example(known) {
    const made = this.metadata.inputs.map(({ name, datatype, shape }) => {
      const full = closed(shape, 1);
      const value = datatype === "BYTES" ? "a text" : datatype === "BOOL" ? true : /mask/.test(name) || datatype.includes("INT") ? 1 : 0.5;
      return { name, datatype, shape: full, data: Array(size(full)).fill(value) };
    });
    const inputs = known?.example?.request.inputs ?? made;
    this.area.value = `{"inputs": [\n${inputs.map((one) => `  ${JSON.stringify(one)}`).join(",\n")}\n]}`;
  }

  clear() {
    this.area.value = '{"inputs": []}';
  }

  request(name) {
    let read;
    try {
      read = JSON.parse(this.area.value);
    } catch (error) {
      throw new Error(`this is no JSON: ${error.message}`);
    }
    return { path: `/v2/models/${model(name)}/infer`, ...encoded(read, this.metadata.outputs), v2: read };
  }
}
