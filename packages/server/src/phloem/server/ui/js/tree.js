// The prefix tree as a picture that is kept up to date; one stop for the keyboard, the arrows go
// from node to node.

import { get } from "./api.js";
import { byId, foldedTable, h, s, say, set, table } from "./dom.js";
import { count, counted, seconds, short } from "./format.js";
import { layOut } from "./treelayout.js";

const HEATS = [["over 10 min", 600], ["10 min", 60], ["1 min", 10], ["10 s", 2], ["2 s", -1]];
const HEIGHT = 330;
export const NO_TREE = { namespaces: [], nodes: 0, spaces: 0, policy: "" };
const TEXT_FROM = 34; // Pixels of width from which a node's tokens are written into it.

const picture = s("svg", { class: "icicle", role: "tree", tabindex: 0, "aria-label": "Prefix tree" });
const labels = s("g", { "aria-hidden": "true" });
const shapes = s("g");
const marker = s("rect", { class: "marker", "aria-hidden": "true" });
const detail = h("div", { class: "node-detail", "aria-live": "off" });
const empty = h("p", { class: "muted" });
const folded = h("p", { class: "muted small" });
const listing = foldedTable("The tree as a table", () => asTable());
const drawn = new Map(); // Elements of nodes, by id.

let shown = null; // The last tree.
let boxes = []; // Its nodes as laid out.
let chosen = null; // The id of the node that is looked at.

/** Makes the picture work. */
export function makeTree() {
  picture.append(labels, shapes, marker);
  byId("tree").append(legend(), empty, picture, folded, detail, listing.element);
  picture.addEventListener("keydown", onKey);
  picture.addEventListener("focus", () => chosen ?? choose(boxes[0]?.id));
  shapes.addEventListener("click", (event) => choose(event.target.closest("[data-id]")?.dataset.id));
  byId("tree-scale").addEventListener("change", () => shown && showTree(shown));
  new ResizeObserver(() => shown && draw()).observe(byId("tree"));
  describe();
}

/** Shows a tree as the server describes it; null: nothing is cached here at all. */
export function showTree(tree) {
  shown = tree ?? NO_TREE;
  draw();
  describe();
  listing.refresh();
}

function draw() {
  const width = byId("tree").clientWidth;
  const layout = layOut(shown.namespaces, width, HEIGHT, byId("tree-scale").value === "root");
  boxes = layout.boxes;
  const size = `${counted(shown.nodes, "node")}, ${counted(shown.spaces, "namespace")}, evicts ${shown.policy}`;
  say(byId("tree-size"), shown.policy ? size + (boxes.length < shown.nodes ? `; the heaviest ${boxes.length} shown` : "") : "");
  say(empty, shown.policy ? "Nothing is cached yet: the tree grows with the first request." : "Prefixes are not cached here.");
  empty.hidden = boxes.length > 0;
  picture.classList.toggle("bare", !boxes.length);
  set(picture, { viewBox: `0 0 ${width} ${layout.height}`, width, height: layout.height });
  labels.replaceChildren(...layout.spaces.map(({ name, y }) =>
    s("text", { x: 0, y, class: "space" }, name ? `namespace ${name}` : "default namespace")));
  const { namespaces, tokens } = layout.folded;
  say(folded, namespaces ? `and ${counted(namespaces, "lighter namespace")} with ${counted(tokens, "token")}` : "");
  const gone = new Set(drawn.keys());
  for (const box of boxes) {
    gone.delete(box.id);
    paint(box);
  }
  for (const id of gone) {
    drawn.get(id).remove();
    drawn.delete(id);
  }
  if (chosen && !drawn.has(chosen)) choose(null);
}

function paint(box) {
  let node = drawn.get(box.id);
  if (!node) {
    node = s("g", { "data-id": box.id, role: "treeitem", id: `node-${box.id}` }, s("title"), s("rect"), s("text", { "aria-hidden": "true" }));
    drawn.set(box.id, node);
    shapes.append(node);
  }
  const [title, shape, text] = node.children;
  const kinds = [`heat-${heat(box.idle)}`, box.locks ? "locked" : "", box.on_device ? "" : "host", box.retained ? "retained" : ""];
  set(node, { "aria-label": sentence(box), "aria-level": box.level, "aria-selected": box.id === chosen ? "true" : "false" });
  set(node, { class: kinds.filter(Boolean).join(" ") });
  say(title, sentence(box));
  // A pixel in from each side, so that the lines around neighbours do not meet.
  set(shape, inset(box, 1));
  if (box.id === chosen) set(marker, inset(box, 0));
  const fits = box.width > TEXT_FROM && box.height > 12;
  set(text, { x: box.x + 6, y: box.y + box.height / 2 });
  say(text, fits ? (box.locks ? "● " : "") + short(box.tokens) : "");
}

const inset = (box, by) => ({ x: box.x + by, y: box.y + by, width: Math.max(box.width - 2 * by, 1), height: Math.max(box.height - 2 * by, 1), rx: 2 });
const heat = (idle) => HEATS.findIndex(([, from]) => idle >= from);

function sentence(node) {
  const kept = [node.locks ? `in use by ${node.locks}` : "", node.on_device ? "" : "on the host only", node.retained ? "retained" : ""];
  return [
    `${counted(node.tokens, "token")} at ${count(node.start)} to ${count(node.end)}`,
    `used ${seconds(node.idle)} ago`,
    counted(node.hits, "hit"),
    node.children ? `${count(node.children)} below` : "",
    ...kept,
  ].filter(Boolean).join(", ");
}

function choose(id) {
  const before = chosen && drawn.get(chosen);
  if (before) set(before, { "aria-selected": "false" });
  chosen = id ?? null;
  const now = chosen && drawn.get(chosen);
  if (now) set(now, { "aria-selected": "true" });
  const box = boxes.find((each) => each.id === chosen);
  marker.style.visibility = box ? "visible" : "hidden";
  if (box) set(marker, inset(box, 0));
  set(picture, { "aria-activedescendant": now ? now.id : null });
  detail.replaceChildren();
  describe();
}

function describe() {
  const box = boxes.find((each) => each.id === chosen);
  if (!box) {
    if (!detail.querySelector(".hint")) detail.replaceChildren(h("p", { class: "muted hint" }, "Choose a node to see more of it."));
    return;
  }
  if (!detail.querySelector(".words")) {
    const text = h("div");
    const ask = h("button", { type: "button", class: "small", onclick: () => showText(text, chosen) }, "Show its text");
    detail.replaceChildren(h("div", { class: "node-line" }, h("p", { class: "words numbers" }), ask), text);
  }
  say(detail.querySelector(".words"), `${box.namespace ? `Namespace ${box.namespace}` : "Default namespace"}: ${sentence(box)}.`);
}

async function showText(place, id) {
  try {
    const { text, tokens } = await get(`ui/api/node?id=${encodeURIComponent(id)}`);
    const body = text === null ? h("p", { class: "muted" }, "It has left the tree.") : h("pre", { tabindex: 0, role: "region", "aria-label": `Text of the node's first ${tokens} tokens` }, text);
    if (id === chosen) place.replaceChildren(body);
  } catch (error) {
    place.replaceChildren(h("p", { class: "error" }, error.message));
  }
}

function onKey(event) {
  const at = boxes.findIndex((each) => each.id === chosen);
  const here = boxes[at];
  const moves = {
    ArrowDown: () => boxes.slice(at + 1).find((each) => each.y > (here?.y ?? -1)) ?? boxes[at + 1],
    ArrowUp: () => boxes[at - 1],
    ArrowRight: () => (boxes[at + 1]?.level > here?.level ? boxes[at + 1] : here),
    ArrowLeft: () => boxes.slice(0, Math.max(at, 0)).findLast((each) => each.level < here.level) ?? here,
    Home: () => boxes[0],
    End: () => boxes.at(-1),
  };
  if (event.key === "Enter" && here) detail.querySelector("button").click();
  else if (!moves[event.key]) return;
  else choose((moves[event.key]() ?? here)?.id);
  event.preventDefault();
}

function legend() {
  const heats = HEATS.map(([name], at) => h("span", {}, h("i", { class: `swatch heat-${at}` }), name));
  const marks = [["locked", "in use"], ["retained", "retained"], ["host", "host only"]];
  return h("div", { class: "legend" }, h("span", {}, "Last used within"), heats.reverse(),
    marks.map(([kind, name]) => h("span", {}, h("i", { class: `swatch ${kind}` }), name)));
}

function asTable() {
  const heads = ["Namespace", "From", "To", "Tokens", "With those below", "Idle", "Hits", "Locks", "Where"];
  const rows = boxes.map((box) => [box.namespace || "default", count(box.start), count(box.end), count(box.tokens),
    count(box.carried), seconds(box.idle), count(box.hits), box.locks, box.on_device ? "device" : "host"]);
  return table("Nodes of the prefix tree", heads, rows);
}
