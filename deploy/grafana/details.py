"""The boards behind the overview: one replica, one tenant, and whether admission decides well."""

from overview import IN_USE, PREEMPTIONS, REPLICA, TENANT, quantiles
from panels import GREEN, YELLOW, Board, Panel, Variable

HERE = 'replica=~"$replica"'
WHOSE = 'tenant=~"$tenant"'
HELD, FORECASTS = "kvgate_tenant_kv_token_steps_total", "kvgate_replica_forecasts_total"


def gauge(metric: str) -> str:
    """A replica's gauge; several proxies tell of the same engine, the highest is taken."""
    return f"max by (replica) ({metric}{{{HERE}}})"


REPLICA_READING = """\
**KV blocks** is the heart: *usable* is the ceiling, *forecast peak* must stay below it, *measured* is what the engine uses,
and it should lie between *ledger low* and *ledger high*, what kvgate believes. Measured above high for long: traffic goes
past kvgate (see *foreign*), or the token count drifted. Forecast at the ceiling while measured stays far below: outputs end
earlier than expected, the predictor is learning (*margin z*). Measured at the ceiling and preemptions: outputs became longer."""

REPLICA_BOARD = Board(
    "kvgate-replica", "kvgate: one replica", "What kvgate believes of a replica, and what the engine says.", REPLICA_READING,
    (
        ("KV cache", (
            Panel("KV blocks", "none", [
                (gauge("kvgate_replica_usable_blocks"), "{{replica}} usable"),
                (gauge("kvgate_replica_forecast_peak_blocks"), "{{replica}} forecast peak"),
                (gauge("kvgate_replica_measured_blocks"), "{{replica}} measured"),
                (gauge("kvgate_replica_ledger_low_blocks"), "{{replica}} ledger low"),
                (gauge("kvgate_replica_ledger_high_blocks"), "{{replica}} ledger high")],
                "Ceiling, forecast, measurement and account in one picture.", width=24, height=10),
            Panel("The forecast peak in parts", "none", [
                (gauge("kvgate_replica_expected_blocks"), "{{replica}} expected"),
                (gauge("kvgate_replica_margin_blocks"), "{{replica}} margin"),
                (gauge("kvgate_replica_budget_blocks"), "{{replica}} budget"),
                (gauge("kvgate_replica_headroom_blocks"), "{{replica}} headroom")],
                "Peak = expected + margin + bias. *Expected* may come up to *budget*; what is left is *headroom*."),
            Panel("Error of the estimate", "none", [(gauge("kvgate_replica_estimate_error_blocks"), "{{replica}}")],
                  "Measurement less estimate, as far as it lay outside what was possible. 0 mostly."),
            Panel("Measured less the account", "none", [(gauge("kvgate_replica_bias_blocks"), "{{replica}}")],
                  "Blocks in use that the account cannot explain: traffic past kvgate, a drifting token count; below 0, shared prefixes."),
            Panel("Margin", "none", [(gauge("kvgate_replica_margin_z"), "{{replica}}")],
                  "Standard deviations kept free above the expected peak. Rises with preemptions, falls slowly without."),
        )),
        ("Requests", (
            Panel("On the replica", "none", [
                (f"sum by (replica) (kvgate_replica_leases{{{HERE}}})", "{{replica}} kvgate's"),
                (gauge("kvgate_replica_engine_running"), "{{replica}} running"),
                (gauge("kvgate_replica_engine_waiting"), "{{replica}} waiting in the engine"),
                (gauge("kvgate_replica_seats"), "{{replica}} seats"),
                (gauge("kvgate_replica_foreign_sequences"), "{{replica}} foreign")],
                "*Foreign* bypassed kvgate. *Seats* is what the engine runs at most, told or learned."),
            Panel("What binds", "none", [
                (f"max by (replica, binding) (kvgate_replica_binding{{{HERE}}}) == 1", "{{replica}} {{binding}}")],
                "The limit that the last request looked at met.", kind="state-timeline", words=((1, "binds", YELLOW),)),
            Panel("Preemptions and lost prefix caches", "cps", [
                (f"max by (replica) (rate(kvgate_replica_preemptions_total{{{HERE}}}[$__rate_interval]))", "{{replica}} preemptions"),
                (f"max by (replica) (rate(kvgate_replica_cache_recoveries_total{{{HERE}}}[$__rate_interval]))", "{{replica}} cache lost")],
                "Either means: more was running than fits."),
            Panel("Phase", "none", [(f"max by (replica, phase) (kvgate_replica_phase{{{HERE}}}) == 1", "{{replica}} {{phase}}")],
                  "Ejections and their reason are in the log: `replica.ejected`.", kind="state-timeline", words=((1, "is", GREEN),)),
        )),
        ("Speed", (
            Panel("Steps", "cps", [(gauge("kvgate_replica_steps_per_second"), "{{replica}}")], "Decode steps a second."),
            Panel("Step time", "s", [(gauge("kvgate_replica_step_seconds"), "{{replica}}")],
                  "Forecast of a decode step at this load, what a `tpot` target is held against."),
            Panel("Prefill backlog", "none", [
                (gauge("kvgate_replica_prefill_tokens"), "{{replica}} tokens"),
                (gauge("kvgate_replica_prefill_tokens_max"), "{{replica}} bound")],
                "Prompt tokens sent and not prefilled. At the bound `prefill` binds: a deploy with longer prompts shows here."),
            Panel("Prefix cache", "cps", [
                (f"sum by (replica) (rate(kvgate_replica_prefix_expected_tokens_total{{{HERE}}}[5m]))", "{{replica}} expected"),
                (f"max by (replica) (rate(kvgate_replica_prefix_hit_tokens_total{{{HERE}}}[5m]))", "{{replica}} found")],
                "Prompt tokens expected in the cache, and found. Found below expected: something evicts them."),
            Panel("Age of the last measurement", "s", [(f"min by (replica) (kvgate_replica_sample_age_seconds{{{HERE}}})", "{{replica}}")],
                  "Beyond `scrape.stale` (default 5 s) it counts as unknown and admission turns careful.", steps=(2, 5)),
        )),
    ),
    (Variable("replica", "Replica", "label_values(kvgate_replica_usable_blocks, replica)"),),
)  # fmt: skip

TENANT_READING = """\
Is this tenant the cause, or does it suffer? *Share of all tokens* near 100 % while requests wait: it is the one that fills
the replicas; give it a limit (`tenants.list` or `tenants.others` in the policy). *Refused*: a limit that it has is at work;
the others do not feel it. *Left* below 0: it owes tokens and waits them off. The first 100 tenants of a process have names
here, all later ones are `other`."""

TENANT_BOARD = Board(
    "kvgate-tenant", "kvgate: one tenant", "What one tenant takes, and which of its limits holds it.", TENANT_READING,
    (
        ("What it takes", (
            Panel("Tokens", "cps", [(f"sum by (tenant) (rate(kvgate_tenant_tokens_total{{{WHOSE}}}[5m]))", "{{tenant}}")],
                  "Prompt and output of finished requests, as the engines counted them.", stacked=True),
            Panel("Share of all tokens", "percentunit", [
                (f"sum by (tenant) (rate(kvgate_tenant_tokens_total{{{WHOSE}}}[5m])) / scalar(sum(rate(kvgate_tenant_tokens_total[5m])))",
                 "{{tenant}}")], "Of all tenants.", maximum=1, steps=(0.5, 0.8)),
            Panel("KV held over time", "none", [
                (f"sum by (tenant) (rate({HELD}{{{WHOSE}}}[5m])) / scalar(sum(rate({HELD}[5m])))", "{{tenant}}")],
                "Share of the KV cache that its finished requests held, tokens times steps: what a tenant really costs.", maximum=1),
            Panel("Requests by outcome", "reqps", [
                (f"sum by (tenant, outcome) (rate(kvgate_tenant_requests_total{{{WHOSE}}}[5m]))", "{{tenant}} {{outcome}}")],
                "One outcome each.", stacked=True),
            Panel("Waiting", "none", [(f"sum by (tenant) (kvgate_tenant_queue_requests{{{WHOSE}}})", "{{tenant}}")],
                  "Its requests in kvgate's queue; absent while none waits."),
            Panel("KV blocks held", "none", [(f"sum by (tenant) (kvgate_tenant_kv_blocks{{{WHOSE}}})", "{{tenant}}")],
                  "Forecast peak of what it holds, where the policy bounds or keeps shares (`kv_share_max`, `kv_share_min`)."),
        )),
        ("What holds it", (
            Panel("Refused for a limit of its own", "reqps", [
                (f"sum by (tenant, gate) (rate(kvgate_tenant_refusals_total{{{WHOSE}}}[5m]))", "{{tenant}} {{gate}}")],
                "429 with the time to come back; the rule is a policy key of the tenant."),
            Panel("Left", "none", [(f"min by (tenant, limit) (kvgate_tenant_left{{{WHOSE}}})", "{{tenant}} {{limit}}")],
                  "Requests and tokens that it may use now. Absent while it has all of it."),
        )),
        ("Everybody, to compare", (
            Panel("Tokens by tenant", "cps", [("topk(10, sum by (tenant) (rate(kvgate_tenant_tokens_total[5m])))", "{{tenant}}")],
                  "The ten largest.", stacked=True, link=TENANT),
            Panel("Queue wait of all", "s", quantiles("kvgate_queue_wait_seconds", "traffic_class"),
                  "If this rises while one tenant's share does, that tenant is felt by the others."),
        )),
    ),
    (Variable("tenant", "Tenant", "label_values(kvgate_tenant_tokens_total, tenant)"),),
)  # fmt: skip

QUALITY_READING = """\
Does kvgate decide well? **Preemptions above the target**: it lets in too much: look at *measured less the account*
(unexplained use) and *token counts* (a fallback counts less exactly). **Requests wait while the cache is half empty**: it
lets in too little: look at *what binds* and the margin. **Overhead** is what the proxy itself adds. In `observe`, *would
hold* and *would refuse* tell what enforcing will do."""

QUALITY_BOARD = Board(
    "kvgate-admission", "kvgate: admission quality", "Whether forecasts come true and limits are the right ones.", QUALITY_READING,
    (
        ("Too much or too little?", (
            Panel("Preemptions per 1,000 requests", "none", [
                (PREEMPTIONS, "per 1,000")],
                "Target: `budget.preemptions_per_1000`, default 5.", steps=(5, 20)),
            Panel("Cache in use while requests wait", "percentunit", [
                (f"({IN_USE}) and on () (sum(kvgate_queue_requests) > 0)", "{{replica}}")],
                "Only shown while somebody waits. Low: another limit binds, or the forecast is too careful.", link=REPLICA, maximum=1),
            Panel("Measured less the account", "none", [("max by (replica) (kvgate_replica_bias_blocks)", "{{replica}}")],
                  "Near 0 where all traffic comes through kvgate.", link=REPLICA),
            Panel("Margin z", "none", [("max by (replica) (kvgate_replica_margin_z)", "{{replica}}")],
                  "Steered by preemptions: a high margin is the answer to forecasts that failed.", link=REPLICA),
        )),
        ("Do forecasts come true?", (
            Panel("Coverage of the forecasts", "percentunit", [
                (f'sum by (horizon) (rate({FORECASTS}{{covered="yes"}}[15m])) / sum by (horizon) (rate({FORECASTS}[15m]))',
                 "{{horizon}} steps ahead")],
                "Share of forecasts that held with their margin. The margin follows: it rises where too few do, and falls where all do.",
                maximum=1, steps=(0.95, 0.8)),
            Panel("Output tokens, expected and real", "cps", [
                ("sum(rate(kvgate_output_forecast_tokens_total[15m]))", "expected"),
                ("sum(rate(kvgate_output_outcome_tokens_total[15m]))", "real")],
                "Of completed requests. Real above expected for long: outputs became longer and kvgate is learning."),
            Panel("Output over its forecast", "none", quantiles("kvgate_output_forecast_ratio", "traffic_class"),
                  "How wide lengths spread about their forecast; 1 is as forecast."),
            Panel("Calibration", "none", [("max by (replica) (kvgate_replica_calibration_ratio)", "{{replica}}")],
                  "Factor on the margin for what forecasts were really off by: 1 where they were right, 2 at most.", link=REPLICA),
        )),
        ("Held, refused, degraded", (
            Panel("Held", "reqps", [("sum(rate(kvgate_held_total[$__rate_interval]))", "held"),
                                    ("sum(rate(kvgate_warm_waits_total[$__rate_interval]))", "waited for a warm replica"),
                                    ("sum(rate(kvgate_degraded_total[$__rate_interval]))", "let in with a smaller max_tokens")],
                  "Waiting is not bad by itself: inside the engine it would be a preemption."),
            Panel("In observe: would have", "reqps", [("sum(rate(kvgate_would_hold_total[$__rate_interval]))", "held"),
                                                      ("sum(rate(kvgate_would_shed_total[$__rate_interval]))", "refused")],
                  "What enforcing would do with today's traffic."),
            Panel("Targets missed", "percentunit", [
                (f'sum by (traffic_class) (rate({metric}{{met="no"}}[5m])) / sum by (traffic_class) (rate({metric}[5m]))',
                 f"{{{{traffic_class}}}} {kind}")
                for kind, metric in (("ttft", "kvgate_ttft_targets_total"), ("tpot", "kvgate_tpot_targets_total"))],
                "Of classes with a target.", maximum=1, steps=(0.05, 0.2)),
            Panel("Reroutes, ejections, retries refused", "cps", [
                ("sum(rate(kvgate_reroutes_total[$__rate_interval]))", "reroutes"),
                ("sum(rate(kvgate_retries_refused_total[$__rate_interval]))", "retries refused"),
                ("sum(rate(kvgate_engine_epochs_total[$__rate_interval]))", "engine restarts")],
                "Second tries before the first byte."),
        )),
        ("Counting and the proxy itself", (
            Panel("Token counts by source", "reqps", [
                ("sum by (source) (rate(kvgate_token_counts_total[$__rate_interval]))", "{{source}}")],
                "`exact` and `remote` are exact. `ratio` is the fallback: bytes per token, learned. `bound`: the length alone decided.",
                stacked=True),
            Panel("Miscounted prompts", "percentunit", [
                ("sum(rate(kvgate_token_count_mismatches_total[5m])) / sum(rate(kvgate_token_counts_total[5m]))", "miscounted")],
                "Own count differs from the engine's: another chat template or tokenizer than the replica's.", steps=(0.01, 0.05)),
            Panel("Overhead of kvgate", "s", [
                (f"histogram_quantile({q}, sum by (le) (rate(kvgate_overhead_seconds_bucket[5m])))", name)
                for q, name in ((0.5, "p50"), (0.99, "p99"))],
                "From the end of a request's body to its place, of those that did not wait.", steps=(0.01, 0.05)),
            Panel("Event loop lag", "s", [
                *quantiles("kvgate_event_loop_lag_seconds", "instance")], "Every stream of the process is as late.", steps=(0.02, 0.1)),
            Panel("Clients' retries", "reqps", [("sum by (header) (rate(kvgate_client_retries_total[5m]))", "{{header}}")],
                  "Requests whose client says that it has asked before: load that refusals cause."),
            Panel("Place in the queue at refusal", "none", quantiles("kvgate_refusal_position_requests", "traffic_class"),
                  "How many would have had to go before them."),
            Panel("Tokenizer backlog", "none", [("sum(kvgate_tokenizer_backlog_requests)", "prompts")], "In or before the tokenizer."),
            Panel("Store", "s", quantiles("kvgate_store_seconds", "call"),
                  "Answers of the shared store; `reserve` is on the way of requests."),
        )),
    ),
)  # fmt: skip
