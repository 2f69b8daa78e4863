"""An engine that is told to stand still keeps what runs, gives no token, and goes on where it was."""

import httpx
import pytest

from proxy.sim.mock_server import MockServer
from proxy.sim.mock_settings import MockSettings


def client(server: MockServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://mock")


async def test_it_stands_still_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    server = MockServer(MockSettings())
    async with client(server) as http:
        assert (await http.get("/is_paused")).json() == {"is_paused": False}
        assert (await http.post("/pause")).status_code == 400, "aborting what runs is not known here"
        assert (await http.post("/pause", params={"mode": "keep"})).json() == {"status": "paused"}
        assert (await http.get("/is_paused")).json() == {"is_paused": True}
        assert not server.pool.engines[0].going.is_set()
        assert (await http.post("/resume")).json() == {"status": "resumed"}
        body = {"model": "mock", "prompt": "one two three", "max_tokens": 2, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 2
    await server.pool.stop()


async def test_the_routes_are_there_in_development_mode_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_SERVER_DEV_MODE", raising=False)
    async with client(MockServer(MockSettings())) as http:
        assert (await http.post("/pause", params={"mode": "keep"})).status_code == 404
