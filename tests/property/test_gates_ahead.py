"""Two gates over one store that take room ahead there: what they have is never more than the store counts, and all of it fits.

The rules and the judge are those of ``test_gates_sharing``; the pool is so large that most requests go by what was taken ahead.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from proxy.core.events import Cancelled, Finished
from proxy.core.outcome import Outcome
from tests.property.test_gates_sharing import SharingMachine


class AheadMachine(SharingMachine):
    """The same before a replica with room for some twenty, of which half go by what was taken ahead."""

    usable, seats, ahead_ratio = 400, 200, 0.25

    @initialize()
    def found(self) -> None:
        super().found()
        for _ in range(3):  # a store that has just begun is recovering
            self.tick(0.5)

    @rule(proxy=st.integers(0, 1), tokens=st.integers(1, 60), count=st.integers(2, 12), ends=st.booleans())
    def busy(self, proxy: int, tokens: int, count: int, ends: bool) -> None:
        """Small requests one after the other, the store's answers in between."""
        one = self.proxies[proxy]
        for _ in range(count):
            self.arrive([(proxy, tokens, tokens, 1, 0, "a", 10.0)])
            self.settle()
            if ends and one.forwarded:
                name = max(one.forwarded)
                one.forwarded.remove(name)
                one.send(Finished(name, Outcome.COMPLETED, tokens, natural=True), self.now_s)

    def teardown(self) -> None:
        """Once nobody comes any more, nothing is left of what was taken ahead, nor of anything else."""
        for _ in range(8):
            for proxy in self.proxies:
                waiting = {entry.demand.request_id for entry in proxy.gate.queue.order()}
                for name in sorted(waiting | proxy.forwarded | proxy.reserving):
                    proxy.send(Cancelled(name), self.now_s)
                proxy.forwarded.clear()
                proxy.reserving.clear()
            self.tick(0.5)
        assert not any(proxy.open for proxy in self.proxies)
        account = self.ledger.accounts.get("r0")
        assert account is None or not account.total.any(), account


TestGatesAhead = AheadMachine.TestCase
TestGatesAhead.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
