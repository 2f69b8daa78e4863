"""Whether a shipped query finds anything in a Prometheus that scrapes a busy kvgate.

A panel's query and a recording rule must return series, with every label that its legend shows. An alert is rightly empty while all is
well, and an ``or vector(0)`` hides what is missing: so of *every* query each selector must find series by itself, and each label that the
query groups or joins by must stand on a series of one of its selectors. A wrong name of a metric, a label or a value fails one of these.
"""

import asyncio
from collections.abc import Iterable

from tests.observability.prometheus_process import Prometheus
from tests.observability.shipped import LEGEND_LABEL, ShippedQuery

LOOK_BACK = "10m"


async def faults_of(prometheus: Prometheus, queries: Iterable[ShippedQuery]) -> list[str]:
    """Return what is wrong, one line each; nothing when all is found."""
    return [line for query in queries for line in await _faults(prometheus, query)]


async def until_all_found(prometheus: Prometheus, queries: Iterable[ShippedQuery], seconds: float) -> list[str]:
    """Ask again for what is missing while the load goes on; return what is still missing after that time."""
    missing, faults = list(queries), ["nothing was asked"]
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while missing and loop.time() < until_s:
        told = [(query, await _faults(prometheus, query)) for query in missing]
        missing, faults = [query for query, lines in told if lines], [line for _, lines in told for line in lines]
        await asyncio.sleep(1.0 if missing else 0.0)  # the next scrape
    return faults


async def _faults(prometheus: Prometheus, query: ShippedQuery) -> list[str]:
    place, labels = query.place, query.labels()
    selectors = query.selectors()
    faults = [] if selectors else [f"{place}: asks for no series"]
    met: set[str] = set()
    for selector in selectors:
        series = await prometheus.query(f"last_over_time({selector}[{LOOK_BACK}])")
        if not series:
            faults.append(f"{place}: {selector} finds nothing")
        met |= {label for one in series for label in one["metric"]}
    if not faults and labels - met:
        faults.append(f"{place}: no series has the label {', '.join(sorted(labels - met))}")
    try:
        found = await prometheus.query(f"last_over_time(({query.expression})[1m:1s])")
    except AssertionError as refused:
        return [*faults, f"{place}: {refused}"]
    if not query.quiet:
        shown = {label for one in found for label in one["metric"]}
        numbers = [one for one in found if one["value"][1] != "NaN"]
        if not numbers:
            faults.append(f"{place}: returns nothing")
        elif lost := set(LEGEND_LABEL.findall(query.legend)) - shown:
            faults.append(f"{place}: its legend shows {', '.join(sorted(lost))}, which the result does not have")
    return faults
