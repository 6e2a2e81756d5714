/** Requests to the server: addresses are relative to that of the page, which contains the token. */

/** JSON by GET. */
export async function fetched(path) {
  return (await answered(path)).json();
}

/** The items of an answer, as they arrive; an item with an error is thrown. */
export async function* items(name, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await answered(name, { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const lines = (text + read.value).split("\n");
    text = lines.pop();
    for (const line of lines) {
      const item = JSON.parse(line);
      if (item.error) throw new Error(item.error);
      yield item;
    }
  }
}

async function answered(path, options) {
  const response = await fetch(path, options).catch((error) => {
    if (options?.signal?.aborted) throw error;
    throw new Error("minitx play does not answer; check that it is running.");
  });
  if (response.ok) return response;
  throw new Error((await response.json()).error);
}
