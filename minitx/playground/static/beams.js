/** Beam search as a tree: a column for each step, a line for each beam that was kept. */

import { make, quoted } from "./elements.js";
import { shortened, visible } from "./labels.js";
import { plain } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const SIZE = { column: 70, row: 30, left: 28, top: 8 };
const ROOT = 10; // x of the prompt, from which all beams start

/** The tree and the finished beams; `onchoose(beam)`. */
export function beamTree({ nodes, beams }, tokens, onchoose) {
  const best = new Set();
  const kept = new Set();
  beams.forEach((beam, rank) => {
    for (let node = beam.node; node >= 0; node = nodes[node].parent) (rank ? kept : best).add(node);
  });
  const children = new Map([[-1, []]]);
  nodes.forEach((node, index) => {
    children.set(index, []);
    children.get(node.parent).push(index);
  });
  const group = (index) => (best.has(index) ? "best" : kept.has(index) ? "kept" : "dropped");
  const labels = nodes.map(({ id }) => shortened(visible(tokens[id] ?? ""), 6));
  const places = [];
  let row = 0;
  const place = (index, depth) => {
    const below = children.get(index).sort((one, two) => nodes[two].log_probability - nodes[one].log_probability);
    if (below.length === 0) row++;
    const first = below.length ? null : row - 1;
    below.forEach((child) => place(child, depth + 1));
    if (index >= 0) places[index] = { depth, row: first ?? places[below[0]].row };
  };
  place(-1, -1);
  const svg = document.createElementNS(SVG, "svg");
  const add = (tag, attributes, text) => {
    const one = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, String(value));
    if (text !== undefined) one.textContent = text;
    svg.append(one);
    return one;
  };
  const x = (depth) => SIZE.left + depth * SIZE.column;
  const y = (line) => SIZE.top + line * SIZE.row + SIZE.row / 2;
  const width = x(Math.max(0, ...places.map(({ depth }) => depth)) + 1) + SIZE.left;
  svg.setAttribute("width", String(width));
  svg.setAttribute("height", String(2 * SIZE.top + Math.max(row, 1) * SIZE.row));
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `tree of ${nodes.length} beams`);
  nodes.forEach(({ parent }, index) => {
    const { depth, row: line } = places[index];
    const from = parent < 0 ? { row: places[0].row } : places[parent];
    const [x1, x2] = [parent < 0 ? ROOT : x(from.depth) + 3 + 8.2 * labels[parent].length + 4, x(depth)];
    const middle = (Math.min(x1, x2) + x2) / 2;
    const path = `M${x1} ${y(from.row)} C${middle} ${y(from.row)} ${middle} ${y(line)} ${x2} ${y(line)}`;
    if (x1 < x2) add("path", { d: path, class: group(index) });
  });
  nodes.forEach(({ log_probability }, index) => {
    const { depth, row: line } = places[index];
    add("text", { x: x(depth) + 3, y: y(line) - 1, class: `token ${group(index)}` }, labels[index]);
    add("text", { x: x(depth) + 3, y: y(line) + 11, class: "score" }, log_probability.toFixed(2));
  });
  const list = make(
    "ol",
    { className: "beams", "aria-label": "finished beams" },
    ...beams.map((beam) =>
      make(
        "li",
        { "data-score": String(beam.score) },
        make("button", { type: "button", title: "write this text", onclick: () => onchoose(beam) }, quoted(plain(beam.text))),
        make("span", { className: "note", textContent: `score ${beam.score.toFixed(3)}, log p ${beam.log_probability.toFixed(3)}` }),
      ),
    ),
  );
  const note = "Numbers are log-probabilities of the tokens so far; dropped beams are faint.";
  return make(
    "div",
    { className: "tree" },
    make("div", { className: "scroll", tabIndex: 0, "aria-label": "beam tree", role: "group" }, svg),
    make("p", { className: "note", textContent: note }),
    list,
  );
}
