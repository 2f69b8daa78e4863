"""How the benchmark of faults tells what brought sharing back late."""

from pathlib import Path

import httpx
import pytest

from tests.bench.shared_back import SHARING, SILENT, Back, phase_of, told_by_kind
from tests.bench.shared_processes import Child, Proxy


def test_times_are_told_by_kind() -> None:
    told = told_by_kind([Back("cut", 0.5), Back("kill", 0.1), Back("cut", 1.5)])
    assert told["cut"] == {"faults": 2, "p50": 0.5, "p99": 1.5, "max": 1.5}
    assert told["kill"]["faults"] == 1


def test_a_late_one_is_told_with_what_proxies_said() -> None:
    late = Back("flush", 3.1, [(0.2, "proxy0", "recovering (None)"), (3.1, "proxy0", SHARING)])
    assert str(late) == "flush 3.10 s: 0.20 proxy0 recovering (None), 3.10 proxy0 sharing"


@pytest.mark.parametrize(
    ("answer", "phase"),
    [
        (httpx.Response(200, json={"store": {"phase": "sharing", "last_error": "old"}}), SHARING),
        (httpx.Response(200, json={"store": {"phase": "degraded", "last_error": "refused"}}), "degraded (refused)"),
        (httpx.Response(404, text="not here"), SILENT),
    ],
)
async def test_a_proxy_says_how_it_stands(answer: httpx.Response, phase: str, tmp_path: Path) -> None:
    proxy = Proxy(0, Child("proxy0", [], tmp_path), "", "http://p")
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _request: answer)) as client:
        assert await phase_of(client, proxy) == phase
