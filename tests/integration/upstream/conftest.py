"""The relay serves under uvloop and must also be right under asyncio's own loop: every test here runs on both."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.integration.upstream import relaying


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=[True, False], ids=["linked", "asgi"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the server's shorter way to the client, and over ASGI alone, which other servers have."""
    monkeypatch.setattr(relaying, "LINKED", request.param)
