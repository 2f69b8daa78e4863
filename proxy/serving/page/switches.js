// Drain, resume and mode. The token lives in the input of this page and goes out with one call at a time, in a header.

import { byId, element, say } from "./text.js";

const dialog = byId("switches");

function choose() {
  const what = byId("what").value;
  byId("which-field").hidden = what !== "drain" && what !== "resume";
  byId("which-mode-field").hidden = what !== "mode";
  byId("lasts-field").hidden = what !== "drain" && what !== "mode";
}

/** The replicas that can be named; a chosen one stays chosen. */
function offer(report) {
  const chosen = byId("which").value;
  const servers = [...new Set(report.replicas.map((one) => one.name.replace(/#\d+$/, "")))];
  byId("which").replaceChildren(...servers.map((name) => element("option", "", name)));
  if (servers.includes(chosen)) byId("which").value = chosen;
  byId("switches-closed").hidden = report.changes_open;
  byId("do-switch").disabled = !report.changes_open;
}

function call() {
  const what = byId("what").value;
  const why = byId("why").value.trim();
  const everywhere = byId("everywhere").checked;
  const replica = byId("which").value;
  const lasts = Number(byId("lasts").value);
  const body = { for_s: lasts, reason: why, by: "the live page", all: everywhere };
  const query = new URLSearchParams({ reason: why, by: "the live page", all: everywhere ? "1" : "0" });
  switch (what) {
    case "drain": return ["POST", "/admin/drains", { replica, ...body }];
    case "mode": return ["POST", "/admin/mode", { mode: byId("which-mode").value, ...body }];
    case "resume": query.set("replica", replica); return ["DELETE", `/admin/drains?${query}`, null];
    default: return ["DELETE", `/admin/mode?${query}`, null];
  }
}

async function doIt(event, done) {
  event.preventDefault();
  const answer = byId("switch-answer");
  const lasting = ["drain", "mode"].includes(byId("what").value);
  if (lasting && !byId("why").value.trim()) {
    say(answer, "Say why: who finds it at night has to know.");
    byId("why").focus();
    return;
  }
  const [method, path, body] = call();
  const headers = { "x-kvgate-admin-token": byId("token").value.trim() };
  if (body !== null) headers["content-type"] = "application/json";
  byId("do-switch").disabled = true;
  try {
    const reply = await fetch(path, { method, headers, body: body === null ? null : JSON.stringify(body), cache: "no-store" });
    const said = await reply.json();
    const undone = said.fault ? `Done here; the others were not told: ${said.fault}` : "Done.";
    say(answer, reply.ok ? undone : said.error?.message ?? `Status ${reply.status}`);
  } catch (error) {
    say(answer, `Not done: ${error.message}`);
  }
  byId("do-switch").disabled = false;
  done();
}

/** `latest` gives the last report, `done` is called after a change. */
export function setUpSwitches(latest, done) {
  byId("open-switches").addEventListener("click", () => {
    const report = latest();
    if (report === null) return;
    offer(report);
    choose();
    say(byId("switch-answer"), "");
    dialog.showModal();
  });
  byId("close-switches").addEventListener("click", () => dialog.close());
  byId("what").addEventListener("change", choose);
  byId("switch-form").addEventListener("submit", (event) => doIt(event, done));
}
