// Small pictures of numbers: tiles with a line, a bar of parts, a histogram. Each has its table.

import { foldedTable, h, s, say, set, table } from "./dom.js";
import { count, percent, seconds, short } from "./format.js";

/** A number with a name and, if wanted, a line of its last values. */
export class Tile {
  #value = h("dd", { class: "numbers" });
  #note = h("dd", { class: "muted numbers" });
  #line = s("polyline");
  #values = [];

  constructor(name, { lined = false } = {}) {
    const line = s("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this.#line);
    this.element = h("dl", { class: "tile" }, h("dt", {}, name), this.#value, this.#note, lined ? h("dd", { class: "line", "aria-hidden": "true" }, line) : null);
  }

  show(value, note = "", point = null) {
    say(this.#value, value);
    say(this.#note, note);
    if (point === null) return;
    this.#values = [...this.#values, point].slice(-60);
    const most = Math.max(1e-9, ...this.#values);
    const step = 100 / Math.max(this.#values.length - 1, 15);
    const points = this.#values.map((each, at) => `${at * step},${22 - (each / most) * 20}`);
    set(this.#line, { points: points.join(" ") });
  }
}

/** Parts of a whole, as one bar and a list. */
export class PartsBar {
  #bar = h("div", { class: "parts", "aria-hidden": "true" });
  #list = h("dl", { class: "parts-list numbers" });

  /** `parts` are `[key, name, what it is]`. */
  constructor(parts) {
    this.parts = parts.map(([key, name, what]) => {
      const segment = h("i", { class: `part-${key}` });
      const value = h("dd");
      this.#bar.append(segment);
      this.#list.append(h("div", { title: what }, h("dt", {}, h("i", { class: `swatch part-${key}` }), name), value));
      return { key, segment, value };
    });
    this.element = h("div", {}, this.#bar, this.#list);
  }

  show(values) {
    for (const { key, segment, value } of this.parts) {
      const share = values.total ? values[key] / values.total : 0;
      segment.style.flexGrow = String(share);
      segment.hidden = !values[key];
      say(value, `${count(values[key])} (${percent(share)})`);
    }
  }
}

/** Counts by ranges of time. Ranges at both ends in which nothing fell are left out. */
export class Histogram {
  #picture = s("svg", { class: "histogram", role: "img" });
  #facts = h("p", { class: "facts numbers" });
  #data = { bounds: [], counts: [] };
  #table;

  constructor(name) {
    this.name = name;
    this.#table = foldedTable("As a table", () => this.#asTable());
    this.element = h("div", {}, this.#facts, this.#picture, this.#table.element);
  }

  show(data) {
    this.#data = data;
    const { bounds, counts } = data;
    const all = counts.reduce((sum, each) => sum + each, 0);
    const quantiles = [0.5, 0.95, 0.99].map((share) => h("span", {}, h("b", {}, all ? under(data, share * all) : "–"), ` p${share * 100}`));
    this.#facts.replaceChildren(...quantiles, h("span", {}, h("b", {}, count(all)), " measured"));
    this.#draw(bounds, counts, all);
    this.#table.refresh();
  }

  #draw(bounds, counts, all) {
    const first = Math.max(0, counts.findIndex((each) => each > 0) - 1);
    const last = Math.min(counts.length - 1, counts.findLastIndex((each) => each > 0) + 1);
    const shown = all ? counts.slice(first, last + 1) : counts.slice(0, 8);
    const most = Math.max(1, ...shown);
    const step = 100 / shown.length;
    const every = Math.ceil((shown.length * 50) / (this.#picture.clientWidth || 400));
    const bars = shown.flatMap((each, at) => {
      const high = each ? Math.max((each / most) * 62, 1) : 0;
      const bound = bounds[first + at];
      return [
        s("rect", { x: `${at * step + 0.6}%`, y: 74 - high, width: `${step - 1.2}%`, height: high, rx: 1.5 }),
        each ? s("text", { x: `${(at + 0.5) * step}%`, y: 70 - high, class: "top" }, short(each)) : null,
        bound === undefined || (at + 1) % every || at === shown.length - 1 ? null : s("text", { x: `${(at + 1) * step}%`, y: 90 }, seconds(bound)),
      ];
    });
    this.#picture.replaceChildren(s("line", { x1: 0, x2: "100%", y1: 74.5, y2: 74.5 }), ...bars.filter(Boolean));
    set(this.#picture, { "aria-label": all ? `${this.name}: half within ${under(this.#data, all / 2)}, 95 % within ${under(this.#data, all * 0.95)}` : `${this.name}: nothing measured yet` });
  }

  #asTable() {
    const { bounds, counts } = this.#data;
    const rows = counts.map((each, at) => [bounds[at] === undefined ? "more" : `up to ${seconds(bounds[at])}`, count(each)]);
    return table(this.name, ["Time", "Count"], rows);
  }
}

/** The bound under which so many fell, as "≤ 50 ms". */
function under({ bounds, counts }, wanted) {
  let sum = 0;
  const at = counts.findIndex((each) => (sum += each) >= wanted - 1e-9);
  return bounds[at] === undefined ? `> ${seconds(bounds.at(-1))}` : `≤ ${seconds(bounds[at])}`;
}
