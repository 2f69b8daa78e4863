"""The inside port: who may ask it, what it takes without a token, and what its page lets a browser do."""

import json
import re
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest
import pytest_asyncio

from tests.security.attacked import ADMIN_TOKEN, Attacked, attacked

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kvgate() -> AsyncIterator[Attacked]:
    async with attacked() as server:
        yield server


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "10.1.2.3", "kvgate.localhost:1"]
)
async def test_it_is_asked_by_addresses_and_names_of_its_machine(kvgate: Attacked, host: str) -> None:
    assert (await kvgate.admin.request("GET", "/admin/state", headers={"host": host})).status == 200


NAMES = [
    "evil.example",
    "evil.example:8081",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.localhost.example",
    "x@evil.example",
]


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/admin/state", "/admin/snapshot", "/admin/live", "/admin/mode", "/page/main.js"]
)
async def test_a_web_page_reads_nothing_by_a_name_of_its_own(kvgate: Attacked, path: str) -> None:
    """DNS rebinding: the page's own name leads here by now, and its browser takes what we answer for the page's."""
    for name in NAMES:
        reply = await kvgate.admin.request("GET", path, headers={"host": name})
        assert (reply.status, reply.json()["error"]["code"]) == (403, "host_not_local")


CHANGES = [
    ("POST", "/admin/mode", {"mode": "off", "for_s": 60, "reason": "x"}),
    ("DELETE", "/admin/mode", None),
    ("POST", "/admin/drains", {"replica": "x", "for_s": 60, "reason": "x"}),
    ("DELETE", "/admin/drains?replica=x", None),
    ("POST", "/admin/policy?dry_run=1", {"mode": "off"}),
    ("GET", "/admin/record?for_s=1", None),
]
TOKENS: dict[str, dict[str, str]] = {
    "none": {},
    "a wrong one": {"authorization": "Bearer wrong"},
    "another scheme": {"authorization": f"Basic {ADMIN_TOKEN}"},
    "an empty one": {"x-kvgate-admin-token": ""},
    "in the query alone": {},
    "a beginning": {"x-kvgate-admin-token": ADMIN_TOKEN[:-1]},
    "more than it": {"x-kvgate-admin-token": ADMIN_TOKEN + "x"},
    "no ASCII": {"x-kvgate-admin-token": ADMIN_TOKEN[:-1] + "\xe4"},
    "a form of a web page": {"content-type": "text/plain", "origin": "http://evil.example", "cookie": f"token={ADMIN_TOKEN}"},
}


@pytest.mark.parametrize("how", TOKENS)
async def test_nothing_changes_without_the_token(kvgate: Attacked, how: str) -> None:
    for method, path, body in CHANGES:
        target = f"{path}{'&' if '?' in path else '?'}token={ADMIN_TOKEN}" if how == "in the query alone" else path
        sent = b"" if body is None else json.dumps(body).encode()
        reply = await kvgate.admin.request(method, target, sent, {"host": "localhost"} | TOKENS[how])
        assert (method, path, reply.status) == (method, path, 401)
        assert ADMIN_TOKEN not in reply.body.decode()
        assert not [name for name in reply.headers if name.startswith("access-control-")]


async def test_no_page_elsewhere_may_ask_with_a_field_of_its_own(kvgate: Attacked) -> None:
    """The token goes in a header, so a browser asks first; it is told nothing that would let it."""
    asked = {"host": "localhost", "origin": "http://evil.example", "access-control-request-method": "POST"}
    reply = await kvgate.admin.request(
        "OPTIONS", "/admin/mode", headers=asked | {"access-control-request-headers": "authorization"}
    )
    assert not [name for name in reply.headers if name.startswith("access-control-")]


async def test_the_page_runs_nothing_but_its_own_files(kvgate: Attacked) -> None:
    reply = await kvgate.admin.request("GET", "/", headers={"host": "localhost"})
    rules = dict(part.strip().partition(" ")[::2] for part in reply.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    html = reply.body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|javascript:", html)


async def test_the_page_writes_names_as_text_and_keeps_no_token() -> None:
    folder = files("proxy.serving") / "page"
    for part in ("main.js", "chart.js", "text.js", "replicas.js", "lists.js", "switches.js"):
        text = (folder / part).read_text(encoding="utf-8")
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|localStorage|sessionStorage|cookie",
            text,
        )
        assert (part, found) == (part, [])


@pytest.mark.parametrize(
    "query", ["last=-1", "last=" + "9" * 5000, "last=1e9", "tenant=%00%ff", "outcome=" + "x" * 5000, "last=%0a"]
)
async def test_odd_questions_are_answered(kvgate: Attacked, query: str) -> None:
    for path in ("/admin/requests", "/admin/live", "/admin/report", "/admin/snapshot", "/admin/replicas"):
        reply = await kvgate.admin.request(
            "GET", f"{path}?{query}&samples_after={'9' * 5000}&ended_after=-1&since_s=nan", headers={"host": "localhost"}
        )
        assert reply.status in {200, 400, 404, 422}, (path, reply)


@pytest.mark.parametrize(
    "body", [b"[" * 60_000, b'{"mode":' + b"[" * 60_000, b"\xff", b"", b"nul", b'{"mode":"off","for_s":NaN,"reason":"x"}']
)
async def test_odd_bodies_are_refused(kvgate: Attacked, body: bytes) -> None:
    for path in ("/admin/mode", "/admin/drains"):
        reply = await kvgate.admin.request("POST", path, body, {"host": "localhost", "x-kvgate-admin-token": ADMIN_TOKEN})
        assert (path, reply.status) == (path, 400)
