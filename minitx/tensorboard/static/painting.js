/** Levels to pixels. */

import { differenceTable, greys, palette } from "./colours.js";

const PADDING = 1000; // outside the range of signed levels

/** The rows and columns of a map to show: all, or those that are not padding. */
export function layoutOf(map, padding) {
  const axis = (labels) => {
    const shown = [...labels.keys()].filter((place) => padding || labels[place] !== null);
    return { shown, padded: shown.map((place) => labels[place] === null), labels };
  };
  return { queries: axis(map.header.queries), keys: axis(map.header.keys), stride: map.columns };
}

/** The colour table of a scene. */
export function brush(scale, difference, theme) {
  return { table: palette(scale, difference, theme), greys: greys(theme), difference, theme };
}

/**
 * Draw a part (see scene.js) on a canvas: a pixel for each weight, or, so that a thin line is visible in a thumbnail of
 * about `side` pixels, one for the strongest of each block of weights. The style sheet scales it.
 */
export function thumbnail(canvas, part, colours, side) {
  const { queries, keys } = part.layout;
  const factor = Math.max(1, Math.ceil(Math.max(queries.shown.length, keys.shown.length) / side));
  const width = Math.ceil(keys.shown.length / factor);
  const height = Math.ceil(queries.shown.length / factor);
  const found = strongest(part, factor, width, height);
  const image = new ImageData(Math.max(width, 1), Math.max(height, 1));
  const out = new Uint32Array(image.data.buffer);
  for (let place = 0; place < width * height; place++) {
    const code = found[place];
    out[place] =
      code === PADDING ? colours.greys[((place % width) + Math.floor(place / width)) & 1] : colours.table[code + 255];
  }
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The levels of a part, or of its difference, each the strongest of a block of `factor` x `factor`. */
function strongest({ levels, other, layout }, factor, width, height) {
  const { queries, keys, stride } = layout;
  const found = new Int16Array(width * height).fill(PADDING);
  const table = other ? differenceTable() : null;
  const columns = keys.shown.length;
  for (let row = 0; row < queries.shown.length; row++) {
    if (queries.padded[row]) continue;
    const from = queries.shown[row] * stride;
    const to = Math.floor(row / factor) * width;
    for (let column = 0; column < columns; column++) {
      if (keys.padded[column]) continue;
      const place = from + keys.shown[column];
      const code = table ? table[(levels[place] << 8) | other[place]] : levels[place];
      const target = factor === 1 ? to + column : to + Math.floor(column / factor);
      if (found[target] === PADDING || Math.abs(code) > Math.abs(found[target])) found[target] = code;
    }
  }
  return found;
}

/** A part on a new canvas, one pixel for each weight, or at most `side` pixels; to be scaled without smoothing. */
export function sheet(part, colours, side = Infinity) {
  const canvas = document.createElement("canvas");
  thumbnail(canvas, part, colours, side);
  return canvas;
}

/** Draw a bar from the smallest to the largest weight. */
export function legend(canvas, scale, difference, theme) {
  const { table } = brush(scale, difference, theme);
  const width = 128;
  canvas.width = width;
  canvas.height = 1;
  const image = new ImageData(width, 1);
  const out = new Uint32Array(image.data.buffer);
  for (let place = 0; place < width; place++) {
    const weight = difference ? (2 * place) / (width - 1) - 1 : place / (width - 1); // the bar is linear in weight
    out[place] = table[255 + Math.sign(weight) * Math.round(Math.sqrt(Math.abs(weight)) * 255)];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
