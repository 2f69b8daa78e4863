"""Explanations of what a policy makes of a request."""

import hashlib
import json
from typing import Any

from proxy.advise.explanation import Asked, Explanation, Limit, Rule, SourceSeen, explain
from proxy.config.policy_file import default_path, parse, read
from proxy.config.written import Written, written
from proxy.wire.call import CallKind
from proxy.wire.read_call import read_call

POLICY = """
replicas: [{url: http://a:8000, name: a}, http://b:8000]
classes:
  - {name: chat, match: {headers: {x-class: chat*}, model: "llama*"}, priority: 10, deadline: 10s}
  - {name: secret, match: {headers: {cookie: "s=*"}}}
  - {name: bulk, match: {path: /v1/chat/*}, priority: -10, deadline: 5m}
tenants:
  from: [header, user]
  weights: {acme: 3}
"""


def explained(headers: dict[str, str], policy: str = POLICY, **body: Any) -> Explanation:
    """Explain a chat request."""
    return explained_as({}, headers, policy, **body)


def explained_as(beside: dict[str, Any], headers: dict[str, str], policy: str, **body: Any) -> Explanation:
    """Explain a chat request of which more is known."""
    call = read_call(CallKind.CHAT, json.dumps({"messages": [{"role": "user", "content": "hi"}]} | body).encode())
    asked = Asked("/v1/chat/completions", headers, call, **beside)
    return explain(parse(policy, "p.yaml"), asked, written(policy), written(read(default_path())))


def test_every_condition_is_told_whether_it_held() -> None:
    chat, secret, bulk, default = explained({"x-class": "batch"}, model="llama-3").classes
    assert (chat.verdict, chat.line) == ("no match", 4)
    assert chat.rules == (
        Rule("model", "llama*", "llama-3", held=True),
        Rule("headers.x-class", "chat*", "batch", held=False),
    )
    assert secret.rules == (Rule("headers.cookie", "s=*", None, held=False),)
    assert (bulk.verdict, bulk.line, bulk.rules[0].held) == ("chosen", 6, True)
    assert (default.verdict, default.line, default.rules) == ("not asked", None, ())


def test_classes_after_the_chosen_one_are_not_asked() -> None:
    found = explained({"x-class": "chat-1"}, model="llama-3")
    assert found.traffic_class == "chat"
    assert [seen.verdict for seen in found.classes] == ["chosen", "not asked", "not asked", "not asked"]


def test_a_secret_header_is_not_shown() -> None:
    found = explained({"cookie": "s=hunter2", "authorization": "Bearer hunter2"})
    assert "hunter2" not in repr(found)
    assert found.classes[1].rules[0].has == "a value not shown here"


def test_who_names_the_tenant() -> None:
    found = explained({}, user="acme")
    assert found.tenant == "acme"
    assert found.sources == (SourceSeen("header x-kvgate-tenant", None), SourceSeen("user", "acme"))
    assert explained({}).tenant == "default"


def test_what_bounds_the_wait() -> None:
    def bound(headers: dict[str, str]) -> tuple[float, str]:
        found = explained(headers, model="llama-3")
        return found.wait_s_max, found.wait_because

    assert bound({"x-class": "chat"}) == (10.0, "the deadline of the class chat")
    assert bound({}) == (30.0, "queue.wait_max")  # bulk's five minutes do not rule
    assert bound({"x-kvgate-deadline-ms": "5000", "x-stainless-timeout": "600"}) == (5.0, "the header x-kvgate-deadline-ms")


def test_limits_name_the_line_that_sets_them() -> None:
    limits = {limit.key: limit for limit in explained({"x-kvgate-tenant": "acme"}).limits}
    assert limits["classes[2].deadline"] == Limit("classes[2].deadline", "5m", 6)
    assert limits["classes[2].weight"] == Limit("classes[2].weight", "1", None)
    assert limits["tenants.weights.acme"] == Limit("tenants.weights.acme", "3", 9)
    assert limits["queue.wait_max"] == Limit("queue.wait_max", "30s", None)
    assert "classes[2].ttft" not in limits


def test_replicas_are_named() -> None:
    assert (explained({}).replicas, explained({}).discovered) == (("a", "b:8000"), False)
    assert explained({}, "discovery: {file: replicas.yaml}").discovered


def test_what_is_written_and_where() -> None:
    found = written("a: 1\nb:\n  c: [x, y]\n  d:\n    - e: 2\n")
    assert found["a"] == Written("1", 1)
    assert found["b.c"] == Written("x, y", 3)
    assert found["b.d[0].e"] == Written("2", 5)
    assert written("") == {}


def test_conditions_and_bounds_of_a_class_are_told_as_they_are_written() -> None:
    policy = """
classes:
  - name: long
    match: {prompt_tokens: {min: 8000}, stream: false, tenant: "ac*"}
    queue: {wait_max: 5m}
    when_saturated: [queue, shed]
  - name: rest
    match: {tenant: "ac*"}
    queue: {wait_max: 2m}
    when_saturated: [queue, shed]
"""
    found = explained({"x-kvgate-tenant": "acme"}, policy)
    assert found.classes[0].rules == (
        Rule("tenant", "ac*", "acme", held=True),
        Rule("stream", "false", "false", held=True),
        Rule("prompt_tokens", "min 8000", None, held=False),
    )
    assert (found.traffic_class, found.wait_s_max, found.wait_because) == ("rest", 120.0, "queue.wait_max of the class rest")
    assert Limit("classes[1].queue.wait_max", "2m", 9) in found.limits
    assert Limit("classes[1].when_saturated", "queue, shed", 10) in found.limits


def test_what_is_known_beside_the_request() -> None:
    policy = """
trusted_callers: [10.0.0.0/8]
tenants: {list: {acme: {weight: 2, requests_per_s: 5}}, others: {tokens_per_min: 600}, weights: {zoo: 3}}
classes:
  - {name: long, match: {prompt_tokens: {min: 8000}}}
  - {name: tuned, match: {lora: "a*"}}
"""
    headers = {"x-kvgate-tenant": "acme"}
    assert explained_as({"prompt_tokens": 8000}, headers, policy).traffic_class == "long"
    assert explained_as({"is_adapter": True}, headers, policy, model="ada").traffic_class == "tuned"
    assert explained_as({"caller": "10.1.2.3"}, headers, policy).tenant == "acme"
    assert explained_as({"caller": "192.0.2.1"}, headers, policy).tenant == "default"
    assert Limit("tenants.list.acme.requests_per_s", "5", 3) in explained(headers, policy).limits
    assert Limit("tenants.others.tokens_per_min", "600", 3) in explained({}, policy).limits
    zoo = explained({"x-kvgate-tenant": "zoo"}, policy).limits
    assert Limit("tenants.weights.zoo", "3", 3) in zoo
    assert Limit("tenants.others.tokens_per_min", "600", 3) in zoo


def test_whether_it_can_be_refused_and_whether_its_key_opens_the_door() -> None:
    assert explained({}).enforced
    assert not explained({}, "mode: observe").enforced
    assert not explained({}, "enforce_ratio: 0").enforced
    assert explained({}).key_known is None
    digest = hashlib.sha256(b"acme-key").hexdigest()
    closed = f"auth: require\ntenants: {{list: {{acme: {{key_sha256: {digest}}}}}}}\n"
    assert explained({"authorization": "Bearer acme-key"}, closed).key_known is True
    assert explained({"x-api-key": "other"}, closed).key_known is False
