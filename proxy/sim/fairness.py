"""Whether tenants that all want more than they get are served alike.

Formula. Time is cut into windows of ``WINDOW_S``. A tenant is backlogged in a window when at every moment of it at least one of its
requests waited for a place. Its share is the KV token-time (tokens held, summed over decode steps) of its answers, each spread evenly
from its start to its end; over a window with two backlogged tenants or more Jain's index of their shares is

    (sum of shares)^2 / (n * sum of squared shares)

and the figure is the mean over such windows. Who was offered less than it could have is not in it: that is no matter of fairness.

Fails: simulated tenants have equal weights. A window must be long against one request, or its edges decide: with fewer than a few dozen
answers per tenant and window the index tells of luck.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import ceil, floor

from proxy.sim.sim_request import SimResult

WINDOW_S = 60.0


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has all; 1 where nobody has anything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return 1.0 if not squares else sum(values) ** 2 / (len(values) * squares)


def token_time(result: SimResult) -> float:
    """KV token-time an answer took: tokens held, summed over its decode steps."""
    return result.output_tokens * (result.request.prompt_tokens + result.output_tokens / 2.0)


def jain_of_backlogged(results: Iterable[SimResult], ended_s: float, window_s: float = WINDOW_S) -> float | None:
    """Mean over the windows in which two tenants or more were backlogged; None where there was no such window."""
    found = list(results)
    backlogged = backlogged_tenants(found, ended_s, window_s)
    served = served_by_window(found, ended_s, window_s)
    indices = [jain(served[window, tenant] for tenant in tenants) for window, tenants in backlogged.items() if len(tenants) > 1]
    return sum(indices) / len(indices) if indices else None


def backlogged_tenants(results: Iterable[SimResult], ended_s: float, window_s: float) -> dict[int, set[str]]:
    """Tenants with somebody waiting throughout, by window."""
    waits: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in results:
        until_s = one.forwarded_s if one.forwarded_s is not None else one.end_s
        waits[one.request.tenant].append((one.arrived_s, ended_s if until_s is None else until_s))
    windows: dict[int, set[str]] = defaultdict(set)
    for tenant, spans in waits.items():
        for begin_s, end_s in joined(spans):
            for window in range(ceil(begin_s / window_s), floor(end_s / window_s)):
                windows[window].add(tenant)
    return windows


def joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans that touch made into one."""
    whole: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if whole and begin <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(whole[-1][1], end)
        else:
            whole.append((begin, end))
    return whole


def served_by_window(results: Iterable[SimResult], ended_s: float, window_s: float) -> dict[tuple[int, str], float]:
    """Token-time served, by window and tenant."""
    served: dict[tuple[int, str], float] = defaultdict(float)
    for one in results:
        if one.forwarded_s is None or not one.output_tokens:
            continue
        begin_s, end_s = one.forwarded_s, ended_s if one.end_s is None else one.end_s
        rate = token_time(one) / max(end_s - begin_s, 1e-9)
        for window in range(floor(begin_s / window_s), floor(end_s / window_s) + 1):
            overlap_s = min(end_s, (window + 1) * window_s) - max(begin_s, window * window_s)
            served[window, one.request.tenant] += rate * max(0.0, overlap_s)
    return served
