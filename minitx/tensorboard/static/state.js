/** The view as a flat object, and as the text of a link. */

const DEFAULTS = {
  run: "",
  example: "",
  kind: "",
  step: null, // a number; null is the latest
  follow: true, // until a step is chosen; a link contains its step
  sort: "", // a statistic's name; "" is by layer
  scale: "sqrt",
  padding: false,
  item: null, // layer or extra map of the enlarged head; null: none
  head: 0, // within the item
  query: null, // the row that was chosen
  compare: false,
  run2: "",
  step2: null,
  show: "beside",
};
const CHOICES = { scale: ["sqrt", "linear"], show: ["beside", "difference"] };

/** The values that differ from the defaults, as the text of a link. */
export function toText(view) {
  const compared = view.compare ? [] : ["run2", "step2", "show"];
  return linkText(view, DEFAULTS, ["follow", ...compared, ...(view.item === null ? ["head", "query"] : [])]);
}

/** The view of a link. Unknown keys and invalid values are ignored. */
export function fromText(text) {
  const view = parsedLink(text, DEFAULTS, CHOICES);
  return { ...view, follow: view.step === null };
}

/** The values of a view that differ from its defaults, without some keys, as the text of a link. */
export function linkText(view, defaults, ignored = []) {
  const kept = Object.keys(defaults).filter((key) => view[key] !== defaults[key] && !ignored.includes(key));
  return new URLSearchParams(kept.map((key) => [key, String(view[key])])).toString();
}

/** The view of a link; a default of null is that of a number, and numbers are whole, except for those of `decimals`. */
export function parsedLink(text, defaults, choices, decimals = []) {
  const view = { ...defaults };
  for (const [key, value] of new URLSearchParams(text)) {
    if (!Object.hasOwn(defaults, key)) continue;
    const number = decimals.includes(key) ? /^-?\d{1,9}(\.\d{1,6})?$/ : /^-?\d{1,15}$/;
    if (defaults[key] === null || typeof defaults[key] === "number") {
      if (number.test(value)) view[key] = Number(value);
    } else if (typeof defaults[key] === "boolean") view[key] = value === "true";
    else if (!choices[key] || choices[key].includes(value)) view[key] = value;
  }
  return view;
}

/** Kind and example of a tag. An example's name may contain slashes. */
export function splitTag(tag) {
  const [kind] = tag.split("/", 1);
  return { kind, example: tag.slice(kind.length + 1) };
}

/**
 * Restrict a view to what a source's index has; return the available choices. `names` are the runs, the newest first:
 * an object would reorder names that are numbers.
 */
export function settle(view, runs, names = Object.keys(runs)) {
  if (!names.includes(view.run)) view.run = names[0] ?? "";
  const tags = Object.keys(runs[view.run] ?? {}).map(splitTag);
  const examples = [...new Set(tags.map((tag) => tag.example))];
  if (!examples.includes(view.example)) view.example = examples[0] ?? "";
  const kindsOf = (run) =>
    ["lens", "encoder", "decoder", "cross"].filter((kind) => runs[run]?.[`${kind}/${view.example}`]);
  const kinds = kindsOf(view.run);
  if (!kinds.includes(view.kind)) view.kind = kinds.at(-1) ?? "";
  const tag = `${view.kind}/${view.example}`;
  const steps = runs[view.run]?.[tag] ?? [];
  view.step = view.follow ? (steps.at(-1) ?? null) : nearest(steps, view.step);
  if (!view.compare) Object.assign(view, { run2: "", step2: null });
  // Compared by default: the latest step of the newest other run, else the first step of this one.
  else if (!names.includes(view.run2))
    view.run2 = names.find((name) => name !== view.run && runs[name][tag]) ?? view.run;
  const steps2 = runs[view.run2]?.[tag] ?? [];
  view.step2 = nearest(steps2, view.step2 ?? (view.run2 === view.run ? steps2[0] : null) ?? null);
  return { names, examples, kinds, kinds2: kindsOf(view.run2), tag, steps, steps2 };
}

/** The step if available, else the last one before it, else the first; null is the last. */
function nearest(steps, step) {
  if (step === null) return steps.at(-1) ?? null;
  return steps.findLast((one) => one <= step) ?? steps[0] ?? null;
}
