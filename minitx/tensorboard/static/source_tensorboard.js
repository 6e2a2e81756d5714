/** Attention maps from the routes of TensorBoard's plugin. */

/** A source; `base` is the URL of the plugin. */
export function tensorboardSource(base) {
  async function get(route, parameters, signal) {
    const address = new URL(route, base);
    address.search = new URLSearchParams(parameters).toString();
    let answer;
    try {
      answer = await fetch(address, { signal });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Error("TensorBoard does not answer; check that it is running.");
    }
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => ({}));
    throw new Error(body.error ?? `TensorBoard answered ${answer.status} for ${route}`);
  }
  return {
    live: true,
    index: async () => (await get("index", {})).json(),
    header: async (run, tag, step) => (await get("header", { run, tag, step })).json(),
    map: async (run, tag, step, item, signal) =>
      new Uint8Array(await (await get("map", { run, tag, step, item }, signal)).arrayBuffer()),
  };
}
