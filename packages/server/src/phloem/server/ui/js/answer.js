// One answer while it comes: its text, its tokens with their probabilities, and its times.

import { get, stream } from "./api.js";

let model; // What the server calls its model, once it was asked.

/** The served model's name. */
export async function modelName() {
  model ??= (await get("v1/models")).data[0].id;
  return model;
}

/** Another server may be there now, or another key: the name is asked for again. */
export const forgetModel = () => (model = undefined);

/** An answer, empty. Times are milliseconds of the page's clock. */
export const newAnswer = () => ({
  text: "",
  reasoning: "",
  tokens: [],
  finish: null,
  usage: null,
  timings: null,
  began: performance.now(),
  first: null,
  last: null,
});

/** Lets a chat's answer to `messages` come into `answer`; calls `changed` after each event. */
export async function chat(answer, messages, fields, signal, changed) {
  const wanted = fields.logprobs ? { ...fields, top_logprobs: 5 } : fields;
  const texts = new TokenTexts();
  for await (const event of events("v1/chat/completions", { ...wanted, messages }, signal)) {
    for (const choice of event.choices ?? []) {
      const delta = choice.delta ?? {};
      note(answer, delta.content || delta.reasoning_content || delta.tool_calls);
      answer.text += delta.content ?? "";
      answer.reasoning += delta.reasoning_content ?? "";
      // What the model thinks is shown apart, as plain text.
      const shown = delta.reasoning_content && !delta.content ? [] : choice.logprobs?.content ?? [];
      for (const token of shown) {
        const top = token.top_logprobs.map((each) => ({ text: each.token, logprob: each.logprob }));
        answer.tokens.push({ text: texts.of(token.bytes), name: token.token, logprob: token.logprob, top });
      }
      answer.finish = choice.finish_reason ?? answer.finish;
    }
    settle(answer, event);
    changed();
  }
}

/** The same for the continuation of a text. */
export async function completion(answer, prompt, fields, signal, changed) {
  const wanted = fields.logprobs ? { ...fields, logprobs: 5 } : fields;
  const texts = new TokenTexts();
  for await (const event of events("v1/completions", { ...wanted, prompt }, signal)) {
    for (const choice of event.choices ?? []) {
      note(answer, choice.text || choice.logprobs?.tokens.length);
      answer.text += choice.text;
      choice.logprobs?.tokens.forEach((name, at) => {
        const top = Object.entries(choice.logprobs.top_logprobs?.[at] ?? {})
          .map(([text, logprob]) => ({ text, logprob }))
          .sort((a, b) => b.logprob - a.logprob)
          .slice(0, 5);
        answer.tokens.push({ text: texts.of(bytesOf(name)), name, logprob: choice.logprobs.token_logprobs[at], top });
      });
      answer.finish = choice.finish_reason ?? answer.finish;
    }
    settle(answer, event);
    changed();
  }
}

async function* events(path, fields, signal) {
  try {
    yield* stream(path, { ...fields, model: await modelName(), stream: true, stream_options: { include_usage: true } }, signal);
  } catch (error) {
    if (error.status === 404) forgetModel();
    throw error;
  }
}

/** Seconds to the first token, and tokens a second after it; null while nobody knows. */
export function pace(answer) {
  if (answer.first === null) return { first: null, rate: null };
  const tokens = answer.usage?.completion_tokens ?? answer.tokens.length;
  const spent = (answer.last - answer.first) / 1000;
  return { first: (answer.first - answer.began) / 1000, rate: tokens > 1 && spent > 0 ? (tokens - 1) / spent : null };
}

function note(answer, something) {
  if (!something) return;
  answer.last = performance.now();
  answer.first ??= answer.last;
}

function settle(answer, event) {
  answer.usage = event.usage ?? answer.usage;
  answer.timings = event.timings ?? answer.timings;
}

/** Texts of tokens of which some are parts of a character: the last part has all of it. */
class TokenTexts {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  of(bytes) {
    return this.#decoder.decode(new Uint8Array(bytes ?? []), { stream: true });
  }
}

/** The bytes of a token of a completion, in which parts of characters look like "bytes:\xf0\x9f". */
function bytesOf(name) {
  const parts = /^bytes:((\\x[0-9a-f]{2})+)$/.exec(name);
  return parts ? parts[1].slice(2).split("\\x").map((part) => parseInt(part, 16)) : new TextEncoder().encode(name);
}
