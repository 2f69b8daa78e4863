"""What the doctor reads beside the engine: cards, addresses without a server, and a kvgate in front."""

from typing import Any

import pytest

from proxy.cli.doctor import Ask, examine
from proxy.sim.step_time import StepTimeModel
from tests.integration.advise.doctor_states import PATIENT, Traffic, after_steps, at_once, busy, cases, visit, words
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import ShiftedClock, admin_of, proxying
from tests.support.upstream_servers import asgi_server

pytestmark = pytest.mark.slow

ROOMY = {"num_gpu_blocks": 4096}
QUICK = StepTimeModel(speed=20)


async def test_cards_that_idle_while_requests_run() -> None:
    gauge = b'# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 20\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 30\n'

    async def exporter(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(gauge))]})
        await send({"type": "http.response.body", "body": gauge})

    async with (
        asgi_server(exporter) as port,
        busy(settings(engine=ROOMY, step_time=QUICK), Traffic(4, lambda _: words(50), lambda _: 40)) as mock,
    ):
        found = await visit(mock, after_steps(mock, 30, 4), dcgm=(f"http://127.0.0.1:{port}",))
        blind = await visit(mock, after_steps(mock, 30, 2), dcgm=("http://127.0.0.1:1",))
    assert cases(found) == ["gpu_idle"]
    assert "25%" in found.diagnosis.findings[0].evidence
    assert any("no DCGM_FI_DEV_GPU_UTIL came from there" in sentence for sentence in blind.diagnosis.unseen)


async def test_an_address_without_a_server_is_a_finding() -> None:
    found = await examine(Ask(("http://127.0.0.1:1",), 1.0), ShiftedClock(), at_once(1))
    assert cases(found) == ["unreachable"]


@pytest.mark.parametrize("admin", [True, False])
async def test_a_kvgate_leads_to_its_replicas_and_says_its_own_state(admin: bool) -> None:
    async with (
        running(settings(engine={"num_gpu_blocks": 300})) as mock,
        proxying(mock.base_url.removesuffix("/v1"), policy={"mode": "observe"}) as proxy,
        admin_of(proxy) as wire,
    ):
        port = wire.port if admin else proxy.wire.port
        found = await examine(Ask((f"http://127.0.0.1:{port}",), 1.0, PATIENT), ShiftedClock(), at_once(2))
    assert [gate.mode for gate in found.gates] == ["observe"]
    assert "gate_not_enforcing" in cases(found)
    assert ("context_fills_pool" in cases(found)) is admin
    assert any("give its admin address" in sentence for sentence in found.diagnosis.unseen) is not admin
