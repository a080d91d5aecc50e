// One turn of the playground on the page: who speaks, the text, what it took, what can be done.

import { pace } from "./answer.js";
import { h, say } from "./dom.js";
import { count, seconds } from "./format.js";
import { promptView } from "./prompt.js";
import { TokenList } from "./tokens.js";

const WHY = {
  stop: "ended by itself",
  length: "reached its limit of tokens",
  tool_calls: "calls a tool",
  stopped: "stopped by you",
};

/** What somebody wrote. */
export function userTurn(who, text) {
  return h("article", { class: "turn user", "aria-label": who }, h("h3", {}, who), h("div", { class: "text" }, text));
}

/** An answer, which `update` brings up to date; `actions` are `{label: function}`. */
export class AnswerTurn {
  #text = h("div", { class: "text" });
  #reasoning = h("details", { class: "reasoning", hidden: true, open: true }, h("summary", {}, "Reasoning"), h("div", { class: "text" }));
  #facts = h("div", { class: "facts numbers" });
  #below = h("div");
  #tokens = null;

  constructor(who, actions) {
    this.actions = h("span", { class: "actions" }, Object.entries(actions).map(([label, onclick]) =>
      h("button", { type: "button", class: "quiet", onclick }, label)));
    this.element = h("article", { class: "turn answer running", "aria-label": who },
      h("h3", {}, who), this.#reasoning, this.#text, this.#facts, this.#below);
  }

  /** Shows more of the answer, by its tokens where there are any. */
  update(answer) {
    this.#reasoning.hidden = !answer.reasoning;
    say(this.#reasoning.lastChild, answer.reasoning);
    if (!answer.tokens.length) {
      say(this.#text, answer.text);
    } else {
      if (!this.#tokens) {
        this.#tokens = new TokenList();
        this.#text.replaceChildren(this.#tokens.element);
      }
      this.#tokens.update(answer.tokens, answer.text);
    }
    this.#showFacts(answer, false);
  }

  /** Shows that it ended, and for which prompt; `shading` says whether what was cached is shown. */
  finish(answer, asked, shading) {
    this.element.classList.remove("running");
    this.#showFacts(answer, true);
    if (answer.usage && shading) this.#below.replaceChildren(promptView(answer.usage, asked));
  }

  /** Shows that it failed. */
  fail(message) {
    this.element.classList.remove("running");
    this.#below.replaceChildren(h("p", { class: "error" }, message));
    this.#facts.replaceChildren(this.actions);
  }

  #showFacts(answer, over) {
    const { first, rate } = pace(answer);
    const tokens = answer.usage?.completion_tokens ?? answer.tokens.length;
    const facts = [
      fact("first token", first === null ? null : seconds(first)),
      fact("tokens/s", rate === null ? null : count(rate)),
      fact("tokens", tokens ? count(tokens) : null),
      answer.timings?.queue_ms > 1 ? fact("in the queue", seconds(answer.timings.queue_ms / 1000)) : null,
      over && answer.finish ? h("span", {}, WHY[answer.finish] ?? answer.finish) : null,
      over ? this.actions : null,
    ];
    this.#facts.replaceChildren(...facts.filter(Boolean));
  }
}

const fact = (name, value) => (value === null ? null : h("span", {}, h("b", {}, value), ` ${name}`));
