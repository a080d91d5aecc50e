// Elements without markup: nothing on this page is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** An HTML element. `on…` properties listen, the rest are attributes; null and false leave out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same in SVG. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  set(element, properties);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets attributes and listeners of an element, where they differ from what it has. */
export function set(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (element.getAttribute(name) !== text) element.setAttribute(name, text);
    }
  }
  return element;
}

/** Sets a text if it is another one, so that nobody who reads or selects it is disturbed. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table with a caption for who cannot see a picture, or wants the numbers. */
export function table(caption, heads, rows) {
  return h(
    "table",
    { class: "data" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, String(cell)))))),
  );
}

/** A table that is made only while it is open: `make` is called then, and at each `refresh`. */
export function foldedTable(summary, make) {
  const body = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": summary });
  const details = h("details", { class: "as-table" }, h("summary", {}, summary), body);
  const refresh = () => details.open && body.replaceChildren(make());
  details.addEventListener("toggle", refresh);
  return { element: details, refresh };
}
