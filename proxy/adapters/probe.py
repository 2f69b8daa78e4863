"""Finds out what a replica is: bounded control requests, and the capability probe of reference vllm.md §10.3.

Order: /health, /version, /v1/models, /metrics (whole, filtered, then over several fresh connections), /server_info; then the model's own
config.json, where the engine's folder or the local Hugging Face cache has it.
/v1/models decides whether this is a server at all; everything else may be absent and then stays None, with a warning where it costs
the operator something. Never raises anything but ReplicaUnreachableError.

Filtered scrapes: vLLM answers ``/metrics/?name[]=…`` (with the slash) with the named series only, at about a ninth of the server CPU of
a whole exposition. It is used when it shows exactly what the whole one showed; with several API server processes it does not.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any
from urllib.parse import quote

import httpx

from proxy.adapters.certificates import trusted
from proxy.adapters.let_go import let_go
from proxy.adapters.model_config import read_model_layers
from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.core.epoch import EpochJudge, Verdict
from proxy.core.replica import ReplicaFacts
from proxy.ports import Clock
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.wire.vllm_facts import ModelList, Seen, ServerInfo, assemble, version_of
from proxy.wire.vllm_metrics import SAMPLE_NAMES, Scrape, looks_like_exposition, read_scrape

TYPE_CHARS_MAX = 100
BODY_BYTES_MAX = 8_000_000  # a 0.32 exposition is 50 KB and 30 KB more per further engine
ENGINES_MAX = (
    256  # what a body of that length tells of; each has an account of its own, and a lie must not make a hundred thousand
)
FRESH_CONNECTIONS = 6  # two engines evenly balanced go unseen once in 32 probes; the scraper keeps looking
METRICS_WHOLE = "/metrics"
METRICS_FILTERED = "/metrics/?" + "&".join(f"name[]={quote(name)}" for name in SAMPLE_NAMES)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. ``first_byte_s`` is the injected clock when its head came."""

    url: str
    status: int
    content_type: str
    body: bytes
    first_byte_s: float

    def told(self) -> str:
        """What was got, for an error message."""
        start = self.body[:80].decode("utf-8", "replace").strip()
        return f"{self.url} answered {self.status} {self.content_type or 'without content type'}: {start!r}"

    def json(self) -> Any:
        """The body parsed, or None when the status is not 200 or it is not JSON."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class _ConnectTrace:
    """Told by httpx what it does: whether the server has taken the connection, so that only its answer can be late."""

    def __init__(self) -> None:
        self.connecting = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """One event."""
        del info
        if event.startswith("connection.connect_tcp."):
            self.connecting = not event.endswith(".complete")


class ControlHttp:
    """GET requests to one replica, bounded in time and size. A path prefix in ``base_url`` is kept."""

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.has_key = any(name.lower() == "authorization" for name in headers)
        self.timeout_s = timeout_s
        self._clock = clock
        # Compression would cost the engine's API server more than the network gives back.
        sent = {**headers, "accept": "text/plain, application/json;q=0.9, */*;q=0.1", "accept-encoding": "identity"}
        self._sent, self._transport = sent, transport
        self._under_way = 0
        self._cancelled = False  # a request, since the clients were made
        self._kept, self._fresh = self._clients()

    def _clients(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        # uvicorn closes idle connections after 5 s: ours must give up earlier. No bound on connections: httpx forgets some that a
        # time-out cancelled (``_begin_anew``), and a bound reached by those would make a replica that had been slow unreachable for ever.
        kept = httpx.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=3.0)
        fresh = httpx.Limits(max_connections=None, max_keepalive_connections=0)

        def client(headers: Mapping[str, str], limits: httpx.Limits) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                headers=headers,
                timeout=httpx.Timeout(None),
                limits=limits,
                transport=self._transport,
                verify=trusted(),
                trust_env=False,
            )  # fmt: skip  ``get`` bounds the whole

        return client(self._sent, kept), client({**self._sent, "connection": "close"}, fresh)

    async def _begin_anew(self) -> None:
        """Close what was cancelled: httpx keeps some of those connections for as long as its client lives, a descriptor each."""
        before, (self._kept, self._fresh) = (self._kept, self._fresh), self._clients()
        self._cancelled = False
        for client in before:
            await client.aclose()

    async def get(self, path: str, *, fresh: bool = False) -> Answer:
        """The answer to ``path``, over a connection of its own when ``fresh``. Raises ReplicaUnreachableError."""
        url = self.base_url + path
        shown = url.partition("?")[0]
        if not url.startswith(("http://", "https://")):
            raise ReplicaUnreachableError(
                f"{shown}: a replica's URL must begin with http:// or https://; correct it in the policy."
            )
        trace = _ConnectTrace()
        if self._cancelled and not self._under_way:
            await self._begin_anew()
        self._under_way += 1
        try:
            async with stall_proof_timeout(self.timeout_s):
                return await self._ask(url, trace, fresh)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise ReplicaUnreachableError(
                f"{shown}: no complete answer within {self.timeout_s:g} s. The server may be starting, overloaded or cut off:"
                " check its log and the network between.",
                late=not trace.connecting,
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ReplicaUnreachableError(
                f"{shown}: {type(error).__name__}: {error or 'no detail'}. Check that vLLM is running there and that scheme, host and"
                " port are right."
            ) from error
        finally:
            self._under_way -= 1

    async def _ask(self, url: str, trace: _ConnectTrace, fresh: bool) -> Answer:
        # A balancer's session cookie would make every connection reach the same engine.
        self._fresh.cookies.clear()
        try:
            if not fresh:
                # A kept connection that the server has just closed says nothing about the replica.
                with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    return await self._read(self._kept, url, trace)
            return await self._read(self._fresh, url, trace)
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def _read(self, client: httpx.AsyncClient, url: str, trace: _ConnectTrace) -> Answer:
        async with let_go(client.stream("GET", url, extensions={"trace": trace})) as response:
            first_byte_s = self._clock.now_s()
            body = bytearray()
            if response.headers.get("content-encoding", "identity") != "identity":  # unpacked it may be a thousand times as long
                raise ReplicaUnreachableError(
                    f"{url.partition('?')[0]}: the answer is compressed, though that was not asked for. Check what stands before vLLM."
                )
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise ReplicaUnreachableError(
                        f"{url.partition('?')[0]}: the answer exceeds {BODY_BYTES_MAX:,} bytes and was dropped. Check that the URL is"
                        " a vLLM server's."
                    )
            kind = response.headers.get("content-type", "")[:TYPE_CHARS_MAX]  # it is shown
            return Answer(url.partition("?")[0], response.status_code, kind, bytes(body), first_byte_s)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._kept.aclose()
        await self._fresh.aclose()


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe hands to the feed: the facts, the path to scrape (None: there are no metrics), and whether the engine restarted."""

    facts: ReplicaFacts
    scrape_path: str | None
    new_epoch: bool


async def probe_replica(http: ControlHttp, judge: EpochJudge, *, kv_blocks: int | None) -> Probed:
    """Probe once; ``judge`` sees every scrape made. ``kv_blocks`` is the configured pool size, counted like num_gpu_blocks."""
    health = await http.get("/health")
    if health.status >= 500:
        raise ReplicaUnreachableError(
            f"{health.told()}. The engine is dead or still starting: see vLLM's log. kvgate keeps probing."
        )
    version = version_of((await http.get("/version")).json())
    models = _read_models(await http.get("/v1/models"), http.has_key)
    metrics = await http.get(METRICS_WHOLE)
    usable = metrics.status == 200 and looks_like_exposition(metrics.body)
    whole = bounded(read_scrape(metrics.body if usable else b""), metrics.url)
    scrape_path = await _choose_path(http, whole) if usable else None
    scrapes = [whole]
    for _ in range(FRESH_CONNECTIONS if scrape_path else 0):
        answer = await http.get(scrape_path or METRICS_WHOLE, fresh=True)
        scrapes.append(read_scrape(answer.body if answer.status == 200 else b""))
    new_epoch = _judge_burst(judge, scrapes)
    server = await _ask_server_info(http)
    layers = await asyncio.to_thread(read_model_layers, models.root)
    facts = assemble(
        Seen(
            url=http.base_url,
            version=version,
            models=models,
            server=server,
            metrics_text=metrics.body if usable else b"",
            metrics_fault=None if usable else metrics.told(),
            scrape=whole,
            several=judge.several,
            kv_blocks=kv_blocks,
            layers=layers,
        )
    )
    return Probed(facts, scrape_path, new_epoch)


def bounded(scrape: Scrape, url: str) -> Scrape:
    """The scrape. Raises ReplicaUnreachableError where it tells of more engines than any server has."""
    if len(scrape.engines) > ENGINES_MAX:
        raise ReplicaUnreachableError(
            f"{url} tells of {len(scrape.engines):,} engines, more than {ENGINES_MAX}. Check what answers at this URL."
        )
    return scrape


async def _ask_server_info(http: ControlHttp) -> ServerInfo:
    """Only servers in development mode have it, and the first time it takes vLLM seconds: going without costs little."""
    try:
        return ServerInfo.read((await http.get("/server_info?config_format=json")).json())
    except ReplicaUnreachableError:
        return ServerInfo()


def _judge_burst(judge: EpochJudge, scrapes: list[Scrape]) -> bool:
    """Whether a new epoch was seen. No engine restarts within a burst, so two start times in it are two engines."""
    verdicts = [
        judge.observe(fresh_connection=i > 0, started_s=scrape.started_s, counters=scrape.counters())
        for i, scrape in enumerate(scrapes)
    ]
    if len({scrape.started_s for scrape in scrapes if scrape.started_s is not None}) > 1:
        judge.declare_several()
    return not judge.several and Verdict.NEW_EPOCH in verdicts


async def _choose_path(http: ControlHttp, whole: Scrape) -> str:
    answer = await http.get(METRICS_FILTERED)
    return METRICS_FILTERED if answer.status == 200 and _shape(read_scrape(answer.body)) == _shape(whole) else METRICS_WHOLE


def _shape(scrape: Scrape) -> object:
    """Which values a scrape shows, whatever they are."""
    return (
        scrape.usage_metric,
        scrape.started_s is None,
        [(engine.engine, tuple(value is None for value in astuple(engine))) for engine in scrape.engines],
    )


def _read_models(answer: Answer, has_key: bool) -> ModelList:
    if answer.status in {401, 403}:
        cause = (
            "the key sent is not accepted; check the variable named" if has_key else "name the variable that holds its API key"
        )
        raise ReplicaUnreachableError(f"{answer.url} answered {answer.status}: {cause} by the replica's policy key api_key_env.")
    models = ModelList.read(answer.json())
    if models is None:
        raise ReplicaUnreachableError(
            f"{answer.told()}, which is no list of models. Check that the URL is a vLLM OpenAI server's root (without /v1)."
        )
    return models
