/** The tokens of a text, prompt and generated ones, and lines between them. */

import { make, quoted } from "./elements.js";
import { number, visible } from "./labels.js";
import { svgElement } from "./svg.js";

const NUMBERED_UP_TO = 40; // tokens: longer texts show probabilities by colour alone
const FAINTEST = 0.04; // weights below it have no line

/** A text with plain spaces; all other invisible characters are escaped. */
export function plain(text) {
  return visible(text).replaceAll("␣", " ");
}

/** Shows tokens in rows; calls `onchoose(step)`, `onhover({ side, index })` with null for none. */
export class Text {
  constructor(tokens, { onchoose, onhover }) {
    Object.assign(this, { tokens, onchoose, onhover });
    this.rows = make("div", { className: "rows-of-text" });
    this.lines = svgElement("svg", { "aria-hidden": "true" });
    this.element = make("div", { className: "text", role: "group", "aria-label": "tokens" }, this.rows, this.lines);
    this.clear();
  }

  clear() {
    this.chips = []; // by step
    this.places = new Map(); // chips by side and index
    this.rows.replaceChildren();
  }

  /** Start a text: the tokens that are read first, and the places of an encoder's predictions. */
  start({ source, target, places = null }, { mask, special }) {
    this.clear();
    this.predicted = places;
    this.special = new Set(special);
    const row = (name) => {
      const flow = make("div", { className: "flow" });
      const label = make("span", { className: "label", textContent: name });
      this.rows.append(make("div", { className: "line" }, label, flow));
      return flow;
    };
    if (source.length) {
      const flow = row(places ? "text" : "input");
      source.forEach((id, index) => {
        const step = places ? places.indexOf(id === mask || places.includes(index) ? index : -1) : -1;
        this.add(flow, id, { side: "source", index, step: step < 0 ? null : step });
      });
    }
    if (places) return;
    this.flow = row(source.length ? "output" : "text");
    this.length = target.length;
    target.forEach((id, index) => {
      if (!source.length) this.add(this.flow, id, { side: "target", index, step: null });
    });
  }

  /** One more generated token. */
  push(id, share, forced) {
    const step = this.chips.length;
    const chip = this.predicted
      ? this.places.get(`source ${this.predicted[step]}`)
      : this.add(this.flow, id, { side: "target", index: this.length + step, step });
    if (this.predicted) this.fill(chip, id);
    this.chips.push(chip);
    chip.style.setProperty("--share", share);
    chip.dataset.share = String(share);
    chip.classList.toggle("forced", forced);
    chip.append(make("small", { textContent: number(share) }));
  }

  add(flow, id, place) {
    const own = place.step !== null;
    const chip = make(own ? "button" : "span", { className: own ? "chip" : "chip given" }, quoted("", ""));
    if (own) Object.assign(chip, { type: "button", onclick: () => this.onchoose(this.stepOf(chip)) });
    this.fill(chip, id);
    chip.addEventListener("pointerenter", () => this.onhover({ ...place, step: own ? this.stepOf(chip) : null }));
    chip.addEventListener("pointerleave", () => this.onhover(null));
    this.places.set(`${place.side} ${place.index}`, chip);
    flow.append(chip);
    if (/[\nĊ]/.test(this.tokens[id])) flow.append(make("br"));
    return chip;
  }

  fill(chip, id) {
    chip.firstChild.textContent = visible(this.tokens[id] ?? "");
    chip.dataset.token = String(id);
    chip.classList.toggle("special", this.special.has(id));
  }

  stepOf(chip) {
    return this.chips.indexOf(chip);
  }

  /** Mark the chosen step; tokens after it are faint. `wrong` is the first step that differs from the right answer. */
  mark(step, wrong) {
    this.rows.classList.toggle("compact", this.places.size > NUMBERED_UP_TO);
    this.chips.forEach((chip, own) => {
      chip.setAttribute("aria-pressed", own === step);
      chip.classList.toggle("later", !this.predicted && own > step);
      chip.classList.toggle("wrong", wrong !== null && own === wrong);
    });
  }

  /** Scroll the chosen token into view, within the text only. */
  reveal(step) {
    const chip = this.chips[step];
    if (!chip) return;
    const [box, own] = [this.rows.getBoundingClientRect(), chip.getBoundingClientRect()];
    if (own.top < box.top || own.bottom > box.bottom) this.rows.scrollTop += own.top - box.top - box.height / 2;
  }

  /** Draw lines from one token to others: { side, index } and weights [{ side, index, weight }]. */
  connect(from, weights) {
    this.lines.replaceChildren();
    const start = from && this.places.get(`${from.side} ${from.index}`);
    if (!start) return;
    const frame = this.element.getBoundingClientRect();
    const inside = this.rows.getBoundingClientRect();
    const centre = (chip) => {
      const box = chip.getBoundingClientRect();
      return { x: (box.left + box.right) / 2 - frame.left, top: box.top - frame.top, bottom: box.bottom - frame.top };
    };
    const one = centre(start);
    for (const { side, index, weight } of weights) {
      const chip = this.places.get(`${side} ${index}`);
      if (!chip || weight < FAINTEST) continue;
      const other = centre(chip);
      if (other.bottom < inside.top - frame.top || other.top > inside.bottom - frame.top) continue; // scrolled away
      const beside = Math.abs(other.top - one.top) < 4;
      const [y1, y2] = beside
        ? [one.top, other.top]
        : other.top < one.top
          ? [one.top, other.bottom]
          : [one.bottom, other.top];
      const height = beside ? y1 - Math.min(44, 12 + Math.abs(other.x - one.x) / 6) : (y1 + y2) / 2;
      const d = `M${one.x} ${y1} C${one.x} ${height} ${other.x} ${height} ${other.x} ${y2}`;
      const strength = { "stroke-opacity": Math.min(1, weight), "data-weight": weight.toFixed(3) };
      this.lines.append(svgElement("path", { d, ...strength }));
    }
  }
}
