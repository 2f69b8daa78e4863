"""The engine's priority: the header rules over the body, and a clamp touches nothing else."""

import json

import pytest

from proxy.core.policy_tenants import TenantPolicy
from proxy.wire.engine_priority import Headers, asked_priority, with_priority

GIVEN: Headers = [(b"a", b"1"), (b"x-vllm-priority", b"-5")]


@pytest.mark.parametrize(
    ("headers", "in_body", "asked"),
    [(GIVEN, 3, -5), ([], 3, 3), ([], None, 0), ([(b"x-vllm-priority", b"soon")], 3, 3), ([(b"x-vllm-priority", b" 7 ")], None, 7)],
)  # fmt: skip
def test_what_the_engine_would_take(headers: Headers, in_body: int | None, asked: int) -> None:
    assert asked_priority(headers, in_body) == asked


@pytest.mark.parametrize(
    ("least", "most", "asked", "given"),
    [(None, None, -9, -9), (0, None, -9, 0), (0, None, 4, 4), (None, 5, 9, 5), (2, 2, 0, 2), (0, 5, 5, 5), (0, 5, 0, 0)],
)  # fmt: skip
def test_the_clamp(least: int | None, most: int | None, asked: int, given: int) -> None:
    assert TenantPolicy(engine_priority_min=least, engine_priority_max=most).engine_priority(asked) == given


def test_header_and_body_are_set_and_nothing_else() -> None:
    body = b'{"priority": 9, "messages": [{"priority": 1}] , "priority":-3}'
    headers, changed = with_priority(GIVEN, body, -3, 0)
    assert headers == [(b"a", b"1"), (b"x-vllm-priority", b"0")]
    assert changed == b'{"priority": 9, "messages": [{"priority": 1}] , "priority":0}'
    assert json.loads(changed)["priority"] == 0
    assert with_priority([], b'{"model":"m"}', None, 2) == ([(b"x-vllm-priority", b"2")], b'{"model":"m"}')
