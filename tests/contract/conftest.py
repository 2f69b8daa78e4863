"""One mock and one kvgate before it for each module that asks for them."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import RunningProxy, proxying, url_of


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mock() -> AsyncIterator[RunningMock]:
    async with running(settings()) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(mock: RunningMock) -> AsyncIterator[RunningProxy]:
    async with proxying(url_of(mock)) as server:
        yield server
