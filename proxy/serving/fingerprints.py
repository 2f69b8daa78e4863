"""The ``system_fingerprint`` of each replica's engine, learned from its own streams.

Where we ask a stream for usage that the client did not ask for, the engine moves its fingerprint to the usage event, which is taken out;
to give the client the stream it would have got, the fingerprint is put back (``wire.sse.UsageStripper``). It is the same for all answers
of one engine, so the first stream of an engine's life is relayed without asking and tells it; an empty one means the engine has none.
"""

from proxy.serving.dispatcher import Dispatcher
from proxy.serving.relay_result import RelayResult
from proxy.wire.call import CallKind

_TOLD_BY = frozenset({CallKind.CHAT, CallKind.COMPLETIONS})  # streams of other kinds carry none


class Fingerprints:
    """By replica and count of engine epochs: a restarted engine may have another."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._known: dict[str, tuple[int, str]] = {}

    def of(self, replica: str, kind: CallKind) -> str | None:
        """The replica's fingerprint in answers of that kind, "" if there is none, None while it is not known."""
        if kind not in _TOLD_BY:
            return ""
        epoch, fingerprint = self._known.get(replica, (-1, ""))
        return fingerprint if epoch == self._dispatcher.gate.fleet.epochs_total else None

    def learn(self, replica: str, kind: CallKind, result: RelayResult) -> None:
        """Take in a stream that ended with a finish reason."""
        if result.is_stream and result.finish_reasons and kind in _TOLD_BY:
            self._known[replica] = (self._dispatcher.gate.fleet.epochs_total, result.fingerprint or "")
