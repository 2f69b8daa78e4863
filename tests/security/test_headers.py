"""What a client puts into header fields, and what a replica answers: nothing becomes a field, a request or an answer that was not meant."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.hostile.exchanging import OK, statuses
from tests.security.attacked import KEYED, REPLICA_KEY, Attacked, attacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = b'{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
HOP = b"Connection: Authorization, x-request-id, traceparent, x-data-parallel-rank, host, content-length, close\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_kvgate() -> AsyncIterator[Attacked]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("THEIR_KEY", REPLICA_KEY)
        async with attacked(KEYED, relay={"reroutes_max": 0}, health={"eject_ratio_max": 0}) as server:
            yield server


@pytest.fixture
def kvgate(one_kvgate: Attacked) -> Attacked:
    one_kvgate.replica.requests.clear()
    one_kvgate.replica.answer = OK
    return one_kvgate


def post(*fields: bytes, target: bytes = b"/v1/chat/completions", body: bytes = CHAT) -> bytes:
    lines = [b"POST %b HTTP/1.1" % target, b"host: x", *fields, b"content-length: %d" % len(body), b"", b""]
    return b"\r\n".join(lines) + body


@pytest.mark.parametrize("target", [b"/v1/chat/completions", b"/v1/other", b"/v1/responses/resp_1/cancel"])
async def test_a_client_cannot_take_away_what_kvgate_adds(kvgate: Attacked, target: bytes) -> None:
    """``Connection`` names fields of one hop: with the replica's own key among them, the replica refused the request."""
    raw = await kvgate.say(post(HOP.removesuffix(b"\r\n"), b"authorization: Bearer mine", b"x-other: 1", target=target))
    assert statuses(raw) == [200]
    ((head, body),) = kvgate.replica.requests
    assert b"authorization: Bearer %b\r\n" % REPLICA_KEY.encode() in head
    assert b"mine" not in head
    assert b"\r\nx-request-id: kvgate-" in head
    assert b"\r\nx-other: 1\r\n" in head
    assert b"\r\nconnection:" not in head
    assert body == CHAT


async def test_a_client_cannot_take_a_websockets_key_away(kvgate: Attacked) -> None:
    reader, writer = await kvgate.connect()
    writer.write(
        b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade, authorization, sec-websocket-key\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    ((head, _),) = kvgate.replica.requests
    assert b"authorization: Bearer %b\r\n" % REPLICA_KEY.encode() in head
    assert head.count(b"connection: Upgrade\r\nupgrade: websocket\r\n") == 1


NAMES = [
    b"x-request-id: a\tb", b"x-request-id: " + b"a" * 129, b"x-request-id: \xe4", b"x-request-id: a\r\nx-request-id: b",
    b"x-request-id: <script>\xff", b"x-request-id: ",
]  # fmt: skip


@pytest.mark.parametrize("field", NAMES)
async def test_a_request_is_named_by_one_sane_word(kvgate: Attacked, field: bytes) -> None:
    raw = await kvgate.say(post(field, b"connection: close"))
    ((head, _),) = kvgate.replica.requests
    named = [line for line in head.split(b"\r\n") if line.startswith(b"x-request-id:")]
    assert len(named) == 1
    assert named[0].startswith(b"x-request-id: kvgate-")
    assert raw.count(b"x-request-id: ") == 1
    assert named[0] in raw


ANSWERS = {  # of a replica that lies, and the statuses that the client sees
    "a field ended by a bare CR": (b"HTTP/1.1 200 OK\r\nx-a: b\rset-cookie: c\r\ncontent-length: 2\r\n\r\n{}", [502]),
    "NUL in a field": (b"HTTP/1.1 200 OK\r\nx-a: b\0c\r\ncontent-length: 2\r\n\r\n{}", [502]),
    "a folded field": (b"HTTP/1.1 200 OK\r\nx-a: b\r\n set-cookie: c\r\ncontent-length: 2\r\n\r\n{}", [502]),
    "two lengths": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 40\r\n\r\n{}", [502]),
    "length and coding": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [502]),
    "two answers": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen", [200]),
    "no HTTP": (b"220 mail.example.org ESMTP\r\n\r\n", [502]),
    "a status of four digits": (b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}", [502]),
    "an upgrade that nobody asked for": (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nstolen", [502]),
    "fields of one hop and of ours": (
        (b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nx-hop: stolen\r\nx-request-id: stolen\r\nproxy-authenticate: stolen\r\n"
         b"keep-alive: timeout=9\r\ncontent-length: 2\r\n\r\n{}"), [200]),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
async def test_a_lying_replica_reaches_nobody_else(kvgate: Attacked, what: str) -> None:
    answer, expected = ANSWERS[what]
    kvgate.replica.answer = answer
    raw = await kvgate.say(post(b"connection: close"))
    assert statuses(raw) == expected, raw
    assert b"stolen" not in raw
    assert b"set-cookie" not in raw
    await served_after(kvgate)


async def served_after(kvgate: Attacked) -> None:
    """The next client gets its own answer, not what was left lying on a connection."""
    kvgate.replica.answer = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"own":1}'
    raw = await kvgate.say(post(b"connection: close", target=b"/v1/other"))
    assert statuses(raw) == [200]
    assert raw.endswith(b'{"own":1}')


async def test_a_location_that_leads_to_the_replica_leads_to_kvgate(kvgate: Attacked) -> None:
    (watcher,) = kvgate.proxy.services.watchers.values()
    kvgate.replica.answer = (
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: %b/v1/chat/completions\r\ncontent-length: 0\r\n\r\n"
        % watcher.policy.url.encode()
    )
    raw = await kvgate.say(post(b"connection: close", target=b"/v1/other/"))
    assert b"\r\nlocation: /v1/chat/completions\r\n" in raw
