/** The view as a flat object, and as the text of a link. */

import { linkText, parsedLink } from "./state.js";

const DEFAULTS = {
  prompt: "",
  strategy: "greedy",
  temperature: 1,
  top_k: 0, // 0: all tokens
  top_p: 1,
  min_p: 0,
  seed: 1,
  tokens: 0, // max_new_tokens; 0: the default
  length: 0, // max_new_tokens of a beam whose tokens are forced, in place of `tokens`; 0: not limited by a beam
  num_beams: 4,
  length_penalty: 1,
  forced: "", // step:id, separated by commas
  off: "", // names of parts, separated by commas
  mean: "",
  step: 0,
  panel: "decide",
  kind: "", // of attention
  item: -1, // layer of the chosen head; -1: the mean over heads of the last layer
  head: 0,
};
/** The least and the greatest value of the settings that have a slider. */
export const RANGES = {
  temperature: [0.1, 3],
  top_k: [0, 50],
  top_p: [0.05, 1],
  min_p: [0, 0.5],
  num_beams: [2, 10],
  length_penalty: [-2, 4],
};
const CHOICES = { strategy: ["greedy", "sample", "beams"], panel: ["decide", "look", "intervene"] };
const DECIMALS = ["temperature", "top_p", "min_p", "length_penalty"];

/** The keys that change the text, by strategy. */
export const TEXT_KEYS = {
  greedy: ["prompt", "strategy", "tokens", "length", "forced", "off", "mean"],
  sample: ["prompt", "strategy", "tokens", "forced", "off", "mean", "temperature", "top_k", "top_p", "min_p", "seed"],
  beams: ["prompt", "strategy", "tokens", "off", "mean", "num_beams", "length_penalty"],
};

/** The values that differ from the defaults, as the text of a link. */
export function toText(view) {
  return linkText(view, DEFAULTS);
}

/** The view of a link. Unknown keys and invalid values are ignored; so are means of a model without data. Settings
 * are clamped to the ranges of their sliders. */
export function fromText(text, data) {
  const view = parsedLink(text, DEFAULTS, CHOICES, DECIMALS);
  for (const [key, [least, greatest]] of Object.entries(RANGES))
    view[key] = Math.min(Math.max(view[key], least), greatest);
  return data ? view : { ...view, mean: "" };
}

/** The names in a list of a view. */
export function listed(text) {
  return text ? text.split(",") : [];
}

/** The forced tokens of a view: { step: id }. */
export function forcedOf(view) {
  const pairs = listed(view.forced).filter((pair) => /^\d{1,4}:\d{1,7}$/.test(pair));
  return Object.fromEntries(pairs.map((pair) => pair.split(":").map(Number)));
}

/** The options of generation of a view, as of minitx generate. */
export function optionsOf(view, stream) {
  const longest = view.length > 0 ? view.length : view.tokens;
  const options = longest > 0 ? { max_new_tokens: longest } : {};
  if (view.strategy === "beams") {
    const tokens = longest > 0 || !stream ? options : { max_new_tokens: 16 };
    return { ...tokens, num_beams: view.num_beams, length_penalty: view.length_penalty };
  }
  if (view.strategy === "greedy") return options;
  Object.assign(options, { do_sample: true, temperature: view.temperature, seed: view.seed });
  if (view.top_k > 0) options.top_k = view.top_k;
  if (view.top_p < 1) options.top_p = view.top_p;
  if (view.min_p > 0) options.min_p = view.min_p;
  return options;
}

/** The same as options of the command line. */
export function commandOf(options) {
  return Object.entries(options)
    .map(([name, value]) => (value === true ? `--${name}` : `--${name} ${value}`))
    .join(" ");
}

/** A word of a command line, in quotes if a shell would change it. */
export function shellQuoted(word) {
  return /^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
