"""The cap is set where the engine reads it: read again it is that, and the rest of the body is as it was."""

import json

import pytest

from proxy.wire.call import CallKind
from proxy.wire.output_cap import CAP_FIELDS, with_output_cap
from proxy.wire.read_call import read_call

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CallKind.CHAT, CHAT),
        (CallKind.CHAT, CHAT | {"max_tokens": 500}),
        (CallKind.CHAT, CHAT | {"max_tokens": 500, "max_completion_tokens": 400}),
        (CallKind.COMPLETIONS, {"prompt": "hi"}),
        (CallKind.COMPLETIONS, {"prompt": "hi", "max_tokens": 500}),
        (CallKind.MESSAGES, CHAT | {"max_tokens": 500}),
        (CallKind.RESPONSES, {"input": "hi", "max_output_tokens": 500}),
    ],
)
def test_the_engine_reads_the_cap(kind: CallKind, fields: dict[str, object]) -> None:
    body = with_output_cap(json.dumps(fields).encode(), kind, 7)
    assert read_call(kind, body).output_tokens_max == 7
    assert json.loads(body) == fields | {CAP_FIELDS[kind]: 7}
