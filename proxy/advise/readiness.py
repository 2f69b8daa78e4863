"""Whether a fleet that was observed is ready to be enforced: yes or no, because …

Decides from sums of observed minutes (``wire.history_report``). Each *finding* is one question with its answer, its numbers, and whether it
stands in the way. Ready means that none does. Limits and their reasons:

- enough was seen: ``REQUESTS_MIN`` requests, or a day's shape is a guess;
- prompts are counted as the engine counts them, but for ``MISMATCH_RATIO_MAX``: a forecast of wrong counts fills wrongly;
- kvgate itself takes less than ``OWN_S_MAX`` at the 99th percentile, the queue left out;
- of the engines' preemptions at least ``PRECEDED_RATIO_MIN`` came where a request ran that would have been held: else the forecast does not
  see what fills the caches (traffic past kvgate, a wrong block count);
- of the would-be holds at most ``NEEDLESS_RATIO_MAX`` were of no use, where they are more than ``HOLD_RATIO_FEW`` of all requests;
- the 99th percentile of the would-be waits is below the longest that the policy lets wait: else enforcing refuses what now is served late.

Fails: waits are those of a fluid (``core.observing``), and clients that would have been refused are not there to come back.
"""

from dataclasses import dataclass

from proxy.core.log_buckets import percentile_of
from proxy.wire.history_report import Sums

REQUESTS_MIN = 1000
MISMATCH_RATIO_MAX = 0.01
OWN_S_MAX = 0.020  # a fifth of the time that people notice
PRECEDED_RATIO_MIN = 0.8
PREEMPTIONS_FEW = 10  # fewer tell nothing
NEEDLESS_RATIO_MAX = 0.8
HOLD_RATIO_FEW = 0.01


@dataclass(frozen=True, slots=True)
class Finding:
    """One question. ``good`` None: there was nothing to tell it from, and it stands in nobody's way."""

    question: str
    good: bool | None
    told: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer, and what it rests on."""

    ready: bool
    because: str
    findings: tuple[Finding, ...]


def percentile_s(histogram: dict[str, int], share: float) -> float | None:
    """A percentile of a histogram as it comes over the wire, in seconds."""
    return percentile_of({int(bucket): count for bucket, count in histogram.items()}, share)


def ratio(part: float, whole: float) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole else None


def judge(observed: Sums, wait_s_max: float) -> Readiness:
    """Judge what was observed under a policy that lets requests wait ``wait_s_max``."""
    findings = (
        _enough(observed), _counts(observed), _own(observed), _preceded(observed), _needless(observed), _waits(observed, wait_s_max),
    )  # fmt: skip
    against = [finding for finding in findings if finding.good is False]
    if against:
        return Readiness(False, "; ".join(finding.told for finding in against), findings)
    preemptions = sum(observed.preemptions.values())
    if not observed.would_hold and not observed.would_shed:
        because = f"nothing would have been held or refused, and {preemptions} preemptions were counted"
    else:
        because = f"it would have held {observed.would_hold} of {observed.requests} requests, and nothing stands against it"
    return Readiness(True, because, findings)


def _enough(sums: Sums) -> Finding:
    told = f"{sums.requests} requests observed in {sums.seconds / 3600.0:.1f} h"
    good = sums.requests >= REQUESTS_MIN
    return Finding("enough seen", good, told if good else f"{told}, fewer than {REQUESTS_MIN}")


def _counts(sums: Sums) -> Finding:
    share = ratio(sums.mismatched, sums.counted)
    if share is None:
        return Finding("tokens counted as the engine does", None, "no prompt's count could be compared")
    return Finding(
        "tokens counted as the engine does",
        share <= MISMATCH_RATIO_MAX,
        f"{share:.2%} of {sums.counted} prompts counted otherwise than the engine",
    )


def _own(sums: Sums) -> Finding:
    own_s = percentile_s(sums.own_s, 0.99)
    if own_s is None:
        return Finding("kvgate's own time", None, "kvgate's own time was not measured")
    return Finding(
        "kvgate's own time", own_s <= OWN_S_MAX, f"kvgate itself takes {1000.0 * own_s:.1f} ms at p99, the queue left out"
    )


def _preceded(sums: Sums) -> Finding:
    total, preceded = sum(sums.preemptions.values()), sum(sums.preceded.values())
    if total < PREEMPTIONS_FEW:
        return Finding("preemptions foreseen", None, f"{total} preemptions, too few to judge by")
    told = f"{preceded / total:.0%} of {total} preemptions came where a request ran that would have been held"
    return Finding("preemptions foreseen", preceded / total >= PRECEDED_RATIO_MIN, told)


def _needless(sums: Sums) -> Finding:
    share = ratio(sums.would_hold_needless, sums.would_hold_ended)
    if share is None:
        return Finding("holds of use", None, "nothing would have been held")
    told = f"{share:.0%} of {sums.would_hold_ended} would-be holds were followed by no preemption"
    few = sums.would_hold <= HOLD_RATIO_FEW * sums.requests
    return Finding("holds of use", share <= NEEDLESS_RATIO_MAX or few, told)


def _waits(sums: Sums, wait_s_max: float) -> Finding:
    wait_s = percentile_s(sums.would_wait_s, 0.99)
    if wait_s is None:
        return Finding("waits bearable", None, "nobody would have waited")
    told = f"would-be waits reach {wait_s:.1f} s at p99, "
    told += f"{'within' if wait_s <= wait_s_max else 'beyond'} queue.wait_max of {wait_s_max:g} s"
    return Finding("waits bearable", wait_s <= wait_s_max, told)
