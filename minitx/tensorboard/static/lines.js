/** Both token sequences: queries on the left, keys on the right, lines with the opacity of the weights. */

import { lineColour } from "./colours.js";
import { inks, make, sized } from "./elements.js";
import { axisTexts, font, label } from "./matrix.js";
import { isLens, weightAt } from "./scene.js";

const FAINTEST = 0.01; // smaller weights are invisible
const MAX_LINES = 3000;

/** Draws the lines of the row under the pointer, or of all rows. */
export class Lines {
  constructor({ onhover, onchoose }) {
    this.canvas = make("canvas", { role: "img" });
    this.element = make("div", { className: "lines" }, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => onhover(this.rowOf(event), null));
    this.canvas.addEventListener("pointerleave", () => onhover(null, null));
    this.canvas.addEventListener("click", (event) => onchoose?.(this.rowOf(event)));
  }

  /** Draw a part (see scene.js) within a width, its rows aligned with those of its matrix. */
  show(part, theme, matrix, available, title) {
    const probe = this.canvas.getContext("2d");
    const { queries, keys } = part.layout;
    const longest = Math.max(queries.shown.length, keys.shown.length, 1);
    this.part = part;
    this.theme = theme;
    this.line = matrix.cell;
    this.fontSize = matrix.fontSize;
    this.top = matrix.top;
    this.queries = axisTexts(queries, probe);
    this.keys = axisTexts(keys, probe);
    this.left = Math.max(this.queries.width, 40) + 10;
    this.element.hidden = isLens(part);
    this.width = isLens(part) ? 0 : Math.max(Math.min(available, 420), this.left + this.keys.width + 80);
    this.right = this.width - Math.max(this.keys.width, 28) - 10;
    this.height = this.top + longest * this.line + 4;
    this.canvas.setAttribute("aria-label", `lines from queries to keys of ${title}, with the opacity of their weights`);
    this.rowWeights = queries.shown.map((row) => keys.shown.map((column) => weightAt(part, row, column)));
    this.mark(null);
  }

  /** Draw the lines of one row, or the strongest of all rows. */
  mark(row, column = null) {
    const context = sized(this.canvas, this.width, this.height);
    const { ink, faint, accent } = inks();
    const { queries, keys } = this.part.layout;
    Object.assign(context, { font: "600 11px system-ui, sans-serif", fillStyle: faint, textBaseline: "alphabetic" });
    context.textAlign = "right";
    context.fillText("query", this.left - 6, this.top - 8);
    context.textAlign = "left";
    context.fillText("key", this.right + 6, this.top - 8);
    const chosen = row === null ? [...queries.shown.keys()] : [row];
    const each =
      row === null ? Math.max(2, Math.floor(MAX_LINES / Math.max(queries.shown.length, 1))) : keys.shown.length;
    for (const one of chosen)
      if (one < this.rowWeights.length && !queries.padded[one]) this.strokes(context, one, each);
    const weights = row === null ? null : this.rowWeights[row];
    const queryColour = (place) => (place === row ? accent : queries.padded[place] ? faint : ink);
    this.texts(context, "right", this.queries, this.left - 6, queryColour, row);
    const keyColour = (place) => {
      if (place === column || (weights && Math.abs(weights[place]) >= 0.05)) return accent;
      return weights || keys.padded[place] ? faint : ink;
    };
    const strongest = weights
      ? weights.reduce((best, weight, place) => (Math.abs(weight) > Math.abs(weights[best]) ? place : best), 0)
      : null;
    this.texts(context, "left", this.keys, this.right + 6, keyColour, column ?? strongest);
  }

  strokes(context, row, each) {
    const weights = this.rowWeights[row];
    const { padded } = this.part.layout.keys;
    const visible = [...weights.keys()].filter((key) => Math.abs(weights[key]) >= FAINTEST && !padded[key]);
    if (visible.length > each)
      visible.sort((one, two) => Math.abs(weights[two]) - Math.abs(weights[one])).length = each;
    const from = this.y(row);
    const middle = (this.left + this.right) / 2;
    context.lineWidth = Math.min(2, Math.max(1, this.line / 6));
    for (const key of visible) {
      context.globalAlpha = Math.min(1, Math.abs(weights[key]));
      context.strokeStyle = lineColour(weights[key], Boolean(this.part.other), this.theme);
      context.beginPath();
      context.moveTo(this.left, from);
      context.bezierCurveTo(middle, from, middle, this.y(key), this.right, this.y(key));
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** One column of tokens; if they overlap, some are omitted, but never the important one. */
  texts(context, align, { texts }, x, colour, important) {
    const every = Math.ceil((this.fontSize + 1) / this.line);
    Object.assign(context, { font: font(this.fontSize), textAlign: align, textBaseline: "middle" });
    texts.forEach((text, place) => {
      const near = important !== null && place !== important && Math.abs(place - important) < every;
      if ((place % every || near) && place !== important) return;
      context.fillStyle = colour(place);
      label(context, text, x, this.y(place), align === "right" ? x : this.width - x);
    });
  }

  y(place) {
    return this.top + (place + 0.5) * this.line;
  }

  rowOf(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.top) / this.line);
    const onKeys = event.clientX - box.left > this.right;
    return row >= 0 && row < this.queries.texts.length && !onKeys ? row : null;
  }
}
