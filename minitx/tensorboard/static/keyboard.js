/** Keys, and the page that tells them. */

import { make } from "./elements.js";

const KEYS = [
  ["← → ↑ ↓", "from head to head; in the enlarged head ← → the head, ↑ ↓ the query"],
  ["Enter", "enlarge the head"],
  ["Esc", "close the enlarged head"],
  ["[ ]", "the step before, the step after"],
  ["p", "play through the steps"],
  ["l", "linear colour, or square root"],
  ["?", "this page"],
];

/** The page of keys: open it with showModal. */
export function helpPage() {
  const lines = KEYS.map(([keys, meaning]) =>
    make("div", {}, make("dt", {}, make("kbd", { textContent: keys })), make("dd", { textContent: meaning })),
  );
  const page = make(
    "dialog",
    { className: "help", "aria-label": "keys" },
    make("h2", { textContent: "Keys" }),
    make("dl", {}, ...lines),
    make("p", {
      textContent:
        "Each map has queries down and keys across: a row tells where one token looks. The brighter, the more " +
        "weight. Weights are probabilities, taken before dropout, kept to within 1/255.",
    }),
    make("button", { type: "button", textContent: "Close", onclick: () => page.close() }),
  );
  return page;
}

/** Call the action of a key. `actions` is by key; an action that returns false leaves the key to the browser. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const { tagName, type } = event.target;
    const arrows = event.key.startsWith("Arrow");
    if ((tagName === "INPUT" && type === "text") || (arrows && (tagName === "SELECT" || type === "range"))) return;
    if (Object.hasOwn(actions, event.key) && actions[event.key](event.key) !== false) event.preventDefault();
  });
}
