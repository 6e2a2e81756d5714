/** Elements of the page. Strings become text nodes, never markup. */

/** An element with properties, variables of its style ("--"), attributes ("data-", "aria-", role, for) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (/^(data-|aria-|role$|for$)/.test(name)) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** A token or another untrusted text, isolated from the text direction around it. */
export function quoted(text, className = "token") {
  return make("bdi", { className, textContent: text });
}

/** A text in faint letters, a paragraph by default. */
export function note(textContent, tag = "p") {
  return make(tag, { className: "note", textContent });
}

/** The parts of a line: a name, a bar with the properties `bar`, and a number as text. */
export function barLine(name, bar, textContent) {
  const number = make("span", { className: "number", textContent });
  return [name, make("span", { className: "bar", "aria-hidden": "true", ...bar }), number];
}

/** A button: its content, a text or elements, its title (optional, read aloud in place of a symbol), what a click does,
 * and further properties. */
export function button(content, title, onclick, more = {}) {
  const name = typeof content !== "string" || /[\p{L}\p{N}]/u.test(content) ? undefined : title;
  return make("button", { type: "button", title, onclick, "aria-label": name, ...more }, ...[content].flat());
}

/** A button that copies a link; if the clipboard refuses it, a field shows the link until the field loses the focus. */
export function linkButton(title, link) {
  const copy = button("Copy link", title, async () => {
    const value = link();
    try {
      await navigator.clipboard.writeText(value);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy link"), 1500);
    } catch {
      const properties = { type: "text", readOnly: true, className: "link", "aria-label": "link to this view", value };
      const field = make("input", { ...properties, onblur: () => field.remove() });
      copy.parentElement.after(field);
      field.focus();
      field.select();
    }
  });
  return copy;
}

let fields = 0;

/** A control below its label. */
export function labelled(text, control, className = "field") {
  control.id ||= `field-${++fields}`;
  return make("div", { className }, make("label", { for: control.id, textContent: text }), control);
}

/** Fill a select with pairs of value and text; unchanged ones are kept: a rebuild would close an open select. */
export function options(select, entries, chosen) {
  const wanted = JSON.stringify(entries);
  if (select.dataset.entries !== wanted) {
    select.replaceChildren(...entries.map(([value, text]) => make("option", { value, textContent: text })));
    select.dataset.entries = wanted;
  }
  select.value = chosen;
  select.title = select.selectedOptions[0]?.textContent ?? ""; // a long one is cut
  select.disabled = entries.length < 2;
}

/** A row of buttons, one of them pressed. */
export function choice(label, entries, onchoose) {
  const buttons = entries.map(([value, text, title]) =>
    button(text, title, () => onchoose(value), { value, "aria-label": text }),
  );
  const group = make("div", { className: "choice", role: "group", "aria-label": label }, ...buttons);
  group.show = (chosen, enabled) => {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", button.value === chosen);
      button.disabled = enabled !== undefined && !enabled.includes(button.value);
    }
  };
  return group;
}

/** A canvas's context in CSS pixels, sharp on dense screens and in a picture, which has two pixels per CSS pixel. */
export function sized(canvas, width, height, density = Math.max(2, globalThis.devicePixelRatio || 1)) {
  canvas.width = Math.max(1, Math.round(width * density));
  canvas.height = Math.max(1, Math.round(height * density));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(density, density);
  return context;
}

/** The colours of the style sheet, for canvases. */
export function inks() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    ["paper", "raised", "ink", "faint", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
  );
}

/** Download a canvas as a PNG. */
export function download(canvas, name) {
  canvas.toBlob((blob) => {
    const address = URL.createObjectURL(blob);
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }, "image/png");
}
