/** The likeliest tokens of a step as bars: before and after temperature and filters. */

import { distribution } from "./distribution.js";
import { barLine, button, make, note, quoted } from "./elements.js";
import { number, shortened, visible } from "./labels.js";
import { svgElement } from "./svg.js";

const SHOWN = 10;
const CURVE = 40; // tokens of the small chart

/** Shows one step; calls `onforce(id)`. */
export class Bars {
  constructor(tokens, { onforce }) {
    Object.assign(this, { tokens, onforce });
    this.list = make("ol", { className: "candidates", "aria-label": "the likeliest tokens" });
    this.title = make("h3");
    this.summary = note("");
    this.element = make("section", { className: "bars" }, this.title, this.list, this.summary);
  }

  /** @param settings of the sampler; null for beam search, which has no such settings */
  show(step, index, settings, forcible) {
    this.element.hidden = !step;
    if (!step) return;
    const before = distribution(step);
    const after = settings ? distribution(step, settings) : null;
    this.title.textContent = `Step ${index + 1}: the likeliest tokens`;
    const order = [...step.ids.keys()].slice(0, SHOWN);
    const generated = step.ids.indexOf(step.id);
    if (generated >= SHOWN) order[SHOWN - 1] = generated;
    this.list.replaceChildren(...order.map((place) => this.row(step, place, before, after, forcible)));
    // If a filter's limit is among the tokens in bins, counts are approximate.
    const about = after?.kept >= step.ids.length && after.kept < after.total ? "about " : "";
    const [bits, count] = [(one) => one.entropy.toFixed(2), (total) => total.toLocaleString("en")];
    const figures = after
      ? "Outline: the model's probability, as in the text above. Filled, and as a number: after temperature and filters, " +
        `${about}${count(after.kept)} of ${count(after.total)} tokens, entropy ${bits(before)} → ${about}${bits(after)} bits.`
      : `Entropy ${bits(before)} bits over ${count(before.total)} tokens.`;
    const click = " Click a token to replace the generated one; the tokens that depend on it change too.";
    this.summary.textContent = forcible ? figures + click : figures;
  }

  row(step, place, before, after, forcible) {
    const id = step.ids[place];
    const [first, second] = [before.shares[place], (after ?? before).shares[place]];
    const token = quoted(shortened(visible(this.tokens[id] ?? ""), 16));
    const content = barLine(token, { "--before": first, "--after": second }, number(second));
    const figures = { "data-token": id, "data-before": first.toFixed(6), "data-after": second.toFixed(6) };
    const state = { disabled: !forcible, "aria-pressed": id === step.id };
    return make("li", {}, button(content, undefined, () => this.onforce(id), { ...figures, ...state }));
  }
}

/** A chart of the likeliest tokens: outlines before, bars after. */
export function chart(step, settings) {
  const [before, after] = [distribution(step), distribution(step, settings)];
  const count = Math.min(CURVE, before.shares.length);
  const highest = Math.max(...before.shares, ...after.shares);
  const bars = (name, shares) =>
    shares.slice(0, count).map((share, place) => {
      const height = (98 * share) / highest;
      return svgElement("rect", { class: name, x: place * 10 + 1, width: 8, y: 100 - height, height });
    });
  return svgElement(
    "svg",
    {
      viewBox: `0 0 ${CURVE * 10} 100`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `probabilities of the ${count} likeliest tokens, before and after`,
    },
    ...bars("after", after.shares),
    ...bars("before", before.shares),
  );
}
