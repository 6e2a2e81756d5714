/** A map in words: its example, its axes, its clearest head. */

import { shortened, spaced, visible } from "./labels.js";
import { NAMED_FROM } from "./maps.js";

const ADDED = new Set(["<bos>", "<eos>", "<pad>", "<cls>", "[CLS]", "[SEP]"]);
const SENTENCES = {
  encoder:
    "Encoder self-attention. Each row is an input token; the bright cells are the input tokens that it reads.",
  decoder:
    "Decoder self-attention. Each row is a step of the answer, labelled with its latest token; the bright cells are " +
    "the tokens of the answer so far that it reads.",
  text:
    "Decoder self-attention. Each row is a token; the bright cells are the tokens that it reads to predict the next " +
    "one: those up to itself, and in the question of a prefix LM all of the question.",
  cross:
    "Cross-attention. Each row is a step of the answer, labelled with its latest token; the bright cells are the " +
    "input tokens that it reads to generate the next one.",
  lens:
    "Lens. Each row is a token that was read, each column a number of layers; brightness is the probability of the " +
    "right token if the model ended there: for an encoder alone the token at this position, otherwise the next one. " +
    "A row without a known token is dark. In the DecoderLens, the whole decoder reads the encoder after these layers.",
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

/** A character beyond ASCII in them, with CUT between tokens. Before « or », ß, Ü and È to Í are letters. */
const CUT = "\uffff";
const TRAIL = `(?:${CUT}?[¡-¬®-¿Ģ-Ń])`;
const CHARACTER = new RegExp(`[Â-ÇÎ-ÛÝÞ]${TRAIL}|[È-ÍÜ]${CUT}?[Ģ-Ń]|[à-ï]${TRAIL}{2}|[ð-ô]${TRAIL}{3}`, "g");

/** The names of a row, of rows and of columns: queries and keys. A decoder without cross-attention reads one text. */
export function axesOf(kind, kinds) {
  if (kind === "lens") return { row: "token read", queries: "token read", keys: "layers" };
  const [queries, keys] = AXES[kind === "decoder" && !kinds.includes("cross") ? "text" : kind];
  return { row: "query", queries: `query: ${queries}`, keys: `key: ${keys}` };
}

/** The rows, columns and colours of a kind, in words. */
export function sentenceOf(kind, kinds) {
  return SENTENCES[kind === "decoder" && !kinds.includes("cross") ? "text" : kind];
}

/** Tokens as one text, without the special tokens around it; a separator of null is unknown, and guessed. */
export function joined(labels, separator = null) {
  const tokens = labels.filter((label) => label !== null);
  while (ADDED.has(tokens[0])) tokens.shift();
  while (ADDED.has(tokens.at(-1))) tokens.pop();
  const pieces = separator !== " " && tokens.some((token) => /[Ġ▁]/.test(token));
  const own = pieces || tokens.some((token) => /^\s$/.test(token)); // the tokens contain the spaces
  const text = tokens.join(separator ?? (own ? "" : " "));
  const bytes = pieces || (separator === "" && !/[ \n]/.test(text)); // tokens of bytes contain no white space
  return visible(bytes ? (decoded(text, pieces) ?? unmarked(tokens)) : text)
    .replaceAll("␣", " ")
    .trim();
}

/** Bytes as text, or null: they may also be letters, such as é (byte E9), č (a carriage return), alone ĉ (a tab). */
function decoded(text, pieces) {
  const bytes = Array.from(text, (character) => BYTES.indexOf(character));
  const unlikely = (byte) => byte < 0 || byte === 127 || (byte < 32 && byte !== 10 && !(pieces && byte === 9));
  if (bytes.some(unlikely)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

/** The text of tokens in which only characters that are cut into several are bytes; in SentencePiece's none are. */
function unmarked(tokens) {
  const marked = (mark) => tokens.some((token) => token.includes(mark));
  if (marked("▁") && !marked("Ġ")) return tokens.join("").replaceAll("▁", " ");
  const whole = (piece) => (piece.includes(CUT) ? decoded(piece.replaceAll(CUT, ""), true) : null) ?? piece;
  const text = tokens.join(CUT).replace(CHARACTER, whole).replaceAll(CUT, "");
  return text.replaceAll("Ġ", " ").replaceAll("Ċ", "\n");
}

/** Prompt and answer of the example of a header; the answer is null if there is only one text. */
export function exampleOf({ kind, queries, keys, separator }) {
  const text = (labels) => joined(labels, separator ?? null);
  if (kind === "cross") return { prompt: text(keys), answer: text(queries) };
  const at = kind === "decoder" ? queries.indexOf("<sep>") : -1;
  if (at < 0) return { prompt: text(queries), answer: null };
  return { prompt: text(queries.slice(0, at)), answer: text(queries.slice(at + 1)) };
}

/** The example of the second map, if it is not that of the first; otherwise null. */
export function otherExample(map, other) {
  const [one, two] = [map, other ?? map].map(({ header }) => exampleOf(header));
  return one.prompt === two.prompt && one.answer === two.answer ? null : two;
}

/** An example in one line. */
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
