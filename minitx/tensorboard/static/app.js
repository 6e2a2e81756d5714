/** The page of TensorBoard's tab and of the offline file: view state, loading and drawing. */

import { Controls } from "./controls.js";
import { Detail } from "./detail.js";
import { download, make, note, quoted } from "./elements.js";
import { Grid } from "./grid.js";
import { helpPage, listen } from "./keyboard.js";
import { NAMED_FROM, Store } from "./maps.js";
import { detailPicture, gridPicture } from "./picture.js";
import { neighbour, sceneOf } from "./scene.js";
import { fromText, settle, splitTag, toText } from "./state.js";
import { clearest, exampleOf, lineOf, patternSentence, sentenceOf } from "./words.js";

const POLL_MS = 4000;
const FRAME_MS = 500;
const NOTHING =
  "There are no attention maps yet. Training writes them before its first step and then every " +
  "log.attention.every_n_steps; this page loads them automatically.";
const MAX_NAMED = 50; // examples with their text in the menu

/** Starts the page in an empty body, from a source of maps (see source_*.js) and its host's theme and link. */
export class App {
  constructor(source, host) {
    this.source = source;
    this.host = host;
    this.store = new Store(source);
    this.view = fromText(host.link.read());
    this.runs = {};
    this.scene = null;
    this.playing = null;
    this.ticket = null;
    this.grid = new Grid({ onopen: (item, head) => this.open(item, head) });
    this.detail = new Detail({
      onchoose: (row) => row !== null && this.update({ query: this.chosen(row) }),
      onstep: (direction) => this.neighbour(direction),
      onclose: () => this.shut(),
      onsave: () => download(detailPicture(this.scene, this.detail, this.example), "attention_head.png"),
    });
    this.controls = new Controls({
      onchange: (changes) => this.update(changes),
      onplay: () => this.play(),
      link: host.link.text && (() => host.link.text(toText(this.view))),
      onsave: () => this.scene && download(gridPicture(this.scene, this.example), "attention.png"),
      onhelp: () => this.help.showModal(),
      ontheme: host.theme.toggle,
    });
    this.help = helpPage();
    this.message = make("p", { className: "message", role: "alert", hidden: true });
    this.about = make("section", { className: "about", "aria-label": "what is shown", "aria-live": "polite" });
    this.main = make("main", {}, this.grid.element, this.detail.element);
    document.body.append(this.controls.element, this.message, this.about, this.main, this.help);
  }

  async start() {
    const { theme, link } = this.host;
    theme.watch(() => this.draw());
    link.watch?.(() => this.update({ ...fromText(link.read()) }));
    let width = 0;
    const resized = () => width !== this.main.clientWidth && ((width = this.main.clientWidth), this.draw());
    new ResizeObserver(resized).observe(this.main);
    const bar = this.controls.element; // an opened head stays below it
    new ResizeObserver(() => document.body.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
    listen(this.keys());
    await this.poll();
    if (this.source.live) setInterval(() => this.onScreen() && !this.ticket && this.poll(), POLL_MS);
  }

  /** TensorBoard hides a plugin's frame by giving it no height. */
  onScreen() {
    return document.visibilityState === "visible" && innerHeight > 0;
  }

  async poll() {
    try {
      const { runs, order, began = {} } = await this.source.index();
      const news = JSON.stringify([runs, order, began]);
      if (news === this.news && this.scene) return; // without a scene, retry: the maps may exist now
      this.news = news;
      Object.assign(this, { runs, order });
      this.store.began = began;
      await this.update({});
    } catch (error) {
      this.news = null; // the next answer replaces the message
      this.showMessage(error.message);
    }
  }

  /** Change the view and load its maps. */
  async update(changes) {
    Object.assign(this.view, changes);
    const available = settle(this.view, this.runs, this.order);
    this.available = available;
    this.controls.show(this.view, available, { live: this.source.live, playing: this.playing !== null });
    this.controls.element.classList.toggle("empty", !available.names.length);
    if (this.view.step === null) return this.empty(NOTHING);
    this.host.link.write?.(toText(this.view));
    await this.load(available.tag);
    await this.nameExamples(available);
  }

  /** Put the text of each example into the menu, from the header of its latest maps. */
  async nameExamples({ examples }) {
    const { run } = this.view;
    const texts = {};
    for (const example of examples.slice(0, MAX_NAMED)) {
      const found = await this.exampleText(run, example).catch(() => null); // null: damaged, its name remains
      if (found) texts[example] = lineOf(found, 40);
    }
    if (this.view.run === run) this.controls.nameExamples(examples, texts, this.view.example);
  }

  /** Prompt and answer of an example, from its cross-attention if it has one. */
  async exampleText(run, example) {
    const tags = Object.keys(this.runs[run] ?? {}).filter((tag) => splitTag(tag).example === example);
    const tag = tags.find((one) => splitTag(one).kind === "cross") ?? tags[0];
    return exampleOf(await this.store.header(run, tag, this.runs[run][tag].at(-1)));
  }

  async load(tag) {
    this.ticket?.abort();
    const ticket = (this.ticket = new AbortController()); // no poll meanwhile: it would restart a slow load
    const { run, step, run2, step2, compare } = this.view;
    const second = compare && step2 !== null && !this.controls.second.hidden;
    const delayed = setTimeout(() => this.main.classList.add("waiting"), 150);
    try {
      const found = await Promise.all([
        this.store.load(run, tag, step, ticket.signal),
        second ? this.store.load(run2, tag, step2, ticket.signal) : null,
      ]);
      if (ticket.signal.aborted) return;
      this.ticket = null;
      this.maps = found;
      this.showMessage(compare && step2 === null ? `${run2} has no ${tag} to compare with.` : "");
      this.draw();
    } catch (error) {
      if (ticket.signal.aborted) return;
      ticket.abort();
      this.empty(error.message);
    } finally {
      clearTimeout(delayed);
      if (this.ticket === ticket) this.ticket = null;
      if (!this.ticket) this.main.classList.remove("waiting");
    }
  }

  draw() {
    if (!this.maps || this.ticket) return; // while maps are loaded, the present ones are not those of the view
    const [map, other] = this.maps;
    const { view } = this;
    if (view.item !== null && !(view.head >= 0 && view.head < (map.counts[view.item] ?? 0)))
      Object.assign(view, { item: null, head: 0 });
    const { kinds, kinds2 } = this.available;
    this.scene = sceneOf(view, map, other, this.host.theme.current(), [kinds, kinds2], this.source.live);
    const mismatched = other && view.show === "difference" && !this.scene.difference;
    if (mismatched) this.showMessage("These maps have different sizes and are shown side by side.");
    this.main.hidden = false;
    this.main.classList.toggle("opened", view.item !== null);
    this.controls.describe(this.scene);
    this.describe(map);
    this.detail.element.hidden = view.item === null;
    this.grid.show(this.scene);
    this.detail.show(this.scene);
    document.body.dataset.drawn = `${view.run} ${this.available.tag} ${view.step}`;
  }

  /** The example, what its maps show, and the head with the clearest pattern. */
  async describe(map) {
    if (this.described === map) return; // a live region is read aloud when it is replaced
    Object.assign(this, { described: map, example: null });
    const { view, available } = this;
    this.about.hidden = false;
    const { prompt, answer } = await this.exampleText(view.run, view.example).catch(() => exampleOf(map.header));
    if (this.maps?.[0] !== map) return; // another one was loaded meanwhile
    this.example = { prompt, answer };
    const named = (name, text) => make("span", {}, note(name, "span"), quoted(text));
    const texts = [named(answer === null ? "text " : "prompt ", prompt)];
    if (answer !== null) texts.push(named(" → answer ", answer));
    if (!this.source.live) texts.unshift(named("model ", view.run), " · ");
    const pattern = make("p", { className: "pattern", textContent: patternSentence(map, null) });
    const sentence = make("p", { textContent: sentenceOf(view.kind, available.kinds) });
    this.about.replaceChildren(make("p", { className: "example" }, ...texts), sentence, pattern);
    const since = await this.firstStep(map, view.run, available, view.step).catch(() => null);
    if (pattern.isConnected && since !== null) pattern.textContent = patternSentence(map, since);
  }

  /** The step since which the head with the clearest pattern has had it without interruption. */
  async firstStep(map, run, { tag, steps }, step) {
    const found = clearest(map);
    if (!found || steps.length < 2) return null;
    const { item, head, mark } = found;
    let at = steps.indexOf(step);
    for (; at > 0 && map === this.maps?.[0]; at--) {
      const { statistics } = await this.store.header(run, tag, steps[at - 1]);
      const value = statistics.find(({ name }) => name === mark.name)?.values[item]?.[head] ?? 0;
      if (value < NAMED_FROM) break;
    }
    return steps[at];
  }

  empty(text) {
    this.maps = this.scene = this.described = null;
    this.main.hidden = this.about.hidden = true;
    delete document.body.dataset.drawn;
    this.showMessage(text);
  }

  showMessage(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
  }

  /** Enlarge a head and focus it, so that arrows select queries. */
  async open(item, head) {
    await this.update({ item, head });
    const [figure] = this.detail.shown;
    figure?.matrix.element.focus({ preventScroll: true });
    if (matchMedia("(max-width: 980px)").matches) this.detail.element.scrollIntoView(); // it is above the grid
  }

  chosen(row) {
    return this.scene.layout.queries.shown[row] ?? null;
  }

  shut() {
    const { item, head } = this.view;
    this.update({ item: null, head: 0, query: null }).then(() => {
      const tile = this.grid.tiles.get(`${item}:${head}`);
      if (tile) this.grid.focus(tile);
    });
  }

  /** Select the next or previous head in display order. */
  neighbour(direction) {
    const next = neighbour(this.scene, direction);
    this.update(next);
    this.grid.tiles.get(`${next.item}:${next.head}`)?.button.scrollIntoView({ block: "nearest" });
  }

  query(direction) {
    const { shown } = this.scene.layout.queries;
    const at = this.view.query === null ? (direction > 0 ? -1 : shown.length) : shown.indexOf(this.view.query);
    this.update({ query: shown[Math.min(Math.max(at + direction, 0), shown.length - 1)] ?? null });
  }

  move(direction) {
    const { steps } = this.available;
    const next = steps[steps.indexOf(this.view.step) + direction];
    return next === undefined ? null : this.update({ step: next, follow: false });
  }

  /** Play the steps up to the last one, from the first if the last is shown; or pause. */
  async play() {
    const { steps } = this.available;
    const playback = (this.playing = this.playing === null ? {} : null);
    const restart = playback !== null && this.view.step === steps.at(-1);
    this.update(restart ? { step: steps[0], follow: false } : {});
    while (playback !== null) {
      await new Promise((shown) => setTimeout(shown, FRAME_MS));
      if (this.playing !== playback) return;
      const moved = this.onScreen() ? this.move(1) : Promise.resolve();
      if (moved === null) this.playing = null;
      await (moved ?? this.update({}));
    }
  }

  keys() {
    const arrow = (key) => {
      if (!this.scene) return false;
      const inGrid = this.grid.element.contains(document.activeElement);
      if (this.view.item !== null && !inGrid) {
        if (key === "ArrowLeft" || key === "ArrowRight") this.neighbour(key === "ArrowLeft" ? -1 : 1);
        else this.query(key === "ArrowUp" ? -1 : 1);
        return true;
      }
      const tile = this.grid.beside(key);
      if (!tile) return inGrid;
      this.grid.focus(tile);
      if (this.view.item !== null) this.update({ item: tile.item, head: tile.head });
      return true;
    };
    const arrows = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].map((key) => [key, arrow]);
    return {
      ...Object.fromEntries(arrows),
      "[": () => this.move(-1),
      "]": () => this.move(1),
      p: () => this.available?.steps.length > 1 && this.play(),
      l: () => this.update({ scale: this.view.scale === "sqrt" ? "linear" : "sqrt" }),
      Escape: () => this.view.item !== null && this.shut(),
      "?": () => this.help.showModal(),
    };
  }
}
