"""What fails before the first byte is served by another replica, within a budget; what fails again and again is left alone for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from proxy import app
from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaPhase
from proxy.ports import Headers
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import RunningProxy, ShiftedClock, answer_like_vllm, proxying, until, url_of
from tests.integration.serving.test_failing_replicas import EVENT, SSE_HEAD
from tests.support.upstream_servers import Peer, ScriptedUpstream

BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nx-own: yes\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nbroken"
NO_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
SERVED = NO_STREAM + b'{"choices":[]}'
FAULTS: dict[str, bytes | None] = {  # what it answers before it resets the connection
    "refused": None,
    "reset": b"",
    "in the head": b"HTTP/1.1 200 OK\r\ncontent-",
    "after the head of a stream": SSE_HEAD,
    "after the head of a whole answer": NO_STREAM,
    "garbage": b"\x16\x03\x01 this is no HTTP\r\n\r\n",
    "500": BROKEN,
    "502": BROKEN.replace(b"500", b"502"),
    "503": BROKEN.replace(b"500", b"503"),
    "429": BROKEN.replace(b"500", b"429"),
    "500 that never ends": BROKEN.replace(b"content-length: 6", b"content-length: 99"),
}


class Faulty:
    """A replica that answers probes and says ``says`` to every request; ``asked`` counts those."""

    def __init__(self, says: bytes | None) -> None:
        self.says = says
        self.asked = 0
        self.free = asyncio.Event()  # to answer
        self.free.set()

    async def __call__(self, peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST /v1/" not in head:
            await answer_like_vllm(peer, head)
            return
        self.asked += 1
        await self.free.wait()
        await peer.send(self.says or b"")
        if not (self.says or b"").endswith((b"broken", b"}")):
            peer.reset()


@asynccontextmanager
async def beside_a_faulty_one(
    says: bytes | None, policy: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Faulty, RunningMock, RunningProxy]]:
    """kvgate before a faulty replica, which has the most room and so is asked first, and a mock."""
    faulty = Faulty(says)
    async with ScriptedUpstream.running(faulty) as bad, running(settings()) as mock:
        replicas = [{"url": bad.url, "kv_blocks": 5000, "name": "bad"}, {"url": url_of(mock), "kv_blocks": 21, "name": "good"}]
        async with proxying(policy={"replicas": replicas} | (policy or {})) as proxy:
            yield faulty, mock, proxy


@pytest.mark.parametrize("mode", ["enforce", "off"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_another_replica_serves_what_fails_before_the_first_byte(fault: str, stream: bool, mode: str) -> None:
    async with beside_a_faulty_one(FAULTS[fault], {"mode": mode}) as (faulty, mock, proxy):
        if fault == "refused":
            proxy.services.watchers["bad"].policy = replace_url(proxy, "bad", "http://127.0.0.1:9")
        reply = await proxy.wire.chat(max_tokens=3, stream=stream, ignore_eos=True)
        assert reply.status == 200
        if stream:
            assert sum(len(event["choices"]) for event in reply.events()) >= 3
        else:
            assert reply.json()["usage"]["completion_tokens"] == 3
        await proxy.until_idle(mock)
        (record,) = proxy.records
        assert (record.outcome, record.replica, record.reroutes) == (Outcome.COMPLETED, "good", 1)
        assert faulty.asked == (0 if fault == "refused" else 1)
        assert proxy.metric("kvgate_reroutes_total") == 1


def replace_url(proxy: RunningProxy, name: str, url: str) -> Any:
    """The replica's policy with an address where nobody listens: its probes were answered, its requests are refused."""
    return replace(proxy.services.watchers[name].policy, url=url)


async def test_nothing_is_sent_again_once_the_client_has_seen_a_byte() -> None:
    said = SSE_HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    async with beside_a_faulty_one(said) as (faulty, mock, proxy):
        exchange = await proxy.wire.start_chat(stream=True)
        raw = await exchange.reader.read()
        await exchange.leave()
        assert b'"code":"cut_off"' in raw
        await proxy.until_idle(mock)
        assert [(record.outcome, record.reroutes) for record in proxy.records] == [(Outcome.CUT_OFF, 0)]
        assert faulty.asked == 1


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_when_all_fail_the_last_answer_is_shown_as_it_is(mode: str) -> None:
    one, two = Faulty(BROKEN), Faulty(BROKEN)
    async with ScriptedUpstream.running(one) as first, ScriptedUpstream.running(two) as second:
        urls = first.url, second.url
        async with proxying(*urls, kv_blocks=300, policy={"mode": mode}) as proxy:
            reply = await proxy.wire.chat(max_tokens=2)
            assert (reply.status, reply.body, reply.headers["x-own"]) == (500, b"broken", "yes")
            await proxy.until_idle()
            assert (one.asked, two.asked) == (1, 1)
            assert [(record.outcome, record.status) for record in proxy.records] == [(Outcome.COMPLETED, 500)]


async def test_a_replica_that_keeps_failing_is_ejected_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock()
    monkeypatch.setattr(app, "SystemClock", lambda: clock)
    async with beside_a_faulty_one(BROKEN) as (faulty, mock, proxy):
        replies = [await proxy.wire.chat(max_tokens=2) for _ in range(9)]
        assert [reply.status for reply in replies] == [200] * 9
        bad = proxy.services.watchers["bad"]
        assert (faulty.asked, bad.phase) == (5, ReplicaPhase.EJECTED)
        assert proxy.metric('kvgate_replica_ejections_total{reason="consecutive_failures",replica="bad"}') == 1
        assert proxy.metric('kvgate_replica_phase{phase="ejected",replica="bad"}') == 1
        faulty.says = SERVED
        clock.ahead_s += 2.0
        await until(lambda: bad.phase is ReplicaPhase.SERVING, "its return")
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert proxy.records[-1].replica == "bad"
        assert faulty.asked == 6
        await proxy.until_idle(mock)


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
async def test_what_the_client_did_wrong_and_full_queues_never_eject(status: int) -> None:
    said = BROKEN.replace(b"500", b"%d" % status)
    async with beside_a_faulty_one(said) as (faulty, mock, proxy):
        for _ in range(12):
            assert (await proxy.wire.chat(max_tokens=2)).status == (status if status < 429 else 200)
        assert faulty.asked == 12
        assert proxy.services.watchers["bad"].phase is ReplicaPhase.SERVING
        await proxy.until_idle(mock)


async def test_a_request_that_cannot_be_sent_is_nobodys_fault() -> None:
    async with running(settings()) as one, running(settings()) as two, proxying(url_of(one), url_of(two)) as proxy:
        opened = proxy.services.upstream.open

        async def unsendable(url: str, method: bytes, target: bytes, headers: Headers, body: bytes, *, once: bool = False) -> Any:
            return await opened(url, method, target, [*headers, (b"a", b"b\r\nc: d")], body, once=once)

        proxy.services.upstream.open = unsendable  # type: ignore[method-assign]
        for _ in range(6):
            assert (await proxy.wire.chat(max_tokens=2)).status == 502
        assert {watcher.phase for watcher in proxy.services.watchers.values()} == {ReplicaPhase.SERVING}
        assert {record.reroutes for record in proxy.records} == {0}


@pytest.mark.parametrize("mode", ["enforce", "observe", "off"])
async def test_a_replica_that_comes_back_gets_one_request_at_a_time_at_first(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock()
    monkeypatch.setattr(app, "SystemClock", lambda: clock)
    async with beside_a_faulty_one(BROKEN, {"mode": mode, "health": {"slow_start": "1h"}}) as (faulty, mock, proxy):
        bad = proxy.services.watchers["bad"]
        while bad.phase is not ReplicaPhase.EJECTED:
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
        faulty.says = SERVED
        faulty.free.clear()
        clock.ahead_s += 2.0
        await until(lambda: bad.phase is ReplicaPhase.SERVING, "its return")
        chats = [asyncio.create_task(proxy.wire.chat(max_tokens=2)) for _ in range(6)]
        await until(lambda: sum(chat.done() for chat in chats) == 5, "five served by the other")
        assert proxy.services.outstanding.on("bad") == 1
        faulty.free.set()
        assert [reply.status for reply in await asyncio.gather(*chats)] == [200] * 6
        await proxy.until_idle(mock)


@pytest.mark.parametrize(("method", "asked"), [("GET", 2), ("POST", 1)])
async def test_what_needs_no_place_is_repeated_only_where_that_is_safe(method: str, asked: int) -> None:
    """An unknown path may be anything: once its bytes are out, it is not sent again."""
    seen: list[bytes] = []

    async def dying(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"/unknown" not in head:
            await answer_like_vllm(peer, head)
            return
        seen.append(head)
        peer.reset()

    async with ScriptedUpstream.running(dying) as one, ScriptedUpstream.running(dying) as two:
        body = b"{}" if method == "POST" else b""
        async with proxying(one.url, two.url, kv_blocks=300) as proxy:
            reply = await proxy.wire.request(method, "/unknown", body)
            assert (reply.status, reply.headers["x-kvgate-outcome"]) == (502, "upstream_failed")
            assert len(seen) == asked


@pytest.mark.parametrize(
    ("limit", "stream", "status"),
    [("first_byte", False, 504), ("first_byte", True, 504), ("idle", True, 200), ("total", True, 200)],
)
async def test_answers_that_take_too_long(limit: str, stream: bool, status: int) -> None:
    """Before the first byte they are answered 504, after it they are cut off. A long answer is no fault of the replica."""

    async def slow(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST" not in head:
            await answer_like_vllm(peer, head)
            return
        if stream:
            await peer.send(SSE_HEAD)
        if limit == "idle":
            await peer.send(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        while limit == "total":
            await peer.send(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            await asyncio.sleep(0.01)
        await peer.until_gone()

    relay = {"first_byte": "1s", "idle": "1s", "total": "1s"} | {limit: "200ms"}
    if limit == "total":
        relay = dict.fromkeys(relay, "200ms")
    policy = {"relay": relay, "health": {"failures_max": 1}}
    async with ScriptedUpstream.running(slow) as upstream, running(settings()) as mock:
        replicas = [
            {"url": upstream.url, "kv_blocks": 5000, "name": "bad"},
            {"url": url_of(mock), "kv_blocks": 21, "name": "good"},
        ]
        async with proxying(policy=policy | {"replicas": replicas[: 1 if status == 504 else 2]}) as proxy:
            exchange = await proxy.wire.start_chat(max_tokens=2, stream=stream)
            raw = await exchange.reader.read()
            await exchange.leave()
            assert raw.startswith(b"HTTP/1.1 %d " % status)
            assert (b'"code":"cut_off"' in raw) is (status == 200)
            assert (b'"policy_key":"relay.%b"' % limit.encode() in raw) is (status == 504)
            await proxy.until_idle(mock)
            assert proxy.metric(f'kvgate_upstream_timeouts_total{{limit="relay.{limit}"}}') == 1
            ejected = status == 200 and limit != "total"
            assert proxy.services.watchers["bad"].phase is (ReplicaPhase.EJECTED if ejected else ReplicaPhase.SERVING)


async def test_a_5xx_is_not_shown_while_another_only_lost_the_request() -> None:
    """Both replicas fail it, one by an answer: it goes back to the one that lost it, which does it now."""
    asked: dict[str, list[str]] = {"big": [], "small": []}

    def replica(name: str, first: bytes) -> Any:
        async def script(peer: Peer) -> None:
            head, _ = await peer.request()
            if b"POST /v1/" not in head:
                await answer_like_vllm(peer, head)
                return
            asked[name].append(name)
            await peer.send(first if len(asked[name]) == 1 else SERVED)
            if not first and len(asked[name]) == 1:
                peer.reset()

        return script

    async with ScriptedUpstream.running(replica("big", b"")) as one, ScriptedUpstream.running(replica("small", BROKEN)) as two:
        replicas = [{"url": one.url, "kv_blocks": 5000, "name": "big"}, {"url": two.url, "kv_blocks": 300, "name": "small"}]
        async with proxying(policy={"replicas": replicas}) as proxy:
            reply = await proxy.wire.chat(max_tokens=2)
            assert (reply.status, reply.body) == (200, b'{"choices":[]}')
            await proxy.until_idle()
            assert [record.reroutes for record in proxy.records] == [2]
            assert (len(asked["big"]) + len(asked["small"]), asked["small"][:1]) == (3, ["small"])
