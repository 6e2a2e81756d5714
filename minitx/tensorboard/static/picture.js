/** The grid, or an enlarged head, as an image to download. */

import { inks, make, sized } from "./elements.js";
import { shortened, spaced, visible } from "./labels.js";
import { sheet } from "./painting.js";
import { parts } from "./scene.js";

const SIDE = 120;
const GAP = 10;
const TEXT = 18;
const MARGIN = 16;
const BETWEEN = 24;
const DENSITY = 2;

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

function title({ view, other, difference, names }) {
  const first = `${view.kind} · ${view.example} · ${names[0]}`;
  const whole = other ? `${first} ${difference ? "−" : "|"} ${names[1]}` : first;
  return shortened(visible(whole).replaceAll("␣", " "), 120);
}

/** All heads of a scene (see scene.js), in display order. */
export function gridPicture(scene) {
  const { map, order, layout } = scene;
  const double = scene.other && !scene.difference ? 2 : 1;
  const across = Math.max(...map.counts, 1);
  const ratio = Math.min(Math.max(layout.queries.shown.length / Math.max(layout.keys.shown.length, 1), 0.4), 1.6);
  const [wide, high] = [SIDE * double + GAP, SIDE * ratio + GAP + TEXT];
  const { canvas, context } = canvasOf(
    2 * MARGIN + Math.max(across * wide, 480),
    2 * MARGIN + TEXT + spots(scene, across).at(-1).row * high + high,
    "paper",
  );
  context.font = "600 13px system-ui, sans-serif";
  context.fillText(title(scene), MARGIN, MARGIN + 8);
  context.font = "11px system-ui, sans-serif";
  spots(scene, across).forEach(({ row, column }, index) => {
    const { item, head } = order[index];
    const [x, y] = [MARGIN + column * wide, MARGIN + TEXT + row * high];
    const mark = map.mark(item, head);
    context.fillText(`${map.title(item, head)}${mark ? ` · ${spaced(mark.name)}` : ""}`, x, y + 12, wide - GAP);
    parts(scene, item, head).forEach((part, place) => {
      if (!part.levels) return;
      const image = sheet(part, scene.brush, SIDE * DENSITY);
      context.drawImage(image, x + place * (SIDE + 2), y + TEXT, SIDE, SIDE * ratio);
    });
  });
  return canvas;
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
export function detailPicture(scene, detail) {
  const wide = ({ matrix, lines }) => matrix.size.width + lines.width + 2 * BETWEEN;
  const width = detail.shown.reduce((sum, figure) => sum + wide(figure), 0);
  const height =
    2 * TEXT + Math.max(...detail.shown.map(({ matrix, lines }) => Math.max(matrix.size.height, lines.height)), 0);
  const { canvas, context } = canvasOf(2 * MARGIN + Math.max(width, 480), 2 * MARGIN + height, "raised");
  context.imageSmoothingEnabled = true; // its canvases may be denser
  context.font = "600 13px system-ui, sans-serif";
  context.fillText(`${detail.title.textContent} · ${title(scene)}`, MARGIN, MARGIN + 8);
  let x = MARGIN;
  const y = MARGIN + 2 * TEXT;
  for (const figure of detail.shown) {
    const { matrix, lines } = figure;
    for (const layer of [matrix.base, matrix.overlay])
      context.drawImage(layer, x, y, matrix.size.width, matrix.size.height);
    if (lines.width) context.drawImage(lines.canvas, x + matrix.size.width + BETWEEN, y, lines.width, lines.height);
    x += wide(figure);
  }
  return canvas;
}
