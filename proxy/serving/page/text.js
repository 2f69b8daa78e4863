// Numbers and names as people read them, and nodes made of text alone: nothing that comes from outside is ever read as HTML.

const WHOLE = new Intl.NumberFormat("en");

export const byId = (id) => document.getElementById(id);

export const whole = (value) => (value === null || value === undefined ? "–" : WHOLE.format(Math.round(value)));

/** A per-second rate: two digits are enough to compare. */
export const rate = (value) => (value === null ? "–" : value >= 10 ? whole(value) : value.toFixed(1));

/** Seconds, as 0.4 s, 12 s, 3 min, 2 h 10 min, 4 d. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}

export const percent = (part, all) => (part === null || !all ? "–" : `${Math.round((100 * part) / all)} %`);

export const clockTime = (atS) => new Date(atS * 1000).toLocaleTimeString("en-GB");

/** Write a node's text only where it changes, so that nothing else is laid out anew. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute only where it changes; null takes it away. */
export function set(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** An element with a class and children; strings become text. */
export function element(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Bring a list's children in line with `items`: `make` one, `fill` it again, each known by `key`. */
export function keyed(parent, items, key, make, fill) {
  const known = new Map();
  for (const child of parent.children) known.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let node = known.get(name);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = name;
    } else known.delete(name);
    fill(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of known.values()) node.remove();
}

/** Table rows of plain text; `cells` gives each row's texts, the first being its header. Classes stand beside them in `kinds`. */
export function rows(body, items, cells, kinds, empty) {
  const made = items.map(cells);
  while (body.rows.length > Math.max(made.length, 1)) body.deleteRow(-1);
  if (made.length === 0) {
    if (body.rows.length && body.rows[0].dataset.empty) return;
    body.replaceChildren();
    const cell = body.insertRow().insertCell();
    body.rows[0].dataset.empty = "1";
    cell.colSpan = kinds.length;
    cell.className = "quiet";
    cell.textContent = empty;
    return;
  }
  if (body.rows.length && body.rows[0].dataset.empty) body.replaceChildren();
  made.forEach((texts, index) => {
    let row = body.rows[index];
    if (row === undefined) {
      row = body.insertRow();
      kinds.forEach((kind, place) => {
        const cell = document.createElement(place ? "td" : "th");
        if (!place) cell.scope = "row";
        cell.className = kind;
        row.append(cell);
      });
    }
    texts.forEach((text, place) => say(row.cells[place], text));
  });
}
