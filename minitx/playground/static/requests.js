/** Requests to the server: addresses are relative to that of the page, which contains the token. */

import { answered } from "./answered.js";

const SERVER = "minitx play";

/** JSON by GET. */
export async function fetched(path) {
  return (await answered(SERVER, path)).json();
}

/** The item of an answer that has only one. */
export async function single(name, body, signal) {
  let found;
  for await (const item of items(name, body, signal)) found = item;
  return found;
}

/** The items of an answer, as they arrive; an item with an error is thrown. */
export async function* items(name, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await answered(SERVER, name, { method: "POST", headers, body: JSON.stringify(body), signal });
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
