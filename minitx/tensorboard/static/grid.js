/** All heads as thumbnails, layer by layer or sorted. Only those on the screen are drawn. */

import { make } from "./elements.js";
import { spaced } from "./labels.js";
import { thumbnail } from "./painting.js";
import { parts, sorts } from "./scene.js";

const SIDES = { smallest: 28, sorted: 128, largest: 200 };
const HUES = [285, 155, 35, 215, 345, 95, 255];

/** The hue of a pattern, by its index among the statistics. */
export function hueOf(map, name) {
  const patterns = map.header.statistics.filter((statistic) => statistic.pattern).map((statistic) => statistic.name);
  return HUES[patterns.indexOf(name) % HUES.length];
}

/** Shows a scene's heads; calls `onopen(item, head)`. */
export class Grid {
  constructor({ onopen }) {
    this.onopen = onopen;
    this.element = make("div", { className: "grid", role: "group", "aria-label": "heads" });
    this.tiles = new Map();
    this.built = "";
    this.watcher = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: "150px" });
  }

  /** Show a scene; tiles off the screen are drawn when they scroll into view. */
  show(scene) {
    this.scene = scene;
    const { map, view, order, other, difference } = scene;
    const sorted = sorts(map, view.sort);
    const double = Boolean(other) && !difference;
    const key = JSON.stringify([map.counts, map.header.extras, sorted && order, double]);
    if (key !== this.built) this.build(scene, sorted);
    this.built = key;
    this.measure(scene, sorted, double);
    const look = [map, other, difference, view.scale, view.padding, scene.theme, this.side];
    const changed = look.some((part, place) => part !== this.look?.[place]); // a chosen query changes no thumbnail
    this.look = look;
    for (const tile of this.tiles.values()) {
      this.name(tile, sorted);
      tile.stale ||= changed;
      if (tile.near && tile.stale) this.draw(tile);
    }
    this.rove();
  }

  build({ map, order }, sorted) {
    const focused = document.activeElement?.dataset?.tile;
    this.watcher.disconnect();
    this.tiles.clear();
    for (const { item, head } of order) this.tiles.set(`${item}:${head}`, this.tile(item, head));
    const all = [...this.tiles.values()];
    this.element.classList.toggle("sorted", sorted);
    if (sorted) this.element.replaceChildren(...all.map(({ button }) => button));
    else {
      const rows = map.counts.map((_, item) => {
        const name = map.isExtra(item) ? "all layers" : `layer ${item + 1}`;
        const heads = all.filter((tile) => tile.item === item).map(({ button }) => button);
        return make(
          "div",
          { className: "layer", role: "group", "aria-label": name },
          make("span", { className: "name", textContent: name }),
          ...heads,
        );
      });
      this.element.replaceChildren(...rows);
    }
    for (const { button } of all) this.watcher.observe(button);
    if (focused) this.tiles.get(focused)?.button.focus();
  }

  tile(item, head) {
    const canvases = [0, 1].map(() => make("canvas", { width: 1, height: 1 }));
    const pictures = make("span", { className: "pictures", "aria-hidden": "true" }, ...canvases);
    const caption = make("span", { className: "caption" });
    const button = make(
      "button",
      { type: "button", className: "tile", tabIndex: -1, "data-tile": `${item}:${head}` },
      pictures,
      caption,
    );
    button.addEventListener("click", () => this.onopen(item, head));
    return { item, head, button, canvases, caption, near: false, stale: true };
  }

  /** Size the tiles to fill the width, within readable limits. */
  measure({ map, layout }, sorted, double) {
    const largest = Math.max(...map.counts, 1);
    const above = matchMedia("(max-width: 600px)").matches; // layer names are above their rows
    const named = sorted || above ? 0 : 62;
    const width = this.element.clientWidth - named - 6;
    const gap = largest > 8 ? 4 : 8;
    const fitting = sorted ? SIDES.sorted : width / largest - gap;
    const side = Math.max(SIDES.smallest, Math.min(SIDES.largest, Math.floor(double ? fitting / 2 - 2 : fitting)));
    const ratio = layout.queries.shown.length / Math.max(layout.keys.shown.length, 1);
    this.side = side;
    this.element.style.setProperty("--gap", `${gap}px`);
    this.element.style.setProperty("--side", `${side}px`);
    this.element.style.setProperty("--high", `${Math.round(side * Math.min(Math.max(ratio, 0.4), 1.6))}px`);
  }

  name(tile, sorted) {
    const { map, view } = this.scene;
    const { item, head, button, caption } = tile;
    const mark = map.mark(item, head);
    const value = sorted ? map.value(view.sort, item, head) : null;
    const extra = map.isExtra(item);
    const short = extra
      ? map.title(item, head)
      : sorted
        ? `${item + 1}·${head + 1}`
        : `${this.side >= 90 ? "head " : ""}${head + 1}`;
    const children = [make("span", { className: "number", textContent: short })];
    if (value !== null) children.push(make("span", { className: "score", textContent: value.toFixed(2) }));
    if (mark) children.push(this.marked(mark));
    caption.replaceChildren(...children);
    const labels = [map.title(item, head)];
    if (value !== null) labels.push(`${spaced(view.sort)} ${value.toFixed(2)}`);
    if (mark) labels.push(`${spaced(mark.name)} ${mark.value.toFixed(2)}`);
    button.setAttribute("aria-label", labels.join(", "));
    button.title = mark ? `${labels.join(", ")}: ${mark.meaning}` : labels.join(", ");
    button.setAttribute("aria-pressed", view.item === item && view.head === head);
  }

  marked(mark) {
    const element = make("span", { className: "mark", "data-mark": mark.name, textContent: spaced(mark.name) });
    element.style.setProperty("--hue", hueOf(this.scene.map, mark.name));
    return element;
  }

  draw(tile) {
    const drawn = parts(this.scene, tile.item, tile.head);
    tile.canvases.forEach((canvas, index) => {
      const part = drawn[index];
      canvas.hidden = !part;
      if (part?.levels)
        thumbnail(
          canvas,
          part.levels,
          part.other ?? null,
          part.layout,
          this.scene.brush,
          this.side * (devicePixelRatio || 1),
        );
      else canvas.width = canvas.height = 1;
    });
    tile.stale = false;
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      const tile = this.tiles.get(target.dataset.tile);
      if (!tile) continue;
      tile.near = isIntersecting;
      if (tile.near && tile.stale) this.draw(tile);
    }
  }

  /** Tab reaches one tile, arrows the others. */
  rove(chosen) {
    const { view } = this.scene;
    const all = [...this.tiles.values()];
    const focused = all.find(({ button }) => button === document.activeElement);
    const one = chosen ?? focused ?? this.tiles.get(`${view.item}:${view.head}`) ?? all[0];
    for (const tile of all) tile.button.tabIndex = tile === one ? 0 : -1;
  }

  /** The neighbour of the focused tile in the direction of an arrow. */
  beside(key) {
    const all = [...this.tiles.values()];
    const at = all.findIndex(({ button }) => button === document.activeElement);
    if (at < 0) return null;
    if (key === "ArrowLeft" || key === "ArrowRight") return all[at + (key === "ArrowLeft" ? -1 : 1)] ?? null;
    const box = (tile) => tile.button.getBoundingClientRect();
    const here = box(all[at]);
    const beyond = all.filter((tile) =>
      key === "ArrowUp" ? box(tile).top < here.top - 4 : box(tile).top > here.top + 4,
    );
    const distance = (tile) => Math.abs(box(tile).top - here.top) * 1000 + Math.abs(box(tile).left - here.left);
    return beyond.reduce((best, tile) => (best && distance(best) <= distance(tile) ? best : tile), null);
  }

  focus(tile) {
    this.rove(tile);
    tile.button.focus();
  }
}
