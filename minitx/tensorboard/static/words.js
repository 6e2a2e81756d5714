/** A map in words: its example, its axes, its clearest head. */

import { shortened, spaced, visible } from "./labels.js";
import { NAMED_FROM } from "./maps.js";

const ADDED = new Set(["<bos>", "<eos>", "<pad>", "<cls>", "[CLS]", "[SEP]"]);
const SENTENCES = {
  encoder:
    "Encoder self-attention. Each row is an input token; the bright cells are the input tokens that it reads.",
  decoder:
    "Decoder self-attention. Each row is a step of the answer, named by the last token written; the bright cells are " +
    "the tokens of the answer so far that it reads.",
  text:
    "Decoder self-attention. Each row is a token; the bright cells are the tokens that it reads to predict the next " +
    "one: those up to itself, and in the question of a prefix LM all of the question.",
  cross:
    "Cross-attention. Each row is a step of the answer, named by the last token written; the bright cells are the " +
    "input tokens that it reads to write the next one.",
  lens:
    "Lens. Each row is a token that was read, each column a number of layers; brightness is the probability of the " +
    "right token if the model ended there, of an encoder alone the token at this place, otherwise the next one; a " +
    "row without a known one is dark. The DecoderLens lets the whole decoder read the encoder's layers.",
};
const AXES = {
  encoder: ["input", "input"],
  decoder: ["answer so far", "answer so far"],
  text: ["text", "text"],
  cross: ["answer so far", "input"],
};

/** The characters that stand for bytes in the tokens of GPT-2: a visible one for itself, others from U+0100 on. */
const BYTES = [];
for (let byte = 0, others = 0; byte < 256; byte++)
  BYTES.push(String.fromCodePoint(/[!-~¡-¬®-ÿ]/.test(String.fromCodePoint(byte)) ? byte : 256 + others++));

/** The names of rows and columns: queries and keys. A decoder without cross-attention reads one text. */
export function axesOf(kind, kinds) {
  if (kind === "lens") return { queries: "token read", keys: "layers" };
  const [queries, keys] = AXES[kind === "decoder" && !kinds.includes("cross") ? "text" : kind];
  return { queries: `query: ${queries}`, keys: `key: ${keys}` };
}

/** The rows, columns and colours of a kind, in words. */
export function sentenceOf(kind, kinds) {
  return SENTENCES[kind === "decoder" && !kinds.includes("cross") ? "text" : kind];
}

/** Tokens as one text, without the special tokens around it. */
export function joined(labels) {
  const tokens = labels.filter((label) => label !== null && !ADDED.has(label));
  const pieces = tokens.some((token) => /[Ġ▁]/.test(token));
  let text = tokens.join(pieces || tokens.some((token) => /^\s$/.test(token)) ? "" : " ");
  const bytes = Array.from(text, (character) => BYTES.indexOf(character));
  if (pieces) text = bytes.includes(-1) ? text.replace(/[Ġ▁]/g, " ") : new TextDecoder().decode(new Uint8Array(bytes));
  return visible(text).replaceAll("␣", " ").trim();
}

/** Prompt and answer of the example of a header; the answer is null where there is one text. */
export function exampleOf({ kind, queries, keys }) {
  if (kind === "cross") return { prompt: joined(keys), answer: joined(queries) };
  const at = kind === "decoder" ? queries.indexOf("<sep>") : -1;
  if (at < 0) return { prompt: joined(queries), answer: null };
  return { prompt: joined(queries.slice(0, at)), answer: joined(queries.slice(at + 1)) };
}

/** An example in one line, for a menu. */
export function lineOf({ prompt, answer }, longest) {
  if (answer === null) return shortened(prompt, longest);
  return `${shortened(prompt, longest / 2)} → ${shortened(answer, longest / 2)}`;
}

/** The head with the clearest pattern: { item, head, mark }, or null. */
export function clearest(map) {
  const marked = map.heads().map(({ item, head }) => ({ item, head, mark: map.mark(item, head) }));
  const found = marked.filter(({ mark }) => mark !== null);
  return found.reduce((best, one) => (best && best.mark.value >= one.mark.value ? best : one), null);
}

/** A sentence about that head; `since` is the step of its first appearance, if known. */
export function patternSentence(map, since) {
  if (!map.header.statistics.length) return "";
  const found = clearest(map);
  if (!found) return "No head has half of its weight in one pattern.";
  const { item, head, mark } = found;
  const title = map.title(item, head);
  const when = since === null ? "" : ` (${NAMED_FROM} or more since step ${since})`;
  return `Clearest pattern: ${title}, ${spaced(mark.name)} ${mark.value.toFixed(2)}${when}: ${mark.meaning}.`;
}
