"""A connection whose answer lasts has let go of the request, and reads the next one all the same."""

import pytest

from proxy.wire.connection_faults import ConnectionFault
from tests.unit.adapters.http_port import GET, Port


@pytest.fixture
async def port() -> Port:
    return Port()


async def test_what_comes_after_a_request_that_was_forgotten_is_read_too(port: Port) -> None:
    port.gets(GET)
    first = port.protocol._answering
    assert first is not None
    assert port.protocol._link.begin_now(200, [], b"x", whole=False)
    port.protocol._link.forget_request()
    assert port.protocol.parser is None
    assert first.scope == {"method": "GET"}
    port.gets(b"GET /second HTTP/1.1\r\nho", b"st: x\r\n\r\n")  # while the first answer lasts
    assert port.protocol._answering is first
    await first.send({"type": "http.response.body", "body": b"", "more_body": False})
    second = port.protocol._answering
    assert second is not None
    assert (second.scope["path"], second.scope["headers"]) == ("/second", [(b"host", b"x")])
    assert not port.faults


async def test_a_head_that_has_begun_keeps_its_parser(port: Port) -> None:
    port.gets(GET + b"GET /second HTTP/1.1\r\nho")
    first = port.protocol._answering
    assert first is not None
    assert port.protocol._link.begin_now(200, [], b"x", whole=False)
    port.protocol._link.forget_request()
    assert port.protocol.parser is not None
    port.gets(b"st: x\r\n\r\n")
    await first.send({"type": "http.response.body", "body": b"", "more_body": False})
    second = port.protocol._answering
    assert second is not None
    assert (second.scope["path"], second.scope["headers"]) == ("/second", [(b"host", b"x")])


async def test_what_is_no_request_is_seen_after_one_that_was_forgotten(port: Port) -> None:
    port.gets(GET)
    assert port.protocol._link.begin_now(200, [], b"x", whole=False)
    port.protocol._link.forget_request()
    port.gets(b"nonsense\r\n\r\n")
    assert port.faults == [ConnectionFault.MALFORMED]
    assert not port.transport.closed  # behind the answer that lasts
