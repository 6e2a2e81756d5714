/** The theme of an offline page: that of the browser, until a button changes it. */

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** { current, toggle, watch }; sets data-theme, which the style sheet reads. */
export function pageTheme() {
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
