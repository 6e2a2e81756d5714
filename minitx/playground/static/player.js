/** The controls of the steps: first, previous, play, next, last, and the speed. */

import { button, make, note } from "./elements.js";

/** Calls `ongo(step)`, which may be beyond the first and the last step. */
export class Player {
  constructor(ongo) {
    this.ongo = ongo;
    this.number = note("", "output");
    this.speed = make("input", { type: "range", min: "1", max: "20", value: "4", "aria-label": "steps per second" });
    this.playing = button("▶ Play", "play the steps (Space)", () => this.play());
    this.element = make(
      "div",
      { className: "player", role: "group", "aria-label": "steps" },
      button("⇤", "first step (Home)", () => ongo(0)),
      button("‹", "previous step (←)", () => ongo(this.step - 1)),
      this.playing,
      button("›", "next step (→)", () => ongo(this.step + 1)),
      button("⇥", "last step (End)", () => ongo(Infinity)),
      make("label", { className: "field" }, note("speed", "span"), this.speed),
      this.number,
    );
  }

  show(step, count) {
    Object.assign(this, { step, count });
    this.number.textContent = step < count ? `step ${step + 1} of ${count}` : "";
  }

  play() {
    if (this.timer) return this.stop();
    if (this.step >= this.count - 1) this.ongo(0);
    this.playing.textContent = "❚❚ Pause";
    const next = () => {
      this.timer = setTimeout(() => {
        this.ongo(this.step + 1);
        if (this.step >= this.count - 1) this.stop();
        else next();
      }, 1000 / Number(this.speed.value));
    };
    return next();
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
    this.playing.textContent = "▶ Play";
  }
}
