"""Classes and tenants in policy files: what a good one becomes, and contradictions told where they stand."""

from ipaddress import ip_network

import pytest

from proxy.config.faults import PolicyError
from proxy.config.policy_file import parse
from proxy.core.policy import Auth, ClassQueue, Degrade, Fallback, Match, Saturated, TenantPolicy, TokenRange

DIGEST = "Ab" * 32


def faults_of(text: str) -> list[str]:
    """Return what is told, without file and place."""
    with pytest.raises(PolicyError) as error:
        parse(text, "p.yaml")
    return [f"{fault.key}: {fault.got}" for fault in error.value.faults]


def test_everything_that_can_be_said() -> None:
    policy = parse(
        f"""
        auth: require
        trusted_callers: [10.0.0.0/8, "::1"]
        classes:
          - name: long
            match: {{prompt_tokens: {{min: 8000, max: 64000}}, stream: true, lora: "sql-*", tenant: acme, key_sha256: {DIGEST}}}
            queue: {{requests_max: 10, tokens_max: 100_000, wait_max: 5m}}
            when_saturated: [degrade, queue, reroute, shed]
            degrade: {{max_tokens_min: 64}}
            fallbacks: [small, {{url: "https://api.example/v1", model: gpt, api_key_env: KEY}}]
        tenants:
          from: [jwt, api_key]
          jwt_claim: team
          list:
            acme: {{weight: 2, priority: 5, key_sha256: [{DIGEST}], requests_per_s: 2.5, tokens_per_min: 60000, burst: 30s,
                    kv_share_max: 0.5, kv_share_min: 0.1}}
          others: {{requests_per_s: 1}}
        """,
        "p.yaml",
    )
    assert policy.auth is Auth.REQUIRE
    assert policy.trusted_callers == (ip_network("10.0.0.0/8"), ip_network("::1"))
    long, _ = policy.classes
    assert long.match == Match(
        tenant="acme", key_sha256=(DIGEST.lower(),), stream=True, lora="sql-*", prompt_tokens=TokenRange(8000, 64000)
    )
    assert long.queue == ClassQueue(10, 100_000, 300.0)
    assert long.when_saturated == (Saturated.DEGRADE, Saturated.QUEUE, Saturated.REROUTE, Saturated.SHED)
    assert long.degrade == Degrade(64)
    assert long.fallbacks == (Fallback("small"), Fallback("gpt", "https://api.example", "KEY"))
    assert policy.tenants.listed == (TenantPolicy("acme", 2.0, (DIGEST.lower(),), 5, 2.5, 60000.0, 30.0, 0.5, 0.1),)
    assert policy.tenants.others == TenantPolicy(requests_per_s=1.0)


CLASS = "classes: [{name: a, match: {tenant: x}, %s}]"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (CLASS % "when_saturated: [queue, degrade, shed]", "classes[0].when_saturated: degrade"),
        (CLASS % "when_saturated: [queue, reroute]", "classes[0].when_saturated: reroute"),
        (CLASS % "when_saturated: [shed, queue]", "classes[0].when_saturated: shed before the end"),
        (CLASS % "when_saturated: [queue, queue]", "classes[0].when_saturated: a word twice"),
        (CLASS % "degrade: {max_tokens_min: 5}", "classes[0].degrade: this key"),
        (CLASS % "when_saturated: shed, queue: {wait_max: 1s}", "classes[0].queue: this key"),
        (CLASS % "when_saturated: [queue, shed], fallbacks: [m]", "classes[0].fallbacks: this key"),
        (CLASS % "fallbacks: [{model: m, api_key_env: K}]", "classes[0].fallbacks[0].api_key_env: this key"),
        (CLASS % "fallbacks: [{url: 'http://a', api_key_env: K, api_key_file: f}]", "classes[0].fallbacks[0].api_key_file: both"),
        (CLASS % "fallbacks: [{}]", "classes[0].fallbacks[0]: neither"),
        ("classes: [{name: a, match: {prompt_tokens: {min: 5, max: 4}}}]", "classes[0].match.prompt_tokens.max: max 4 below min 5"),
        ("classes: [{name: a, match: {key: sk-1}}]", "classes[0].match.key: this key"),
        ("tenants: {list: {a: {kv_share_min: 0.6}, b: {kv_share_min: 0.5}}}", "tenants.list: kv_share_min of 1.1 in all"),
        ("tenants: {list: {a: {kv_share_min: 0.6, kv_share_max: 0.5}}}",
         "tenants.list.a.kv_share_min: kv_share_min 0.6 above kv_share_max 0.5"),
        (f"tenants: {{list: {{a: {{key_sha256: {DIGEST}}}, b: {{key_sha256: {DIGEST}}}}}}}",
         'tenants.list.b.key_sha256: "abababababab…" again'),
        ("tenants: {list: {a: {key: sk-1}}}", "tenants.list.a.key: this key"),
        ("tenants: {list: {a: {burst: 1s}}}", "tenants.list.a.burst: this key"),
        ("tenants: {list: {a: {weight: 2}}, weights: {a: 3}}", "tenants.weights.a: this tenant"),
        ("tenants: {jwt_claim: team}", "tenants.jwt_claim: this key"),
        ("tenants: {from: jwt}", "tenants.from: jwt"),
        ("auth: require", "auth: require"),
        ("trusted_callers: [10.0.0.1/8]", 'trusted_callers[0]: "10.0.0.1/8"'),
        ("classes: [{name: a, match: {stream: yes}}]", 'classes[0].match.stream: "yes"'),
    ],
)  # fmt: skip
def test_a_contradiction(text: str, fault: str) -> None:
    assert faults_of(text) == [fault]


def test_shares_of_the_whole_pool_may_be_kept() -> None:
    assert len(parse("tenants: {list: {a: {kv_share_min: 0.7}, b: {kv_share_min: 0.3}}}", "p.yaml").tenants.listed) == 2


def test_a_key_in_the_file_is_not_shown() -> None:
    with pytest.raises(PolicyError) as error:
        parse("tenants: {list: {a: {api_key: sk-1234567}}}", "p.yaml")
    assert "sk-1234567" not in str(error.value)
