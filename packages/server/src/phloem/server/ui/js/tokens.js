// The tokens of an answer in the colours of their probabilities, and a card with the alternatives.
//
// It is one stop for the keyboard: within it the arrows go from token to token.

import { byId, h, say } from "./dom.js";
import { percent, visible } from "./format.js";

const BOUNDS = [0.1, 0.4, 0.7, 0.95]; // Of the five colours.
const CARD_GAP = 8;

let number = 0;
let hiding = 0;

/** The colours and what they mean. */
export function makeScale() {
  const names = ["<10 %", "10", "40", "70", ">95 %"];
  byId("probability-scale").append(...names.map((name, at) => h("span", { class: `token p${at}` }, name)));
}

/** A list of tokens that can grow. */
export class TokenList {
  #id = `tokens-${++number}`;
  #tokens = [];
  #at = -1;
  #settled = 0; // So many tokens are in the answer's text as a whole,
  #length = 0; // and so long are they.

  constructor() {
    this.element = h("div", {
      class: "tokens",
      role: "listbox",
      tabindex: 0,
      "aria-label": "Tokens of the answer: arrows go from one to the next",
      onkeydown: (event) => this.#key(event),
      onpointerover: (event) => this.#hover(event.target.closest(".token")),
      onpointerleave: leaveCard,
      onblur: () => this.#leave(),
    });
  }

  /** Shows what of `tokens` is not shown yet; what is not in the `text` of the answer, as such. */
  update(tokens, text) {
    const fresh = tokens.slice(this.#tokens.length).map((token, at) => this.#element(token, this.#tokens.length + at));
    this.#tokens.push(...tokens.slice(this.#tokens.length));
    this.element.append(...fresh);
    this.#compare(text);
  }

  /** Sets apart what the answer leaves out, such as a stop string; while it comes, more may follow. */
  #compare(text) {
    let whole = true; // Up to here.
    let length = this.#length;
    for (let at = this.#settled; at < this.#tokens.length; at++) {
      const token = this.#tokens[at].text;
      const rest = text.slice(length, length + token.length);
      // The last token may be in it in part; and a text begins without the space of its first one.
      const trimmed = length === 0 && !text.startsWith(token) && text.startsWith(token.trimStart());
      const shown = trimmed ? token.length : token.startsWith(rest) ? rest.length : 0;
      length += trimmed ? token.trimStart().length : shown;
      divide(this.element.children[at], token, shown);
      whole &&= shown === token.length;
      if (whole) [this.#settled, this.#length] = [at + 1, length];
    }
  }

  #element(token, at) {
    const chance = Math.exp(token.logprob ?? 0);
    const bucket = BOUNDS.filter((bound) => chance >= bound).length;
    return h(
      "span",
      {
        class: `token p${bucket}`,
        role: "option",
        id: `${this.#id}-${at}`,
        "aria-selected": "false",
        "aria-label": `${visible(token.name)}, ${percent(chance)}`,
        "data-at": at,
      },
    );
  }

  #hover(element) {
    if (element) showCard(element, this.#tokens[Number(element.dataset.at)]);
  }

  #key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape" && !byId("card").hidden) {
      this.#leave();
      event.stopPropagation();
    } else if (moves[event.key] !== undefined && this.#tokens.length) {
      event.preventDefault();
      this.#go(Math.max(0, Math.min(this.#tokens.length - 1, this.#at + moves[event.key])));
    }
  }

  #go(at) {
    this.#unmark();
    this.#at = at;
    const element = this.element.children[at];
    element.classList.add("current");
    element.setAttribute("aria-selected", "true");
    element.scrollIntoView({ block: "nearest" });
    this.element.setAttribute("aria-activedescendant", element.id);
    showCard(element, this.#tokens[at]);
    const others = this.#tokens[at].top.map((each) => `${visible(each.text)} ${percent(Math.exp(each.logprob))}`);
    say(byId("announcer"), `Likeliest here: ${others.join(", ")}`);
  }

  #unmark() {
    const before = this.element.children[this.#at];
    before?.classList.remove("current");
    before?.setAttribute("aria-selected", "false");
  }

  #leave() {
    this.#unmark();
    hideCard();
  }
}

/** Shows the first `shown` characters of a token as text, the others as no part of it. */
function divide(element, token, shown) {
  const rest = token.slice(shown);
  element.replaceChildren(token.slice(0, shown), ...(rest ? [h("span", { class: "special", title: "not part of the answer" }, rest)] : []));
}

function showCard(element, token) {
  clearTimeout(hiding);
  const card = byId("card");
  const rows = token.top.some((each) => each.text === token.name)
    ? token.top
    : [...token.top, { text: token.name, logprob: token.logprob }];
  card.replaceChildren(
    h("h4", {}, visible(token.name)),
    h("table", {}, h("tbody", {}, rows.map((each) => alternative(each, each.text === token.name)))),
  );
  card.hidden = false;
  place(card, element.getClientRects()[0] ?? element.getBoundingClientRect());
}

function alternative({ text, logprob }, chosen) {
  const chance = Math.exp(logprob ?? 0);
  const bar = h("i");
  bar.style.width = `${chance * 100}%`;
  return h(
    "tr",
    { class: chosen ? "chosen" : null },
    h("td", {}, visible(text)),
    h("td", {}, h("div", { class: "meter" }, bar)),
    h("td", {}, percent(chance)),
  );
}

function place(card, box) {
  const { offsetWidth: width, offsetHeight: height } = card;
  const left = Math.max(CARD_GAP, Math.min(box.left, innerWidth - width - CARD_GAP));
  const below = box.bottom + 4;
  card.style.left = `${left}px`;
  card.style.top = `${below + height > innerHeight ? Math.max(CARD_GAP, box.top - height - 4) : below}px`;
}

/** The card goes soon, unless the pointer comes onto it. */
function leaveCard() {
  clearTimeout(hiding);
  hiding = setTimeout(hideCard, 250);
}

/** The card goes. */
export function hideCard() {
  clearTimeout(hiding);
  byId("card").hidden = true;
}

/** The card stays while the pointer is on it. */
export function makeCard() {
  byId("card").addEventListener("pointerenter", () => clearTimeout(hiding));
  byId("card").addEventListener("pointerleave", leaveCard);
}
