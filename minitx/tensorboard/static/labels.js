/** Tokens as visible text of limited length. */

const NAMED = new Map([
  ["\n", "↵"],
  ["\t", "⇥"],
  [" ", "␣"],
  ["\u007f", "␡"],
]);
const UNSEEN = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/gu;
const segments = globalThis.Intl?.Segmenter ? new Intl.Segmenter() : null;

/** A token with white space, control and direction characters escaped; null is padding. */
export function visible(label) {
  if (label === null) return "padding";
  if (label === "") return "∅";
  if (/^\p{Default_Ignorable_Code_Point}+$/u.test(label)) return Array.from(label, escaped).join("");
  return label.replace(UNSEEN, escaped);
}

function escaped(character) {
  const code = character.codePointAt(0);
  if (NAMED.has(character)) return NAMED.get(character);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** A visible text cut to a number of grapheme clusters. */
export function shortened(text, longest) {
  if (text.length <= longest) return text;
  const parts = segments ? Array.from(segments.segment(text), (part) => part.segment) : Array.from(text);
  return parts.length <= longest ? text : `${parts.slice(0, longest - 1).join("")}…`;
}

/** A weight as text; three digits exceed the precision of the encoding. */
export function number(weight) {
  const size = Math.abs(weight);
  if (size === 0) return "0";
  return size < 0.0005 ? (weight < 0 ? ">−0.001" : "<0.001") : weight.toFixed(3).replace("-", "−");
}

/** A name such as previous_token with spaces. */
export function spaced(name) {
  return name.replaceAll("_", " ");
}
