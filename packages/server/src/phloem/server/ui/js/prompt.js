// How much of a prompt came from the cache: a bar, and over the prompt's own tokens where the server
// tells them.

import { post } from "./api.js";
import { h } from "./dom.js";
import { count, percent, plural, sentence } from "./format.js";

const MOST_SHOWN = 4000; // Tokens that were computed.

/** A picture of an answer's prompt; `asked` is `{prompt}` or `{messages}`. */
export function promptView(usage, asked) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const all = usage.prompt_tokens;
  const fill = h("i");
  fill.style.width = `${all ? (cached / all) * 100 : 0}%`;
  const words = h("span", {}, "prompt ", h("b", {}, count(all)), ` ${plural(all, "token")}, ${count(cached)} cached (${percent(all ? cached / all : 0)})`);
  const bar = h("div", { class: "prompt-bar" }, h("div", { class: "track", "aria-hidden": "true" }, fill), words);
  const body = h("div");
  const details = h("details", {}, h("summary", {}, "Show it on the prompt"), body);
  details.addEventListener("toggle", () => details.open && !body.firstChild && fillIn(body, asked, cached));
  return h("div", { class: "prompt" }, bar, details);
}

async function fillIn(body, asked, cached) {
  body.replaceChildren(h("p", { class: "muted" }, "Asking for its tokens …"));
  try {
    const [fromCache, computed] = await partsOf(asked, cached);
    body.replaceChildren(
      h("pre", { tabindex: 0, role: "region", "aria-label": "The prompt as the model sees it" },
        part("cached", fromCache), part("computed", computed)),
      h("p", { class: "muted small" }, "Underlined: came from the cache. The rest was computed for this answer."),
    );
  } catch (error) {
    const reason = error.status === 404 ? "this server does not tell the tokens of a prompt" : error.message;
    body.replaceChildren(h("p", { class: "muted" }, `Not to be had: ${sentence(reason)}`));
  }
}

const part = (kind, text) => (text ? h("span", { class: kind }, text) : null);

/** The texts of a prompt's first `cached` tokens, and of those behind them. */
async function partsOf(asked, cached) {
  const { tokens } = await post("tokenize", asked);
  const parts = [tokens.slice(0, cached), tokens.slice(cached, cached + MOST_SHOWN)];
  const { text } = await post("detokenize", { tokens: parts, skip_special_tokens: false });
  return tokens.length > cached + MOST_SHOWN ? [text[0], `${text[1]} …`] : text;
}
