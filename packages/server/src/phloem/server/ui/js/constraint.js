// The constraint's editor: what an answer must match, checked by the server while it is written.

import { ApiError, post } from "./api.js";
import { byId } from "./dom.js";
import { seconds } from "./format.js";

const PAUSE = 350; // Milliseconds without typing after which it is checked.
const EXAMPLES = {
  json_schema: JSON.stringify(
    {
      type: "object",
      properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
      required: ["name", "age"],
      additionalProperties: false,
    },
    null,
    2,
  ),
  regex: "(yes|no), because [a-z ]{3,40}\\.",
};

let timer = 0;
let running = new AbortController();
let verdict = null; // Of the last check: null while there is none, else whether it is good.
const drafts = { ...EXAMPLES };

/** Makes the editor work. */
export function makeConstraintEditor() {
  byId("constraint-kind").addEventListener("change", () => {
    const kind = byId("constraint-kind").value;
    byId("constraint-field").hidden = !kind;
    byId("constraint").value = drafts[kind] ?? "";
    check();
  });
  byId("constraint").addEventListener("input", () => {
    drafts[byId("constraint-kind").value] = byId("constraint").value;
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  });
}

/**
 * The fields of a request.
 *
 * @throws {SyntaxError} the schema is no JSON; it is shown at the editor.
 */
export function constraint() {
  const kind = byId("constraint-kind").value;
  const text = byId("constraint").value;
  if (!kind) return {};
  return kind === "regex" ? { regex: text } : { response_format: asFormat(parsed(text)) };
}

/** Whether the server has said that it cannot enforce what is in the editor. */
export const constraintIsBad = () => byId("constraint-kind").value !== "" && verdict === false;

const asFormat = (schema) => ({ type: "json_schema", json_schema: { name: "answer", schema } });

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    show(false, `This is no JSON: ${error.message}`);
    throw error;
  }
}

async function check() {
  clearTimeout(timer);
  running.abort();
  running = new AbortController();
  const { signal } = running;
  verdict = null;
  const kind = byId("constraint-kind").value;
  if (!kind) return;
  show(null, "Checking …");
  try {
    const fields = constraint();
    const began = performance.now();
    const report = await post("v1/grammar/check", fields, signal);
    show(...described(report, performance.now() - began));
  } catch (error) {
    if (error instanceof ApiError) show(error.status >= 500 || !error.status ? null : false, error.message);
  }
}

function described(report, milliseconds) {
  if (report.supported) return [true, `The server enforces this (checked in ${seconds(milliseconds / 1000)}).`];
  const reasons = report.backends.map((each) => {
    const where = each.pointer ? `At ${each.pointer}: ` : "";
    return `${each.backend}: ${where}${each.message}`;
  });
  return [false, ["The server cannot enforce this.", ...reasons].join("\n")];
}

function show(good, text) {
  verdict = good;
  const state = byId("constraint-state");
  state.textContent = text;
  state.className = `verdict ${good === null ? "" : good ? "good" : "bad"}`;
  if (good === false) byId("constraint").setAttribute("aria-invalid", "true");
  else byId("constraint").removeAttribute("aria-invalid");
}
