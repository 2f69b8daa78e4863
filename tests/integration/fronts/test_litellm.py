"""A real LiteLLM before two kvgate proxies: with the configuration that we ship, one tenant's refusals are its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from proxy.core.outcome import Outcome
from tests.integration.fronts.litellm_proxy import LiteLlm, litellm, shipped, unconfigured
from tests.integration.fronts.nginx import free_port, nginx
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import RunningProxy, proxying, url_of

pytestmark = [pytest.mark.fronts, pytest.mark.asyncio(loop_scope="module")]
GONE = "No deployments available"
POLICY = {
    "tenants": {
        "from": ["header", "user"],
        "header": "x-kvgate-tenant",
        "list": {"noisy": {"requests_per_s": 0.001, "burst": "1000s"}},
    }
}


@dataclass(slots=True)
class Setting:
    """Before two proxies a LiteLLM as we ship it, one as nobody should run it, and one whose nginx lists a dead proxy as well."""

    proxies: list[RunningProxy]
    ours: LiteLlm
    plain: LiteLlm
    behind_nginx: LiteLlm

    @property
    def records(self) -> list[Any]:
        return [record for proxy in self.proxies for record in proxy.records]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setting]:
    async with AsyncExitStack() as stack:
        mock: RunningMock = await stack.enter_async_context(running(settings()))
        proxies = [await stack.enter_async_context(proxying(url_of(mock), policy=POLICY)) for _ in range(2)]
        ports = [proxy.wire.port for proxy in proxies]
        front = await stack.enter_async_context(nginx(tmp_path_factory.mktemp("nginx"), [ports[0], free_port()]))
        configs = (shipped(ports), unconfigured(ports), shipped([front.port]))
        folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("ours", "plain", "behind")]
        starting = [stack.enter_async_context(litellm(config, folder)) for config, folder in zip(configs, folders, strict=True)]
        yield Setting(proxies, *await asyncio.gather(*starting))


@pytest.fixture
def setting(shared: Setting) -> Setting:
    for proxy in shared.proxies:
        proxy.records.clear()
    return shared


async def exhaust(front: LiteLlm, setting: Setting) -> None:
    """Let the noisy tenant spend what it has at both proxies, and be refused at both."""
    refused: set[int] = set()
    for _ in range(40):
        await front.chat("noisy")
        refused = {
            number for number, proxy in enumerate(setting.proxies) if any(r.outcome is Outcome.TENANT_RATE for r in proxy.records)
        }
        if len(refused) == len(setting.proxies):
            return
    pytest.fail(f"refused at {refused} only")


async def test_one_tenants_refusals_take_nothing_from_others(setting: Setting) -> None:
    await exhaust(setting.ours, setting)
    for _ in range(10):
        assert (await setting.ours.chat("noisy")).status_code == 429
        assert (await setting.ours.chat("quiet")).status_code == 200


async def test_without_our_configuration_they_do(setting: Setting) -> None:
    """What LiteLLM does by itself, and why we ship a configuration."""
    for _ in range(40):
        if GONE in (await setting.plain.chat("noisy")).text:
            break
    reply = await setting.plain.chat("quiet")
    assert reply.status_code == 429
    assert GONE in reply.text
    assert not [record for record in setting.records if record.tenant == "quiet"]


async def test_a_refusal_is_asked_for_once_and_says_when_to_come_back(setting: Setting) -> None:
    await exhaust(setting.ours, setting)
    before = len(setting.records)
    reply = await setting.ours.chat("noisy")
    assert reply.status_code == 429
    assert len(setting.records) == before + 1
    assert 0 < int(reply.headers["llm_provider-retry-after"]) <= 59
    assert "noisy" in reply.text or "tenant" in reply.text.lower()


async def test_tenants_by_the_bodys_user_and_by_a_forwarded_header(setting: Setting) -> None:
    assert (await setting.ours.chat("one")).status_code == 200
    assert (await setting.ours.chat("one", {"x-kvgate-tenant": "two"})).status_code == 200
    assert sorted(record.tenant for record in setting.records) == ["one", "two"]


async def test_a_dead_proxy_fails_nobody(setting: Setting) -> None:
    assert [(await setting.behind_nginx.chat("quiet")).status_code for _ in range(12)] == [200] * 12


async def test_a_context_overflow_is_told_as_one(setting: Setting) -> None:
    reply = await setting.ours.chat("quiet", messages=[{"role": "user", "content": "word " * 5000}])
    assert reply.status_code == 400
    assert "ContextWindowExceededError" in reply.text
    assert (await setting.ours.chat("quiet")).status_code == 200


async def test_a_stream_passes_whole(setting: Setting) -> None:
    reply = await setting.ours.chat("quiet", stream=True, max_tokens=9)
    assert reply.status_code == 200
    assert reply.text.endswith("data: [DONE]\n\n")
    (record,) = setting.records
    assert (record.outcome, record.output_tokens) == (Outcome.COMPLETED, 9)
