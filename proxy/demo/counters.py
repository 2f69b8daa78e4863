"""What the replicas counted, read from their ``/metrics``."""

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.ports import Upstream, UpstreamError
from proxy.wire.exposition import Scanner

RUNNING = "vllm:num_requests_running"
PREEMPTIONS = "vllm:num_preemptions_total"
RECOMPUTED = "mock:recomputed_tokens_total"  # the real engine has no such counter
_SCANNER = Scanner((RUNNING, PREEMPTIONS, RECOMPUTED))


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Sums over the replicas."""

    running: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0


def counts_from(texts: Iterable[bytes]) -> ReplicaCounts:
    """Add up expositions."""
    sums = dict.fromkeys((RUNNING, PREEMPTIONS, RECOMPUTED), 0.0)
    for text in texts:
        for series in _SCANNER.scan(text).series:
            sums[series.name] += series.value
    return ReplicaCounts(round(sums[RUNNING]), round(sums[PREEMPTIONS]), round(sums[RECOMPUTED]))


async def read_counts(upstream: Upstream, urls: Iterable[str]) -> ReplicaCounts:
    """Scrape every replica. Raises UpstreamError."""
    return counts_from([await _metrics(upstream, url) for url in urls])


async def _metrics(upstream: Upstream, url: str) -> bytes:
    response = await upstream.open(url, b"GET", b"/metrics", [], b"")
    try:
        parts = []
        while data := await response.read():
            parts.append(data)
    finally:
        response.close()
    if response.status != 200:
        raise UpstreamError("protocol", f"{url}/metrics answered {response.status}", answered=True)
    return b"".join(parts)
