/** Keyboard shortcuts and their help page. */

import { button, make } from "./elements.js";

const KEYS = [
  ["← → ↑ ↓", "move between heads; in the enlarged head ← → select the head, ↑ ↓ the query"],
  ["Enter", "enlarge the head"],
  ["Esc", "close the enlarged head"],
  ["[ ]", "previous step, next step"],
  ["p", "play the steps"],
  ["l", "colour scale: linear or square root"],
  ["?", "this page"],
];

const ABOUT =
  "Rows are queries, the tokens that read; columns are keys, the tokens that are read. Each row holds the " +
  "attention weights of one token and sums to 1. Brighter is more weight. Weights are probabilities before " +
  "dropout, stored with an error of at most 1/255.";

/** The page of keys, pairs of key and meaning: open it with showModal. */
export function helpPage(keys = KEYS, about = ABOUT) {
  const lines = keys.map(([key, meaning]) =>
    make("div", {}, make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: meaning })),
  );
  const page = make("dialog", { className: "help", "aria-label": "keys" }, make("h2", { textContent: "Keys" }));
  const close = button("Close", undefined, () => page.close());
  page.append(make("dl", {}, ...lines), make("p", { textContent: about }), close);
  return page;
}

/** Call actions by key; an action that returns false leaves the key to the browser. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const { tagName, type } = event.target;
    const arrows = event.key.startsWith("Arrow");
    if (tagName === "TEXTAREA" || (tagName === "INPUT" && ["text", "number"].includes(type))) return;
    if (type === "range" && (arrows || ["Home", "End"].includes(event.key))) return;
    if (tagName === "SELECT" && (arrows || /^[a-z]$/i.test(event.key))) return; // a letter chooses an entry
    if (Object.hasOwn(actions, event.key) && actions[event.key](event.key) !== false) event.preventDefault();
  });
}
