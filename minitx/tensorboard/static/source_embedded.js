/** Attention maps embedded in the page: { runs: { run: { tag: { step: [header, base64 of gzip, ...] } } } }. */

/** A source over the parsed JSON. */
export function embeddedSource({ runs, order }) {
  const item = (run, tag, step, number) => {
    const found = runs[run]?.[tag]?.[step]?.[number];
    if (found === undefined) throw new Error(`there is no attention map ${tag} of ${run} at step ${step}`);
    return found;
  };
  const steps = (tags) =>
    Object.fromEntries(Object.entries(tags).map(([tag, found]) => [tag, Object.keys(found).map(Number)]));
  return {
    live: false,
    index: async () => {
      const found = Object.entries(runs).map(([run, tags]) => [run, steps(tags)]);
      return { order, runs: Object.fromEntries(found) };
    },
    header: async (run, tag, step) => item(run, tag, step, 0),
    map: async (run, tag, step, number) => unpacked(item(run, tag, step, 1 + number)),
  };
}

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
