"""A real Prometheus of one's own, with the shipped rules: on a free port, keeping what it scrapes in a temporary folder."""

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from proxy.bench.processes import Programs, free_ports
from tests.observability.shipped import PROMETHEUS, RULE_FILES

LISTENING = re.compile(r"Server is ready to receive web requests")


def binary(name: str) -> str:
    """Path of ``prometheus`` or ``promtool``. Raises RuntimeError where there is none: a missing part is a failure, not a skip."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: apt-get install prometheus")
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The running one."""

    http: httpx.AsyncClient

    async def ask(self, path: str, **parameters: str) -> Any:
        """Return ``data`` of an API call. Raises AssertionError with Prometheus' words when it is refused."""
        answer = (await self.http.get(f"/api/v1/{path}", params=parameters)).json()
        assert answer["status"] == "success", answer.get("error")
        return answer["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; a scalar as one without labels."""
        data = await self.ask("query", query=expression)
        return [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else list(data["result"])

    async def value(self, expression: str) -> float:
        """Return the only value; NaN where there is none."""
        found = await self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else float("nan")


def config_for(targets: Mapping[str, Iterable[str]], folder: Path, *, interval: str = "1s") -> dict[str, Any]:
    """Return the shipped configuration with other addresses for its jobs, in shorter intervals. A job without addresses is left out.

    Alerts fire at once, without the time that they wait.
    """
    config: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    config["global"] |= {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(folder / path.name) for path in RULE_FILES]
    for path in RULE_FILES:
        (folder / path.name).write_text(re.sub(r"(?m)^ +for: \w+\n", "", path.read_text("utf-8")), "utf-8")
    jobs = [job for job in config["scrape_configs"] if job["job_name"] in targets]
    for job in jobs:
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    return config | {"scrape_configs": jobs}


async def start_prometheus(programs: Programs, folder: Path, config: Mapping[str, Any], *flags: str) -> str:
    """Start it with the programs; its address, once it serves."""
    path, port = folder / "prometheus.yml", free_ports(1)[0]
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    words = [f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}", *flags]
    program = await programs.start_command("prometheus", [binary("prometheus"), *words], end_s_max=10.0)
    await program.says(LISTENING)
    return f"http://127.0.0.1:{port}"
