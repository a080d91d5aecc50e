// The sampling parameters: their fields, and what of them goes into a request.

import { byId, h } from "./dom.js";

const KNOBS = [
  { name: "temperature", label: "Temperature", min: 0, step: 0.1 },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", min: -1, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "seed", label: "Seed", step: 1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0, step: 0.05 },
];

/** Makes the fields. */
export function makeKnobs() {
  byId("knobs").append(
    ...KNOBS.map(({ name, label, min, max, step }) =>
      h(
        "div",
        { class: "field" },
        h("label", { for: `knob-${name}` }, label),
        h("input", { id: `knob-${name}`, type: "number", min, max, step, placeholder: "default", inputmode: "decimal" }),
      ),
    ),
  );
  byId("reset-knobs").addEventListener("click", () => {
    for (const { name } of KNOBS) byId(`knob-${name}`).value = "";
    byId("stop-strings").value = "";
  });
}

/** The fields of a request; what is left empty is the server's to choose. */
export function knobs() {
  const given = {};
  for (const { name } of KNOBS) {
    const value = byId(`knob-${name}`).valueAsNumber;
    if (!Number.isNaN(value)) given[name] = value;
  }
  const stops = byId("stop-strings").value.split("\n").filter(Boolean);
  return stops.length ? { ...given, stop: stops } : given;
}
