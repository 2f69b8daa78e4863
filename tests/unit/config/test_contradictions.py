"""What is right line by line and cannot be meant as a whole."""

import pytest

from proxy.config.policy_file import review
from proxy.core.policy import Policy

KEY, OTHER = "a" * 64, "b" * 64
MODEL, WIDE = "{name: a, match: {model: 'llama*'}}", "{name: w, match: {model: '*'}}"


def warnings_of(text: str) -> list[str]:
    """Return the warnings of a policy that can be used."""
    found = review(text, "p.yaml")
    assert found.faults == ()
    assert isinstance(found.policy, Policy)
    return [str(warning) for warning in found.warnings]


def the_fault_of(text: str) -> str:
    """Return the only fault."""
    found = review(text, "p.yaml")
    assert found.policy is None
    (fault,) = found.faults
    return str(fault)


def test_a_class_that_an_earlier_one_covers() -> None:
    line = the_fault_of(f"classes:\n  - {WIDE}\n  - {MODEL}\n")
    assert line.startswith("p.yaml:3:22: classes[1].match: got a class that nothing reaches")
    assert "because w stands before it" in line


def test_a_class_that_is_left_something() -> None:
    assert warnings_of(f"classes:\n  - {MODEL}\n  - {WIDE}\n") == []


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("classes: [{name: a, deadline: 31s}]", "p.yaml:1:31: warning: classes[0].deadline: got 31 s; allowed up to 30 s"),
        ("classes: [{name: a, ttft: 31s}]", "p.yaml:1:27: warning: classes[0].ttft: got 31 s; allowed up to 30 s"),
        ("classes: [{name: a, ttft: 5s, deadline: 4s}]", "p.yaml:1:27: warning: classes[0].ttft: got 5 s; allowed up to 4 s"),
        ("queue: {requests_max: 4097}", "p.yaml:1:23: warning: queue.requests_max: got 4097"),
        ("limits: {connections_max: 4095}", "p.yaml:1:27: warning: queue.requests_max: got 4096; allowed up to limits.connections_max"),
        ("queue: {bytes_max: 63MiB}", "p.yaml:1:20: warning: queue.bytes_max"),
        ("queue: {wait_max: 0s, tokens_max: 5}", "p.yaml:1:35: warning: queue.tokens_max: got a bound of what waits"),
        ("classes: [{name: a, queue: {wait_max: 1m}, deadline: 61s}]", "p.yaml:1:54: warning: classes[0].deadline: got 61 s"),
        ("classes: [{name: a, when_saturated: shed, deadline: 1s}]", "p.yaml:1:53: warning: classes[0].deadline: got a deadline"),
        ("classes: [{name: a, queue: {requests_max: 4097}}]", "p.yaml:1:43: warning: classes[0].queue.requests_max: got 4097"),
        ("classes: [{name: a, queue: {tokens_max: 4000001}}]", "p.yaml:1:41: warning: classes[0].queue.tokens_max: got 4000001"),
        ("trusted_callers: [10.0.0.0/8]\ntenants: {from: user}", "p.yaml:1:18: warning: trusted_callers: got callers"),
        ("tenants: {from: api_key, list: {acme: {weight: 2}}}", "p.yaml:1:39: warning: tenants.list.acme: got a tenant that nobody is"),
        ("tenants: {from: api_key, weights: {acme: 2}}", "p.yaml:1:42: warning: tenants.weights.acme: got a tenant that nobody is"),
        (
            "tenants: {from: api_key}\nclasses: [{name: a, match: {tenant: zebra}}]",
            'p.yaml:2:37: warning: classes[0].match.tenant: got "zebra"; allowed a tenant of tenants.list',
        ),
        (
            "tenants: {list: {acme: {weight: 2}}}\nclasses: [{name: a, match: {tenant: acne}}]",
            'p.yaml:2:37: warning: classes[0].match.tenant: got "acne" (did you mean "acme"?)',
        ),
        (
            f"auth: require\ntenants: {{list: {{acme: {{key_sha256: {KEY}}}}}}}\nclasses: [{{name: a, match: {{key_sha256: {OTHER}}}}}]",
            'p.yaml:3:41: warning: classes[0].match.key_sha256: got "bbbbbbbbbbbb…"',
        ),
        ("relay: {reroutes_max: 0, retry_ratio: 0.1}", "p.yaml:1:39: warning: relay.retry_ratio: got a budget for reroutes"),
        ("mode: observe\nenforce_ratio: 0.05", "p.yaml:2:16: warning: enforce_ratio: got a share to enforce"),
        ("tenants: {from: user, header: x-team}", "p.yaml:1:31: warning: tenants.header: got a header that nobody reads"),
    ],
)  # fmt: skip
def test_what_has_no_effect(text: str, start: str) -> None:
    (line,) = warnings_of(text)
    assert line.startswith(start)


@pytest.mark.parametrize(
    "text",
    [
        "classes: [{name: a, deadline: 30s, ttft: 30s}]",
        "classes: [{name: a, ttft: 4s, deadline: 4s}]",
        "queue: {wait_max: 5m}\nclasses: [{name: a, deadline: 5m}]",
        "queue: {requests_max: 4096, bytes_max: 64MiB}",
        "queue: {requests_max: 0, bytes_max: 1MiB}",
        "tenants: {from: [user, header], header: x-team}",
        "relay: {first_byte: 1h, idle: 1h, reroutes_max: 1, retry_ratio: 0.1}",
        "mode: enforce\nenforce_ratio: 0.05",
        "queue: {wait_max: 10s}\nclasses: [{name: a, queue: {wait_max: 1m}, deadline: 60s, ttft: 60s}]",
        "queue: {wait_max: 0s, tokens_max: 9}\nclasses: [{name: a, queue: {wait_max: 1m}}]",
        "classes: [{name: a, queue: {requests_max: 4096, tokens_max: 4000000}}]",
        "trusted_callers: [10.0.0.0/8]\ntenants: {from: jwt}",
        "tenants: {from: [api_key, user], list: {acme: {weight: 2}}}",
        "tenants: {list: {zoe: {weight: 2}}, weights: {zoo: 2}}\nclasses: [{name: a, match: {tenant: zoo}}]",
        "tenants: {from: api_key, weights: {key-0123456789ab: 2, default: 3}}\nclasses: [{name: a, match: {tenant: 'z*'}}]",
        f"auth: require\ntenants: {{list: {{acme: {{key_sha256: {KEY}}}}}}}\nclasses: [{{name: a, match: {{key_sha256: {KEY}}}}}]",
        "tenants: {list: {acme: {weight: 2}}}\nclasses: [{name: a, match: {tenant: 'ac*'}}, {name: b, match: {tenant: zebra}}]",
        "classes: [{name: a, match: {model: m}, fallbacks: [n]}, {name: b, match: {model: n}, fallbacks: [{url: 'http://x', model: m}]}]",
    ],
)
def test_what_has_one(text: str) -> None:
    assert warnings_of(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "replicas: [{url: 'http://h', headers: {x-auth: 'Bearer abcdefgh12345'}}]",
        "replicas: [{url: 'http://h', headers: {x-key: sk-proj-abcdefghijklmnop}}]",
        "tenants: {weights: {sk-ant-abcdefghijklmnop: 2}}",
        "tenants: {header: sk-ant-abcdefghijklmnop}",
        "replicas: [{url: 'http://h', api_key_file: eyJhbGciOiJI.eyJzdWIiOiIx.sig}]",
        "tokenizer: hf_abcdefghijklmnopqrstuv",
    ],
)
def test_what_has_the_form_of_a_secret_is_refused_and_not_shown(text: str) -> None:
    line = the_fault_of(text)
    assert "what looks like a secret" in line
    assert "abcdefgh" not in line
    assert "eyJ" not in line


@pytest.mark.parametrize(
    "text",
    [
        "classes: [{name: sk-short, match: {model: x}}]",
        "tokenizer: /models/task-force-of-the-basic-kind",
        "replicas: [http://sk-telecom-inference-node-01.example, {url: http://b, name: pk-cluster-gpu-node-000001}]",
        "tenants: {weights: {bearer: 2}}",
    ],
)
def test_what_only_looks_a_little_like_one(text: str) -> None:
    assert warnings_of(text) == []


def test_a_fault_of_another_kind_does_not_show_it_either() -> None:
    lines = [str(fault) for fault in review("mode: sk-ant-abcdefghijklmnop\nsk-ant-abcdefghijklmnop: 1", "p.yaml").faults]
    assert len(lines) == 4
    assert "abcdefgh" not in "".join(lines)


def test_a_fallback_to_the_very_model() -> None:
    line = the_fault_of("classes: [{name: a, match: {model: m}, fallbacks: [o, m]}]")
    assert line.startswith('p.yaml:1:55: classes[0].fallbacks[1]: got "m"; allowed another model')


def test_fallbacks_that_lead_back() -> None:
    classes = (f"  - {{name: {name}, match: {{model: {name}}}, fallbacks: [{to}]}}\n" for name, to in ("ab", "bc", "ca", "db"))
    places = [line.split(": got")[0] for line in warnings_of("classes:\n" + "".join(classes))]
    assert places == [f"p.yaml:{line}:46: warning: classes[{line - 2}].fallbacks[0]" for line in (2, 3, 4)]
