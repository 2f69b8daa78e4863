"""A request's name: kept where it can be, else made, and never one that could forge a line of a log."""

import pytest

from proxy.ports import Message
from proxy.serving.client import NamedSend, after_head
from proxy.serving.request_ids import NAME, READ_BODY_BYTES_MAX, RequestIds, in_body, named


@pytest.mark.parametrize("value", [b"a", b"req_1-2.3:4/5", b"x" * 128, b'"{}\\'])
def test_a_sane_id_is_kept(value: bytes) -> None:
    assert RequestIds("p").of([(b"host", b"x"), (NAME, value)]) == (value, True)


@pytest.mark.parametrize("values", [[], [b""], [b"x" * 129], [b"a b"], [b"a\tb"], [b"\xc3\xa9"], [b"a\x7f"], [b"a", b"b"]])
def test_any_other_is_replaced_by_one_that_names_the_proxy(values: list[bytes]) -> None:
    made, given = RequestIds("pod-7:12:ab cd").of([(NAME, value) for value in values])
    assert (made, given) == (b"kvgate-pod-7-12-ab-cd-1", False)


def test_made_ids_differ() -> None:
    ids = RequestIds("p")
    assert len({ids.of([])[0] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"request_id": "mine", "messages": []}', b"mine"),
        (b'{"request_id": null}', None),
        (b'{"request_id": 7}', None),
        (b'{"request_id": "two words"}', None),
        (b'{"request_id": "\\u00e9"}', None),
        (b'{"request_id": "cut', None),
        (b'["request_id"]', None),
        (b'{"prompt": "a \\"request_id\\""}', None),
        (b"", None),
    ],
)
def test_a_body_may_give_one(body: bytes, found: bytes | None) -> None:
    assert in_body(body) == found


def test_a_long_body_is_not_read_for_it() -> None:
    short = b'{"request_id": "mine", "x": "%b"}' % (b"x" * (READ_BODY_BYTES_MAX - 31))
    assert len(short) == READ_BODY_BYTES_MAX
    assert in_body(short) == b"mine"
    assert in_body(short + b" ") is None


def test_headers_have_one_id() -> None:
    assert named([(NAME, b"a"), (b"host", b"x"), (NAME, b"b")], b"c") == [(b"host", b"x"), (NAME, b"c")]


async def test_it_goes_into_the_head_and_costs_nothing_after_it() -> None:
    sent: list[Message] = []

    async def plain(message: Message) -> None:
        sent.append(message)

    send = NamedSend(plain, b"mine")
    await send({"type": "http.response.start", "status": 200, "headers": [(NAME, b"the engine's"), (b"a", b"b")]})
    assert sent[0]["headers"] == [(b"a", b"b"), (NAME, b"mine")]
    assert after_head(send) is plain
    assert after_head(plain) is plain
