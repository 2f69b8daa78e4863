// The queue, the decisions, the notices and the other proxies.

import { byId, clockTime, element, keyed, rows, say, set, span, whole } from "./text.js";

const SHOWN = 60; // decisions
const NEXT = 8; // of those that wait
const KIND_WORDS = { admitted: "Let in", held: "Held", shed: "Refused", rerouted: "Rerouted", failed: "Failed", left: "Left" };
const KIND_MARKS = { admitted: "→", held: "‖", shed: "✕", rerouted: "↷", failed: "!", left: "←" };
const LEVEL_MARKS = { error: "✕ Error", warning: "▲ Warning", note: "● Note" };

export function showNotices(report) {
  const make = (one) => element("li", `notice ${one.level}`, element("strong"), " ", element("span"));
  keyed(byId("notices"), report.notices, (one) => `${one.level} ${one.code}`, make, (node, one) => {
    say(node.children[0], LEVEL_MARKS[one.level] ?? one.level);
    say(node.children[1], one.words);
  });
}

export function showQueue(report) {
  const queue = report.queue;
  const line = (one) => [one.name, whole(one.requests), whole(one.tokens)];
  say(byId("queue-words"), `${whole(queue.requests)} of at most ${whole(queue.requests_max)} requests, ${whole(queue.tokens)} of ${whole(queue.tokens_max)} prompt tokens`);
  rows(byId("classes"), queue.classes, line, ["name", "n", "n"], "Nobody waits.");
  const more = queue.tenants_more ? [{ name: `and ${whole(queue.tenants_more)} more tenants`, requests: null, tokens: null }] : [];
  rows(byId("tenants"), [...queue.tenants, ...more], line, ["name", "n", "n"], "Nobody waits.");
  rows(
    byId("waiting"), queue.waiting.slice(0, NEXT),
    (one) => [one.traffic_class, one.tenant, whole(one.prompt_tokens), span(one.waited_s), one.left_s === null ? "–" : span(one.waited_s + one.left_s), one.words],
    ["name", "name", "n", "n", "n most", "stands"], "Nobody waits.",
  );
  const behind = queue.requests - Math.min(NEXT, queue.waiting.length);
  say(byId("waiting-more"), behind ? `and ${whole(behind)} more` : "");
}

/** The latest first. A request has one line, which goes up when something new is decided about it. */
export function showDecisions(decisions) {
  const kinds = byId("kinds").value;
  const shown = [...decisions.values()].filter((one) => !kinds || kinds.split(" ").includes(one.kind));
  shown.sort((a, b) => b.at_s - a.at_s);
  const make = () => element("li", "decision", element("span", "mark"), " ", element("span", "who"), " ", element("time", "quiet"), element("p", "why"));
  keyed(byId("decisions"), shown.slice(0, SHOWN), (one) => one.key, make, (node, one) => {
    const [mark, who, time, why] = node.children;
    set(node, "class", `decision ${one.kind}`);
    set(node, "title", `request ${one.request_id}`);
    say(mark, `${KIND_MARKS[one.kind] ?? "?"} ${KIND_WORDS[one.kind] ?? one.kind}`);
    say(who, [one.traffic_class, one.tenant, one.replica].filter(Boolean).join(" · "));
    say(time, clockTime(one.at_s));
    say(why, one.words);
  });
  set(byId("decisions"), "data-empty", shown.length ? null : "No decision yet.");
}

export function showProxies(report) {
  const proxies = report.proxies ?? [];
  byId("proxies-section").hidden = proxies.length < 2;
  const make = (one) => {
    const node = element("li", "", element("span", "name", one.name), " ", element("span", "quiet"));
    if (!one.this && /^https?:\/\//.test(one.admin)) {
      const link = element("a", "", "its page");
      link.href = one.admin;
      link.rel = "noreferrer";
      node.append(" ", link);
    }
    return node;
  };
  keyed(byId("proxies"), proxies, (one) => `${one.name} ${one.admin}`, make, (node, one) => {
    say(node.children[1], `mode ${one.mode}, kvgate ${one.version}${one.this ? ", this one" : ""}`);
  });
}
