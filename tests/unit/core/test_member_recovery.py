"""What a proxy sends a store that has lost everything: its share, for as long as that may be asked for."""

from proxy.core.events import Granted
from proxy.core.shared import ReserveAsk
from proxy.core.shared_ledger import RECOVERY_S_MAX, SharedLedger
from proxy.core.store_calls import CallReserve, StoreCall, StoreReply
from tests.support.member_side import BEAT_S, Side


class Listening(Side):
    """A side that keeps what it asked."""

    asks: list[ReserveAsk]

    def answer(self, call: StoreCall, store_s: float) -> StoreReply:
        self.asks = getattr(self, "asks", [])
        if isinstance(call, CallReserve):
            self.asks.append(call.ask)
        return super().answer(call, store_s)

    def asked(self, name: str, now_s: float) -> ReserveAsk:
        self.reserve(name, 1.0, now_s)
        return self.asks[-1]


def test_a_share_is_told_while_the_store_may_recover_and_not_worked_out_afterwards() -> None:
    side = Listening(SharedLedger(), "a")
    next_s = side.beats(0.0, 3)
    assert side.asked("early", next_s).own_share_blocks > 0.0
    assert side.asked("late", RECOVERY_S_MAX + 1.0).own_share_blocks == 0.0


def test_a_loss_later_on_has_the_share_told_again_before_anything_is_granted() -> None:
    side = Listening(SharedLedger(), "a")
    side.beats(0.0, 3)
    side.ledger.flush()
    began_s = RECOVERY_S_MAX + 1.0
    next_s = side.beats(began_s, 6)
    side.ledger._proxies_expected = 2  # another is known, and has not come back
    assert side.asked("q", next_s).own_share_blocks > 0.0
    assert Granted("p") in side.reserve("p", 1.0, next_s + BEAT_S)
