// The replicas: a card each with its bar and its last minutes, and the same as a table.

import { drawReplica, shape } from "./chart.js";
import { byId, element, keyed, percent, rows, say, set, span, whole } from "./text.js";

const MARKS = { serving: "●", probing: "○", draining: "◐", ejected: "▲", stalled: "▲", wedged: "▲", unreachable: "✕" };
const MANY = 12; // more are shown in less room each
const WIDTH = 300; // of a bar's drawing
const SCALE = 1.05; // what lies beyond the capacity is shown up to here

const ratio = (one) => (one.capacity_blocks ? (one.forecast_peak_blocks ?? 0) / one.capacity_blocks : -1);
const troubled = (one) => (one.phase !== "serving" ? 2 : one.binds ? 1 : 0);
const ORDERS = {
  listed: null,
  trouble: (a, b) => troubled(b) - troubled(a) || ratio(b) - ratio(a),
  full: (a, b) => ratio(b) - ratio(a),
};

function make() {
  const card = element("li", "card");
  const head = element("div", "card-head", element("h3", "name"), element("span", "phase", element("span", "mark"), " ", element("span")));
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  set(bar, "viewBox", `0 0 ${WIDTH} 22`);
  set(bar, "preserveAspectRatio", "none");
  set(bar, "class", "blocks");
  set(bar, "role", "img");
  for (const part of ["room", "margin", "estimated", "measured", "peak", "capacity"]) shape("rect", part, bar);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  set(line, "class", "history");
  set(line, "preserveAspectRatio", "none");
  set(line, "aria-hidden", "true");
  card.append(head, element("p", "words"), bar, element("p", "numbers"), line, element("p", "more quiet"));
  card.parts = { name: head.children[0], phase: head.children[1], words: card.children[1], bar, numbers: card.children[3], line, more: card.children[5] };
  return card;
}

const place = (blocks, capacity) => Math.max(0, Math.min(WIDTH, (WIDTH * (blocks ?? 0)) / (capacity * SCALE)));

function drawBar(svg, one) {
  const capacity = one.capacity_blocks;
  set(svg, "visibility", capacity ? "visible" : "hidden");
  if (!capacity) return;
  const [room, margin, estimated, measured, peak, end] = svg.children;
  const box = (node, x, y, width, height) => {
    set(node, "x", x.toFixed(1));
    set(node, "y", y);
    set(node, "width", Math.max(0, width).toFixed(1));
    set(node, "height", height);
  };
  const [all, budget] = [place(capacity, capacity), place(one.budget_blocks, capacity)];
  box(room, 0, 4, all, 14);
  box(margin, budget, 4, all - budget, 14);
  box(estimated, 0, 4, place((one.estimated_blocks ?? 0) + (one.unplaced_blocks ?? 0), capacity), 14);
  box(measured, 0, 7, place(one.measured_blocks, capacity), 8);
  box(peak, Math.max(0, place(one.forecast_peak_blocks, capacity) - 1.5), 1, one.forecast_peak_blocks === null ? 0 : 3, 20);
  box(end, all - 0.75, 0, 1.5, 22);
}

function fill(card, one, looks, many) {
  const { name, phase, words, bar, numbers, line, more } = card.parts;
  say(name, one.name);
  say(phase.children[0], MARKS[one.phase] ?? "?");
  say(phase.children[1], one.phase);
  set(phase.children[1], "class", many && one.phase === "serving" ? "hidden" : "");
  set(phase, "class", `phase ${one.phase}`);
  set(card, "class", `card ${one.phase === "serving" ? (one.binds ? "binds" : "") : "off"}`);
  say(words, one.words || (one.phase === "serving" ? "Room for more" : ""));
  set(words, "class", `words ${one.words ? "" : "quiet"}`);
  drawBar(bar, one);
  const capacity = one.capacity_blocks;
  const share = (blocks) => percent(blocks, capacity);
  const [measured, estimated, peak, budget] = [one.measured_blocks, one.estimated_blocks, one.forecast_peak_blocks, one.budget_blocks].map(share);
  set(bar, "aria-label", capacity
    ? `measured ${measured}, estimated ${estimated}, forecast peak ${peak}, budget ${budget} of ${whole(capacity)} KV blocks`
    : "KV blocks not known");
  if (!capacity) say(numbers, "KV blocks not known");
  else if (many) say(numbers, `${measured} now · ${peak} peak of ${whole(capacity)}`);
  else say(numbers, `${measured} measured · ${estimated} estimated · ${peak} peak · ${budget} budget of ${whole(capacity)}`);
  if (capacity) drawReplica(line, looks, one.name);
  const age = one.age_s === null || one.age_s === undefined ? "never measured" : one.age_s > 3 ? `measured ${span(one.age_s)} ago` : "";
  const facts = [`${whole(one.leases ?? 0)} ours`, `${whole(one.running)} running`];
  if (one.engine_waiting) facts.push(`${whole(one.engine_waiting)} waiting inside`);
  if (one.preemptions) facts.push(`${whole(one.preemptions)} preempted`);
  if (age) facts.push(age);
  say(more, one.fault && one.phase !== "serving" ? one.fault : facts.join(" · "));
}

function fillTable(replicas) {
  rows(
    byId("replica-rows"), replicas,
    (one) => [
      one.name, one.phase, whole(one.measured_blocks), whole(one.estimated_blocks), whole(one.forecast_peak_blocks),
      whole(one.budget_blocks), whole(one.capacity_blocks), one.binds ? one.binding : "nothing", whole(one.leases ?? 0), whole(one.running),
      whole(one.engine_waiting), whole(one.preemptions ?? 0), span(one.age_s),
    ],
    ["name", "", "n", "n", "n", "n", "n", "", "n", "n", "n", "n", "n"], "No replicas.",
  );
}

export function showReplicas(report, looks) {
  const wanted = byId("find").value.trim().toLowerCase();
  let shown = report.replicas.filter((one) => !wanted || one.name.toLowerCase().includes(wanted));
  const order = ORDERS[byId("order").value];
  if (order) shown = [...shown].sort(order);
  const serving = report.replicas.filter((one) => one.phase === "serving").length;
  say(byId("replicas-count"), `${serving} of ${report.replicas.length} serve${shown.length < report.replicas.length ? `, ${shown.length} shown` : ""}`);
  const many = report.replicas.length > MANY;
  set(byId("replicas"), "class", many ? "cards many" : "cards");
  keyed(byId("replicas"), shown, (one) => one.name, make, (card, one) => fill(card, one, looks, many));
  if (byId("table-of-replicas").open) fillTable(shown);
}
