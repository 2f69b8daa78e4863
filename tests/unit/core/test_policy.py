"""The policy's own small decisions: which class a request is of, and whom it is accounted to."""

import pytest

from proxy.core.policy import DEFAULT_CLASS, Facts, Match, Policy, Tenants, TenantSource, TrafficClass

CHAT = TrafficClass("chat", Match(model="llama-*", path="/v1/chat/*", headers=(("x-class", "chat*"),)))


@pytest.mark.parametrize(
    ("path", "model", "headers", "name"),
    [
        ("/v1/chat/completions", "llama-8b", {"x-class": "chat-web"}, "chat"),
        ("/v1/completions", "llama-8b", {"x-class": "chat"}, "default"),
        ("/v1/chat/completions", "Llama-8b", {"x-class": "chat"}, "default"),
        ("/v1/chat/completions", None, {"x-class": "chat"}, "default"),
        ("/v1/chat/completions", "llama-8b", {}, "default"),
    ],
)
def test_a_class_covers_what_matches_in_every_part(path: str, model: str | None, headers: dict[str, str], name: str) -> None:
    policy = Policy(classes=(CHAT, DEFAULT_CLASS))
    assert policy.class_of(Facts(path, model, headers)).name == name


def test_the_first_match_rules() -> None:
    wide = TrafficClass("wide", Match(model="*"))
    policy = Policy(classes=(wide, TrafficClass("narrow", Match(model="m")), DEFAULT_CLASS))
    assert policy.class_of(Facts("/", "m")) is wide


def test_a_policy_without_a_catch_all_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Policy(classes=(CHAT,))
    with pytest.raises(AssertionError):
        Policy(classes=())


def test_the_first_source_that_names_somebody_rules() -> None:
    headers = {"x-kvgate-tenant": "acme", "authorization": "Bearer sk-1"}
    assert Tenants().tenant_of(headers, "ann") == "acme"
    assert Tenants(sources=(TenantSource.USER, TenantSource.HEADER)).tenant_of(headers, "ann") == "ann"
    assert Tenants(sources=(TenantSource.USER, TenantSource.HEADER)).tenant_of(headers, None) == "acme"
    assert Tenants().tenant_of({}, None) == "default"
    assert Tenants().tenant_of({"x-kvgate-tenant": ""}, "") == "default"


def test_a_key_names_its_owner_without_being_shown() -> None:
    bearer = Tenants().tenant_of({"authorization": "Bearer sk-secret"}, None)
    assert bearer == Tenants().tenant_of({"x-api-key": "sk-secret"}, None)
    assert bearer != Tenants().tenant_of({"x-api-key": "sk-other"}, None)
    assert "secret" not in bearer
    assert bearer.startswith("key-")


def test_a_tenants_name_is_cut() -> None:
    assert Tenants().tenant_of({"x-kvgate-tenant": "x" * 65}, None) == "x" * 64
