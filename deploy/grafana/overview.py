"""The board that is looked at first: is it served, what binds, where, for whom."""

from panels import GREEN, RED, YELLOW, Board, Panel

REPLICA, TENANT = ("kvgate-replica", "replica"), ("kvgate-tenant", "tenant")
REFUSED = 'outcome=~"queue_timeout|queue_full|displaced|tenant_rate|tenant_share|no_replica|draining|never_fits"'
IN_USE = "max by (replica) (kvgate_replica_measured_blocks) / max by (replica) (kvgate_replica_usable_blocks)"
PREEMPTIONS = "1000 * sum(max by (replica) (rate(kvgate_replica_preemptions_total[5m]))) / sum(rate(kvgate_requests_total[5m]))"

READING = """\
**From top to bottom.** *Is it served?* Everything green: leave. *Who waits, and how long?* A queue that grows and empties
again is kvgate at work; one that only grows is too little capacity, or a replica that is gone. *What binds?* Which limit
keeps the next request out, replica by replica: `kv` is the KV cache, `seats` the engine's `max_num_seqs`, `prefill` the
backlog of prompts. *Which tenant?* One that takes most of the tokens while others wait has its own board. Click a line to get
to its replica or tenant. The runbook of every alert is in `deploy/prometheus/README.md`; why *one* request waited is told by
its `x-request-id`: `GET /admin/requests/ID` on the admin port."""


def stat(
    title: str, unit: str, query: str, text: str, steps: tuple[float, float] | None = None,
    words: tuple[tuple[float, str, str], ...] = (),
) -> Panel:  # fmt: skip
    """One number of the first row."""
    return Panel(title, unit, [(query, "")], text, kind="stat", width=3, height=4, steps=steps, words=words)


def quantiles(metric: str, by: str) -> list[tuple[str, str]]:
    """Median and 99th percentile of a histogram, over five minutes."""
    return [
        (f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket[5m])))", f"{{{{{by}}}}} {name}")
        for q, name in ((0.5, "p50"), (0.99, "p99"))
    ]


SERVED = (
    stat("Alerts", "none", 'count(ALERTS{alertname=~"Kvgate.+", alertstate="firing"}) or vector(0)',
         "kvgate's alerts that fire now. The table below names them.", (1, 3)),
    stat("Replicas not serving", "none",
         'sum(max by (replica) (kvgate_replica_phase{phase!="serving"})) or vector(0)',
         "In any other phase: unreachable, ejected, stalled, wedged, draining, probing.", (1, 2)),
    stat("Requests", "reqps", "sum(rate(kvgate_requests_total[$__rate_interval]))", "Ended, whatever the outcome."),
    stat("Refused", "percentunit",
         f"sum(rate(kvgate_requests_total{{{REFUSED}}}[5m])) / sum(rate(kvgate_requests_total[5m]))",
         "Share of requests that kvgate answered itself: 429, 503 or 400.", (0.01, 0.05)),
    stat("Oldest wait", "s", "max(kvgate_queue_oldest_seconds)", "Age of the longest wait now.", (10, 25)),
    stat("Preemptions per 1,000", "none",
         PREEMPTIONS,
         "Against completed and refused requests of five minutes. The policy's target is 5 (`budget.preemptions_per_1000`).", (5, 20)),
    stat("Proxies in enforce", "percentunit", 'avg(kvgate_mode{mode="enforce"})',
         "Below 100 %: somebody observes or is off, by policy, by `kvgate mode` or because faults tripped the guard.", (1, 0.5)),
    stat("Store", "none", 'min(kvgate_store_phase{phase="sharing"}) or vector(2)', "How the proxies stand with the shared store.",
         words=((0, "degraded", RED), (1, "sharing", GREEN), (2, "alone", GREEN))),
)  # fmt: skip

WAITING = (
    Panel("Requests by outcome", "reqps", [("sum by (outcome) (rate(kvgate_requests_total[$__rate_interval]))", "{{outcome}}")],
          "One outcome each. `completed` should be nearly all; the others are explained in policies/README.md.", stacked=True),
    Panel("Refusals by rule", "reqps", [("sum by (gate) (rate(kvgate_refusals_total[$__rate_interval]))", "{{gate}}")],
          "Which rule fired; most are named by their policy key."),
    Panel("Age of the oldest wait by class", "s", [
        ("max by (traffic_class) (kvgate_queue_class_oldest_seconds)", "{{traffic_class}}")],
          "Against `queue.wait_max`: what is near it will be refused."),
    Panel("Replicas wanted and present", "none", [
        ("sum by (pool) (kvgate_pool_replicas_wanted)", "{{pool}} wanted"),
        ("max by (pool) (kvgate_pool_replicas_known)", "{{pool}} present")],
        "Wanted: at how many everybody who runs or waits would run at once. Above present for long: scale."),
    Panel("Waiting by class", "none", [("sum by (traffic_class) (kvgate_queue_class_requests)", "{{traffic_class}}")],
          "Requests in kvgate's queue. Nothing should wait inside the engines instead.", stacked=True),
    Panel("Queue wait, p50 and p99", "s", quantiles("kvgate_queue_wait_seconds", "traffic_class"),
          "Arrival to place, of requests that got one.", steps=(5, 25)),
    Panel("Time to first token, p50 and p99", "s", quantiles("kvgate_ttft_seconds", "traffic_class"), "As clients saw it, queue included."),
    Panel("Between tokens, p50 and p99", "s", quantiles("kvgate_itl_seconds", "traffic_class"),
          "Mean time between the events of a stream."),
    Panel("Time per output token, p50 and p99", "s", quantiles("kvgate_tpot_seconds", "traffic_class"),
          "Streams only. Preemptions show here first: a stream stands still while it is recomputed."),
)  # fmt: skip

BINDING = (
    Panel("Forecast peak against the KV cache", "percentunit", [
        ("max by (replica) (kvgate_replica_forecast_peak_blocks) / max by (replica) (kvgate_replica_usable_blocks)", "{{replica}}")],
        "What the running requests will come to hold at the worst moment, margin included. At 100 % the next one waits.",
        steps=(0.9, 1.0), link=REPLICA),
    Panel("KV cache in use, as the engines say", "percentunit", [
        (IN_USE, "{{replica}}")],
        "Low while requests wait: the forecast is too careful, or another limit binds.", steps=(0.95, 0.99), link=REPLICA),
    Panel("What binds", "none", [("max by (replica, binding) (kvgate_replica_binding) == 1", "{{replica}} {{binding}}")],
          "The limit that the last request looked at met, on each replica. `none`: it fits.", kind="state-timeline", link=REPLICA,
          words=((1, "binds", YELLOW),)),
    Panel("Phase of the replicas", "none", [("max by (replica, phase) (kvgate_replica_phase) == 1", "{{replica}} {{phase}}")],
          "Anything but `serving` gets nobody new.", kind="state-timeline", link=REPLICA, words=((1, "is", GREEN),)),
    Panel("Preemptions", "cps", [("max by (replica) (rate(kvgate_replica_preemptions_total[$__rate_interval]))", "{{replica}}")],
          "Work thrown away and done again.", link=REPLICA),
    Panel("Waiting inside the engines", "none", [("max by (replica) (kvgate_replica_engine_waiting)", "{{replica}}")],
          "Near 0, or traffic goes past kvgate: what waits there can be neither reordered nor sent elsewhere.", steps=(2, 8), link=REPLICA),
)  # fmt: skip

WHO = (
    Panel("Tokens by tenant", "cps", [("topk(10, sum by (tenant) (rate(kvgate_tenant_tokens_total[5m])))", "{{tenant}}")],
          "Prompt and output, as the engines counted them; the ten largest.", stacked=True, link=TENANT),
    Panel("Waiting by tenant", "none", [("topk(10, sum by (tenant) (kvgate_tenant_queue_requests))", "{{tenant}}")],
          "Requests in kvgate's queue. Many tenants: too little capacity. One: it is held back by its own share.",
          stacked=True, link=TENANT),
    Panel("Requests by tenant", "reqps", [("topk(10, sum by (tenant) (rate(kvgate_tenant_requests_total[5m])))", "{{tenant}}")],
          "Ended, whatever the outcome; the ten largest.", stacked=True, link=TENANT),
    Panel("Refused for their own limit", "reqps", [
        ("sum by (tenant, gate) (rate(kvgate_tenant_refusals_total[5m]))", "{{tenant}} {{gate}}")],
          "A tenant that is refused here does not hurt others: that is what its limit is for.", link=TENANT),
    Panel("Alerts", "none", [('ALERTS{alertname=~"Kvgate.+"}', "{{alertname}} {{alertstate}}")],
          "Pending and firing. The runbook stands under the alert's name in deploy/prometheus/README.md.",
          kind="table", width=24, height=6),
)  # fmt: skip

OVERVIEW = Board(
    "kvgate-overview", "kvgate: overview", "The first look for whoever is on call.", READING,
    (("Is it served?", SERVED), ("Who waits, and how long?", WAITING), ("What binds, and where?", BINDING), ("Which tenant?", WHO)),
)  # fmt: skip
