/** Light or dark: that of the system, until it is toggled. */

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The theme of the document: current(), toggle(), and watch(listener). */
export function theme() {
  const root = document.documentElement;
  const set = (name) => (root.dataset.theme = name);
  const current = () => root.dataset.theme;
  const listeners = [];
  const changed = () => listeners.forEach((listener) => listener());
  set(DARK.matches ? "dark" : "light");
  DARK.addEventListener("change", () => {
    set(DARK.matches ? "dark" : "light");
    changed();
  });
  const toggle = () => {
    set(current() === "dark" ? "light" : "dark");
    changed();
  };
  return { current, toggle, watch: (listener) => listeners.push(listener) };
}
