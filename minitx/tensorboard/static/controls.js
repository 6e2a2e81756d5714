/** The bar above the maps. */

import { button, choice, labelled, linkButton, make, note, options } from "./elements.js";
import { spaced } from "./labels.js";
import { legend } from "./painting.js";
import { lineOf, otherExample } from "./words.js";

const KINDS = [
  ["encoder", "encoder", "source tokens attend to source tokens"],
  ["decoder", "decoder", "target tokens attend to target tokens"],
  ["cross", "cross", "target tokens attend to source tokens"],
  ["lens", "lens", "probability of the right token after each layer"],
];
const SCALES = [
  ["sqrt", "√", "brightness is the square root of the weight: shows small weights"],
  ["linear", "linear", "brightness proportional to weight"],
];
const COMPARISONS = [
  ["beside", "side by side"],
  ["difference", "difference"],
];
const BY_LAYER = "layer";
const MAX_TEXT_LENGTH = 60; // of another example in the second run

/** A slider over steps, hidden if there are fewer than two; `show(steps, chosen)`. */
function stepSlider(onstep, ...more) {
  const oninput = () => onstep(field.steps[input.value]);
  const input = make("input", { type: "range", min: "0", oninput });
  const label = make("output", { className: "step-value" });
  const field = make("div", { className: "field steps" }, labelled("step", input, "slider"), label, ...more);
  field.show = (steps, chosen) => {
    field.steps = steps;
    input.max = String(Math.max(steps.length - 1, 0));
    input.value = String(Math.max(steps.indexOf(chosen), 0));
    input.setAttribute("aria-valuetext", `step ${chosen}`);
    label.textContent = `${chosen}`;
    label.title = `${steps.length} steps`;
    field.hidden = steps.length < 2;
  };
  return field;
}

/** Shows a view; calls `onchange(changes)`, and the other hooks for the buttons. */
export class Controls {
  constructor({ onchange, onplay, link, onsave, onhelp, ontheme }) {
    const select = (key, more) =>
      make("select", { onchange: (event) => onchange({ [key]: event.target.value, ...more }) });
    const check = (key, text) => {
      const input = make("input", { type: "checkbox", onchange: () => onchange({ [key]: input.checked }) });
      return make("label", { className: "check" }, input, text); // its `control` is the input
    };
    this.texts = {};
    this.run = select("run");
    this.example = select("example");
    this.kind = choice("kind of map", KINDS, (kind) => onchange({ kind }));
    this.play = button("▶ Play", "play the steps (p)", onplay);
    this.step = stepSlider((step) => onchange({ step, follow: false }), this.play);
    this.follow = check("follow", "follow latest");
    this.sort = make("select", {
      onchange: (event) => onchange({ sort: event.target.value === BY_LAYER ? "" : event.target.value }),
    });
    this.scale = choice("colour", SCALES, (scale) => onchange({ scale }));
    this.bar = make("canvas", { className: "bar", "aria-hidden": "true" });
    this.quantity = make("span");
    this.smallest = make("span");
    this.sides = note("", "span");
    this.padding = check("padding", "show padding");
    this.compare = check("compare", "compare");
    this.run2 = select("run2", { step2: null });
    this.step2 = stepSlider((step2) => onchange({ step2 }));
    this.showing = choice("how to compare", COMPARISONS, (show) => onchange({ show }));
    const theme = ontheme ? button("◐", "light or dark", ontheme) : "";
    const copy = link ? linkButton("a link that reopens this view", link) : "";
    const comparison = [labelled("with run", this.run2), this.step2, this.showing, this.sides];
    const second = { className: "second bar-row", role: "group", "aria-label": "compare with" };
    this.second = make("div", second, ...comparison);
    const scale = [this.quantity, this.smallest, this.bar, make("span", { textContent: "1" })];
    const range = { className: "legend", role: "img", "aria-label": "from the smallest value to the largest" };
    const save = button("Save PNG", "save all heads as an image", onsave);
    const tools = make("div", { className: "tools" }, copy, save, theme, button("?", "keys (?)", onhelp));
    const row = (...parts) => make("div", { className: "bar-row" }, ...parts);
    const [run, example] = [labelled("run", this.run), labelled("example", this.example)];
    this.element = make(
      "header",
      { className: "controls" },
      row(run, example, this.kind, this.step, this.follow),
      row(
        labelled("sort heads by", this.sort),
        this.scale,
        make("div", range, ...scale),
        this.padding,
        this.compare,
        tools,
      ),
      this.second,
    );
  }

  /** Show the available choices, from state.settle, and the current ones. */
  show(view, available, { live, playing }) {
    const runs = available.names.map((name) => [name, name]);
    options(this.run, runs, view.run);
    this.run.parentElement.hidden = !live && available.names.length < 2;
    this.nameExamples(available.examples, this.texts, view.example);
    this.kind.show(view.kind, available.kinds);
    this.step.show(available.steps, view.step);
    this.follow.hidden = !live;
    this.follow.control.checked = view.follow;
    this.play.textContent = playing ? "❚❚ Pause" : "▶ Play";
    this.scale.show(view.scale);
    this.padding.control.checked = view.padding;
    this.compare.hidden = available.names.length < 2 && available.steps.length < 2;
    this.compare.control.checked = view.compare;
    this.second.hidden = !view.compare || this.compare.hidden;
    options(this.run2, runs, view.run2);
    this.step2.show(available.steps2, view.step2);
    this.showing.show(view.show);
  }

  /** Fill the menu of examples: their names and, where known, their texts. */
  nameExamples(names, texts, chosen) {
    this.texts = texts;
    const entries = names.map((name) => [name, texts[name] ? `${spaced(name)}: ${texts[name]}` : spaced(name)]);
    options(this.example, entries, chosen);
  }

  /** Show the choices that depend on the loaded maps. */
  describe({ map, other, view, difference, theme, names: shown }) {
    const names = map.header.statistics.map(({ name, meaning }) => [name, spaced(name), meaning]);
    options(this.sort, [[BY_LAYER, "layer"], ...names], view.sort || BY_LAYER);
    if (this.sort.selectedIndex < 0) this.sort.value = BY_LAYER; // these maps lack the statistic
    this.sort.title = names.find(([name]) => name === view.sort)?.[2] ?? "";
    this.padding.hidden = ![...map.header.queries, ...map.header.keys].includes(null);
    const second = otherExample(map, other);
    const [one, two] = [shown[0], second ? `${shown[1]}: ${lineOf(second, MAX_TEXT_LENGTH)}` : shown[1]];
    const sides = difference ? `orange: more in ${one}; blue: more in ${two}` : `first: ${one}; second: ${two}`;
    this.sides.textContent = other ? sides : "";
    this.quantity.textContent = view.kind === "lens" ? "probability" : "weight";
    this.smallest.textContent = difference ? "−1" : "0";
    legend(this.bar, view.scale, difference, theme);
  }
}
