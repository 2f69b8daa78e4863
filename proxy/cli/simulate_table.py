"""The simulator's figures for people: a table with bars."""

from collections.abc import Mapping

from proxy.sim.figures import Figures
from proxy.sim.scenario import Scenario

NOTHING = "–"
BAR_WIDTH = 12
BLOCKS = " ▏▎▍▌▋▊▉█"


def bar(share: float | None, width: int = BAR_WIDTH) -> str:
    """A bar of eighths of a character, ``share`` of ``width`` long; beyond 1 it is full."""
    eighths = 0 if share is None else round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def table(scenario: Scenario, found: Mapping[str, Figures]) -> str:
    """One line for each policy; bars show goodput, and tokens per second against the best of the table."""
    best = max((figures.tokens_per_s or 0.0 for figures in found.values()), default=0.0) or 1.0
    fluid = scenario.fluid
    load = (
        "saturated, closed loop" if scenario.saturated else f"load {scenario.load_ratio:g} ({scenario.rate_per_s:.2f} requests/s)"
    )
    if scenario.replay is not None:
        load = "as recorded"
    head = (
        f"{scenario.workload}, seed {scenario.seed}: {scenario.replicas} × {scenario.kv_blocks} KV blocks of {scenario.block_size} "
        f"(about {fluid.sequences:.0f} sequences), {load}, metrics {scenario.metrics_age_s:g} s old, {scenario.proxies} prox"
        f"{'y' if scenario.proxies == 1 else 'ies'}"
    )
    targets = scenario.targets
    good = f"goodput: first token within {targets.ttft_s:g} s of arrival and {targets.tpot_ms:g} ms per token, of all offered"
    titles = (
        f"{'policy':<18} {'done':>6} {'shed':>6} {'preempted':>10} {'KV used':>8} {'TTFT p50':>9} {'p99 s':>7} {'TPOT p99':>9} "
        f"{'decide µs':>10}  {'tokens/s':<{BAR_WIDTH + 7}} {'goodput':<{BAR_WIDTH + 6}}"
    )
    units = f"{'':<18} {'':>6} {'':>6} {'per 1,000':>10} {'w. queue':>8} {'s':>9} {'':>7} {'ms':>9} {'p50':>10}"
    lines = [_line(name, figures, best) for name, figures in found.items()]
    return "\n".join((head, good, "", titles, units, *lines))


def waits_table(found: Mapping[str, Figures]) -> str:
    """Who had to wait, of those of whom that is known: what was recorded beside its replay."""
    titles = f"{'of those held':<18} {'held':>6} {'wait p50 s':>11} {'wait p99 s':>11}"
    known = {name: figures for name, figures in found.items() if "held" in figures.extra}
    lines = [
        f"{name:<18} {_number(figures.extra.get('held'), '.0f'):>6} {_number(figures.extra.get('queue_wait_s_p50'), '.2f'):>11} "
        f"{_number(figures.extra.get('queue_wait_s_p99'), '.2f'):>11}"
        for name, figures in known.items()
    ]
    return "\n".join((titles, *lines))


def _line(name: str, figures: Figures, best: float) -> str:
    tokens = bar(None if figures.tokens_per_s is None else figures.tokens_per_s / best)
    return (
        f"{name:<18} {_number(figures.completed, 'd'):>6} {_number(figures.shed, 'd'):>6} "
        f"{_number(figures.preemptions_per_1000, '.1f'):>10} {_number(figures.kv_usage_ratio_mean_while_queued, '.3f'):>8} "
        f"{_number(figures.ttft_s_p50, '.2f'):>9} {_number(figures.ttft_s_p99, '.2f'):>7} {_number(figures.tpot_ms_p99, '.1f'):>9} "
        f"{_number(figures.decision_us_p50, '.0f'):>10}  {tokens}{_number(figures.tokens_per_s, '>6.0f')} "
        f"{bar(figures.goodput_ratio)} {_number(figures.goodput_ratio, '.3f')}"
    )
