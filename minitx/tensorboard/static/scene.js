/** A scene: the data of every thumbnail and of the enlarged head. */

import { WEIGHTS } from "./colours.js";
import { brush, layoutOf } from "./painting.js";
import { axesOf } from "./words.js";

/**
 * The scene of a view.
 *
 * @param view from state.js
 * @param map the AttentionMap chosen
 * @param other the AttentionMap to compare it with, or null
 * @param theme "light" or "dark"
 * @param kinds of attention of the example in each run
 * @param live whether runs have steps; the maps of a file are those of finished models
 */
export function sceneOf(view, map, other, theme, kinds, live) {
  const difference = other !== null && view.show === "difference" && map.fits(other);
  const layout = layoutOf(map, view.padding);
  return {
    view,
    map,
    other,
    theme,
    difference,
    layout,
    live,
    names: [named(view.run, view.step, live), named(view.run2, view.step2, live)],
    axes: kinds.map((own) => axesOf(map.header.kind, own)),
    otherLayout: other ? layoutOf(other, view.padding) : null,
    brush: brush(view.scale, difference, theme),
    order: ordered(view, map),
  };
}

function named(run, step, live) {
  return live ? `${run}, step ${step}` : run;
}

/** The heads, highest value first, undefined ones last; or layer by layer. */
function ordered({ sort }, map) {
  const heads = map.heads();
  if (!sorts(map, sort)) return heads;
  const height = ({ item, head }) => map.value(sort, item, head) ?? -Infinity;
  return heads.sort((one, two) => height(two) - height(one) || 0);
}

/** Whether the maps have a statistic to sort by. */
export function sorts(map, name) {
  return map.header.statistics.some((statistic) => statistic.name === name);
}

/** The next (1) or previous (-1) head in the order of a scene. */
export function neighbour({ order, view }, direction) {
  const at = order.findIndex(({ item, head }) => item === view.item && head === view.head);
  return order[(at + direction + order.length) % order.length];
}

/**
 * The parts of one head: one, or two side by side. Levels are null if the second map lacks the head: those of its
 * side, or of the difference.
 */
export function parts(scene, item, head) {
  const { map, other, axes, layout, otherLayout, view, difference, live, names } = scene;
  const side = (shown, axes, layout, caption, step) => {
    const owner = live && view.run === view.run2 ? `step ${step}` : caption; // a short name of the side
    return { map: shown, axes, layout, levels: shown.levels(map.itemOf(shown, item), head), caption, owner };
  };
  const first = side(map, axes[0], layout, names[0], view.step);
  if (!other) return [first];
  const second = side(other, axes[1], otherLayout, names[1], view.step2);
  if (!difference) return [first, second];
  const levels = second.levels && first.levels;
  return [{ ...first, levels, other: second.levels, caption: `${first.caption} − ${second.caption}` }];
}

/** Whether a part is a lens, not attention: its values are probabilities, its columns numbers of layers. */
export function isLens({ map }) {
  return map.header.kind === "lens";
}

/** A signed weight of a part, at row and column of the map. */
export function weightAt(part, row, column) {
  const place = row * part.layout.stride + column;
  return WEIGHTS[part.levels[place]] - (part.other ? WEIGHTS[part.other[place]] : 0);
}
