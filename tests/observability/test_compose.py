"""``deploy/compose.yaml``: schema, linter, files, and the same parts as processes, kvgate as ``deploy/Dockerfile`` installs it."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from proxy.bench.processes import Program, Programs, free_ports, until_ready
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.load import new_upstream
from tests.observability.container_parts import (
    COMPOSE,
    DEPLOY,
    INSTALLED_AT,
    Places,
    build,
    command_of,
    instructions,
    mounted,
    services,
)
from tests.observability.prometheus_process import Prometheus, binary
from tests.observability.shipped import GRAFANA
from tests.support.redis_server import server_binary

pytestmark = pytest.mark.observability
READY_S_MAX = 150.0
REDIS_READY = re.compile(r"Ready to accept connections")
PROMETHEUS_READY = re.compile(r"Server is ready to receive web requests")


def run(*words: str) -> str:
    told = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def exit_code(python: Path, words: list[str]) -> int:
    return subprocess.run([python, *words], check=False, capture_output=True).returncode


def test_the_file_is_valid_and_safe() -> None:
    run("check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    run("compose_lint", str(COMPOSE))  # fails on what is of high severity


def test_the_services_find_the_files_they_are_given() -> None:
    for name, service in services().items():
        for there, here in mounted(service).items():
            assert here.exists(), f"{name}: {here} for {there}"
    grafana = services()["grafana"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/kvgate.yaml").read_text("utf-8"))["providers"]
    assert provider["options"]["path"] in mounted(grafana)
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted(grafana)[str(home.parent)] / home.name).exists()
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_only_clients_reach_it_from_elsewhere() -> None:
    published = {(name, port) for name, service in services().items() for port in service.get("ports", ())}
    assert {(name, port) for name, port in published if not port.startswith("127.0.0.1:")} == {("kvgate", "8080:8080")}


def test_the_image_runs_without_root() -> None:
    last = {step.name: step for step in instructions() if step.stage == 1}
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last["USER"].text)
    assert last["ENTRYPOINT"].words() == ["kvgate"]
    assert last["COPY"].words() == ["--from=build", INSTALLED_AT, INSTALLED_AT]


async def started(programs: Programs, kvgate: Path, folder: Path) -> tuple[Places, Program]:
    """Start what compose starts, but for Grafana, and with a mock for vLLM. Prometheus' folder is copied with other addresses."""
    names = ("vllm:8000", "kvgate:8080", "kvgate:8081", "redis:6379", "prometheus:9090")
    places = Places(dict(zip(names, free_ports(len(names)), strict=True)))
    ports = places.ports
    await programs.start("mock-vllm", ["mock-vllm", "--port", str(ports["vllm:8000"])])
    words = command_of("redis", places)
    redis = await programs.start_command("redis", [server_binary(), *words[1:], "--port", str(ports["redis:6379"])])
    await redis.says(REDIS_READY)
    proxy = [str(kvgate), *command_of("kvgate", places), "--tokenizer", str(TOKENIZER_DIRECTORY)]
    proxy += ["--port", str(ports["kvgate:8080"]), "--admin-port", str(ports["kvgate:8081"])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KVGATE_", "PYTHONPATH"))}
    program = await programs.start_command("kvgate", proxy, environment)
    shipped = DEPLOY / "prometheus"
    for path in shipped.glob("*.yml"):
        text = path.read_text("utf-8")
        (folder / path.name).write_text(places.here(text) if path.name == "prometheus.yml" else text, "utf-8")
    words = [word.replace(str(shipped), str(folder)) for word in command_of("prometheus", places)]
    words = [word.replace("=/prometheus", f"={folder / 'tsdb'}") for word in words]
    listen = f"--web.listen-address=127.0.0.1:{ports['prometheus:9090']}"
    prometheus = await programs.start_command("prometheus", [binary("prometheus"), *words, listen], end_s_max=10.0)
    await prometheus.says(PROMETHEUS_READY)
    return places, program


async def until_up(prometheus: Prometheus) -> dict[str, str]:
    """Wait until every target was scraped; the health of each by its job."""
    async with asyncio.timeout(READY_S_MAX):
        while True:
            targets = (await prometheus.ask("targets"))["activeTargets"]
            found = {target["labels"]["job"]: target["health"] for target in targets}
            if set(found.values()) == {"up"}:
                return found
            await asyncio.sleep(0.5)  # the next scrape


async def test_the_same_parts_as_processes_work_together(tmp_path: Path) -> None:
    source, installed, folder = tmp_path / "src", tmp_path / "kvgate", tmp_path / "etc"
    source.mkdir()
    folder.mkdir()
    await asyncio.to_thread(build, DEPLOY.parent, source, installed)
    upstream = new_upstream()
    async with Programs() as programs:
        places, kvgate = await started(programs, installed / "bin" / "kvgate", folder)
        port, admin = places.ports["kvgate:8080"], places.ports["kvgate:8081"]
        await until_ready(kvgate, upstream, f"http://127.0.0.1:{port}")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{places.ports['prometheus:9090']}", timeout=30.0) as http:
            prometheus = Prometheus(http)
            page = await http.get(f"http://127.0.0.1:{admin}/")
            assert (page.status_code, "kvgate" in page.text) == (200, True)  # what is no Python is in the wheel too
            assert await until_up(prometheus) == {"kvgate": "up", "vllm": "up"}
            assert await prometheus.value('kvgate_store_phase{phase="sharing"}') == 1.0
            assert await prometheus.value('sum(kvgate_replica_phase{phase="serving"})') == 1.0
        probe = next(step for step in instructions() if step.name == "HEALTHCHECK").text.partition("CMD ")[2]
        check = [word.replace(":8081", f":{admin}") for word in yaml.safe_load(probe)]
        assert check[0] == "python"
        python, nobody = installed / "bin" / "python", free_ports(1)[0]
        assert await asyncio.to_thread(exit_code, python, check[1:]) == 0
        assert await asyncio.to_thread(exit_code, python, [word.replace(f":{admin}", f":{nobody}") for word in check[1:]]) == 1
    await upstream.aclose()
