/** The generated text with its log-probability, and the right answer if it is known. */

import { make, note, quoted } from "./elements.js";
import { plain } from "./text.js";

const ENDS = { end: "ended by the model", length: "ended by the maximum length" };

export class Outcome {
  constructor() {
    this.element = make("dl", { className: "outcome", "aria-live": "polite" });
  }

  /** Show an answer's last item, null until it arrives; `wrong` is the first step that differs from the right one. */
  show({ last, answerText, head, steps }, wrong) {
    const lines = [];
    const add = (name, ...content) =>
      lines.push(make("div", {}, make("dt", { textContent: name }), make("dd", {}, ...content)));
    if (last) {
      const why = head.places ? "" : `, ${ENDS[last.stopped]}`;
      add("text", quoted(plain(last.text)), note(why, "span"));
      const log = last.log_probability;
      if (log !== null) add("log p", make("span", { textContent: log.toFixed(3) }));
    }
    if (answerText !== null && last) {
      const [className, textContent] =
        wrong === null
          ? ["right-mark", " ✓ the same"]
          : wrong === steps.length
            ? ["right-mark", " right so far"]
            : ["wrong-mark", ` ✗ first differs at step ${wrong + 1}`];
      add("right answer", quoted(plain(answerText)), make("span", { className, textContent }));
    }
    const old = this.element.childNodes; // a live region is read aloud when it is replaced
    if (lines.length === old.length && lines.every((line, place) => line.isEqualNode(old[place]))) return;
    this.element.replaceChildren(...lines);
    this.element.dataset.text = last?.text ?? "";
  }
}
