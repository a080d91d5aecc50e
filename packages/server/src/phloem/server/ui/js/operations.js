// The operations view: asks for a snapshot each second while it can be seen, and shows it.

import { get } from "./api.js";
import { Histogram, PartsBar, Tile } from "./charts.js";
import { byId, say } from "./dom.js";
import { count, percent, sentence, short } from "./format.js";
import { makeRequests, showRequests } from "./requests.js";
import { makeTree, NO_TREE, showTree } from "./tree.js";

const PERIOD = 1000; // Milliseconds.
const PERIOD_AFTER_FAILURE = 3000;
const PATIENCE = 8000; // With the server, for an answer.
const FRESH = 4000; // So long what was answered counts as what is.

const tiles = {
  running: new Tile("Running"),
  waiting: new Tile("Waiting"),
  output: new Tile("Output tokens/s", { lined: true }),
  input: new Tile("Prompt tokens/s", { lined: true }),
  hits: new Tile("Cache hit rate"),
  kv: new Tile("KV cache in use", { lined: true }),
};
const pool = new PartsBar([
  ["free", "Free", "in no use"],
  ["evictable", "Cached", "in the tree; goes when room is needed"],
  ["protected", "Protected", "in the tree, and used by running requests"],
  ["leased", "Leased", "what running requests have for themselves"],
]);
const histograms = { ttft: new Histogram("Time to first token"), itl: new Histogram("Time between tokens") };

let open = false;
let paused = false;
let timer = 0;
let ageing = 0; // The timer after which what is shown is old.
let before = null; // The last snapshot.

/** Makes the view. */
export function makeOperations() {
  byId("tiles").append(...Object.values(tiles).map((tile) => tile.element));
  byId("pool").append(pool.element);
  for (const [id, histogram] of Object.entries(histograms)) byId(id).append(histogram.element);
  makeTree();
  makeRequests();
  byId("pause").addEventListener("click", () => {
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    say(byId("pause"), paused ? "Go on" : "Pause updates");
    if (paused) clearTimeout(ageing);
    goOn();
  });
  document.addEventListener("visibilitychange", goOn);
}

/** It can be seen from now on. */
export function showOperations() {
  open = true;
  goOn();
}

/** It cannot be seen any more: nothing is asked for. */
export function hideOperations() {
  open = false;
  clearTimeout(timer);
}

function goOn() {
  clearTimeout(timer);
  if (open && !paused && !document.hidden) update();
}

async function update() {
  let wait = PERIOD;
  try {
    show(await get("ui/api/snapshot", AbortSignal.timeout(PATIENCE)));
    say(byId("operations-state"), "");
  } catch (error) {
    wait = PERIOD_AFTER_FAILURE;
    const forbidden = error.status === 401 || error.status === 403;
    if (forbidden) showNothing();
    say(byId("operations-state"), sentence(error.message) + (forbidden ? " Set the admin key above." : ""));
  }
  clearTimeout(timer);
  if (open && !paused && !document.hidden) timer = setTimeout(update, wait);
}

function showOld() {
  byId("operations").classList.add("stale");
  const state = byId("operations-state");
  say(state, state.textContent || `Nothing was heard from the server since ${new Date(before.time * 1000).toLocaleTimeString([], { hour12: false })}.`);
}

/** Forgets what a key was needed for. */
function showNothing() {
  byId("operations").classList.add("withheld");
  showTree(NO_TREE);
  showRequests([]);
  clearTimeout(ageing);
  before = null;
}

function show(now) {
  const { classList } = byId("operations");
  classList.remove("withheld", "stale");
  clearTimeout(ageing);
  if (!paused) ageing = setTimeout(showOld, FRESH);
  const { state, pool: kv, totals } = now;
  tiles.running.show(count(state.running), `of at most ${count(state.max_running_requests)}`);
  tiles.waiting.show(count(state.waiting), state.paused ? `paused (${state.paused})` : now.draining ? "draining" : "in the queue");
  const output = rate(now, "generation_tokens");
  const input = rate(now, "prompt_tokens");
  tiles.output.show(output === null ? "–" : short(output), `${short(totals.generation_tokens)} in all`, output);
  tiles.input.show(input === null ? "–" : short(input), `${short(totals.prompt_tokens)} in all`, input);
  tiles.hits.show(percent(totals.cached_tokens / totals.prompt_tokens), "of prompt tokens");
  const used = kv.leased + kv.protected;
  tiles.kv.show(percent(used / kv.total), `${short(used)} tokens`, used / kv.total);
  say(byId("pool-size"), `${count(kv.total)} tokens in pages of ${count(kv.page_size)}`);
  pool.show(kv);
  showTree(now.tree);
  for (const [id, histogram] of Object.entries(histograms)) histogram.show(now.histograms[id]);
  showRequests(now.requests);
  before = now;
}

/** How much a total grows in a second; null with the first snapshot. */
function rate(now, name) {
  const spent = before ? now.time - before.time : 0;
  return spent > 0 ? Math.max(0, (now.totals[name] - before.totals[name]) / spent) : null;
}
