/** Beam search as a tree: a column for each step, a line for each beam that was kept. */

import { button, make, note, quoted } from "./elements.js";
import { shortened, visible } from "./labels.js";
import { svgElement } from "./svg.js";
import { plain } from "./text.js";

const SIZE = { column: 70, row: 32, left: 28, top: 8, letter: 8.2 };
const ROOT = 10; // x of the prompt, from which all beams start

/** The tree, within a width in pixels if its labels fit, and the finished beams; `onchoose(beam)`. */
export function beamTree({ nodes, beams }, tokens, available, onchoose) {
  const best = new Set();
  const kept = new Set();
  beams.forEach((beam, rank) => {
    for (let node = beam.node; node >= 0; node = nodes[node].parent) (rank ? kept : best).add(node);
  });
  const children = new Map([[-1, []]]);
  const depths = [];
  nodes.forEach(({ parent }, index) => {
    children.set(index, []);
    children.get(parent).push(index);
    depths.push(parent < 0 ? 0 : depths[parent] + 1);
  });
  const group = (index) => (best.has(index) ? "best" : kept.has(index) ? "kept" : "dropped");
  const labels = nodes.map(({ id }) => shortened(visible(tokens[id] ?? ""), 6));
  const rank = (index) => [best.has(index), kept.has(index), nodes[index].log_probability].map(Number);
  const better = (one, two) => rank(one).reduce((order, value, place) => order || rank(two)[place] - value, 0);
  for (const below of children.values()) below.sort(better);
  const rows = []; // of the nodes: a beam and its best continuations stay in the first row that is free
  const taken = []; // by row: its last column
  const order = [...nodes.keys()].sort((one, two) => depths[one] - depths[two] || better(one, two));
  for (const index of order) {
    if (rows[index] !== undefined) continue;
    const free = taken.findIndex((last) => last < depths[index]);
    const row = free < 0 ? taken.length : free;
    for (let node = index; node !== undefined; node = children.get(node)[0]) {
      rows[node] = row;
      taken[row] = depths[node];
    }
  }
  const steps = Math.max(0, ...depths) + 1;
  const least = SIZE.letter * Math.max(2, ...labels.map(({ length }) => length)) + 16;
  const column = Math.max(least, Math.min(SIZE.column, (available - 2 * SIZE.left - 2) / steps));
  const x = (depth) => SIZE.left + depth * column;
  const y = (line) => SIZE.top + line * SIZE.row + SIZE.row / 2;
  const lines = nodes.map(({ parent }, index) => {
    const x1 = parent < 0 ? ROOT : x(depths[parent]) + 3 + SIZE.letter * labels[parent].length + 4;
    const [x2, y1, y2] = [x(depths[index]), y(rows[parent] ?? 0), y(rows[index])];
    const middle = (Math.min(x1, x2) + x2) / 2;
    const d = `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
    return x1 < x2 ? svgElement("path", { d, class: group(index) }) : "";
  });
  const texts = nodes.flatMap(({ log_probability }, index) => {
    const [left, middle] = [x(depths[index]) + 3, y(rows[index])];
    return [
      svgElement("text", { x: left, y: middle - 4, class: `token ${group(index)}` }, labels[index]),
      svgElement("text", { x: left, y: middle + 11, class: "score" }, log_probability.toFixed(2)),
    ];
  });
  const width = x(steps) + SIZE.left;
  const height = 2 * SIZE.top + Math.max(taken.length, 1) * SIZE.row;
  const attributes = { width, height, role: "img", "aria-label": `tree of ${nodes.length} beams` };
  const finished = beams.map((beam) =>
    make(
      "li",
      { "data-score": beam.score },
      button(quoted(plain(beam.text)), "write this text", () => onchoose(beam)),
      note(`score ${beam.score.toFixed(3)}, log p ${beam.log_probability.toFixed(3)}`, "span"),
    ),
  );
  return make(
    "div",
    { className: "tree" },
    make(
      "div",
      { className: "scroll", tabIndex: 0, "aria-label": "beam tree", role: "group" },
      svgElement("svg", attributes, ...lines, ...texts),
    ),
    note("Numbers are log-probabilities of the tokens so far; dropped beams are faint."),
    make("ol", { className: "beams", "aria-label": "finished beams" }, ...finished),
  );
}
