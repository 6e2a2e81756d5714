/** The weights of one query as text: its strongest keys. */

import { lineColour } from "./colours.js";
import { barLine, make, note, quoted } from "./elements.js";
import { number, shortened, visible } from "./labels.js";
import { isLens, weightAt } from "./scene.js";

const SHOWN = 8;

/** The label of index `index` of an axis: its position from one, and its token. */
export function place(axis, index) {
  const original = axis.shown[index];
  return [
    make("span", { className: "place", textContent: `${original + 1}` }),
    " ",
    quoted(shortened(visible(axis.labels[original]), 40)),
  ];
}

/** The name of a column of a part: its key, or in a lens the number of layers. */
export function columnName(part, index) {
  const { keys } = part.layout;
  const count = keys.labels[keys.shown[index]];
  return isLens(part) ? [`after ${count} ${count === "1" ? "layer" : "layers"}`] : place(keys, index);
}

/** The strongest keys of one row (an index on the screen) of a part (see scene.js). */
export function rowText(part, row, theme) {
  const { queries, keys } = part.layout;
  const query = queries.shown[row];
  const lens = isLens(part);
  const verb = lens ? ": probability of the right token" : part.other ? " differs at" : " attends to";
  const title = make("h3", {}, `${part.axes.row} `, ...place(queries, row), verb);
  const section = make("section", { className: "row", "data-query": String(query) }, title);
  if (queries.padded[row]) {
    section.append(note("This is padding; its weights are meaningless."));
    return section;
  }
  const weights = keys.shown.map((key, index) => ({ index, key, weight: weightAt(part, query, key) }));
  const real = weights.filter(({ index }) => !keys.padded[index]);
  real.sort((one, two) => Math.abs(two.weight) - Math.abs(one.weight));
  const top = real.slice(0, SHOWN);
  section.append(make("ol", {}, ...top.map((one) => line(one, part, theme))));
  const rest = real.slice(SHOWN);
  if (rest.length && !part.other && !lens) {
    const [most, others] = [top, rest].map((some) => some.reduce((total, { weight }) => total + weight, 0));
    // Weights are rounded: what is left of 1 is more exact than a sum of many.
    const sum = Math.abs(most + others - 1) < 0.1 ? Math.max(0, 1 - most) : others;
    const count = `${rest.length} other ${rest.length === 1 ? "key" : "keys"}`;
    section.append(note(part.map.cut ? count : `${count}: ${number(sum)}`));
  }
  return section;
}

function line({ index, key, weight }, part, theme) {
  const style = { "--share": Math.min(1, Math.abs(weight)), "--bar": lineColour(weight, Boolean(part.other), theme) };
  const name = make("span", { className: "key" }, ...columnName(part, index));
  const own = { "data-key": String(key), "data-weight": String(weight) };
  return make("li", own, ...barLine(name, style, number(weight)));
}
