/** One head, enlarged: queries down, keys across, with their tokens. */

import { inks, make, sized } from "./elements.js";
import { shortened, visible } from "./labels.js";
import { sheet } from "./painting.js";

const FONT = 12;
const SMALLEST_FONT = 8; // a smaller cell has no label of its own
const LONGEST = 14; // characters of a token beside a map
const CELLS = { smallest: 2, largest: 30 };

/** Draw a label clipped to its space, whatever the direction and height of its text. */
export function label(context, text, x, y, width) {
  context.save();
  context.beginPath();
  context.rect(context.textAlign === "right" ? x - width : x, y - FONT * 0.75, width, FONT * 1.5);
  context.clip();
  context.fillText(text, x, y);
  context.restore();
}

/** The font of tokens on a canvas. */
export function font(size = FONT) {
  return `${size}px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace`;
}

/** The labels of one axis in display order, and the width of the widest in pixels, in a font of `size`. */
export function axisTexts(axis, context, longest = LONGEST, size = FONT) {
  context.font = font(size);
  const widthOf = (text) => Math.ceil(context.measureText(text).width);
  const texts = axis.shown.map((place) => {
    let [text, length] = [shortened(visible(axis.labels[place]), longest), longest];
    while (widthOf(text) > longest * 9) text = shortened(text, --length);
    return text;
  });
  return { texts, width: texts.reduce((most, text) => Math.max(most, widthOf(text)), 0) };
}

/** A matrix on two canvases: the map, and marks on top; a slider over its queries, if they can be chosen. */
export class Matrix {
  constructor({ onhover, onchoose }) {
    this.base = make("canvas", { "aria-hidden": "true" });
    this.overlay = make("canvas", { className: "overlay", "aria-hidden": "true" });
    const slider = { role: "slider", tabIndex: 0, "aria-orientation": "vertical", "aria-valuemin": "1" };
    const role = onchoose ? slider : { role: "img" };
    this.element = make("div", { className: "matrix", ...role }, this.base, this.overlay);
    this.overlay.addEventListener("pointermove", (event) => onhover(...this.placeOf(event)));
    this.overlay.addEventListener("pointerleave", () => onhover(null, null));
    this.overlay.addEventListener("click", (event) => onchoose?.(this.placeOf(event)[0]));
  }

  /** Draw a part (see scene.js) within a width and a height. */
  show(part, colours, available, title) {
    const { queries, keys } = part.layout;
    const probe = this.base.getContext("2d");
    const rows = axisTexts(queries, probe);
    const columns = axisTexts(keys, probe);
    const left = rows.width + 10;
    const fitting = (size, count) => Math.floor(size / Math.max(count, 1));
    const wide = fitting(available.width - left - 2, keys.shown.length);
    const high = fitting(available.height - 60, queries.shown.length);
    const cell = Math.min(Math.max(Math.min(wide, high), CELLS.smallest), CELLS.largest);
    this.fontSize = Math.min(Math.max(cell - 1, SMALLEST_FONT), FONT);
    const upright = columns.width <= cell - 2;
    const top = (upright ? FONT + 2 : columns.width) + 8;
    const size = { width: left + keys.shown.length * cell + 2, height: top + queries.shown.length * cell + 2 };
    Object.assign(this, { part, rows, columns, left, top, cell, upright, size });
    this.element.setAttribute("aria-label", `${part.axes.row} of ${title}`);
    this.element.dataset.geometry = `${left} ${top} ${cell}`; // in CSS pixels, for tests
    const context = sized(this.base, size.width, size.height);
    this.context = sized(this.overlay, size.width, size.height);
    const { ink, faint } = inks();
    context.imageSmoothingEnabled = false;
    const map = sheet(part, colours);
    context.drawImage(map, left, top, keys.shown.length * cell, queries.shown.length * cell);
    this.every = Math.ceil((this.fontSize + 1) / cell); // cells smaller than text: only every n-th has a label
    for (let row = 0; row < queries.shown.length; row += this.every)
      this.rowLabel(context, row, queries.padded[row] ? faint : ink);
    for (let column = 0; column < keys.shown.length; column += this.every)
      this.columnLabel(context, column, keys.padded[column] ? faint : ink);
  }

  pen(context, fillStyle, textAlign) {
    Object.assign(context, { font: font(this.fontSize), fillStyle, textAlign, textBaseline: "middle" });
  }

  rowLabel(context, row, colour) {
    this.pen(context, colour, "right");
    label(context, this.rows.texts[row], this.left - 6, this.top + (row + 0.5) * this.cell, this.left - 6);
  }

  columnLabel(context, column, colour) {
    const x = this.left + (column + 0.5) * this.cell;
    this.pen(context, colour, this.upright ? "center" : "left");
    context.save();
    context.translate(x, this.upright ? this.top - FONT / 2 - 4 : this.top - 5);
    if (this.upright) context.fillText(this.columns.texts[column], 0, 0);
    else {
      context.rotate(-Math.PI / 2);
      label(context, this.columns.texts[column], 0, 0, this.top);
    }
    context.restore();
  }

  /** Mark a row, and a column within it; both may be null. Indices are those on the screen. */
  mark(row, column) {
    const { context, left, top, cell, size, part } = this;
    const { accent, raised } = inks();
    context.clearRect(0, 0, size.width, size.height);
    const { queries, keys } = part.layout;
    if (row === null || row >= queries.shown.length) return;
    context.fillStyle = raised;
    for (const [from, space] of this.spaces(row)) context.fillRect(0, top + from, left - 3, space);
    this.rowLabel(context, row, accent);
    Object.assign(context, { strokeStyle: accent, lineWidth: 2 });
    context.strokeRect(left - 1, top + row * cell - 1, keys.shown.length * cell + 2, cell + 2);
    if (column === null || column >= keys.shown.length) return;
    context.fillStyle = raised;
    for (const [from, space] of this.spaces(column)) context.fillRect(left + from, 0, space, top - 2);
    this.columnLabel(context, column, accent);
    context.lineWidth = 1;
    context.strokeRect(left + column * cell - 0.5, top - 0.5, cell + 1, queries.shown.length * cell + 1);
  }

  /** Start and size, along their axis, of the spaces of a label and of the labels that it would overlap. */
  spaces(place) {
    const { cell, every, fontSize } = this;
    const space = (at, size) => [(at + 0.5) * cell - size / 2, size];
    const touched = [Math.floor(place / every), Math.ceil(place / every)]
      .map((count) => count * every)
      .filter((other) => Math.abs(other - place) * cell < fontSize + 1);
    const others = touched.map((other) => space(other, every * cell));
    return [space(place, Math.min(fontSize + 2, every * cell)), ...others];
  }

  /** Row and column under the pointer, or null. */
  placeOf(event) {
    const box = this.overlay.getBoundingClientRect();
    const within = (place, count) => (place >= 0 && place < count ? place : null);
    const { queries, keys } = this.part.layout;
    const row = within(Math.floor((event.clientY - box.top - this.top) / this.cell), queries.shown.length);
    const column = within(Math.floor((event.clientX - box.left - this.left) / this.cell), keys.shown.length);
    return [row, row === null ? null : column];
  }

  /** Update the ARIA value of a slider to the query. */
  announce(row) {
    if (this.element.getAttribute("role") !== "slider") return;
    const { queries } = this.part.layout;
    this.element.setAttribute("aria-valuemax", String(queries.shown.length));
    const text = row === null ? "none" : `${row + 1}: ${visible(queries.labels[queries.shown[row]])}`;
    this.element.setAttribute("aria-valuenow", String((row ?? 0) + 1));
    this.element.setAttribute("aria-valuetext", text);
  }
}
