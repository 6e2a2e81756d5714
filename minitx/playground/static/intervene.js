/** A switch for each head and feed-forward network, and the metric without each. */

import { barLine, button, make, note } from "./elements.js";
import { listed } from "./link.js";

const NEXT = { on: "off", off: "mean", mean: "on" };
const NEXT_WITHOUT_DATA = { on: "off", off: "on" };
const NO_DATA = "an imported model has no data of its own on which to measure this";
const NAMES = { encoder: "encoder", decoder: "decoder", cross: "cross-attention" };

/** Calls `onchange(changes)`, and `onablate()` for the list. */
export class Intervene {
  constructor(model, { onchange, onablate }) {
    Object.assign(this, { onchange, names: model.parts, next: model.data ? NEXT : NEXT_WITHOUT_DATA });
    this.switches = new Map();
    const groups = Object.entries(NAMES).map(([kind, title]) => this.group(kind, title));
    this.ablate = button("Which parts can go?", model.data ? undefined : NO_DATA, onablate, { disabled: !model.data });
    this.list = make("div", { "aria-live": "polite" });
    const allOn = button("All on", undefined, () => onchange({ off: "", mean: "" }));
    const mean = model.data ? ", mean (its mean over held-out examples)" : "";
    const about = note(`A click switches a part: on, off (zeros)${mean}, on.`);
    const buttons = make("div", { className: "field-row" }, allOn, this.ablate);
    const parts = [about, ...groups.filter(Boolean), buttons, this.list];
    this.element = make("section", { "aria-label": "Intervene" }, ...parts);
  }

  group(kind, title) {
    const own = this.names.map((name) => name.split(".")).filter(([first]) => first === kind);
    if (!own.length) return null;
    const layers = [...new Set(own.map(([, layer]) => layer))];
    const rows = layers.map((layer) => {
      const parts = own.filter(([, number]) => number === layer).map(([, , part]) => part);
      const switches = parts.map((part) => {
        const name = `${kind}.${layer}.${part}`;
        this.switches.set(name, button(part, undefined, () => this.turn(name), { className: "switch" }));
        return this.switches.get(name);
      });
      return make("div", { className: "switches" }, note(`layer ${layer}`, "span"), ...switches);
    });
    return make("div", { className: "parts" }, make("h3", { textContent: title }), ...rows);
  }

  turn(name, state = this.next[this.state(name)]) {
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
      button.title = `${name.replaceAll(".", " ")}: ${state}`;
      button.setAttribute("aria-label", button.title);
    }
  }

  /** Wait for the ablation, and show it sorted by damage: the least first. */
  async rank(answer) {
    this.ablate.disabled = true;
    this.list.replaceChildren(note(`Measuring without each of the ${this.names.length} parts …`));
    try {
      this.showRanking(await answer);
    } catch (error) {
      this.list.replaceChildren();
      throw error;
    } finally {
      this.ablate.disabled = false;
    }
  }

  showRanking({ whole, parts, examples, split }) {
    const exact = "exact_match" in whole;
    const figure = (found) => (exact ? found.exact_match : found.loss - whole.loss);
    const value = (share) => (exact ? `${(100 * share).toFixed(1)} %` : `${share < 0 ? "" : "+"}${share.toFixed(3)}`);
    const largest = exact ? 1 : Math.max(...parts.map(figure), 1e-9);
    const damage = (found) => (exact ? -1 : 1) * figure(found);
    const rows = [...parts].sort((one, two) => damage(one) - damage(two) || one.loss - two.loss);
    const line = (found) => {
      const name = found.parts.join(" ");
      const off = button(name, "switch it off", () => this.turn(name, "off"));
      const bar = { "--after": Math.max(0, figure(found)) / largest };
      return make("li", { "data-part": name }, ...barLine(off, bar, value(figure(found))));
    };
    const [metric, all] = exact ? ["exact match", value(whole.exact_match)] : ["loss gained", whole.loss.toFixed(3)];
    const about = `${metric} without each, on ${examples} examples of ${split}; ${exact ? "" : "loss "}with all: ${all}`;
    const ranking = make("ol", { className: "ranking" }, ...rows.map(line));
    this.list.replaceChildren(note(about), ranking);
  }
}
