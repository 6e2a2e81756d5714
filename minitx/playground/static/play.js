/** The page of minitx play: a prompt, the text that a model writes, and what happens at each of its steps. */

import { Bars } from "./bars.js";
import { Decide } from "./decide.js";
import { distribution } from "./distribution.js";
import { button, choice, linkButton, make, note, quoted } from "./elements.js";
import { Intervene } from "./intervene.js";
import { helpPage, listen } from "./keyboard.js";
import { shortened } from "./labels.js";
import { TEXT_KEYS, forcedOf, fromText, listed, optionsOf, toText } from "./link.js";
import { Look } from "./look.js";
import { Outcome } from "./outcome.js";
import { Player } from "./player.js";
import { fetched, items, single } from "./requests.js";
import { Text, plain } from "./text.js";
import { pageTheme } from "./theme.js";

const KEYS = [
  ["← →", "previous step, next step"],
  ["Home End", "first step, last step"],
  ["Space", "play the steps"],
  ["↑ ↓", "on a head: previous head, next head"],
  ["Esc", "close the enlarged head"],
  ["1 2 3", "Decide, Look, Intervene"],
  ["Enter", "in the prompt: write; Shift+Enter is a new line"],
  ["?", "this page"],
];
const ABOUT =
  "The text is that of minitx generate with the same options. The bars of a step are the model's probabilities for " +
  "this token; click one of them to replace the token, and those that depend on it change too.";
const PANELS = [
  ["decide", "Decide", "how the next token is chosen (1)"],
  ["look", "Look", "attention at the chosen step (2)"],
  ["intervene", "Intervene", "switch heads and feed-forward networks off (3)"],
];
const MAX_EXAMPLE_LENGTH = 40; // characters on its button

class Play {
  constructor(model) {
    this.model = model;
    this.theme = pageTheme();
    this.view = fromText(location.hash.slice(1), model.data);
    this.clear();
    this.build();
    this.theme.watch(() => this.draw());
    addEventListener("hashchange", () => this.reopen());
    addEventListener("resize", () => this.draw());
    listen(this.keys());
  }

  clear() {
    const answered = { last: null, answer: null, answerText: null };
    Object.assign(this, { steps: [], head: null, ...answered, tree: null, looked: null, explained: null });
    this.text?.clear();
    this.look?.clear();
  }

  build() {
    const { model } = this;
    this.help = helpPage(KEYS, ABOUT);
    const field = { rows: 2, spellcheck: false, dir: "auto", "aria-label": "prompt", placeholder: model.example };
    this.prompt = make("textarea", field);
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    });
    this.examples = make("div", { className: "examples" });
    this.message = make("p", { className: "message", role: "alert", hidden: true });
    this.player = new Player((step) => this.go(step));
    this.text = new Text(model.tokens, {
      onchoose: (step) => this.go(step),
      onhover: (place) => this.connect(place),
    });
    this.text.rows.addEventListener("scroll", () => this.connect(null));
    this.outcome = new Outcome();
    this.bars = new Bars(model.tokens, { onforce: (id) => this.force(id) });
    this.decide = new Decide(model, {
      onchange: (changes, final) => this.change(changes, final),
      onbeam: (beam) => this.take(beam),
    });
    this.look = new Look(model.tokens, { onchange: (changes) => this.change(changes) });
    this.intervene = new Intervene(model, {
      onchange: (changes) => this.change(changes),
      onablate: () => this.ablate(),
    });
    this.panel = choice("panel", PANELS, (panel) => this.change({ panel }));
    const about = [model.architecture.replace("_", "-"), `task ${model.task}`, `vocabulary of ${model.tokens.length}`];
    const link = linkButton("a link that reopens this view while the server runs", () => location.href);
    const dark = button("◐", "light or dark", this.theme.toggle, { "aria-label": "light or dark" });
    const keys = button("?", "keys (?)", () => this.help.showModal());
    const title = make("h2", {}, "minitx play ", quoted(model.name));
    const tools = make("div", { className: "tools" }, link, dark, keys);
    const write = button("Write", "write the text (Enter)", () => this.ask());
    const ask = make("div", { className: "ask" }, this.prompt, write);
    const form = make("p", { className: "note form" }, quoted(model.form, ""));
    const text = [this.player, this.text, this.outcome, this.bars].map(({ element }) => element);
    const left = { className: "left", "aria-label": "Write" };
    document.body.append(
      make("header", { className: "top" }, title, note(about.join(", "), "span"), tools),
      make(
        "main",
        { className: "play" },
        make("section", left, ask, form, this.examples, this.message, ...text),
        make("section", { className: "right" }, this.panel, ...PANELS.map(([name]) => this[name].element)),
      ),
      this.help,
    );
  }

  async open() {
    this.prompt.value = this.view.prompt;
    this.draw();
    if (this.view.prompt) this.write();
    const examples = await fetched("examples");
    const label = (prompt) => quoted(shortened(plain(prompt), MAX_EXAMPLE_LENGTH), "");
    const buttons = examples.map(({ prompt }) => button(label(prompt), "a test question", () => this.ask(prompt)));
    this.examples.replaceChildren(...buttons);
    document.body.dataset.examples = String(examples.length);
  }

  keys() {
    const step = (direction) => () => this.go(this.view.step + direction);
    return {
      ArrowLeft: step(-1),
      ArrowRight: step(1),
      Home: () => this.go(0),
      End: () => this.go(Infinity),
      ...this.look.keys(),
      " ": () => (document.activeElement?.tagName === "BUTTON" ? false : this.player.play()),
      "?": () => this.help.showModal(),
      ...Object.fromEntries(PANELS.map(([panel], place) => [String(place + 1), () => this.change({ panel })])),
    };
  }

  /** Write the text of the prompt box, or of an example. */
  ask(prompt = this.prompt.value) {
    this.prompt.value = prompt;
    if (prompt) this.change({ prompt, forced: "", step: 0 }, true, true);
    else this.report("the prompt is empty: give at least one token");
  }

  /** Change the view; a change that the text depends on rewrites it, once a slider is released. */
  change(changes, final = true, always = false) {
    this.report("");
    const before = { ...this.view };
    const freed = "forced" in changes || "tokens" in changes; // the text is no longer that of a chosen beam
    Object.assign(this.view, freed ? { length: 0 } : {}, changes);
    if (final) history.replaceState(null, "", `#${toText(this.view)}`);
    this.changed ||= TEXT_KEYS[this.view.strategy].some((key) => this.view[key] !== before[key]);
    if (final && (always || this.changed) && this.view.prompt) this.write();
    if (!this.running) this.inspect().catch((error) => this.fail(error)); // first: it removes maps of other steps
    this.draw();
  }

  reopen() {
    this.report("");
    Object.assign(this.view, fromText(location.hash.slice(1), this.model.data));
    this.prompt.value = this.view.prompt;
    this.running = this.running?.abort();
    if (this.view.prompt) this.write();
    else this.clear();
    this.draw();
  }

  /** Request the text; a newer request aborts one in progress. */
  async write() {
    this.changed = false;
    this.running?.abort();
    const running = (this.running = new AbortController());
    this.player.stop();
    document.body.dataset.state = "busy";
    const common = { prompt: this.view.prompt, off: listed(this.view.off), mean: listed(this.view.mean) };
    let written = false;
    try {
      let [options, forced] = [optionsOf(this.view, this.model.kind === "stream"), forcedOf(this.view)];
      let tree = null;
      if (this.view.strategy === "beams" && this.model.architecture !== "encoder_only") {
        tree = await single("beams", { ...common, options }, running.signal);
        const { ids } = tree.beams[0]; // the best one
        forced = { ...ids };
        options = { max_new_tokens: ids.length };
      } else if (this.model.architecture === "encoder_only") options = {};
      for await (const item of items("write", { ...common, options, forced }, running.signal)) {
        if (item.target !== undefined) this.start(item, tree);
        else if (item.id !== undefined) this.receive(item, forced);
        else if (item.text !== undefined) this.last = item;
        else Object.assign(this, { answer: item.answer, answerText: item.answer_text });
      }
      written = true;
      this.view.step = Math.min(this.view.step, Math.max(this.steps.length - 1, 0));
      this.draw();
      await this.inspect(running.signal);
      if (!this.steps.length) this.report("nothing to predict: this text has no <mask>");
      document.body.dataset.state = "done";
    } catch (error) {
      if (running.signal.aborted) return;
      if (!written) this.clear(); // the earlier text is not that of these settings
      this.fail(error);
      document.body.dataset.state = "failed";
    }
    if (this.running !== running) return;
    this.running = null;
    if (document.body.dataset.state === "failed") return; // its message stays until the next action
    await this.inspect().catch((error) => this.fail(error)); // the step may have changed meanwhile
  }

  start(item, tree) {
    this.clear();
    Object.assign(this, { head: item, tree });
    document.body.dataset.state = "writing";
    this.text.start(item, this.model);
    this.draw();
  }

  receive(item, forced) {
    const own = this.view.strategy !== "beams" && this.steps.length in forced;
    item.share = distribution(item).shares[item.ids.indexOf(item.id)] ?? 0;
    this.steps.push(item);
    this.text.push(item.id, item.share, own);
    this.player.show(this.view.step, this.steps.length);
    if (this.steps.length === this.view.step + 1) {
      this.draw();
      this.text.reveal(this.view.step);
    } else if (this.steps.length % 16 === 0) this.text.mark(this.view.step, null);
  }

  /** Write the text of a beam, its tokens forced. One cut at the maximum length would continue without `length`. */
  take({ ids }) {
    const forced = [...ids].map((id, step) => `${step}:${id}`).join(",");
    const length = ids.at(-1) === this.model.eos ? 0 : ids.length;
    this.change({ strategy: "greedy", forced, length, step: ids.length - 1 });
  }

  /** Write a token at the chosen step, and the rest from there. */
  force(id) {
    const { step } = this.view;
    const masked = this.model.kind === "masked"; // then all places are predicted at once
    const stays = (other) => (masked ? other !== step : other < step);
    const kept = listed(this.view.forced).filter((pair) => stays(Number(pair.split(":")[0])));
    const pairs = id === this.steps[step].id ? kept : [...kept, `${step}:${id}`];
    this.change({ forced: pairs.join(",") }, true, true);
  }

  go(step) {
    const last = Math.max(this.steps.length - 1, this.view.step); // of a text in progress, fewer may have been received
    this.change({ step: Math.max(0, Math.min(step, last)) });
    this.text.reveal(this.view.step);
  }

  /** Fetch the maps of the tokens that were read for the chosen step, and what Look shows, unless they are there. */
  async inspect(signal) {
    const step = this.steps[this.view.step];
    if (!step) return;
    const { source, target, places } = this.head;
    const { prompt, off, mean } = this.view;
    const common = { prompt, off: listed(off), mean: listed(mean), source, prompt_tokens: target.length };
    // The tokens in the cache after `count` steps.
    const read = (count) =>
      places ? [] : [...target, ...this.steps.slice(0, count).map(({ id }) => id)].slice(step.start);
    const first = this.steps.find((one) => one.start === step.start); // its maps are those of all with this start
    if (this.looked !== first) {
      Object.assign(this, { looked: first, explained: null });
      this.look.maps = {};
      const all = read(this.steps.findLastIndex((one) => one.start === step.start));
      const loaded = await this.look.load(await single("look", { ...common, target: all }, signal), step.start);
      if (this.looked !== first) return; // other maps or another text were requested meanwhile
      Object.assign(this.look, loaded);
      this.draw();
    }
    // One at a time: of the steps that are passed meanwhile, the last one is explained.
    if (this.view.panel !== "look" || this.explained === step || this.explaining) return;
    Object.assign(this, { explained: step, explaining: true });
    const index = places?.[this.view.step] ?? -1;
    // A forced place was predicted from its mask.
    const asked = source.map((id, place) => (this.model.kind === "masked" && place === index ? this.model.mask : id));
    const own = { source: asked, target: read(this.view.step), index, token: step.id };
    try {
      const found = await single("explain", { ...common, ...own }, signal);
      if (this.steps[this.view.step] === step) this.look.explained.show(found, step.id);
    } finally {
      this.explaining = false;
    }
    await this.inspect(signal);
  }

  async ablate() {
    try {
      await this.intervene.rank(single("ablate", {}));
      this.report("");
    } catch (error) {
      this.report(error.message);
    }
  }

  /** The place of a step's token; with `read`, of the token whose attention belongs to it: the last that was read. */
  place(step, read = 0) {
    if (!this.steps[step]) return null;
    const { places, target } = this.head;
    return places ? { side: "source", index: places[step] } : { side: "target", index: target.length + step - read };
  }

  /** Lines from the token under the pointer, or from the chosen step's. */
  connect(place) {
    const step = place ? place.step : this.view.step;
    const from = step === null ? place : this.place(step, 1);
    this.text.connect(place ?? this.place(step), this.look.weights(this.view, from));
  }

  /** The first step that differs from the right answer, or null. */
  wrong() {
    if (!this.answer || !this.last) return null;
    const { places } = this.head;
    const right = places ? places.map((place) => this.answer[place]) : [...this.answer, this.model.eos];
    const at = right.findIndex((id, step) => this.steps[step]?.id !== id);
    return at < 0 ? null : at;
  }

  draw() {
    const { view } = this;
    const step = this.steps[view.step];
    const encoderOnly = this.model.architecture === "encoder_only";
    const settings = view.strategy === "beams" && !encoderOnly ? null : view;
    const wrong = this.wrong();
    this.panel.show(view.panel);
    for (const [name] of PANELS) this[name].element.hidden = name !== view.panel;
    this.player.show(view.step, this.steps.length);
    this.text.mark(view.step, wrong);
    const forcible = view.strategy !== "beams" && (!encoderOnly || this.model.kind === "masked");
    this.bars.show(step, view.step, settings, forcible);
    this.outcome.show(this, wrong);
    if (view.panel === "decide") this.decide.show(view, step, this.tree);
    if (view.panel === "look") this.look.show(view, this.theme.current(), this.place(view.step, 1));
    if (view.panel === "intervene") this.intervene.show(view);
    this.connect(null);
    document.body.dataset.drawn = `${this.steps.length} ${view.step}`;
  }

  /** Report an error in place of what was requested; what is shown for the next step is requested again. */
  fail(error) {
    this.look.explained.clear();
    this.looked = this.explained = null;
    this.report(error.message);
    this.draw();
  }

  report(sentence) {
    this.message.textContent = sentence;
    this.message.hidden = !sentence;
  }
}

new Play(await fetched("model")).open();
