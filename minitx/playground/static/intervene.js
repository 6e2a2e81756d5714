/** A switch for each head and feed-forward network, and what each is worth. */

import { button, make, note } from "./elements.js";
import { listed } from "./link.js";

const STATES = { on: "off", off: "mean", mean: "on" };
const NAMES = { encoder: "encoder", decoder: "decoder", cross: "cross-attention" };

/** Calls `onchange(changes)`, and `onablate()` for the list. */
export class Intervene {
  constructor(model, { onchange, onablate }) {
    Object.assign(this, { onchange });
    this.names = model.parts;
    this.switches = new Map();
    const groups = Object.entries(NAMES).map(([kind, title]) => this.group(kind, title));
    this.ablate = button("Which heads can go?", undefined, onablate);
    this.list = make("div", { "aria-live": "polite" });
    const allOn = button("All on", undefined, () => onchange({ off: "", mean: "" }));
    this.element = make(
      "section",
      { "aria-label": "Intervene" },
      note("A click switches a part: on, off (zeros), mean (its mean over held-out examples), on."),
      ...groups.filter(Boolean),
      make("div", { className: "field-row" }, allOn, this.ablate),
      this.list,
    );
  }

  group(kind, title) {
    const own = this.names.map((name) => name.split(".")).filter(([first]) => first === kind);
    if (!own.length) return null;
    const layers = [...new Set(own.map(([, layer]) => layer))];
    const rows = layers.map((layer) => {
      const parts = own.filter(([, number]) => number === layer).map(([, , part]) => part);
      const switches = parts.map((part) => this.switch(`${kind}.${layer}.${part}`, part));
      return make("div", { className: "switches" }, note(`layer ${layer}`, "span"), ...switches);
    });
    return make("div", { className: "parts" }, make("h3", { textContent: title }), ...rows);
  }

  switch(name, part) {
    const one = button(part, undefined, () => this.turn(name), { className: "switch" });
    this.switches.set(name, one);
    return one;
  }

  turn(name, state = STATES[this.state(name)]) {
    const without = (names) => names.filter((one) => one !== name);
    const [off, mean] = [without(listed(this.view.off)), without(listed(this.view.mean))];
    if (state === "off") off.push(name);
    if (state === "mean") mean.push(name);
    this.onchange({ off: off.join(","), mean: mean.join(",") });
  }

  state(name) {
    return listed(this.view.off).includes(name) ? "off" : listed(this.view.mean).includes(name) ? "mean" : "on";
  }

  show(view) {
    this.view = view;
    for (const [name, button] of this.switches) {
      const state = this.state(name);
      button.dataset.state = state;
      button.setAttribute("aria-label", `${name.replaceAll(".", " ")}: ${state}`);
      button.title = button.getAttribute("aria-label");
    }
  }

  /** The ablation: the parts without which least is lost come first. */
  rank({ whole, parts, examples, split }) {
    const metric = "exact_match" in whole ? "exact_match" : "loss";
    const value = (found) => (metric === "loss" ? found.loss.toFixed(3) : `${(100 * found.exact_match).toFixed(1)} %`);
    const damage = (found) => (metric === "loss" ? found.loss - whole.loss : whole.exact_match - found.exact_match);
    const worst = Math.max(...parts.map(damage), 1e-9);
    const rows = [...parts].sort((one, two) => damage(one) - damage(two) || one.loss - two.loss);
    const line = (found) => {
      const share = Math.max(0, damage(found)) / worst;
      const bar = make("span", { className: "bar", "aria-hidden": "true", "--after": share });
      const name = found.parts.join(" ");
      return make(
        "li",
        { "data-part": name },
        button(name, "switch it off", () => this.turn(name, "off")),
        bar,
        make("span", { className: "number", textContent: value(found) }),
      );
    };
    const without = `${metric.replace("_", " ")} without each, on ${examples} examples of ${split}`;
    const ranking = make("ol", { className: "ranking" }, ...rows.map(line));
    this.list.replaceChildren(note(`${without}; with all: ${value(whole)}`), ranking);
  }
}
