/** The page as a single file with maps, style and script. */

import { App } from "./app.js";
import { embeddedSource } from "./source_embedded.js";
import { pageTheme } from "./theme.js";

const linkless = { read: () => "" }; // in a notebook the URL belongs to the notebook
const linked = {
  read: () => location.hash.slice(1),
  write: (view) => history.replaceState(null, "", `#${view}`),
  text: (view) => `${location.href.split("#")[0]}#${view}`,
  watch: (changed) => addEventListener("hashchange", changed),
};

/** Called by the page. */
export function start() {
  const maps = JSON.parse(document.getElementById("data").textContent);
  const link = location.protocol === "about:" ? linkless : linked;
  return new App(embeddedSource(maps), { theme: pageTheme(), link }).start();
}
