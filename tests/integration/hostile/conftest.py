"""One kvgate before one recording replica for each module that asks for it, and a clean record for each test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.hostile.exchanging import Hostile, hostile


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Hostile]:
    async with hostile() as server:
        yield server


@pytest.fixture
def kvgate(shared: Hostile) -> Hostile:
    shared.replica.requests.clear()
    shared.replica.strays.clear()
    return shared
