"""Finds out what a replica is: bounded control requests, and the capability probe of reference vllm.md §10.3.

Order: /health, /version, /v1/models, /metrics (whole, filtered, then over several fresh connections), /server_info; then the model's own
config.json, where the engine's folder or the local Hugging Face cache has it.
/v1/models decides whether this is a server at all; everything else may be absent and then stays None, with a warning where it costs
the operator something. Never raises anything but ReplicaUnreachableError.

Filtered scrapes: vLLM answers ``/metrics/?name[]=…`` (with the slash) with the named series only, at about a ninth of the server CPU of
a whole exposition. It is used when it shows exactly what the whole one showed; with several API server processes it does not.
"""

import asyncio
from dataclasses import astuple, dataclass
from urllib.parse import quote

from proxy.adapters.control_http import Answer, ControlHttp
from proxy.adapters.model_config import read_model_layers
from proxy.core.epoch import EpochJudge, Verdict
from proxy.core.replica import ReplicaFacts
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.wire.vllm_facts import ModelList, Seen, ServerInfo, assemble, version_of
from proxy.wire.vllm_metrics import SAMPLE_NAMES, Scrape, looks_like_exposition, read_scrape

ENGINES_MAX = (
    256  # what a body of that length tells of; each has an account of its own, and a lie must not make a hundred thousand
)
FRESH_CONNECTIONS = 6  # two engines evenly balanced go unseen once in 32 probes; the scraper keeps looking
METRICS_WHOLE = "/metrics"
METRICS_FILTERED = "/metrics/?" + "&".join(f"name[]={quote(name)}" for name in SAMPLE_NAMES)


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
