"""A real LiteLLM proxy with the configuration that we ship, or with parts of it, in the environment that ``setup.sh`` makes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.fronts.nginx import free_port
from tests.integration.fronts.programs import program

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "deploy" / "litellm" / "config.yaml"
KEY = "sk-of-these-tests-4f1c9ad07be2"
START_S_MAX = 120  # about ten seconds on two free cores


@dataclass(slots=True)
class LiteLlm:
    """A running one."""

    port: int
    log: Path
    http: httpx.AsyncClient

    async def chat(self, user: str, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "user": user} | fields
        return await self.http.post("/v1/chat/completions", json=body, headers=dict(headers or {}))


def shipped(ports: Sequence[int]) -> dict[str, Any]:
    """What we ship, with an entry for each port, the mock's model behind it."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text("utf-8"))
    (entry,) = config["model_list"]
    config["model_list"] = [
        {
            "model_name": "mock",
            "litellm_params": entry["litellm_params"] | {"model": "hosted_vllm/mock", "api_base": f"http://127.0.0.1:{port}/v1"},
        }
        for port in ports
    ]
    return config


def unconfigured(ports: Sequence[int]) -> dict[str, Any]:
    """The same, and nothing said of how failures are to be treated."""
    config = shipped(ports)
    del config["router_settings"]
    for entry in config["model_list"]:
        del entry["litellm_params"]["max_retries"]
    return config


@asynccontextmanager
async def litellm(config: Mapping[str, Any], folder: Path) -> AsyncIterator[LiteLlm]:
    """Run it until the block ends."""
    path, log, port = folder / "config.yaml", folder / "litellm.log", free_port()
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    environ = os.environ | {
        "LITELLM_MASTER_KEY": KEY,
        "KVGATE_API_KEY": "unused",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "*",
    }
    environ.pop("PYTHONPATH", None)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(program("litellm")), "--config", str(path), "--host", "127.0.0.1", "--port", str(port), cwd=folder, env=environ,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {KEY}"}, timeout=60
        ) as http:
            await until_alive(http, process, log)
            yield LiteLlm(port, log, http)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def until_alive(http: httpx.AsyncClient, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(START_S_MAX):
        while True:
            if process.returncode is not None:
                pytest.fail(f"LiteLLM did not start: {log.read_text('utf-8')[-2000:]}")  # noqa: ASYNC240
            try:
                if (await http.get("/health/liveliness")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
