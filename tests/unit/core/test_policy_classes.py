"""Which class a request is of: every condition by itself, at its edges."""

import pytest

from proxy.core.policy import DEFAULT_CLASS, Facts, Fallback, Match, Policy, TokenRange, TrafficClass

FACTS = Facts(
    path="/v1/chat/completions", model="sql-lora", headers={"x-class": "chat"}, tenant="acme", key_sha256="ab" * 32, stream=True,
    adapter="sql-lora", prompt_tokens=1000,
)  # fmt: skip
BARE = Facts(path="/v1/completions")


@pytest.mark.parametrize(
    ("match", "missed"),
    [
        (Match(), None),
        (Match(tenant="ac*"), None),
        (Match(tenant="b*"), "tenant"),
        (Match(lora="*"), None),
        (Match(lora="other"), "lora"),
        (Match(key_sha256=("cd" * 32, "ab" * 32)), None),
        (Match(key_sha256=("cd" * 32,)), "key_sha256"),
        (Match(stream=True), None),
        (Match(stream=False), "stream"),
        (Match(headers=(("x-class", "batch"),)), "headers.x-class"),
        (Match(prompt_tokens=TokenRange(1000, 1000)), None),
        (Match(prompt_tokens=TokenRange(1001)), "prompt_tokens"),
        (Match(prompt_tokens=TokenRange(most=999)), "prompt_tokens"),
        (Match(path="/v2/*", model="x"), "path"),
    ],
)
def test_a_condition_holds_or_is_named(match: Match, missed: str | None) -> None:
    assert match.missed(FACTS) == missed
    assert match.covers(FACTS) is (missed is None)


@pytest.mark.parametrize(
    "match",
    [Match(model="*"), Match(tenant="*"), Match(lora="*"), Match(key_sha256=("ab" * 32,)), Match(prompt_tokens=TokenRange())],
)
def test_no_condition_holds_of_what_is_not_known(match: Match) -> None:
    assert not match.covers(BARE)
    assert not match.everything


def test_a_policy_knows_whether_it_has_to_wait_for_the_count() -> None:
    long = TrafficClass("long", Match(prompt_tokens=TokenRange(8000)))
    policy = Policy(classes=(long, DEFAULT_CLASS))
    assert policy.sizes_matter
    assert not Policy().sizes_matter
    assert policy.class_of(FACTS) is DEFAULT_CLASS
    assert policy.class_of(Facts(path="/", prompt_tokens=8000)) is long


def test_a_fallback_is_named_without_its_key() -> None:
    assert Fallback("small").label == "small"
    assert Fallback("gpt", "https://api.example", api_key_env="SECRET").label == "https://api.example gpt"
