/** What is being looked at, as a flat object, and as the text of a link. */

const DEFAULTS = {
  run: "",
  example: "",
  kind: "",
  step: null, // a number; null is the latest
  follow: true, // until a step is chosen; a link names its step
  sort: "", // a statistic's name; "" is by layer
  scale: "sqrt",
  padding: false,
  item: null, // of the enlarged head: the map it is in, and which of it
  head: 0,
  query: null, // the row that was chosen
  compare: false,
  run2: "",
  step2: null,
  show: "beside",
};
const CHOICES = { scale: ["sqrt", "linear"], show: ["beside", "difference"] };
const NUMBERS = ["step", "item", "head", "query", "step2"];

/** A view in which nothing has been chosen. */
export function initial() {
  return { ...DEFAULTS };
}

/** What differs from the beginning, as the text of a link. */
export function toText(view) {
  const moot = [
    "follow",
    ...(view.compare ? [] : ["run2", "step2", "show"]),
    ...(view.item === null ? ["head", "query"] : []),
  ];
  const kept = Object.keys(DEFAULTS).filter((key) => view[key] !== DEFAULTS[key] && !moot.includes(key));
  return new URLSearchParams(kept.map((key) => [key, String(view[key])])).toString();
}

/** The view of a link. What is not known, or not a value that its key may have, is left at its beginning. */
export function fromText(text) {
  const view = initial();
  for (const [key, value] of new URLSearchParams(text)) {
    if (!Object.hasOwn(DEFAULTS, key)) continue;
    if (NUMBERS.includes(key)) {
      if (/^-?\d{1,15}$/.test(value)) view[key] = Number(value);
    } else if (typeof DEFAULTS[key] === "boolean") view[key] = value === "true";
    else if (!CHOICES[key] || CHOICES[key].includes(value)) view[key] = value;
  }
  view.follow = view.step === null;
  return view;
}

/** A tag's two halves. An example's name may hold slashes. */
export function splitTag(tag) {
  const [kind] = tag.split("/", 1);
  return { kind, example: tag.slice(kind.length + 1) };
}

/** Put a view within what there is: `runs` as a source's index gives it. Returns the steps to choose from. */
export function settle(view, runs) {
  const names = Object.keys(runs);
  if (!names.includes(view.run)) view.run = names[0] ?? "";
  const tags = Object.keys(runs[view.run] ?? {}).map(splitTag);
  const examples = [...new Set(tags.map((tag) => tag.example))];
  if (!examples.includes(view.example)) view.example = examples[0] ?? "";
  const there = new Set(tags.filter((tag) => tag.example === view.example).map((tag) => tag.kind));
  const kinds = ["encoder", "decoder", "cross"].filter((kind) => there.has(kind));
  if (!kinds.includes(view.kind)) view.kind = kinds.at(-1) ?? "";
  const tag = `${view.kind}/${view.example}`;
  const steps = runs[view.run]?.[tag] ?? [];
  view.step = view.follow ? (steps.at(-1) ?? null) : nearest(steps, view.step);
  if (!names.includes(view.run2)) view.run2 = view.run;
  const steps2 = runs[view.run2]?.[tag] ?? [];
  view.step2 = nearest(steps2, view.step2 ?? steps2[0]);
  return { names, examples, kinds, tag, steps, steps2 };
}

/** The step itself, or else the last one before it, or else the first; null is the last. */
function nearest(steps, step) {
  if (step === null) return steps.at(-1) ?? null;
  return steps.findLast((one) => one <= step) ?? steps[0] ?? null;
}
