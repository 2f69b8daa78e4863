"""A real Envoy with the configuration that we ship, on ports of the test, in the environment that ``setup.sh`` makes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.fronts.nginx import answers, free_port
from tests.integration.fronts.programs import program

SHIPPED = Path(__file__).parents[3] / "deploy" / "envoy" / "envoy.yaml"


def shipped(port: int, proxies: Sequence[int]) -> dict[str, Any]:
    """What we ship, listening on ``port``, with these proxies in it."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text("utf-8"))
    (listener,), (cluster,) = config["static_resources"]["listeners"], config["static_resources"]["clusters"]
    listener["address"] = _address(port)
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": [{"endpoint": {"address": _address(one)}} for one in proxies]}]
    return config


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@asynccontextmanager
async def envoy(folder: Path, proxies: Sequence[int]) -> AsyncIterator[int]:
    """Run it before these proxies' ports until the block ends; yields its port."""
    port, log, path = free_port(), folder / "envoy.log", folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(shipped(port, proxies)), encoding="utf-8")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(program("envoy")), "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(60):
            while not await answers(port):
                if process.returncode is not None:
                    pytest.fail(f"Envoy did not start: {log.read_text('utf-8')[-2000:]}")
                await asyncio.sleep(0.02)
        yield port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
