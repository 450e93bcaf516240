// Asks the server. What cannot be answered is an Error with one sentence.

export function query(params) {
  const pairs = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(pairs).toString();
}

/** Where the page is: the log of a cluster in a fleet has a folder of its own. */
export const BASE = new URL(".", location.href).pathname;

export function address(view, params, base = BASE) {
  const text = query(params);
  return `${base}api/${view}${text ? `?${text}` : ""}`;
}

export async function ask(view, params = {}, signal = undefined, base = BASE) {
  let response;
  try {
    response = await fetch(address(view, params, base), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. If it was stopped, start metaquorum console again and open its new URL.");
  }
  if (!(response.headers.get("content-type") || "").startsWith("application/json")) throw new Error((await response.text()).trim());
  const answer = await response.json();
  if (answer.error !== undefined) throw new Error(answer.error);
  return answer;
}
