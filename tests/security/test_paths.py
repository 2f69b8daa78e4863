"""Paths in disguise: what is closed stays closed, and a call is admitted, however a server on the way or the engine might read them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from proxy.wire.routes import CLOSED_PATHS
from tests.integration.hostile.exchanging import statuses
from tests.security.attacked import ADMIN_TOKEN, Attacked, attacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

UPGRADE = (
    b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
BODY = b'{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kvgate() -> AsyncIterator[Attacked]:
    async with attacked() as server:
        yield server


def request(method: bytes, target: bytes, fields: bytes = b"connection: close\r\n", body: bytes = b"") -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (method, target, fields, len(body), body)


def spellings(path: bytes) -> list[bytes]:
    """Targets that name ``path`` (``/sleep``), or that something on the way could take for it."""
    first, rest = path[1:2], path[2:]
    escaped = b"%%%02x" % first[0]
    return [
        path, b"/" + path, b"/." + path, b"/x/.." + path, b"/.." + path, b"/%2e%2e" + path, b"/%2e" + path,
        path + b"/", path + b"//", path + b"/.", path + b"%2f", path + b"%2F.", path + b"?x=1", path + b"?", path + b"#x", path + b"%3fx",
        path + b";x=1", b"/;x" + path, path + b"%3b", b"/" + escaped + rest, b"/%25" + escaped[1:] + rest, path.upper(), path.title(),
        path + b"%20", path + b"%09", path + b"%0a", path + b"%0d%0a", path + b"%00", b"/%20" + path[1:], b"/\\" + path[1:],
        b"/%5c" + path[1:], b"/api" + path, b"/api/v9" + path, b"http://x" + path, b"http://x/" + path, b"https://user@x:9" + path,
        b"http://x" + path + b"?y=http://z/health",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [b"/sleep", b"/v1/load_lora_adapter", b"/collective_rpc", b"/update_weights", b"/adapters/x"])
async def test_a_closed_path_reaches_no_replica(kvgate: Attacked, path: bytes) -> None:
    assert path.decode() in CLOSED_PATHS or path.startswith(b"/adapters/")
    kvgate.replica.requests.clear()
    got = {
        (method, target): statuses(await kvgate.say(request(method, target)))
        for target in spellings(path)
        for method in (b"POST", b"GET", b"PUT")
    }
    assert {key: status for key, status in got.items() if status not in ([403], [400])} == {}
    assert [key for key, status in got.items() if status == [400]] == []
    assert kvgate.replica.requests == []


async def test_a_closed_path_opens_no_websocket(kvgate: Attacked) -> None:
    kvgate.replica.requests.clear()
    for target in spellings(b"/sleep"):
        assert (target, statuses(await kvgate.say(request(b"GET", target, UPGRADE)))) == (target, [403])
    assert kvgate.replica.requests == []


async def test_only_the_engines_own_spelling_can_be_opened() -> None:
    fields = b"connection: close\r\nx-kvgate-replica: all\r\nx-kvgate-admin-token: %b\r\n" % ADMIN_TOKEN.encode()
    async with attacked(passthrough={"allow": ["/sleep"]}) as kvgate:
        reached = []
        for target in spellings(b"/sleep"):
            kvgate.replica.requests.clear()
            await kvgate.say(request(b"POST", target, fields))
            reached += [target] * bool(kvgate.replica.requests)
        # an ASGI server decodes once and cuts off a query, a fragment and a host: to the engine these are one path
        assert set(reached) == {
            *(b"/sleep", b"/sleep?x=1", b"/sleep?", b"/sleep#x", b"/%73leep"),
            *(b"http://x/sleep", b"https://user@x:9/sleep", b"http://x/sleep?y=http://z/health"),
        }


@pytest.mark.parametrize(
    "token", [b"", b"x-kvgate-admin-token: wrong\r\n", b"authorization: Bearer wrong\r\n", b"x-kvgate-admin-token: \r\n"]
)
async def test_an_opened_path_takes_the_token(token: bytes) -> None:
    async with attacked(passthrough={"allow": ["/sleep"]}) as kvgate:
        raw = await kvgate.say(request(b"POST", b"/sleep", b"connection: close\r\nx-kvgate-replica: all\r\n" + token))
        assert statuses(raw) == [401]
        assert kvgate.replica.requests == []


CALLED = [
    b"/v1/chat/completions",
    b"/v1/chat/completions%0a",  # the engine's router takes a line end at the end for nothing
    b"/v1/chat/completions%0A?x",
    b"/v1/chat%2fcompletions",
    b"/%76%31/chat/completions",
    b"http://other/v1/chat/completions",
    b"/api/v1/chat/completions",  # --root-path /api
    b"//v1/chat/completions",  # what balancers between kvgate and the engine put in order
    b"/v1//chat/./completions",
    b"/x/../v1/chat/completions",
    b"/v1/chat/completions/",
]


@pytest.mark.parametrize("target", CALLED)
async def test_a_call_takes_a_place_however_it_is_spelled(kvgate: Attacked, target: bytes) -> None:
    before = kvgate.proxy.services.dispatcher.gate.leases.started
    assert statuses(await kvgate.say(request(b"POST", target, body=BODY))) == [200]
    assert kvgate.proxy.services.dispatcher.gate.leases.started == before + 1


async def test_nobody_passes_by_his_limit_in_another_spelling() -> None:
    rates = {"list": {"poor": {"requests_per_s": 0.001, "burst": "1s"}}}
    async with attacked(tenants=rates) as kvgate:
        fields = b"connection: close\r\nx-kvgate-tenant: poor\r\n"
        got = [statuses(await kvgate.say(request(b"POST", target, fields, BODY)))[0] for target in CALLED]
        assert got.count(200) <= 1
        assert set(got) <= {200, 429}


async def test_a_target_leads_nowhere_but_to_the_replica(kvgate: Attacked) -> None:
    """Neither an absolute target nor Host nor a field that other gateways obey chooses where a request goes."""
    kvgate.replica.requests.clear()
    fields = b"connection: close\r\n" + b"".join(
        b"%b: http://169.254.169.254/latest\r\n" % name
        for name in (
            *(b"x-forwarded-host", b"x-original-url", b"x-rewrite-url", b"x-target", b"x-upstream", b"x-envoy-original-path"),
            *(b"x-gateway-destination-endpoint", b"x-kvgate-replica", b"forwarded", b"destination"),
        )
    )
    raw = await kvgate.say(request(b"GET", b"http://169.254.169.254/latest/meta-data", fields))
    assert statuses(raw) == [200]
    ((head, _),) = kvgate.replica.requests
    (watcher,) = kvgate.proxy.services.watchers.values()
    assert head.startswith(
        b"GET /latest/meta-data HTTP/1.1\r\nhost: %b\r\n" % watcher.policy.url.removeprefix("http://").encode()
    )
