"""A vLLM control surface over httpx.MockTransport: what it answers is set by the test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

import httpx

EXPOSITIONS = Path(__file__).parents[2] / "contract" / "vllm_metrics"

MODELS = {
    "object": "list",
    "data": [
        {"id": "my-lora", "object": "model", "root": "/loras/a", "parent": "tiny", "max_model_len": None},
        {"id": "tiny", "object": "model", "root": "/models/tiny", "parent": None, "max_model_len": 4096},
    ],
}


def recorded(name: str) -> bytes:
    return (EXPOSITIONS / f"vllm-{name}.txt").read_bytes()


class SteppingClock:
    """Advances a second per reading, so that a test sees which reading was taken."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        self.now += 1.0
        return self.now

    def wall_s(self) -> float:
        return 1.75e9 + self.now


@dataclass
class FakeVllm:
    """Answers by path. A handler in ``special`` goes first; ``next_metrics`` may change the exposition from call to call."""

    metrics: bytes
    version: str = "0.32.0"
    filters: bool = True
    special: dict[str, Callable[[httpx.Request], httpx.Response]] = field(default_factory=dict)
    next_metrics: Callable[[httpx.Request], bytes] | None = None
    requests: list[httpx.Request] = field(default_factory=list)

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if path in self.special:
            return self.special[path](request)
        if path == "/health":
            return httpx.Response(200)
        if path == "/version":
            return httpx.Response(200, json={"version": self.version})
        if path == "/v1/models":
            return httpx.Response(200, json=MODELS)
        if path in {"/metrics", "/metrics/"}:
            text = self.next_metrics(request) if self.next_metrics else self.metrics
            names = parse_qs(request.url.query.decode()).get("name[]", [])
            if names and path == "/metrics/":
                text = self._filtered(text, names) if self.filters else b""
            return httpx.Response(200, content=text, headers={"content-type": "text/plain; version=0.0.4"})
        return httpx.Response(404, json={"detail": "Not Found"})

    @staticmethod
    def _filtered(text: bytes, names: list[str]) -> bytes:
        wanted = tuple(name.encode() + end for name in names for end in (b"{", b" "))
        lines = text.splitlines(keepends=True)
        return b"".join(line for line in lines if (line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ")).startswith(wanted))

    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]
