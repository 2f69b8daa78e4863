"""Setting a request's cap of output tokens, in the field that its route's engine code looks at first."""

from proxy.wire.call import CallKind
from proxy.wire.inject import with_member

CAP_FIELDS = {
    CallKind.CHAT: "max_completion_tokens",  # before max_tokens, where both are there
    CallKind.COMPLETIONS: "max_tokens",
    CallKind.MESSAGES: "max_tokens",
    CallKind.RESPONSES: "max_output_tokens",
}


def with_output_cap(body: bytes, kind: CallKind, output_tokens_max: int) -> bytes:
    """The body with that cap; all other bytes as they came."""
    return with_member(body, CAP_FIELDS[kind], output_tokens_max)
