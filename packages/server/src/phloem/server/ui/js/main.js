// The frame of the page: its two views, the theme, the key, and the keyboard.

import { forgetModel, modelName } from "./answer.js";
import { get } from "./api.js";
import { byId, h, say } from "./dom.js";
import { hideOperations, makeOperations, showOperations } from "./operations.js";
import { clear, makePlayground, regenerate, stop } from "./playground.js";
import { apiKey, preferences, setApiKey } from "./store.js";

const PERIOD = 4000; // Milliseconds between two looks at the server, while the page is visible.
const PATIENCE = 3000; // The same, for its answer.
const THEMES = ["system", "light", "dark"];
const SHORTCUTS = [
  ["Ctrl+Enter", "send the message"],
  ["Esc", "stop the answer"],
  ["/", "go to the message"],
  ["r", "answer again"],
  ["n", "new conversation"],
  ["p", "playground"],
  ["o", "operations"],
  ["t", "light or dark"],
  ["?", "this help"],
  ["← → ↑ ↓", "within an answer or the tree: from token to token, from node to node"],
];
const LETTERS = {
  "/": () => byId("message").focus(),
  r: regenerate,
  n: clear,
  p: () => (location.hash = "playground"),
  o: () => (location.hash = "operations"),
  t: nextTheme,
  "?": () => byId("help").showModal(),
};

let looking = 0; // The timer of the next look,
let looks = 0; // and how many there were.

const theme = () => preferences.get("theme") ?? "system";

function applyTheme() {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  byId("theme").replaceChildren(h("span", { class: "wide" }, "Theme: "), chosen);
  byId("theme").setAttribute("aria-label", `Theme: ${chosen}`);
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  preferences.set("theme", next === "system" ? null : next);
  applyTheme();
}

function showView() {
  const view = location.hash === "#operations" ? "operations" : "playground";
  for (const section of document.querySelectorAll("section.view")) section.hidden = section.id !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view === "operations" ? "Operations · Phloem" : "Phloem";
  if (view === "operations") showOperations();
  else hideOperations();
}

function makeKeyDialog() {
  const label = () => say(byId("open-key"), apiKey() ? "API key set" : "API key");
  byId("open-key").addEventListener("click", () => {
    byId("key-value").value = apiKey();
    byId("key").showModal();
  });
  byId("key").addEventListener("close", () => {
    const { returnValue } = byId("key");
    if (returnValue === "use") setApiKey(byId("key-value").value.trim());
    if (returnValue === "forget") setApiKey("");
    byId("key").returnValue = "";
    byId("key-value").value = "";
    say(byId("key-state"), "");
    label();
    forgetModel();
    look();
    showView();
  });
  const use = (event) => {
    event.preventDefault();
    // A header has no other characters.
    if (/^[!-~]*$/.test(byId("key-value").value.trim())) byId("key").close("use");
    else say(byId("key-state"), "A key has only ASCII characters, and no spaces.");
  };
  byId("key-use").addEventListener("click", use);
  // Enter in the field uses the key, though "Forget" is the first button.
  byId("key-value").addEventListener("keydown", (event) => event.key === "Enter" && use(event));
  label();
}

function makeHelp() {
  byId("shortcuts").append(...SHORTCUTS.flatMap(([keys, what]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)]));
  byId("open-help").addEventListener("click", () => byId("help").showModal());
  byId("letters").checked = preferences.get("letters") !== "off";
  byId("letters").addEventListener("change", () => preferences.set("letters", byId("letters").checked ? "on" : "off"));
}

function onKey(event) {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    stop();
    return;
  }
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
  const writing = event.target.matches("input:not([type=radio], [type=checkbox]), textarea, select");
  const work = LETTERS[event.key];
  if (work && plain && !writing && byId("letters").checked) {
    event.preventDefault();
    work();
  }
}

/** Shows how the server is and what its model is called, now and from time to time. */
async function look() {
  clearTimeout(looking);
  const mine = ++looks;
  let words = "ready";
  let why = "";
  try {
    await get("ready", AbortSignal.timeout(PATIENCE));
    const name = await modelName();
    say(byId("model"), name);
    byId("model").title = name;
  } catch (error) {
    words = error.status === 401 ? "needs a key" : error.status ? "not ready" : "not reachable";
    why = error.message;
    if (!error.status) forgetModel();
  }
  if (mine !== looks) return;
  say(byId("health"), words);
  byId("health").title = why;
  byId("health").classList.toggle("down", words !== "ready");
  if (!document.hidden) looking = setTimeout(look, PERIOD);
}

applyTheme();
makePlayground();
makeOperations();
makeKeyDialog();
makeHelp();
byId("theme").addEventListener("click", nextTheme);
document.addEventListener("keydown", onKey);
addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", () => document.hidden || look());
showView();
look();
