// The playground: a conversation or a text to continue, one answer at a time.

import { chat, completion, newAnswer } from "./answer.js";
import { constraint, constraintIsBad, makeConstraintEditor } from "./constraint.js";
import { byId, h, say } from "./dom.js";
import { knobs, makeKnobs } from "./knobs.js";
import { preferences } from "./store.js";
import { hideCard, makeCard, makeScale } from "./tokens.js";
import { AnswerTurn, userTurn } from "./turn.js";

const EMPTY = {
  chat: ["Say something", "Answers stream in with the probability of each token. Point at a token, or focus the answer and use the arrow keys, to see what else the model might have said."],
  completion: ["Begin a text", "The model goes on from where your text ends, without a chat template."],
};

let messages = []; // Of the chat, as the API takes them, without the system prompt.
let running = null; // The AbortController of the answer that comes.

/** Makes the playground work. */
export function makePlayground() {
  makeKnobs();
  makeConstraintEditor();
  makeScale();
  makeCard();
  remember("show-logprobs");
  remember("show-cached");
  if (matchMedia("(max-width: 900px)").matches) byId("settings").open = false;
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  byId("stop").addEventListener("click", stop);
  byId("clear").addEventListener("click", clear);
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", clear);
  byId("turns").addEventListener("scroll", hideCard, { passive: true });
  clear();
}

/** Ends the answer that comes, if one does. */
export function stop() {
  running?.abort();
}

/** Answers the last question again. */
export function regenerate() {
  if (running || mode() !== "chat" || !messages.length) return;
  if (messages.at(-1).role === "assistant") messages.pop();
  byId("turns").lastElementChild.remove();
  answerChat();
}

/** Forgets the conversation. */
export function clear() {
  stop();
  hideCard();
  busy(false, "");
  messages = [];
  const chatting = mode() === "chat";
  const [title, text] = EMPTY[mode()];
  byId("turns").replaceChildren(h("div", { class: "empty" }, h("strong", {}, title), text));
  byId("system-field").hidden = !chatting;
  say(byId("clear"), chatting ? "New conversation" : "Clear");
  say(byId("message-label"), chatting ? "Message" : "Text to continue");
  byId("message").placeholder = chatting ? "Write a message. Ctrl+Enter sends it." : "Write the beginning of a text. Ctrl+Enter continues it.";
}

const mode = () => document.querySelector("input[name=mode]:checked").value;

function remember(id) {
  const box = byId(id);
  box.checked = preferences.get(id) !== "off";
  box.addEventListener("change", () => preferences.set(id, box.checked ? "on" : "off"));
}

function send() {
  const text = byId("message").value;
  if (running || !text.trim()) return;
  byId("turns").querySelector(".empty")?.remove();
  if (mode() === "completion") {
    answerCompletion(text);
    return;
  }
  byId("message").value = "";
  if (messages.at(-1)?.role === "user") messages.pop(); // Its answer failed.
  messages.push({ role: "user", content: text });
  byId("turns").append(userTurn("You", text));
  answerChat();
}

async function answerChat() {
  const system = byId("system").value.trim();
  const asked = system ? [{ role: "system", content: system }, ...messages] : [...messages];
  const turn = new AnswerTurn("Model", { Regenerate: regenerate, Copy: () => copy(answer.text) });
  const answer = newAnswer();
  const came = await run(turn, answer, { messages: asked }, (...rest) => chat(answer, asked, ...rest));
  if (came) messages.push({ role: "assistant", content: answer.text });
}

async function answerCompletion(prompt) {
  const turn = new AnswerTurn("Continuation", { Copy: () => copy(prompt + answer.text) });
  const answer = newAnswer();
  byId("turns").append(userTurn("Text", prompt));
  await run(turn, answer, { prompt }, (...rest) => completion(answer, prompt, ...rest));
}

/** Shows an answer while `work` lets it come; whether there is one that is still wanted. */
async function run(turn, answer, asked, work) {
  const mine = new AbortController();
  const wanted = () => running === mine; // Else the conversation was left: nothing more is shown.
  running = mine;
  const turns = byId("turns");
  turns.append(turn.element);
  turns.scrollTop = turns.scrollHeight;
  busy(true, "Waiting for the first token …");
  try {
    if (constraintIsBad()) throw new Error("The constraint is refused: see what is said below it.");
    const fields = { ...knobs(), ...constraint(), ...(byId("show-logprobs").checked ? { logprobs: true } : {}) };
    await work(fields, mine.signal, eachFrame(wanted, () => {
      const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 80;
      turn.update(answer);
      if (answer.first !== null) say(byId("composer-state"), "Answering …");
      if (follows) turns.scrollTop = turns.scrollHeight;
    }));
  } catch (error) {
    if (!wanted()) return false;
    turn.update(answer);
    if (error.name !== "AbortError") {
      turn.fail(error.message);
      busy(false, "The request failed.");
      return Boolean(answer.text);
    }
    answer.finish = "stopped";
  }
  if (!wanted()) return false;
  turn.update(answer);
  turn.finish(answer, asked, byId("show-cached").checked);
  turns.scrollTop = turns.scrollHeight;
  busy(false, answer.finish === "stopped" ? "Stopped." : "Done.");
  say(byId("announcer"), `Answer: ${answer.text}`);
  return true;
}

/** `work`, at most once a frame and while the answer comes: more events come than can be drawn. */
function eachFrame(wanted, work) {
  let due = 0;
  return () => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      if (wanted()) work();
    });
  };
}

function busy(is, words) {
  if (!is) running = null;
  byId("stop").hidden = !is;
  byId("send").hidden = is;
  say(byId("composer-state"), words);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(byId("composer-state"), "Copied.");
  } catch {
    say(byId("composer-state"), "The browser does not allow copying here.");
  }
}
