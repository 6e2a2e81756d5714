/** The panel of one head: enlarged map, lines between tokens, the weights of the chosen query, statistics. */

import { button, make, note } from "./elements.js";
import { number, spaced } from "./labels.js";
import { Lines } from "./lines.js";
import { Matrix } from "./matrix.js";
import { columnName, place, rowText } from "./row.js";
import { isLens, parts, weightAt } from "./scene.js";

const READABLE = 9; // pixels of a cell with a label

/**
 * Shows a head; calls `onstep(direction)`, `onclose()`, and if they are given `onchoose(row)` and `onsave()`.
 * `arrows` name the keys of the previous and the next head.
 */
export class Detail {
  constructor({ onchoose, onstep, onclose, onsave, arrows = "←→" }) {
    this.onchoose = onchoose;
    this.title = make("h2");
    this.mark = make("span", { className: "mark" });
    const tool = (text, label, onclick) => button(text, label, onclick, { "aria-label": label });
    const tools = [
      tool("‹", `previous head (${arrows[0]})`, () => onstep(-1)),
      tool("›", `next head (${arrows[1]})`, () => onstep(1)),
      onsave ? tool("Save PNG", "save this head as an image", onsave) : "",
      tool("×", "close (Esc)", onclose),
    ];
    const header = make("header", {}, this.title, this.mark, make("div", { className: "tools" }, ...tools));
    this.axes = note("");
    this.figures = make("div", { className: "figures" });
    this.readout = make("p", { className: "readout" });
    this.rows = make("div", { className: "rows", "aria-live": "polite" });
    this.statistics = make("div", { className: "statistics" });
    this.element = make(
      "section",
      { className: "detail", "aria-label": "enlarged head", hidden: true },
      ...[header, this.axes, this.figures, this.readout, this.rows, this.statistics],
    );
    this.shown = [];
    this.hovered = null;
  }

  /** Show the head that is open in a scene (see scene.js), if any. */
  show(scene) {
    const { item, head } = scene.view;
    this.element.hidden = item === null;
    if (item === null) return;
    this.scene = scene;
    const { map } = scene;
    const title = map.title(item, head);
    this.title.textContent = title[0].toUpperCase() + title.slice(1);
    const mark = map.mark(item, head);
    this.mark.textContent = mark ? `${spaced(mark.name)} ${mark.value.toFixed(2)}` : "";
    this.mark.title = mark?.meaning ?? "";
    this.draw(title);
    this.tabulate(map.statistics(item, head));
    this.highlight(null, null);
  }

  draw(title) {
    const { scene } = this;
    const found = parts(scene, scene.view.item, scene.view.head);
    const complete = found.filter((part) => part.levels);
    const axes = new Set(found.map((part) => `rows ↓ ${part.axes.queries}   columns → ${part.axes.keys}`));
    this.axes.textContent = [...axes].join("; second: ");
    const wide = this.element.clientWidth - 40;
    const count = wide / complete.length < 360 ? 1 : Math.max(complete.length, 1); // narrow: one below the other
    const { queries, keys } = scene.layout;
    const narrow = (0.6 * wide) / count / (keys.shown.length + 8) < READABLE; // beside lines, the tokens do not fit
    const stacked = wide / count < 560 || narrow || isLens(found[0]);
    const width = Math.floor(wide / count) - (count - 1) * 8;
    const available = {
      width: stacked ? width : Math.floor(width * 0.6),
      height: Math.max(320, Math.min(innerHeight - 230, 720), narrow ? READABLE * queries.shown.length + 60 : 0),
    };
    while (this.shown.length > complete.length) this.shown.pop();
    while (this.shown.length < complete.length) this.shown.push(this.figure());
    this.figures.replaceChildren(...this.shown.map(({ element }) => element));
    if (complete.length < found.length) this.figures.append(note("The other run lacks this head."));
    complete.forEach((part, index) => {
      const { caption, matrix, lines } = this.shown[index];
      caption.textContent = scene.other ? part.caption : "";
      caption.hidden = !scene.other;
      matrix.show(part, scene.brush, available, title);
      lines.show(part, scene.theme, matrix, stacked ? width : width - matrix.size.width - 24, title);
    });
  }

  figure() {
    const hooks = {
      onhover: (row, column) => this.highlight(row, column),
      onchoose: this.onchoose,
    };
    const [matrix, lines, caption] = [new Matrix(hooks), new Lines(hooks), make("figcaption")];
    const both = make("div", { className: "pair" }, matrix.element, lines.element);
    return { matrix, lines, caption, element: make("figure", {}, caption, both) };
  }

  /** Mark the cell under the pointer, or else the chosen query. Indices are those on the screen. */
  highlight(row, column) {
    const chosen = this.scene.view.query;
    const mark = row ?? (chosen === null ? null : this.scene.layout.queries.shown.indexOf(chosen));
    const at = mark === -1 ? null : mark;
    const state = JSON.stringify([at, column]);
    if (row !== null && this.hovered === state) return;
    this.hovered = row === null ? null : state;
    for (const { matrix, lines } of this.shown) {
      matrix.mark(at, column);
      matrix.announce(at);
      lines.mark(at, column);
    }
    this.describe(at, column);
  }

  describe(row, column) {
    const present = (part) => row !== null && row < part.layout.queries.shown.length;
    const complete = this.shown.map(({ matrix }) => matrix.part).filter(present);
    this.rows.replaceChildren(...complete.map((part) => rowText(part, row, this.scene.theme)));
    const visible = complete.filter((part) => column !== null && column < part.layout.keys.shown.length);
    delete this.readout.dataset.weight;
    if (!visible.length) {
      const tapped = matchMedia("(hover: none)").matches;
      const pointed = `Point at a row${this.onchoose ? ", or choose one with ↑ and ↓," : ""} to list its values.`;
      this.readout.textContent = row !== null ? "" : tapped ? "Tap a row to list its values." : pointed;
      return;
    }
    const { queries, keys } = visible[0].layout;
    const padded = queries.padded[row] || keys.padded[column];
    const weights = visible.map((part) => weightAt(part, queries.shown[row], part.layout.keys.shown[column]));
    const text = padded ? "padding" : weights.map(number).join(" and ");
    const to = isLens(visible[0]) ? ", " : " → key ";
    const parts = [...place(queries, row), to, ...columnName(visible[0], column)];
    this.readout.replaceChildren(`${visible[0].axes.row} `, ...parts, `: ${text}`);
    if (!padded) this.readout.dataset.weight = weights.join(" ");
  }

  tabulate(statistics) {
    const defined = statistics.filter(({ value }) => value !== null);
    this.statistics.hidden = !defined.length;
    const lines = defined.map(({ name, meaning, value }) => {
      const figure = make("dd", { className: "value", "data-statistic": name, textContent: number(value) });
      const about = make("dd", { className: "meaning", textContent: meaning });
      return make("div", {}, make("dt", { textContent: spaced(name) }), figure, about);
    });
    this.statistics.replaceChildren(make("h3", { textContent: "Statistics" }), make("dl", {}, ...lines));
  }
}
