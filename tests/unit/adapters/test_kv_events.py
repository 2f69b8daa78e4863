"""KV events: from messages to what the prefix index is told."""

import sys

import msgspec
import pytest

from proxy.adapters.block_hashes import block_hashes, hash_salt
from proxy.adapters.kv_block_map import KvBlockMap
from proxy.adapters.kv_events import KvEventFeed, KvEventsUnavailableError, endpoint_of, subscription
from proxy.core.events import CacheTold
from proxy.wire.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvBatch, read_batch

SIZE = 128  # every block is told on
MAP = {
    "type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": None, "token_ids": list(range(2 * SIZE)), "block_size": SIZE,
    "lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0,
}  # fmt: skip


def payload(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def ours(tokens: range, salt: bytes | None = None) -> tuple[int, ...]:
    """What the counter makes of a prompt with these ids."""
    ids = b"".join(token.to_bytes(4, sys.byteorder) for token in tokens)
    return block_hashes(ids, SIZE, hash_salt("m", None) if salt is None else salt)


def blocks(**fields: object) -> dict[str, object]:
    return MAP | fields


def told(*events: object, names: tuple[str, ...] = ("m",)) -> list[CacheTold]:
    return KvBlockMap("r", names).apply(read_batch(payload(*events)))


def test_both_forms_of_events_are_read() -> None:
    new = read_batch(
        payload(MAP, {"type": "BlockRemoved", "block_hashes": [b"x"], "medium": "GPU"}, {"type": "AllBlocksCleared"})
    )
    stored = BlocksStored((11, 12), None, tuple(range(2 * SIZE)), SIZE, None, ())
    assert new == KvBatch((stored, BlocksRemoved((b"x",)), AllCleared()))
    old = read_batch(
        payload(
            ["BlockStored", [11, 12], None, list(range(2 * SIZE)), SIZE, None], ["BlockRemoved", [b"x"]], ["AllBlocksCleared"]
        )
    )
    assert old == new


@pytest.mark.parametrize(
    "event",
    [
        7, [], {}, {"type": "New"}, blocks(token_ids=[1]), blocks(block_size=0), blocks(block_hashes="x"), blocks(block_hashes=[None]),
        blocks(token_ids=["a"] * 256), blocks(token_ids=[-1] * 256), blocks(parent_block_hash=1.5), ["BlockStored"],
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_left_out_and_the_rest_is_not(event: object) -> None:
    batch = read_batch(payload(event, ["AllBlocksCleared"]))
    assert batch == KvBatch((AllCleared(),), 1)


@pytest.mark.parametrize("message", [b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1.0])])
def test_a_message_that_is_no_batch_is_one_skipped_event(message: bytes) -> None:
    assert read_batch(message) == KvBatch((), 1)


@pytest.mark.parametrize("event", [blocks(medium="CPU"), blocks(group_idx=1), ["BlockRemoved", [1], "STORAGE"]])
def test_other_caches_and_other_layers_are_not_ours(event: object) -> None:
    assert read_batch(payload(event)) == KvBatch(())


def test_stored_blocks_have_the_hashes_that_the_counter_gives_the_same_tokens() -> None:
    assert told(MAP) == [CacheTold("r", ours(range(2 * SIZE)), ())]


def test_a_chain_goes_on_along_its_parents() -> None:
    more = blocks(block_hashes=[13], parent_block_hash=12, token_ids=list(range(2 * SIZE, 3 * SIZE)))
    assert told(MAP, more)[1].stored == ours(range(3 * SIZE))[2:]


def test_what_follows_a_block_that_was_missed_is_unknown() -> None:
    one = KvBlockMap("r", ("m",))
    assert one.apply(read_batch(payload(blocks(parent_block_hash=5)))) == []
    assert (one.unknown_total, len(one)) == (2, 0)


def test_adapter_and_salt_keep_prompts_apart_and_images_out() -> None:
    lora = told(blocks(lora_name="a", extra_keys=[["a"], None]))
    assert lora[0].stored == ours(range(2 * SIZE), hash_salt("a", None))
    salted = told(blocks(extra_keys=[["pepper"], None]))
    assert salted[0].stored == ours(range(2 * SIZE), hash_salt("m", "pepper"))
    assert told(blocks(extra_keys=[[["image", 3]], None])) == []


def test_every_name_of_the_model_is_told() -> None:
    (one,) = told(MAP, names=("m", "alias"))
    assert set(one.stored) == {*ours(range(2 * SIZE)), *ours(range(2 * SIZE), hash_salt("alias", None))}


def test_a_block_is_gone_with_its_last_copy() -> None:
    gone = ["BlockRemoved", [12]]
    assert [one.removed for one in told(MAP, MAP, gone)] == [()], "the other copy still serves"
    assert told(MAP, MAP, gone, gone)[-1].removed == ours(range(2 * SIZE))[1:]
    assert told(["BlockRemoved", [99]]) == []


def test_small_blocks_are_told_in_strides() -> None:
    small = blocks(block_size=16, block_hashes=list(range(16)))
    (one,) = told(small)
    ids = b"".join(token.to_bytes(4, sys.byteorder) for token in range(256))
    hashes = block_hashes(ids, 16, hash_salt("m", None))
    assert one.stored == (hashes[7], hashes[15])


async def test_a_gap_or_a_restart_forgets_everything() -> None:
    heard: list[CacheTold] = []
    feed = KvEventFeed(subscription_of(), KvBlockMap("r", ("m",)), heard.append)
    for sequence in (5, 6, 8, 0):
        await feed.take([b"", sequence.to_bytes(8, "big"), payload(MAP)])
    assert [one.cleared for one in heard] == [False, True, False, True, False]
    assert (feed.gaps_total, feed.batches_total) == (2, 4)
    await feed.take([b"", b"short", b""])
    assert feed.skipped_total == 1


def subscription_of() -> "Silent":
    return Silent()


class Silent:
    """A publisher that says nothing."""

    async def receive(self) -> list[bytes]:
        raise AssertionError("not asked")

    def close(self) -> None:
        """Nothing to close."""


def test_engines_of_one_server_publish_on_ports_in_a_row() -> None:
    assert [endpoint_of("tcp://[::1]:5557", rank) for rank in range(2)] == ["tcp://[::1]:5557", "tcp://[::1]:5558"]


def test_without_pyzmq_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.setitem(sys.modules, "zmq.asyncio", None)
    with pytest.raises(KvEventsUnavailableError, match=r"pip install 'kvgate\[kv-events\]'"):
        subscription("tcp://127.0.0.1:1")
