// What the ring told, kept by number, and lines drawn of it. Drawings are SVG whose attributes are numbers of ours.

import { set } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 300;
const POINTS_MAX = 100; // of a replica's line, which is some two hundred pixels wide
const SHOWN_MIN = 60; // a process that has just started fills less than the whole width
const MEASURED = 0;
const PEAK = 2;
const CAPACITY = 4;

/** The looks of the last minutes, the oldest first. */
export class Looks {
  constructor() {
    this.looks = [];
  }

  get last() {
    return this.looks.length ? this.looks[this.looks.length - 1].seq : 0;
  }

  clear() {
    this.looks = [];
  }

  add(samples) {
    this.looks.push(...samples);
    if (this.looks.length > KEPT) this.looks.splice(0, this.looks.length - KEPT);
  }

  /** Seconds between the first look and the last. */
  get spanS() {
    const all = this.looks;
    return all.length > 1 ? all[all.length - 1].at_s - all[0].at_s : 0;
  }

  /** How much a total grew per second over the last `seconds`; null while there is nothing to compare. */
  perSecond(name, seconds) {
    const all = this.looks;
    if (all.length < 2) return null;
    const last = all[all.length - 1];
    let first = all[all.length - 2];
    for (let index = all.length - 2; index >= 0 && last.at_s - all[index].at_s <= seconds; index -= 1) first = all[index];
    const passed = last.at_s - first.at_s;
    return passed > 0 ? Math.max(0, last[name] - first[name]) / passed : null;
  }
}

export function shape(tag, className, parent) {
  const node = document.createElementNS(SVG, tag);
  if (className) node.setAttribute("class", className);
  parent.append(node);
  return node;
}

/** Points of a line through `values`, null where there is a gap; `most` is the top. A gap begins a new line. */
function path(values, most, width, height) {
  const across = Math.max(SHOWN_MIN, values.length);
  const step = width / (across - 1);
  const first = across - values.length;
  let drawn = "";
  let pen = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      pen = false;
      return;
    }
    const x = ((first + index) * step).toFixed(1);
    const y = (height - 1 - (height - 2) * Math.min(1, value / most)).toFixed(1);
    drawn += `${pen ? "L" : "M"}${x} ${y}`;
    pen = true;
  });
  return drawn;
}

/** Two lines of the whole proxy. */
export function drawFleet(svg, looks) {
  if (!svg.firstChild) {
    set(svg, "viewBox", "0 0 600 80");
    shape("path", "line served", svg);
    shape("path", "line queued", svg);
  }
  const open = looks.looks.map((one) => one.open);
  const queued = looks.looks.map((one) => one.queued);
  const most = Math.max(4, ...open, ...queued);
  set(svg.children[0], "d", path(open, most, 600, 80));
  set(svg.children[1], "d", path(queued, most, 600, 80));
  const said = looks.looks.length ? `now ${open[open.length - 1]} being served and ${queued[queued.length - 1]} waiting` : "nothing yet";
  set(svg, "aria-label", `Requests over time: ${said}; at most ${Math.max(0, ...open)} and ${Math.max(0, ...queued)}`);
}

/** A replica's last minutes: measured and forecast peak, as shares of its capacity. */
export function drawReplica(svg, looks, name) {
  if (!svg.firstChild) {
    set(svg, "viewBox", "0 0 300 26");
    shape("path", "line measured", svg);
    shape("path", "line peak", svg);
  }
  const every = Math.ceil(looks.looks.length / POINTS_MAX);
  const chosen = every > 1 ? looks.looks.filter((one) => one.seq % every === 0) : looks.looks; // the same ones every time: no flicker
  const shares = (part) =>
    chosen.map((one) => {
      const row = one.replicas[name];
      return row && row[part] !== null && row[CAPACITY] ? row[part] / row[CAPACITY] : null;
    });
  set(svg.children[0], "d", path(shares(MEASURED), 1, 300, 26));
  set(svg.children[1], "d", path(shares(PEAK), 1, 300, 26));
}
