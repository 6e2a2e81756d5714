/** Attention maps from the routes of TensorBoard's plugin. */

import { answered } from "./answered.js";

/** A source; `base` is the URL of the plugin. */
export function tensorboardSource(base) {
  function get(route, parameters, signal) {
    const address = new URL(route, base);
    address.search = new URLSearchParams(parameters).toString();
    return answered("TensorBoard", address, { signal });
  }
  return {
    live: true,
    index: async () => (await get("index", {})).json(),
    header: async (run, tag, step) => (await get("header", { run, tag, step })).json(),
    map: async (run, tag, step, item, signal) =>
      new Uint8Array(await (await get("map", { run, tag, step, item }, signal)).arrayBuffer()),
  };
}
