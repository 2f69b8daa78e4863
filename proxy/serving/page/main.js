// Asks once a second and shows what it is told. While the page is hidden or paused nobody is asked.

import { drawFleet, Looks } from "./chart.js";
import { showDecisions, showNotices, showProxies, showQueue } from "./lists.js";
import { showReplicas } from "./replicas.js";
import { setUpSwitches } from "./switches.js";
import { byId, rate, say, set, span, whole } from "./text.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const SAID_EVERY_MS = 15000; // a screen reader is told no more often
const DECISIONS_MAX = 400;
const RATE_S = 10;

const looks = new Looks();
let report = null;
const decisions = new Map(); // by request, the line last told
let ended = 0;
let paused = false;
let asking = false;
let heardMs = 0;
let saidMs = -Infinity;
let saidLevel = "";

function take(told) {
  if (report !== null && told.run !== report.run) {
    looks.clear(); // it was started anew
    decisions.clear();
  }
  report = told;
  looks.add(told.samples.filter((one) => one.seq > looks.last));
  ended = told.ended;
  for (const one of told.decisions) {
    decisions.delete(one.key);
    decisions.set(one.key, one); // the latest told is the last
  }
  for (const key of decisions.keys()) {
    if (decisions.size <= DECISIONS_MAX) break;
    decisions.delete(key);
  }
}

function showTop() {
  say(byId("proxy"), report.proxy);
  say(byId("version"), `· ${report.version}`);
  const { mode, policy, store } = report;
  const left = mode.left_s === null ? "" : `, ${span(mode.left_s)} left`;
  say(byId("mode"), mode.said ? `${mode.mode} (by hand${left})` : mode.mode);
  set(byId("mode"), "title", mode.said ? `${mode.said}; the policy file says ${mode.policy_mode}` : "as the policy file says");
  say(byId("policy"), policy.faults.length ? `${policy.version}, the file is bad` : policy.version);
  set(byId("policy"), "title", policy.file);
  say(byId("store"), store === null || store === undefined ? "none, one proxy" : store.phase);
  set(byId("store"), "title", store ? store.shown : "");
  say(byId("up"), span(report.up_s));
  document.title = `${report.level === "error" ? "✕ " : ""}${report.queue.requests ? `${report.queue.requests} waiting · ` : ""}kvgate`;
}

function showNow() {
  const headline = byId("headline");
  say(headline, report.headline);
  set(headline, "class", `headline ${report.level}`);
  showNotices(report);
  say(byId("tile-open"), whole(report.open_requests));
  say(byId("tile-queued"), whole(report.queue.requests));
  say(byId("tile-oldest"), report.queue.requests ? span(report.queue.oldest_s) : "–");
  say(byId("tile-admitted"), rate(looks.perSecond("admitted", RATE_S)));
  say(byId("tile-shed"), rate(looks.perSecond("shed", RATE_S)));
  drawFleet(byId("fleet-chart"), looks);
  for (const node of document.querySelectorAll(".span")) say(node, span(looks.spanS));
}

/** Tell a screen reader the headline when the state is another, and seldom otherwise. */
function speak() {
  const now = performance.now();
  if (now - saidMs < SAID_EVERY_MS || (report.level === saidLevel && byId("said").textContent === report.headline)) return;
  if (report.level === saidLevel && now - saidMs < 4 * SAID_EVERY_MS) return;
  saidMs = now;
  saidLevel = report.level;
  say(byId("said"), report.headline);
}

function show() {
  showTop();
  showNow();
  showReplicas(report, looks);
  showQueue(report);
  showDecisions(decisions);
  showProxies(report);
  speak();
}

function showLink(fault) {
  const link = byId("link");
  const old = heardMs ? `, as of ${span((performance.now() - heardMs) / 1000)} ago` : "";
  say(link, fault ? `✕ no answer${old}` : paused ? "paused" : "● live");
  set(link, "class", fault ? "fault" : "quiet");
  document.body.classList.toggle("stale", Boolean(fault));
  if (fault && heardMs === 0) say(byId("headline"), `kvgate does not answer: ${fault}`);
}

async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const query = new URLSearchParams({ samples_after: looks.last, ended_after: ended });
    const reply = await fetch(`/admin/live?${query}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    take(await reply.json());
    heardMs = performance.now();
    showLink("");
    show();
  } catch (error) {
    showLink(error.message || String(error));
  } finally {
    asking = false;
  }
}

function tick() {
  if (!paused) ask();
  setTimeout(tick, EVERY_MS);
}

function setPaused(value) {
  paused = value;
  set(byId("pause"), "aria-pressed", paused);
  showLink("");
  if (!paused) ask();
}

byId("pause").addEventListener("click", () => setPaused(!paused));
for (const id of ["find", "order"]) byId(id).addEventListener("input", () => report && showReplicas(report, looks));
byId("kinds").addEventListener("input", () => report && showDecisions(decisions));
byId("table-of-replicas").addEventListener("toggle", () => report && showReplicas(report, looks));
document.addEventListener("visibilitychange", () => document.hidden || paused || ask());
setUpSwitches(() => report, ask);
tick();
