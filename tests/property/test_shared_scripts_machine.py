"""The machine of ``test_shared_ledger_machine`` with the scripts beside the ledger: every reply and every total must be the ledger's."""

import asyncio
from typing import Any

import pytest
import redis.asyncio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from proxy.adapters.redis_scripts import RedisLedger, numbers_in
from proxy.core.shared import ReserveReply, RewriteReply
from tests.property.test_shared_ledger_machine import REPLICAS, SharedMachine
from tests.support.redis_server import RedisServer, redis_server
from tests.support.shared_accounts import CLOSE, LEASE_S
from tests.support.shared_rows import blocks_row


def same(one: Any, other: Any) -> None:
    """Two replies say the same, sums to rounding."""
    assert type(one) is type(other)
    if isinstance(one, ReserveReply | RewriteReply):
        assert one.answer is other.answer
        if isinstance(one, ReserveReply):
            assert (one.store_s, one.free_blocks, one.retry_s) == pytest.approx(
                (other.store_s, other.free_blocks, other.retry_s), abs=CLOSE
            )
        else:
            assert (one.store_s, one.record, one.offered) == (other.store_s, other.record, other.offered)
        assert (one.others is None) == (other.others is None)
        if one.others is not None and other.others is not None:
            assert (one.others.replica, one.others.anchor_steps) == (other.others.replica, other.others.anchor_steps)
            assert one.others.row == pytest.approx(other.others.row, abs=CLOSE)
    else:
        assert one == other


class RedisMachine(SharedMachine):
    """The same with the scripts beside the ledger."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        server.flush()
        self.runner = asyncio.Runner()
        self.client = redis.asyncio.Redis.from_url(server.unix_url)
        self.twin = RedisLedger(self.client, "pool", LEASE_S, now_s=lambda: self.now_s)

    def call(self, name: str, *arguments: Any) -> Any:
        reply = super().call(name, *arguments)
        same(self.runner.run(getattr(self.twin, name)(*arguments)), reply)
        for replica in self.ledger.accounts:
            self.same_total(replica)
        return reply

    @rule(
        ready=st.sampled_from([0.0, 20.0, 70.0, 300.0]),
        until=st.tuples(*[st.sampled_from([16.0, 64.0, 256.0])] * 2),
        blocks=st.integers(1, 50),
    )
    def ahead_of_a_promise(self, ready: float, until: tuple[float, float], blocks: int) -> None:
        """A head that does not fit now and has been promised a step, and somebody who may go ahead of it or not."""
        self.rewrite(1, "r0", blocks_row(50, until_steps=64.0), 0, 0.0)
        self.head(0, "r0", blocks_row(60, until_steps=until[0]), (-1.0, 1.0, 1.0), "x", ready)
        self.reserve([(1, blocks_row(blocks, until_steps=until[1]), (0.0, 2.5, 1.0), 0.0, False)], "r0", 100.0)

    def same_total(self, replica: str) -> None:
        kept = self.runner.run(self.client.execute_command("HGET", self.twin.keys(replica)[1], "total"))
        account = self.ledger.accounts[replica]
        if kept is None:
            assert not account.entries
            return
        numbers = numbers_in(kept)
        assert numbers[:2].tolist() == [account.anchor_steps, account.rebuilt_s]
        assert numbers[3] == account.rewritten()
        assert numbers[4:] == pytest.approx(account.total, abs=CLOSE)

    def lost(self) -> None:
        super().lost()
        self.runner.run(self.client.flushall())

    def gone(self, proxy: str) -> None:
        super().gone(proxy)
        self.runner.run(self.twin.forget(proxy, REPLICAS))

    def teardown(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


@pytest.mark.redis
def test_the_scripts_do_what_the_ledger_does() -> None:
    with redis_server() as server:
        run_state_machine_as_test(
            lambda: RedisMachine(server), settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
        )
