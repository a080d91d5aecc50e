// The way to the server: requests with the key, errors as sentences, streams as events.

import { apiKey } from "./store.js";

/** What the server refused, or that it could not be reached. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status; // 0: there was no answer, or not all of it.
  }
}

const BROKE_OFF = "the answer broke off: the server ended or the connection was lost";

/** The answer to a GET, parsed. */
export const get = async (path, signal) => (await ask(path, { signal })).json();

/** The answer to a POST, parsed. */
export const post = async (path, body, signal) => (await ask(path, posted(body, signal))).json();

/** The events of a streamed answer, parsed, as they come. */
export async function* stream(path, body, signal) {
  const response = await ask(path, posted(body, signal));
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, response.status);
    yield event;
  }
  throw new ApiError(BROKE_OFF, 0);
}

function posted(body, signal) {
  return { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal };
}

async function ask(path, options) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    // Relative to the page, so that a path that a proxy puts in front stays.
    response = await fetch(new URL(`../${path}`, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(error.name === "TimeoutError" ? "the server does not answer" : "the server cannot be reached", 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // No JSON: a proxy's page, say.
  }
  const message = error.message || `the server answered with status ${response.status}`;
  return new ApiError(message, response.status);
}

/** The data of server-sent events. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await next(reader);
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

async function next(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(BROKE_OFF, 0);
  }
}
