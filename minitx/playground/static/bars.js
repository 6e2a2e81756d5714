/** The likeliest tokens of a step as bars: before and after temperature and filters. */

import { distribution, percent } from "./distribution.js";
import { make, quoted } from "./elements.js";
import { shortened, visible } from "./labels.js";

const SHOWN = 10;
const CURVE = 40; // tokens of the small chart

/** Shows one step; calls `onforce(id)`. */
export class Bars {
  constructor(tokens, { onforce }) {
    Object.assign(this, { tokens, onforce });
    this.list = make("ol", { className: "candidates", "aria-label": "the likeliest tokens" });
    this.title = make("h3");
    this.summary = make("p", { className: "note" });
    this.element = make("section", { className: "bars" }, this.title, this.list, this.summary);
  }

  /** @param settings of the sampler; null where the likeliest token is taken */
  show(step, number, settings, forcible) {
    this.element.hidden = !step;
    if (!step) return;
    const before = distribution(step);
    const after = settings ? distribution(step, settings) : null;
    this.title.textContent = `Step ${number + 1}: the likeliest tokens`;
    const order = [...step.ids.keys()].slice(0, SHOWN);
    const written = step.ids.indexOf(step.id);
    if (written >= SHOWN) order[SHOWN - 1] = written;
    this.list.replaceChildren(...order.map((place) => this.row(step, place, before, after, forcible)));
    this.summary.textContent = after
      ? `Outline: the model. Filled: after temperature and filters, ${after.kept.toLocaleString("en")} of ` +
        `${after.total.toLocaleString("en")} tokens, entropy ${before.entropy.toFixed(2)} → ${after.entropy.toFixed(2)} bits.`
      : `Entropy ${before.entropy.toFixed(2)} bits over ${before.total.toLocaleString("en")} tokens.`;
    if (forcible) {
      this.summary.textContent += " A click on a token replaces the generated one; the tokens that depend on it change too.";
    }
  }

  row(step, place, before, after, forcible) {
    const id = step.ids[place];
    const [first, second] = [before.shares[place], (after ?? before).shares[place]];
    const bar = make("span", { className: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--before", first);
    bar.style.setProperty("--after", second);
    const button = make(
      "button",
      { type: "button", disabled: !forcible, onclick: () => this.onforce(id) },
      quoted(shortened(visible(this.tokens[id] ?? ""), 16)),
      bar,
      make("span", { className: "number", textContent: percent(second) }),
    );
    button.setAttribute("aria-pressed", id === step.id);
    Object.assign(button.dataset, { token: String(id), before: first.toFixed(6), after: second.toFixed(6) });
    return make("li", {}, button);
  }
}

/** A chart of the likeliest tokens: outlines before, bars after. */
export function chart(step, settings) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const [before, after] = [distribution(step), distribution(step, settings)];
  const count = Math.min(CURVE, before.shares.length);
  const highest = Math.max(...before.shares, ...after.shares);
  svg.setAttribute("viewBox", `0 0 ${CURVE * 10} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `probabilities of the ${count} likeliest tokens, before and after`);
  for (const [name, shares] of [
    ["after", after.shares],
    ["before", before.shares],
  ])
    shares.slice(0, count).forEach((share, place) => {
      const bar = document.createElementNS(svg.namespaceURI, "rect");
      const height = (98 * share) / highest;
      const box = { x: place * 10 + 1, width: 8, y: 100 - height, height };
      for (const [key, value] of Object.entries(box)) bar.setAttribute(key, String(value));
      bar.setAttribute("class", name);
      svg.append(bar);
    });
  return svg;
}
