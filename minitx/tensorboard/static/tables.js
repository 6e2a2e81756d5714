/**
 * Tables of layers by tokens as a single file: the lens, and activation patching.
 *
 * { title, note, start: [table, row, column], modes: [[name, "share" or "signed", what is in a cell]],
 * tables: [{ name, note, rows, columns, cells }] }, where a cell is
 * { shown: [[label, value], one for each mode], title, note, lists: [[heading, [[token, value]]]] }.
 */

import { barLine, button, choice, make, note, quoted } from "./elements.js";
import { number, shortened, visible } from "./labels.js";
import { pageTheme } from "./theme.js";

const STRONG = { light: 0.66, dark: 0.5 }; // share of the colour from which text has the colour of the page
const LABEL_LENGTH = 12;

/** Called by the page. */
export function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const theme = pageTheme();
  const detail = make("section", { className: "detail", "aria-live": "polite" });
  const grids = data.tables.map((table) => new Grid(table, (cell) => show(detail, cell)));
  const toggle = button("Light or dark", undefined, theme.toggle);
  const legend = make("span", { className: "legend" });
  const modes = choice("colour", data.modes.map(([name], index) => [String(index), name]), draw);
  const bar = make("div", { className: "bar-row" }, modes, legend, make("div", { className: "tools" }, toggle));
  modes.hidden = data.modes.length < 2;
  const tables = make("div", {}, ...grids.map((grid) => grid.element));
  const main = make("main", { className: "opened tables" }, tables, detail);
  const about = make("div", { className: "about" }, make("h2", { textContent: data.title }), note(data.note));
  document.body.append(make("div", { className: "controls" }, bar), about, main);
  let mode = "0";
  draw(mode);
  theme.watch(() => draw(mode));
  const [table, row, column] = data.start;
  grids[table].choose(row, column);

  function draw(chosen) {
    mode = chosen;
    const [, kind, content] = data.modes[Number(mode)];
    modes.show(mode);
    const scale = make("span", { className: `bar scale ${kind}`, "aria-hidden": "true" });
    legend.replaceChildren(kind === "signed" ? "−1" : "0", scale, "1", note(content, "span"));
    for (const grid of grids) grid.draw(Number(mode), STRONG[theme.current()]);
  }
}

/** One table, whose cells are buttons: arrow keys move, and the focused cell is shown in full. */
class Grid {
  constructor({ name, note: about, rows, columns, cells }, onchoose) {
    this.cells = cells;
    this.onchoose = onchoose;
    const head = columns.map((label) => make("th", { scope: "col" }, quoted(short(label))));
    const first = make("td", { className: "corner" });
    this.rows = rows.map((label, row) => columns.map((_, column) => this.#button(row, column)));
    const body = this.rows.map((buttons, row) => {
      const name = make("th", { scope: "row", textContent: rows[row] });
      return make("tr", {}, name, ...buttons.map((button) => make("td", {}, button)));
    });
    const table = make("table", {}, make("thead", {}, make("tr", {}, first, ...head)), make("tbody", {}, ...body));
    table.addEventListener("keydown", (event) => this.#move(event));
    const title = make("h3", { textContent: name });
    const scroll = make("div", { className: "scroll" }, table);
    this.element = make("section", { className: "table", "aria-label": name }, title, note(about), scroll);
  }

  #button(row, column) {
    return button("", undefined, () => this.choose(row, column), { tabIndex: row + column ? -1 : 0 });
  }

  draw(mode, strong) {
    this.rows.forEach((buttons, row) =>
      buttons.forEach((button, column) => {
        const [label, value] = this.cells[row][column].shown[mode];
        const share = Math.min(1, Math.abs(value));
        button.replaceChildren(make("bdi", { textContent: short(label) }));
        button.setAttribute("aria-label", `${this.cells[row][column].title}: ${visible(label)}, ${number(value)}`);
        button.className = `${value < 0 ? "less" : ""} ${share > strong ? "strong" : ""}`;
        button.style.setProperty("--share", share);
      }),
    );
  }

  choose(row, column) {
    const button = this.rows[row][column];
    for (const other of document.querySelectorAll(".table [aria-pressed]")) other.removeAttribute("aria-pressed");
    for (const other of this.rows.flat()) other.tabIndex = other === button ? 0 : -1;
    button.setAttribute("aria-pressed", "true");
    this.onchoose(this.cells[row][column]);
  }

  #move(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const row = this.rows.findIndex((buttons) => buttons.includes(event.target));
    if (!step || row < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const column = this.rows[row].indexOf(event.target) + step[1];
    event.preventDefault();
    if (!this.rows[row + step[0]]?.[column]) return;
    this.choose(row + step[0], column);
    this.rows[row + step[0]][column].focus();
  }
}

function short(label) {
  return shortened(visible(label), LABEL_LENGTH);
}

/** Show one cell in full. */
function show(detail, { title, note: about, lists }) {
  const parts = lists.map(([heading, entries]) => {
    const largest = Math.max(1, ...entries.map(([, value]) => Math.abs(value)));
    const lines = entries.map(([token, value]) => {
      const bar = { className: value < 0 ? "bar less" : "bar", "--share": Math.abs(value) / largest };
      const name = make("span", { className: "key" }, quoted(shortened(visible(token), 40)));
      return make("li", {}, ...barLine(name, bar, number(value)));
    });
    return make("section", { className: "row" }, make("h3", { textContent: heading }), make("ol", {}, ...lines));
  });
  const header = make("header", {}, make("h2", { textContent: title }));
  detail.replaceChildren(header, note(about), make("div", { className: "rows" }, ...parts));
}
