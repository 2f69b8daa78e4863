"""The engine's fingerprint is learned from the streams that carry one, and from no others."""

from types import SimpleNamespace
from typing import Any, cast

from proxy.serving.dispatcher import Dispatcher
from proxy.serving.fingerprints import Fingerprints
from proxy.serving.relay_result import RelayEnd, RelayResult
from proxy.wire.call import CallKind


def stream(fingerprint: str | None) -> RelayResult:
    return RelayResult(RelayEnd.COMPLETED, is_stream=True, finish_reasons=("stop",), fingerprint=fingerprint)


def test_only_streams_that_carry_one_tell_it() -> None:
    fleet = SimpleNamespace(epochs_total=0)
    known = Fingerprints(cast("Dispatcher", SimpleNamespace(gate=SimpleNamespace(fleet=fleet))))
    for kind in (CallKind.MESSAGES, CallKind.RESPONSES, CallKind.GENERATE):
        known.learn("r", kind, stream(None))
        assert known.of("r", kind) == ""
    assert known.of("r", CallKind.CHAT) is None
    known.learn("r", CallKind.COMPLETIONS, stream("vllm-1"))
    assert known.of("r", CallKind.CHAT) == "vllm-1"
    fleet.epochs_total = 1
    unknown: Any = known.of("r", CallKind.CHAT)
    assert unknown is None
