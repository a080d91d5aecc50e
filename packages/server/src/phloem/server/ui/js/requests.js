// The last requests as a list, and the one that is chosen on a line of time.

import { get } from "./api.js";
import { byId, h, s, say, set, table, foldedTable } from "./dom.js";
import { count, counted, percent, seconds } from "./format.js";

const HEADS = ["Began", "Request", "Prompt", "Cached", "Output", "First token", "Total", "State"];
const STATES = { stop: "done", length: "done (length)", abort: "aborted", error: "failed", refused: "refused", null: "running" };
const MOST_ROWS = 40;

const body = h("tbody");
const picture = s("svg", { class: "timeline", role: "img" });
const words = h("p", { class: "facts numbers" });
const keys = h("div", { class: "legend" },
  [["queue", "in the queue"], ["prefill", "prefill"], ["decode", "decode, a mark for each token"]].map(([kind, name]) =>
    h("span", {}, h("i", { class: `swatch stage-${kind}` }), name)));
const listing = foldedTable("The timeline as a table", () => asTable());

let requests = [];
let chosen = null; // The id of the request on the line; null: the newest.
let details = { steps: [], marks: [] }; // Of that request, once they have come.

/** Makes the list. */
export function makeRequests() {
  byId("timeline").append(words, picture, keys, listing.element);
  byId("requests").append(h("table", { class: "data" }, h("caption", { class: "hidden" }, "The last requests, newest first"),
    h("thead", {}, h("tr", {}, HEADS.map((head) => h("th", { scope: "col" }, head)))), body));
  new ResizeObserver(drawTimeline).observe(byId("timeline"));
}

/** Shows requests as the server lists them. */
export function showRequests(all) {
  requests = all;
  const running = all.filter((each) => each.finish === null).length;
  say(byId("requests-size"), all.length ? `the last ${all.length}, ${running} running` : "none yet");
  byId("requests").hidden = !all.length;
  byId("timeline").hidden = !all.length;
  const rows = all.slice(0, MOST_ROWS);
  // Rows are reused in place, so that the focus stays where it is.
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) body.append(emptyRow());
  rows.forEach((request, at) => fillRow(body.rows[at], request));
  const request = current();
  if (request?.rid !== details.rid) details = { steps: [], marks: [] };
  drawTimeline();
  listing.refresh();
  // Those of one that has ended do not change.
  if (request && !(details.rid === request.rid && details.finish)) askDetails(request.rid);
}

async function askDetails(rid) {
  let found;
  try {
    found = await get(`ui/api/request?id=${encodeURIComponent(rid)}`);
  } catch {
    return; // The next snapshot says what is the matter, and asks again.
  }
  if (current()?.rid !== rid) return;
  details = found;
  drawTimeline();
  listing.refresh();
}

function emptyRow() {
  const button = h("button", { type: "button", class: "link mono", onclick: () => choose(button.dataset.rid) });
  return h("tr", {}, HEADS.map((_, at) => h("td", {}, at === 1 ? button : "")));
}

function fillRow(row, request) {
  const { first } = spans(request);
  const cached = request.cached_tokens;
  const cells = [
    new Date(request.arrived * 1000).toLocaleTimeString([], { hour12: false }),
    null,
    count(request.prompt_tokens),
    cached === null ? "–" : `${count(cached)} (${percent(cached / request.prompt_tokens)})`,
    count(request.completion_tokens),
    seconds(first),
    seconds(request.seconds),
    (STATES[request.finish] ?? request.finish) + (request.retractions ? `, retracted ${request.retractions}×` : ""),
  ];
  cells.forEach((text, at) => text !== null && say(row.cells[at], text));
  const button = row.cells[1].firstChild;
  say(button, shortId(request.rid));
  set(button, { "data-rid": request.rid, title: request.rid, "aria-pressed": String(request === current()) });
  row.classList.toggle("chosen", request === current());
}

const shortId = (rid) => (rid.length > 22 ? `${rid.slice(0, 15)}…${rid.slice(-5)}` : rid);
const current = () => requests.find((each) => each.rid === chosen) ?? requests[0];

function choose(rid) {
  chosen = rid;
  showRequests(requests);
}

/** When what ended, in seconds since the start; by the scheduler's clock where it has told. */
function spans(request) {
  const { queue = null, ttft = null } = request.timings ?? {};
  return { queue, first: ttft ?? request.first, end: request.seconds };
}

/** `[stage, from, to]` in the order in which they are drawn: what came in between lies on top. */
function stages(request) {
  const { queue, first, end } = spans(request);
  const found = [["prefill", queue ?? 0, first ?? end]];
  if (queue !== null) found.push(["queue", 0, queue]);
  if (first !== null) found.push(["decode", first, end]);
  details.marks.forEach(({ kind, at }, index) => {
    const next = details.marks[index + 1]?.at ?? end;
    if (kind === "taken_back") found.push(["queue", at, next]);
    else if (first !== null && at > first) {
      const token = details.steps.find(([time]) => time > at)?.[0] ?? end;
      found.push(["prefill", at, Math.min(next, token)]);
    }
  });
  return found;
}

function drawTimeline() {
  const request = current();
  if (!request) return;
  const width = byId("timeline").clientWidth;
  const { end } = spans(request);
  const x = (time) => (Math.min(time, end) / Math.max(end, 1e-6)) * width;
  const block = ([kind, from, to]) => s("rect", { class: `stage-${kind}`, x: x(from), y: 6, width: Math.max(x(to) - x(from), 1), height: 26, rx: 2 });
  const chunks = details.marks.filter(({ kind }) => kind === "chunk").slice(1);
  const marks = details.steps.filter(([, tokens]) => tokens > 0).map(([time]) => s("line", { class: "mark", x1: x(time), x2: x(time), y1: 12, y2: 26 }));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => s("text", { x: share * width, y: 48, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, seconds(share * end)));
  set(picture, { viewBox: `0 0 ${width} 54`, width, height: 54, "aria-label": sentence(request) });
  picture.replaceChildren(
    ...stages(request).map(block),
    ...chunks.map(({ at }) => s("line", { class: "mark", x1: x(at), x2: x(at), y1: 6, y2: 32 })),
    ...marks,
    ...ticks,
  );
  words.replaceChildren(...facts(request).map(([name, value]) => h("span", {}, `${name} `, h("b", {}, value))));
}

function facts(request) {
  const { queue, first, end } = spans(request);
  const computed = request.prompt_tokens - (request.cached_tokens ?? 0);
  const chunks = details.marks.filter(({ kind, at }) => kind === "chunk" && at <= (first ?? end)).length;
  return [
    ["request", shortId(request.rid)],
    ["in the queue", seconds(queue)],
    ["prefill", `${seconds(first === null ? null : first - (queue ?? 0))} for ${counted(computed, "token")}${chunks > 1 ? ` in ${chunks} chunks` : ""}`],
    ["decode", `${seconds(first === null ? null : end - first)} for ${counted(request.completion_tokens, "token")}`],
    ["retracted", `${request.retractions}×`],
  ];
}

const sentence = (request) => `Timeline: ${facts(request).map((fact) => fact.join(" ")).join(", ")}`;

function asTable() {
  const events = [
    ...details.marks.map(({ kind, at, tokens }) => [at, kind === "chunk" ? `a chunk of ${counted(tokens, "token")} goes out` : "its memory is taken back"]),
    ...details.steps.map(([at, tokens]) => [at, `${counted(tokens, "output token")} so far`]),
  ];
  const rows = events.sort((a, b) => a[0] - b[0]).map(([at, what]) => [seconds(at), what]);
  return table("What became of the chosen request", ["Since its start", "What"], rows);
}
