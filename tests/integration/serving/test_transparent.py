"""What ``tests/vllm/test_transparent.py`` asks a real engine, asked of the mock; and that whoever changes an answer is found out."""

import asyncio
from dataclasses import replace

import pytest

from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import proxying, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream
from tests.vllm.transparent import Answer, Case, Table, ask, by_choice, difference, masked
from tests.vllm.transparent_cases import odd_bodies, of_methods, of_unknown_paths

ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
SAME = Answer(200, (("content-type", "a"), ("vary", "Origin")), (b"data: 1", b"data: 2", b""), True)


def cases() -> list[Case]:
    odd = [Case(path, "POST", path, body, what=what) for path in ROUTES for what, body in odd_bodies("mock")]
    return [*odd, *(case for path in ROUTES for case in of_methods(path, path)), *of_unknown_paths()]


async def test_odd_requests_are_the_same_through_kvgate() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        table = Table()
        await table.compare(url_of(mock), f"http://127.0.0.1:{proxy.wire.port}", cases())
        assert table.differences == []
        assert table.same.total() == len(cases()) > 200
        assert {200, 400, 404, 405} <= set(table.statuses)
        await proxy.until_idle(mock)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SAME, status=201),
        replace(SAME, headers=SAME.headers[:1]),
        replace(SAME, headers=(*SAME.headers, ("x", "y"))),
        replace(SAME, headers=(SAME.headers[0], ("vary", "origin"))),
        replace(SAME, headers=(*SAME.headers, SAME.headers[1])),
        replace(SAME, frames=(*SAME.frames[:2], b"data: 3")),
        replace(SAME, frames=(b"data: 1", b"")),
        replace(SAME, frames=(*SAME.frames, b"")),
        replace(SAME, frames=(b"data: 1\ndata: 2", b"")),
        replace(SAME, whole=False),
    ],
)
def test_every_change_is_a_difference(changed: Answer) -> None:
    assert difference(SAME, SAME) == ""
    assert difference(SAME, changed) != ""


async def test_a_server_that_changes_what_it_is_given_is_found_out() -> None:

    async def answer(peer: Peer, body: bytes) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))

    right, wrong = lambda peer: answer(peer, b"right"), lambda peer: answer(peer, b"wrong")
    async with ScriptedUpstream.running(right) as direct, ScriptedUpstream.running(wrong) as through:
        table = Table()
        await table.compare(direct.url, through.url, [Case("/a", "GET", "/a", what="a page")])
        await table.compare(direct.url, direct.url, [Case("/a", "GET", "/a", what="a page")])
    assert (table.cases["/a"], table.same["/a"]) == (2, 1)
    assert table.differences == ["GET /a (a page): frame 0: b'right' became b'wrong'"]


async def test_what_is_sent_is_what_the_case_says() -> None:
    got = asyncio.get_running_loop().create_future()

    async def look(peer: Peer) -> None:
        got.set_result(await peer.reader.readuntil(b"0\r\n\r\n"))
        await peer.send(
            b"HTTP/1.1 204 No Content\r\nx-kvgate-outcome: completed\r\ndate: now\r\nlocation: http://engine.test/a\r\n\r\n"
        )

    async with ScriptedUpstream.running(look) as upstream:
        found = await ask(upstream.url, Case("/a", "POST", "/a?b", b"nine byte", chunked=True), "name")
    assert await got == (
        b"POST /a?b HTTP/1.1\r\nhost: engine.test\r\nconnection: close\r\nx-request-id: name\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n7\r\nnine by\r\n2\r\nte\r\n0\r\n\r\n"
    )
    assert found == Answer(204, (("location", "/a"),), (b"",), True)


def test_only_what_is_new_in_every_answer_is_masked() -> None:
    body = b'{"id":"chatcmpl-mine","created":17,"created_at": 18.5,"x":"resp_0123456789abcdef","y":"resp_short","n":19}'
    assert masked(body) == b'{"id":"chatcmpl-mine","created":#,"created_at": #,"x":"resp_#","y":"resp_short","n":19}'


def test_choices_are_told_apart_and_nothing_else_is_moved() -> None:
    one, two, more = (b'data: {"id":"a","choices":[{"index":%b}]}' % part for part in (b'0,"t":1', b'1,"t":1', b'0,"t":2'))
    end = b"data: [DONE]"
    assert by_choice([one, two, more, end]) == by_choice([two, one, more, end]) == (one, more, two, end)
    assert by_choice([more, two, one, end]) != by_choice([one, two, more, end])
