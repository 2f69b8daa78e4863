"""Every answer tells its way: served, refused at the door, by the gate or by a replica, with and without a place; or nothing of it."""

import json

import pytest

from proxy.wire.answers import NO_REPLICA
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import MESSAGES, Reply, RunningProxy, proxying, until, url_of
from tests.integration.serving.test_modes import fill, leave_all, small

CALL = json.dumps({"messages": MESSAGES, "max_tokens": 2}).encode()


def way(reply: Reply) -> tuple[str, str, str]:
    """Outcome, wait and replica as an answer tells them; a KeyError where it does not."""
    assert reply.headers["x-request-id"]
    names = ("x-kvgate-outcome", "x-kvgate-queue-ms", "x-kvgate-replica")
    outcome, queue_ms, replica = (reply.headers[name] for name in names)
    assert queue_ms.isdigit()
    return outcome, queue_ms, replica


async def asked(proxy: RunningProxy) -> dict[str, Reply]:
    """One answer of each kind."""
    wire = proxy.wire
    return {
        "whole": await wire.chat(max_tokens=2),
        "stream": await wire.chat(max_tokens=2, stream=True),
        "without a place": await wire.request("POST", "/tokenize", json.dumps({"prompt": "a"}).encode()),
        "unknown path": await wire.request("GET", "/nowhere"),
        "kept response": await wire.request("GET", "/v1/responses/resp_unknown"),
        "unreadable": await wire.request("POST", "/v1/chat/completions", b"{"),
        "unknown model": await wire.chat(model="nobody's"),
        "too long": await wire.complete(prompt=[7] * 5000, max_tokens=2),
        "too large": await wire.request("POST", "/v1/completions", b"x" * 20_000),
    }


@pytest.mark.parametrize("headers", ["full", "none"])
async def test_every_kind_of_answer_tells_its_way(headers: str) -> None:
    async with running(settings()) as mock:
        policy = {"headers": headers, "limits": {"body_max": "16KiB"}}
        async with proxying(url_of(mock), policy=policy) as proxy:
            (name,) = proxy.services.watchers
            replies = await asked(proxy)
            if headers == "none":
                assert not [field for reply in replies.values() for field in reply.headers if field.startswith("x-kvgate")]
                assert all(reply.headers["x-request-id"] for reply in replies.values())
                return
            assert {kind: way(reply)[0] for kind, reply in replies.items()} == dict.fromkeys(replies, "completed") | {
                "unknown model": "no_replica", "too long": "never_fits", "too large": "never_fits"
            }  # fmt: skip
            by_us = {"unknown model", "too long", "too large"}
            assert {kind for kind, reply in replies.items() if way(reply)[2] == NO_REPLICA} == by_us
            assert {way(reply)[2] for kind, reply in replies.items() if kind not in by_us} == {name}


async def test_a_refusal_tells_how_long_it_waited() -> None:
    async with small({}) as (mocks, proxy):
        exchanges = await fill(proxy)
        reply = await proxy.wire.chat({"x-kvgate-deadline-ms": "150"}, max_tokens=1800)
        assert way(reply)[0] == "queue_timeout"
        assert int(way(reply)[1]) >= 5, "it stood by for a promise at least"
        at_once = await proxy.wire.chat({"x-kvgate-deadline-ms": "0"}, max_tokens=1800)
        assert way(at_once) == ("queue_timeout", "0", NO_REPLICA)
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


async def test_the_door_tells_too() -> None:
    async with running(settings()) as mock, proxying(url_of(mock), policy={"limits": {"connections_max": 1}}) as proxy:
        first = await proxy.wire.open("POST", "/v1/completions", CALL, length=len(CALL) + 1)
        await until(lambda: proxy.services.drain.under_way == 1, "a request under way")
        assert way(await proxy.wire.chat(max_tokens=2)) == ("queue_full", "0", NO_REPLICA)
        await first.leave()
        await proxy.until_idle(mock)
