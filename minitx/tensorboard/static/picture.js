/** The grid, or an enlarged head, as an image to download. */

import { inks, make, sized } from "./elements.js";
import { shortened, spaced, visible } from "./labels.js";
import { font } from "./matrix.js";
import { sheet } from "./painting.js";
import { parts } from "./scene.js";
import { TOKEN_FONT, plotSizes } from "./tile.js";
import { lineOf, otherExample } from "./words.js";

const SIDE = 120; // of a map without tokens
const LABELLED = { smallest: 170, largest: 340 }; // sides of a map with tokens
const WIDEST = 4000; // of the image; wider ones have no tokens
const MAX_EXAMPLE_LENGTH = 200; // characters
const GAP = 10;
const TEXT = 18;
const MARGIN = 16;
const BETWEEN = 24;
const DENSITY = 2;
const FONT_OF_TITLES = "11px system-ui, sans-serif";

function canvasOf(width, height, background) {
  const canvas = make("canvas");
  const context = sized(canvas, width, height, DENSITY);
  const { [background]: fillStyle, ink } = inks();
  context.fillStyle = fillStyle;
  context.fillRect(0, 0, width, height);
  context.fillStyle = ink;
  context.imageSmoothingEnabled = false;
  return { canvas, context };
}

/** Lines above an image: what it shows, and the texts. */
function heading(context, { view, other, difference, names }, texts, head = "") {
  const first = `${head}${view.kind} · ${view.example} · ${names[0]}`;
  const whole = other ? `${first} ${difference ? "−" : "|"} ${names[1]}` : first;
  const width = context.canvas.width / DENSITY - 2 * MARGIN;
  context.font = `600 ${FONT_OF_TITLES.replace("11", "13")}`;
  context.fillText(fitted(context, visible(whole).replaceAll("␣", " "), width), MARGIN, MARGIN + 8);
  context.font = FONT_OF_TITLES;
  texts.forEach((text, place) => {
    const line = fitted(context, text, width, lineOf, MAX_EXAMPLE_LENGTH);
    context.fillText(line, MARGIN, MARGIN + 8 + (place + 1) * TEXT);
  });
}

/** The examples of a scene: that of its map, if it is known, and that of the other map if it is another one. */
function textsOf({ map, other }, example) {
  return [example, otherExample(map, other)].filter(Boolean);
}

/** A text cut to a width in pixels, from a length in characters on. */
function fitted(context, text, width, cut = shortened, length = text.length) {
  let line = cut(text, length);
  while (length > 1 && context.measureText(line).width > width) line = cut(text, --length);
  return line;
}

/** All heads of a scene (see scene.js), in display order, with their tokens if they fit; `example` is its map's. */
export function gridPicture(scene, example) {
  const { map, order } = scene;
  const across = Math.max(...map.counts, 1);
  const places = spots(scene, across);
  const rows = places.at(-1).row + 1;
  const double = scene.other && !scene.difference;
  const layouts = double ? [scene.layout, scene.otherLayout] : [scene.layout];
  const needed = Math.max(LABELLED.smallest, ...layouts.map((layout) => plotSizes(layout, LABELLED.largest).needed));
  const fits = needed <= LABELLED.largest && needed * Math.max(across * layouts.length, rows) <= WIDEST;
  const sizes = layouts.map((layout) => plotSizes(layout, fits ? needed : SIDE));
  const captions = order.map(({ item, head }) => {
    const mark = map.mark(item, head);
    return `${map.title(item, head)}${mark ? ` · ${spaced(mark.name)}` : ""}`;
  });
  const probe = make("canvas").getContext("2d");
  probe.font = FONT_OF_TITLES;
  const widthOf = (text) => Math.ceil(probe.measureText(text).width);
  const names = scene.axes.map(({ keys }) => widthOf(`${keys} →`));
  const widths = sizes.map(({ left, width, name }, place) => left + Math.max(width, name && names[place]) + GAP);
  const wide = Math.max(widths.reduce((sum, width) => sum + width), ...captions.map((text) => widthOf(text) + GAP));
  const above = double ? 2 * TEXT : TEXT;
  const high = above + Math.max(...sizes.map(({ top, height }) => top + height)) + GAP;
  const texts = textsOf(scene, example);
  const start = MARGIN + (1 + Math.max(texts.length, 1)) * TEXT;
  const size = [2 * MARGIN + Math.max(across * wide, 480), start + rows * high + MARGIN];
  const { canvas, context } = canvasOf(...size, "paper");
  heading(context, scene, texts);
  places.forEach(({ row, column }, index) => {
    const { item, head } = order[index];
    let [x, y] = [MARGIN + column * wide, start + row * high];
    context.fillText(captions[index], x, y + 12);
    parts(scene, item, head).forEach((part, place) => {
      if (double) context.fillText(fitted(context, part.owner, widths[place] - GAP), x, y + TEXT + 12);
      if (part.levels) plot(context, part, sizes[place], scene.brush, x, y + above);
      x += widths[place];
    });
  });
  return canvas;
}

/** A map with its tokens and the names of its axes, as in tile.js. */
function plot(context, part, size, brush, x, y) {
  const { cell, upright, name, width, height } = size;
  const [left, top] = [x + size.left, y + size.top];
  context.drawImage(sheet(part, brush, width * DENSITY), left, top, width, height);
  const write = (text, x, y, turned, textAlign) => {
    context.save();
    Object.assign(context, { textAlign, textBaseline: "middle" });
    context.translate(x, y);
    if (turned) context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0);
    context.restore();
  };
  context.save();
  if (name) {
    write(`${part.axes.keys} →`, left, y + name / 2, false, "left");
    write(fitted(context, `← ${part.axes.queries}`, height), x + name / 2, top, true, "right");
  }
  context.font = font(TOKEN_FONT);
  size.rows.forEach((text, row) => write(text, left - 4, top + (row + 0.5) * cell, false, "right"));
  const columns = upright ? [top - 7, false, "center"] : [top - 3, true, "left"];
  size.columns.forEach((text, column) => write(text, left + (column + 0.5) * cell, ...columns));
  context.restore();
}

/** Row and column of each head: a row for each layer, or, if sorted, row by row. */
function spots({ view, order }, across) {
  const heads = new Map();
  return order.map(({ item }, index) => {
    if (view.sort) return { row: Math.floor(index / across), column: index % across };
    const column = heads.get(item) ?? 0;
    heads.set(item, column + 1);
    return { row: item, column };
  });
}

/** The enlarged head of a detail panel, with its marks. */
export function detailPicture(scene, detail, example) {
  const wide = ({ matrix, lines }) => matrix.size.width + lines.width + 2 * BETWEEN;
  const width = detail.shown.reduce((sum, figure) => sum + wide(figure), 0);
  const height =
    3 * TEXT + Math.max(...detail.shown.map(({ matrix, lines }) => Math.max(matrix.size.height, lines.height)), 0);
  const { canvas, context } = canvasOf(2 * MARGIN + Math.max(width, 480), 2 * MARGIN + height, "raised");
  context.imageSmoothingEnabled = true; // its canvases may be denser
  heading(context, scene, textsOf(scene, example), `${detail.title.textContent} · `);
  let x = MARGIN;
  const y = MARGIN + 3 * TEXT;
  for (const figure of detail.shown) {
    const { matrix, lines } = figure;
    for (const layer of [matrix.base, matrix.overlay])
      context.drawImage(layer, x, y, matrix.size.width, matrix.size.height);
    if (lines.width) context.drawImage(lines.canvas, x + matrix.size.width + BETWEEN, y, lines.width, lines.height);
    x += wide(figure);
  }
  return canvas;
}
