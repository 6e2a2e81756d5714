/** All heads as thumbnails, layer by layer or sorted. Only those on the screen are drawn. */

import { button, make } from "./elements.js";
import { spaced } from "./labels.js";
import { thumbnail } from "./painting.js";
import { parts, sorts } from "./scene.js";
import { Plot, plotSizes } from "./tile.js";

const SIDES = { smallest: 56, sorted: 230, largest: 340 };
const LAYER_GAP = 28; // layers beside each other
const MAP_GAP = 8; // maps of two runs beside each other
const MAX_GROWING_TILES = 24; // up to so many grow until their tokens fit, even if they need more rows

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
      this.frame(tile);
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
        const title = make("span", { className: "name", textContent: name });
        const heads = all.filter((tile) => tile.item === item).map(({ button }) => button);
        const row = make("div", { className: "heads" }, ...heads);
        return make("div", { className: "layer", role: "group", "aria-label": name }, title, row);
      });
      this.element.replaceChildren(...rows);
    }
    for (const { button } of all) this.watcher.observe(button);
    if (focused) this.tiles.get(focused)?.button.focus();
  }

  tile(item, head) {
    const plots = [new Plot(), new Plot()];
    const both = plots.map(({ element }) => element);
    const pictures = make("span", { className: "pictures", "aria-hidden": "true" }, ...both);
    const caption = make("span", { className: "caption" });
    const attributes = { className: "tile", tabIndex: -1, "data-tile": `${item}:${head}` };
    const onclick = () => this.onopen(item, head);
    return {
      item,
      head,
      button: button([pictures, caption], undefined, onclick, attributes),
      plots,
      caption,
      near: false,
      stale: true,
    };
  }

  /**
   * Size the tiles to fill the page: several layers beside each other, if they have few heads; the maps of two runs
   * beside each other, unless their tokens fit only one below the other.
   */
  measure({ map, layout, otherLayout }, sorted, double) {
    const heads = Math.max(...map.counts, 1);
    const gap = heads > 8 ? 6 : 16;
    const width = this.element.clientWidth - 6;
    const widest = Math.min(width - 10, SIDES.largest);
    const layouts = [layout, otherLayout ?? layout];
    const needs = layouts.map((one) => plotSizes(one, widest).needed);
    const needed = Math.max(...needs) <= widest ? Math.max(...needs) : needs[0];
    const few = this.tiles.size <= MAX_GROWING_TILES && needed <= widest;
    const stacked = double && few && 2 * needed + MAP_GAP > width;
    const count = double && !stacked ? 2 : 1;
    let [blocks, columns] = [1, sorted ? Math.max(1, Math.round(width / SIDES.sorted / count)) : heads];
    const side = () => {
      const tile = ((width - (blocks - 1) * LAYER_GAP) / blocks - (columns - 1) * gap) / columns;
      return (tile - (count - 1) * MAP_GAP) / count;
    };
    while (!sorted && blocks < map.counts.length && side() > SIDES.largest) blocks++;
    while (few && blocks > 1 && side() < needed) blocks--;
    const least = few ? Math.max(needed, SIDES.smallest) : SIDES.smallest;
    while (columns > 1 && side() < least) columns--;
    if (!sorted) columns = Math.ceil(heads / Math.ceil(heads / columns)); // rows of equal length
    this.side = Math.floor(Math.min(Math.max(side(), SIDES.smallest), widest));
    this.sizes = layouts.map((one) => plotSizes(one, this.side));
    this.element.style.setProperty("--gap", `${gap}px`);
    this.element.style.setProperty("--columns", columns); // flat maps are narrower than a side: more would fit
    this.element.classList.toggle("stacked", stacked);
  }

  name(tile, sorted) {
    const { map, view } = this.scene;
    const { item, head, button, caption } = tile;
    const mark = map.mark(item, head);
    const value = sorted ? map.value(view.sort, item, head) : null;
    const number = sorted ? `${item + 1}·${head + 1}` : `${this.side >= 90 ? "head " : ""}${head + 1}`;
    const short = map.isExtra(item) ? map.title(item, head) : number;
    const text = (className, textContent, more) => make("span", { className, textContent, ...more });
    caption.replaceChildren(text("number", short));
    if (value !== null) caption.append(text("score", value.toFixed(2)));
    if (mark) caption.append(text("mark", spaced(mark.name), { "data-mark": mark.name }));
    const labels = [map.title(item, head)];
    if (value !== null) labels.push(`${spaced(view.sort)} ${value.toFixed(2)}`);
    if (mark) labels.push(`${spaced(mark.name)} ${mark.value.toFixed(2)}`);
    button.setAttribute("aria-label", labels.join(", "));
    button.title = mark ? `${labels.join(", ")}: ${mark.meaning}` : labels.join(", ");
    button.setAttribute("aria-pressed", view.item === item && view.head === head);
  }

  /** Size a tile, which off the screen has no pixels yet. */
  frame(tile) {
    const shown = parts(this.scene, tile.item, tile.head);
    tile.plots.forEach((plot, index) => {
      plot.element.hidden = !shown[index];
      const { axes, owner } = shown[index] ?? {};
      if (axes) plot.show(this.sizes[index], axes, shown.length > 1 ? owner : "");
    });
  }

  draw(tile) {
    const sharp = this.side * (devicePixelRatio || 1);
    parts(this.scene, tile.item, tile.head).forEach((part, index) => {
      const { canvas } = tile.plots[index];
      if (part.levels) thumbnail(canvas, part, this.scene.brush, sharp);
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
