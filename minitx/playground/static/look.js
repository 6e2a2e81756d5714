/** Inside a step: the lens, what each part added, the maps of all heads, and the enlarged one. */

import { Detail } from "./detail.js";
import { choice, make, note } from "./elements.js";
import { Explained } from "./explained.js";
import { Grid } from "./grid.js";
import { Store } from "./maps.js";
import { neighbour, sceneOf } from "./scene.js";
import { embeddedSource } from "./source_embedded.js";
import { fromText } from "./state.js";
import { sentenceOf } from "./words.js";

const KINDS = ["encoder", "decoder", "cross"];
const SIDES = { encoder: ["source", "source"], decoder: ["target", "target"], cross: ["target", "source"] };

/** Calls `onchange(changes)`. */
export class Look {
  constructor(tokens, { onchange }) {
    this.onchange = onchange;
    this.explained = new Explained(tokens);
    this.kind = choice("kind of attention", KINDS.map((kind) => [kind, kind]), (kind) => onchange({ kind, item: -1 }));
    this.note = note("");
    this.grid = new Grid({ onopen: (item, head) => this.open(item, head) });
    this.detail = new Detail({
      onstep: (direction) => onchange(neighbour(this.scene, direction)),
      onclose: () => this.close(),
      arrows: "↑↓", // left and right are steps
    });
    const title = make("h3", { textContent: "Attention" });
    const maps = [title, this.kind, this.note, this.detail.element, this.grid.element];
    this.element = make("section", { "aria-label": "Look" }, this.explained.element, ...maps);
    this.maps = {};
  }

  clear() {
    this.explained.clear();
    this.maps = {};
  }

  open(item, head) {
    const same = item === this.view.item && head === this.view.head;
    this.onchange({ item: same ? -1 : item, head });
  }

  keys() {
    return { ArrowUp: () => this.move(-1), ArrowDown: () => this.move(1), Escape: () => this.close() };
  }

  /** Select the head before or after the focused one; false if no head has the focus. */
  move(direction) {
    if (this.detail.element.contains(document.activeElement)) return this.onchange(neighbour(this.scene, direction));
    const tile = this.grid.beside(direction < 0 ? "ArrowLeft" : "ArrowRight");
    if (!tile) return this.grid.element.contains(document.activeElement);
    this.grid.focus(tile);
    if (this.view.item >= 0) this.onchange({ item: tile.item, head: tile.head });
    return true;
  }

  /** Close the enlarged head, and focus its tile. */
  close() {
    if (!this.element.checkVisibility() || this.detail.element.hidden) return false;
    const { item, head } = this.view;
    this.onchange({ item: -1 });
    this.grid.focus(this.grid.tiles.get(`${item}:${head}`));
    return true;
  }

  /** The maps in the answer of a look at a text whose tokens are read from index `start` of the target on. */
  async load({ runs, first }, start) {
    const store = new Store(embeddedSource({ runs }));
    const tags = Object.keys(runs.model);
    const maps = await Promise.all(tags.map((tag) => store.load("model", tag, 0)));
    for (const map of maps) map.cut = Object.values(first).some((index) => index > 0); // rows do not sum to 1
    const byKind = Object.fromEntries(tags.map((tag, place) => [tag.split("/")[0], maps[place]]));
    return { maps: byKind, first: { ...first, target: first.target + start } };
  }

  /** The kind that a view shows, of those that the model has. */
  kindOf(view) {
    const kinds = KINDS.filter((kind) => this.maps[kind]);
    return kinds.includes(view.kind) ? view.kind : kinds.at(-1);
  }

  /** Draw the maps; `row` is the token that attends: { side, index }. */
  show(view, theme, row) {
    this.view = view;
    const kind = this.kindOf(view);
    const map = this.maps[kind];
    this.element.classList.toggle("empty", !map);
    if (!map) return;
    const kinds = KINDS.filter((one) => this.maps[one]);
    this.kind.hidden = kinds.length < 2;
    this.kind.show(kind, kinds);
    this.note.textContent = sentenceOf(kind, kinds);
    const open = view.item >= 0 && view.head < (map.counts[view.item] ?? 0);
    const query = row && SIDES[kind][0] === row.side ? row.index - this.first[row.side] : null;
    const own = { ...fromText(""), run: "model", step: 0, item: open ? view.item : null, head: view.head, query };
    this.scene = sceneOf(own, map, null, theme, [kinds], false);
    this.grid.show(this.scene);
    this.detail.show(this.scene);
  }

  /** Weights of a token's attention: the chosen head's, or the mean of the last layer's. */
  weights(view, from) {
    if (!from) return [];
    let kind = this.kindOf(view);
    if (kind && SIDES[kind][0] !== from.side) kind = KINDS.find((one) => this.maps[one] && SIDES[one][0] === from.side);
    const map = this.maps[kind];
    if (!map) return [];
    const row = from.index - this.first[from.side];
    if (row < 0 || row >= map.rows) return [];
    const item = kind === this.kindOf(view) && view.item >= 0 ? Math.min(view.item, map.counts.length - 1) : -1;
    const layer = item >= 0 ? item : map.header.heads.length - 1;
    const heads = item >= 0 ? [Math.min(view.head, map.counts[item] - 1)] : [...Array(map.counts[layer]).keys()];
    const side = SIDES[kind][1];
    return Array.from({ length: map.columns }, (_, column) => {
      const sum = heads.reduce((total, head) => total + map.weight(layer, head, row, column), 0);
      return { side, index: column + this.first[side], weight: sum / heads.length };
    });
  }
}
