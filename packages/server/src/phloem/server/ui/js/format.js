// Numbers as people read them.

const whole = new Intl.NumberFormat("en");

/** 12345 as "12,345". */
export const count = (value) => whole.format(Math.round(value));

/** 1 as "1 token", 2 as "2 tokens". */
export const counted = (value, what) => `${count(value)} ${plural(value, what)}`;

/** The word for that many. */
export const plural = (value, what) => (value === 1 ? what : `${what}s`);

/** Words with a full stop behind them. */
export const sentence = (words) => (/[.!?]$/.test(words) ? words : `${words}.`);

/** 12345 as "12.3 k", for where there is little room. */
export function short(value) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (value >= size) return trim(value / (size === 1e4 ? 1e3 : size)) + unit;
  }
  return count(value);
}

/** Seconds as "850 µs", "12 ms", "3.4 s" or "2 min". */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${trim(value * 1000)} ms`;
  return value < 120 ? `${trim(value)} s` : `${Math.round(value / 60)} min`;
}

/** A share as "87 %". */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value > 0 && value < 1 ? "<1" : value < 100 && value > 99 ? ">99" : Math.round(value)} %`;
}

/** A token with what cannot be seen of it made visible. */
export const visible = (text) =>
  text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(empty)";

function trim(value) {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(value < 10 ? 2 : 3)));
}
