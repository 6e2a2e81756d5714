/** A request to the server of a page, named in errors. */

/** The response; throws an error if the request failed. */
export async function answered(server, address, options) {
  const response = await fetch(address, options).catch((error) => {
    if (options?.signal?.aborted) throw error;
    throw new Error(`${server} does not answer; check that it is running.`);
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  const route = new URL(response.url).pathname.split("/").at(-1);
  throw new Error(error ?? `${server} answered ${response.status} for ${route}`);
}
