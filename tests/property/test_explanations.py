"""``kvgate explain`` says of a request what serving makes of it: class, tenant and longest wait, whatever the policy and the request."""

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.advise.explanation import Asked, explain
from proxy.config.policy_file import default_path, parse, read, review
from proxy.config.written import written
from proxy.core.demand import PromptPart
from proxy.core.policy_classes import Saturated
from proxy.core.policy_tenants import NOBODY
from proxy.ports import CountSource, PromptCount
from proxy.serving.intake import intake_of, sized
from proxy.serving.services import Services
from proxy.wire.call import CallKind
from proxy.wire.read_call import read_call
from tests.support.builders import FakeClock

KEY = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"  # of "password"
CHAT = "/v1/chat/completions"
DEFAULT = written(read(default_path()))
GLOBS = st.sampled_from(["*", "a*", "ab", "*b", "?b"])
WORDS = st.sampled_from(["a", "ab", "b", "cb"])
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "model": GLOBS,
        "path": st.sampled_from(["/v1/*", "/v1/completions"]),
        "headers": st.dictionaries(st.sampled_from(["x-class", "x-team"]), GLOBS, min_size=1),
        "tenant": GLOBS,
        "key_sha256": st.just(KEY),
        "stream": st.booleans(),
        "prompt_tokens": st.fixed_dictionaries({"min": st.integers(0, 3), "max": st.integers(3, 9)}),
    },
)
CLASSES = st.lists(
    st.fixed_dictionaries(
        {"match": CONDITIONS.filter(bool)},
        optional={
            "deadline": st.sampled_from(["1s", "20s"]),
            "queue": st.sampled_from([{"wait_max": "5s"}, {"wait_max": "9m"}]),
        },
    ),
    min_size=1, max_size=4, unique_by=lambda one: json.dumps(one["match"], sort_keys=True),
)  # fmt: skip
TENANTS = st.fixed_dictionaries(
    {"from": st.permutations(["header", "api_key", "user"]).map(lambda words: words[:2])},
    optional={"list": st.just({"ab": {"key_sha256": KEY}}), "weights": st.just({"cb": 2})},
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "x-class": WORDS, "x-team": WORDS, "x-kvgate-tenant": WORDS,
        "authorization": st.sampled_from(["Bearer password", "Bearer other"]),
        "x-kvgate-deadline-ms": st.sampled_from(["0", "500", "60000", "soon"]),
        "x-stainless-timeout": st.sampled_from(["3", "600", "0"]),
    },
)  # fmt: skip
BODIES = st.fixed_dictionaries({"model": WORDS}, optional={"user": WORDS, "stream": st.booleans()})
CALLERS = st.sampled_from(["10.0.0.1", "192.0.2.1"])


def policy_text(classes: list[dict[str, Any]], tenants: dict[str, Any]) -> str:
    """Return a policy file; JSON is YAML. Classes to which an earlier one leaves nothing are left out, as ``check`` asks."""
    named = [{"name": f"c{index}"} | one for index, one in enumerate(classes)]
    text = json.dumps({"classes": named, "tenants": tenants, "trusted_callers": ["10.0.0.0/8"]})
    useless = {int(fault.key.split("[")[1].split("]")[0]) for fault in review(text, "p.yaml").faults}
    if not useless:
        return text
    return policy_text([one for index, one in enumerate(classes) if index not in useless], tenants)


@settings(max_examples=60, deadline=None)
@given(CLASSES, TENANTS, HEADERS, BODIES, CALLERS, st.integers(0, 10))
def test_what_is_explained_is_what_is_served(
    classes: list[dict[str, Any]],
    tenants: dict[str, Any],
    headers: dict[str, str],
    fields: dict[str, Any],
    caller: str,
    tokens: int,
) -> None:
    text = policy_text(classes, tenants)
    policy = parse(text, "p.yaml")
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | fields).encode()
    services = cast("Services", SimpleNamespace(policy=policy, watchers={}, clock=FakeClock()))
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    intake = intake_of(services, read_call(CallKind.CHAT, body), CHAT, CHAT.encode(), raw, body, 0.0, 0.0, caller=caller)
    intake = sized(services, intake, PromptCount((PromptPart(tokens),), CountSource.EXACT))
    asked = Asked(CHAT, headers, read_call(CallKind.CHAT, body), caller, tokens)
    told = explain(policy, asked, written(text), DEFAULT)
    assert (told.traffic_class, told.tenant) == (intake.traffic_class.name, intake.tenant)
    queued = Saturated.QUEUE in intake.traffic_class.when_saturated
    assert told.wait_s_max == (intake.deadline_s if queued else 0.0)
    assert [seen.name for seen in told.classes if seen.verdict == "chosen"] == [told.traffic_class]
    for seen in told.classes:
        assert all(rule.held for rule in seen.rules) is (seen.verdict == "chosen") or seen.verdict == "not asked"
    named = [source.names for source in told.sources if source.names is not None]
    assert told.tenant == (named[0] if named else NOBODY)
