/** One head as a small map, with the tokens of its rows and columns if they fit. */

import { make } from "./elements.js";
import { axisTexts, font } from "./matrix.js";

/** Size of the tokens' font in pixels. */
export const TOKEN_FONT = 10;
const TOKEN_LENGTH = 7; // characters of a token
const TOKEN_CELLS = { labelled: 10, largest: 60 };
const TALLEST = 1.5; // height of a map with tokens, by the width of its tile
const NAMED_FROM_SIDE = 120;
const AXIS_HEIGHT = 15; // height of the name of an axis
const UPRIGHT_HEIGHT = 14; // of a token above a map

/**
 * Sizes, in pixels, and tokens of all plots of a layout that are `side` wide; without tokens if they do not fit. `left`
 * and `top` are where the map begins.
 */
export function plotSizes(layout, side) {
  const context = make("canvas").getContext("2d");
  const rows = axisTexts(layout.queries, context, TOKEN_LENGTH, TOKEN_FONT);
  const columns = axisTexts(layout.keys, context, TOKEN_LENGTH, TOKEN_FONT);
  const [high, wide] = [rows.texts.length, columns.texts.length].map((count) => Math.max(count, 1));
  const name = side >= NAMED_FROM_SIDE ? AXIS_HEIGHT : 0;
  const left = rows.width + 5 + name;
  const cell = Math.floor(Math.min((side - left) / wide, (TALLEST * side) / high, TOKEN_CELLS.largest));
  const needed = Math.max(left + wide * TOKEN_CELLS.labelled, (high * TOKEN_CELLS.labelled) / TALLEST);
  if (cell >= TOKEN_CELLS.labelled) {
    const upright = columns.width <= cell - 1;
    const [width, height] = [wide * cell, high * cell];
    const texts = { rows: rows.texts, columns: columns.texts };
    const top = name + (upright ? UPRIGHT_HEIGHT : columns.width + 3);
    return { needed, labelled: true, cell, upright, left, top, width, height, ...texts, name };
  }
  const ratio = Math.min(Math.max(high / wide, 0.4), 1.6);
  const none = { left: 0, top: 0, rows: [], columns: [], name: 0 };
  return { needed, labelled: false, width: side, height: Math.round(side * ratio), ...none };
}

/** The canvas of a head, its tokens, the names of its axes, and its owner. */
export class Plot {
  constructor() {
    const part = (className) => make("span", { className });
    this.canvas = make("canvas", { width: 1, height: 1 });
    this.parts = { owner: part("owner"), keysName: part("axis across"), queriesName: part("axis down") };
    this.tokens = { keys: part("tokens keys"), queries: part("tokens queries") };
    this.element = make("span", { className: "plot" }, ...Object.values(this.parts), ...Object.values(this.tokens));
    this.element.append(this.canvas);
    this.built = "";
  }

  /** Show tokens and names; the canvas is drawn by its tile. */
  show(size, axes, owner) {
    const built = JSON.stringify([size, axes, owner]);
    if (built === this.built) return;
    this.built = built;
    const { owner: named, keysName, queriesName } = this.parts;
    named.textContent = named.title = owner;
    named.hidden = !owner;
    keysName.textContent = size.name ? `${axes.keys} →` : "";
    queriesName.textContent = size.name ? `← ${axes.queries}` : "";
    const { keys, queries } = this.tokens;
    const spans = (texts) => texts.map((textContent) => make("bdi", { textContent }));
    keys.replaceChildren(...spans(size.columns));
    queries.replaceChildren(...spans(size.rows));
    this.element.classList.toggle("labelled", size.labelled);
    keys.classList.toggle("upright", size.labelled && size.upright);
    keys.style.font = queries.style.font = font(TOKEN_FONT);
    const { style } = this.element;
    style.setProperty("--cell", `${size.cell ?? 0}px`);
    style.setProperty("--wide", `${size.width}px`);
    style.setProperty("--high", `${size.height}px`);
  }
}
