/** The lens through the layers for one token, and what each part added to its logit. */

import { barLine, make, note, quoted } from "./elements.js";
import { number, shortened, visible } from "./labels.js";

const LENGTH = 12; // characters of a token
const PARTS = 14; // the strongest

function added(value) {
  return value.toFixed(2).replace("-", "−");
}

/** Shows an answer of the server; see inspection.py. */
export class Explained {
  constructor(tokens) {
    this.tokens = tokens;
    this.element = make("div", { className: "explained", "aria-live": "polite" });
  }

  clear() {
    this.element.replaceChildren();
  }

  show({ lens, encoder, parts, softcap }, id) {
    const token = () => quoted(this.label(id));
    const sections = [make("h3", {}, "Through the layers: rank of ", token())];
    if (encoder) {
      sections.push(note("The decoder applied to the encoder after each of its layers (DecoderLens):"));
      sections.push(this.lens(encoder, "encoder"));
      sections.push(note("The output head applied to the decoder after each of its layers (logit lens):"));
    }
    sections.push(this.lens(lens, "lens"));
    const total = parts?.reduce((sum, [, value]) => sum + value, 0);
    if (parts) {
      const ordered = [...parts].sort((one, two) => Math.abs(two[1]) - Math.abs(one[1]));
      const largest = Math.abs(ordered[0][1]) || 1;
      const rest = ordered.slice(PARTS).map(([, value]) => value);
      const all = `${total.toFixed(2)} in all${softcap ? ", before logit_softcap" : ""}`;
      const others = `${rest.length} other ${rest.length === 1 ? "part" : "parts"}`;
      sections.push(
        make("h3", {}, "Added to the logit of ", token(), ` (${all})`),
        make("ol", { className: "added" }, ...ordered.slice(0, PARTS).map((part) => this.part(part, largest))),
        ...(rest.length ? [note(`${others}: ${added(rest.reduce((sum, value) => sum + value, 0))}`)] : []),
      );
    } else sections.push(note("The head of this model is not linear: what each part added to the logit is not known."));
    this.element.replaceChildren(...sections);
    this.element.dataset.total = total ?? "";
  }

  label(id) {
    return shortened(visible(this.tokens[id] ?? ""), LENGTH);
  }

  lens(rows, name) {
    const cell = ([id, share]) =>
      make("td", { "--share": share }, quoted(this.label(id), ""), make("small", { textContent: number(share) }));
    const row = ({ tokens, rank, share }, layer) => {
      const stream = make("th", { scope: "row", textContent: layer ? `layer ${layer}` : "embeddings" });
      const own = make("td", { className: "rank", textContent: `#${rank}`, title: `probability ${number(share)}` });
      return make("tr", { "data-share": share.toFixed(6) }, stream, own, ...tokens.map(cell));
    };
    const table = make("table", { className: "lens-table", "data-lens": name }, make("tbody", {}, ...rows.map(row)));
    return make("div", { className: "wide" }, table);
  }

  part([name, value], largest) {
    const bar = { className: `signed ${value < 0 ? "less" : "more"}`, "--after": Math.abs(value) / largest };
    return make("li", { "data-part": name }, ...barLine(make("span", { textContent: name }), bar, added(value)));
  }
}
