"""What a bench run sends, before anything is sent: the workload, its prompts, and the body of every request."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from typing import Any

from proxy.bench.load import CHAT, LoadRequest
from proxy.bench.prompts import PromptMaker
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import Workload, load_workload
from proxy.sim.workloads.arrival_times import arrival_times, checked_rate, steady
from proxy.sim.workloads.lengths import generator
from proxy.sim.workloads.workload import LengthStats

COMPLETIONS = b"/v1/completions"
FIXED = "fixed:"
TENANT_HEADER = "x-kvgate-tenant"


@dataclass(frozen=True, slots=True)
class Shape:
    """How requests are dressed. ``natural``: the model ends an answer itself, capped as the workload says; else lengths are exact.

    ``cancel_ratio`` of the clients leave at a moment drawn evenly from 0 to ``2 · cancel_after_s``.
    """

    api: str = "chat"
    natural: bool = False
    tenants: int = 1
    cancel_ratio: float = 0.0
    cancel_after_s: float = 2.0
    seed: int = 1
    headers: tuple[tuple[bytes, bytes], ...] = ()


class FixedLengths:
    """``fixed:PROMPT:OUTPUT``: every request has these tokens. Arrivals are a Poisson process."""

    load_ratio: float | None = None
    rate_per_s: float | None = None

    def __init__(self, name: str, seed: int) -> None:
        _, prompt, output = [*name.split(":"), "", ""][:3]
        if name.count(":") != 2 or not prompt.isdecimal() or not output.isdecimal() or not int(prompt) or not int(output):
            raise ValueError(f"{name}: as fixed:PROMPT:OUTPUT, both in tokens, above 0")
        self.name = name
        self._seed = seed
        self._prompt, self._output = int(prompt), int(output)
        self._closed = count()

    @property
    def stats(self) -> LengthStats:
        """Every request is the mean."""
        steps = self._prompt * self._output + self._output * (self._output + 1) // 2
        return LengthStats(1, self._prompt, self._output, steps, self._prompt + self._output, self._prompt)

    def next_request(self, now_s: float) -> SimRequest | None:
        """The next of an endless supply."""
        return self._request(next(self._closed), now_s)

    def arrivals(self, rate_per_s: float | None = None) -> Iterator[SimRequest]:
        """Endless arrivals at a mean rate."""
        times = arrival_times(steady(checked_rate(rate_per_s)), generator(self._seed, self.name, "gaps"))
        return (self._request(serial, at_s) for serial, at_s in enumerate(times))

    def follow_up(self, request: SimRequest, ended_s: float) -> SimRequest | None:  # noqa: ARG002 - every client sends one request
        """Return None."""
        return None

    def _request(self, serial: int, at_s: float) -> SimRequest:
        return SimRequest(f"fixed-{serial}", self._prompt, self._output, self._output, at_s)


def workload_of(source: str, seed: int, block_size: int) -> Workload:
    """A workload by its name, its fixed lengths, or its file. Raises ValueError and OSError with what is wrong."""
    if source.startswith(FIXED):
        return FixedLengths(source, seed)
    return load_workload(source, seed, block_size=block_size)


class Dresser:
    """Turns a workload's requests into HTTP requests. Counts what did not fit the context and what could not be made exact."""

    def __init__(
        self, model: str, prompts: PromptMaker, shape: Shape, context_tokens_max: int | None, shared_tokens: int
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._shape = shape
        self._context = inf if context_tokens_max is None else context_tokens_max
        self._shared_tokens = shared_tokens
        self.inexact = 0
        self.left_out = 0

    def fits(self, request: SimRequest) -> bool:
        """Whether prompt and answer fit the context; one that does not is counted and is not sent."""
        fit = max(request.prompt_tokens + self._shared_tokens, self._prompts.least) + request.length <= self._context
        self.left_out += not fit
        return fit

    def dress(self, request: SimRequest) -> LoadRequest:
        """The HTTP request. Takes milliseconds for a long prompt, so not on the event loop."""
        shape = self._shape
        prompt = self._prompts.make(request)
        self.inexact += not prompt.exact
        rng = Random(f"{shape.seed} {request.request_id}")
        tenant = request.tenant if shape.tenants == 1 else f"tenant-{rng.randrange(shape.tenants)}"
        leaves = rng.random() < shape.cancel_ratio
        body: dict[str, Any] = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        if shape.api == "chat":
            body["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            body["prompt"] = prompt.text
        if shape.natural:
            if request.output_tokens_max is not None:
                body["max_tokens"] = request.output_tokens_max
        else:
            body |= {"max_tokens": request.length, "ignore_eos": True}
        headers = list(shape.headers)
        if tenant != "default":
            headers.append((TENANT_HEADER.encode(), tenant.encode("latin-1", "replace")))
        if request.priority:
            body["priority"] = request.priority
        return LoadRequest(
            json.dumps(body).encode(),
            CHAT if shape.api == "chat" else COMPLETIONS,
            headers,
            tenant,
            rng.uniform(0.0, 2.0 * shape.cancel_after_s) if leaves else inf,
            prompt.tokens,
        )
