/** How the next token is chosen: greedy, sampling with its filters, or beam search. */

import { chart } from "./bars.js";
import { beamTree } from "./beams.js";
import { button, choice, labelled, make, note } from "./elements.js";
import { RANGES, commandOf, optionsOf, shellQuoted } from "./link.js";

const STRATEGIES = [
  ["greedy", "greedy", "the likeliest token at each step"],
  ["sample", "sample", "a random token of the distribution after temperature and filters"],
  ["beams", "beam search", "the likeliest text among several beams"],
];
const SLIDERS = [
  ["temperature", 0.05, "below 1 sharper, above 1 flatter"],
  ["top_k", 1, "the k likeliest tokens only; 0: all"],
  ["top_p", 0.01, "the smallest set of tokens with at least this probability"],
  ["min_p", 0.01, "drops tokens less likely than this share of the likeliest token's probability"],
];
const BEAM_SLIDERS = [
  ["num_beams", 1, "number of beams"],
  ["length_penalty", 0.1, "scores are log-probability / length ^ penalty"],
];

/** Calls `onchange(changes, final)`; `final` is false while a slider moves. */
export class Decide {
  constructor(model, { onchange, onbeam }) {
    Object.assign(this, { model, onchange, onbeam });
    this.sliders = {};
    const sliders = (rows) => make("div", { className: "sliders" }, ...rows.map((row) => this.slider(...row)));
    this.strategy = choice("how to choose", STRATEGIES, (strategy) => onchange({ strategy, forced: "" }, true));
    this.sampling = sliders(SLIDERS);
    this.beaming = sliders(BEAM_SLIDERS);
    const number = (key, min, title) => {
      const onchange = (event) => this.numbered(key, event.target);
      return make("input", { type: "number", min, max: "999999999", title, onchange });
    };
    this.seed = number("seed", "0", "the same seed gives the same text");
    this.tokens = number("tokens", "1", "max_new_tokens; empty: the default of minitx generate");
    const next = () => onchange({ seed: Number(this.seed.value || 0) + 1 }, true);
    const other = button("Another", "the next seed", next);
    this.seeds = make("div", { className: "field" }, labelled("seed", this.seed), other);
    this.note = note("");
    this.chart = make("div", { className: "chart" });
    this.tree = make("div");
    const fields = make("div", { className: "field-row" }, this.seeds, labelled("max new tokens", this.tokens));
    const parts = [this.strategy, this.sampling, this.beaming, fields, this.note, this.chart, this.tree];
    this.element = make("section", { "aria-label": "Decide" }, ...parts);
    this.encoderOnly = model.architecture === "encoder_only";
    this.strategy.hidden = this.tokens.parentElement.hidden = this.encoderOnly;
  }

  numbered(key, input) {
    const value = Math.floor(Number(input.value));
    this.onchange({ [key]: Number.isFinite(value) && value > 0 ? value : 0 }, true);
  }

  slider(key, step, title) {
    const [min, max] = RANGES[key];
    const input = make("input", { type: "range", min: String(min), max: String(max), step: String(step), title });
    const output = make("output");
    input.addEventListener("input", () => this.onchange({ [key]: Number(input.value) }, false));
    input.addEventListener("change", () => this.onchange({ [key]: Number(input.value) }, true));
    this.sliders[key] = { input, output };
    const row = labelled(key.replace("_", "-").replace("num-", ""), input, "slider-row");
    row.append(output);
    return row;
  }

  /** Show the settings, and a step's distribution before and after them. */
  show(view, step, tree) {
    const beams = view.strategy === "beams" && !this.encoderOnly;
    this.strategy.show(view.strategy);
    for (const [key, { input, output }] of Object.entries(this.sliders)) {
      input.value = String(view[key]);
      output.textContent = key === "top_k" && view[key] === 0 ? "all" : String(view[key]);
    }
    this.sampling.hidden = beams;
    this.beaming.hidden = !beams;
    this.seeds.hidden = view.strategy !== "sample" || this.encoderOnly;
    this.seed.value = String(view.seed);
    this.tokens.value = view.length || view.tokens || "";
    const options = commandOf(optionsOf(view, this.model.kind === "stream"));
    const files = this.model.imports.flatMap((file) => ["--import", file]);
    const given = [this.model.checkpoint, ...files].map(shellQuoted).join(" ");
    const prompt = (view.prompt.startsWith("-") ? "-- " : "") + shellQuoted(view.prompt);
    const changed = view.off || view.mean || view.forced;
    this.note.textContent = this.encoderOnly
      ? "All places are predicted at once, each as its likeliest token; the sliders only show what they would change."
      : view.strategy === "greedy"
        ? "The likeliest token is always taken; the sliders show what they would change. Choose “sample” to use them."
        : step
          ? `${changed ? "Without your changes" : "The same text"}: minitx generate ${given} ${options} ${prompt}`
          : "";
    this.chart.hidden = beams || !step;
    if (!this.chart.hidden) this.chart.replaceChildren(chart(step, view));
    this.tree.hidden = !beams;
    const wide = this.tree.clientWidth; // 0 if it is hidden
    if (tree !== this.shown || (wide && wide !== this.wide))
      this.tree.replaceChildren(tree ? beamTree(tree, this.model.tokens, wide, this.onbeam) : "");
    Object.assign(this, { shown: tree, wide });
  }
}
