/** The Attention tab: TensorBoard loads this module into an empty frame. */

import { App } from "./app.js";
import { make } from "./elements.js";
import { tensorboardSource } from "./source_tensorboard.js";

const KEY = "p.minitx.view"; // TensorBoard reserves the prefix p. in its URL for plugins

/** The entry point, called once by TensorBoard. */
export async function render() {
  const here = import.meta.url;
  const style = make("link", { rel: "stylesheet", href: new URL("page.css", here).href });
  const styled = new Promise((resolve) => (style.onload = style.onerror = resolve));
  document.head.append(style);
  document.documentElement.lang = "en";
  await styled;
  await new App(tensorboardSource(new URL("../", here)), { theme: theme(), link }).start();
}

function theme() {
  const body = parent.document.body;
  const current = () => (body.classList.contains("dark-mode") ? "dark" : "light");
  const set = () => (document.documentElement.dataset.theme = current());
  set();
  const watch = (changed) =>
    new MutationObserver(() => {
      if (document.documentElement.dataset.theme === current()) return;
      set();
      changed();
    }).observe(body, { attributes: true, attributeFilter: ["class"] });
  return { current, watch };
}

const link = {
  read: () => new URLSearchParams(parent.location.hash.slice(1)).get(KEY) ?? "",
  text: (view) => {
    const address = new URL(parent.location.href);
    address.hash = `minitx&${KEY}=${encodeURIComponent(view)}`;
    return address.href;
  },
  watch: (changed) => parent.addEventListener("hashchange", () => link.read() && changed()),
};
