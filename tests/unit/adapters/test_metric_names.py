"""Every metric is in the table of ``deploy/README.md`` with its type and labels, as it is exported, and its name says its unit."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.core.demand import Demand, LengthClass, PromptPart
from proxy.core.outcome import Outcome, Refusal
from proxy.core.shared import Answer
from proxy.ports.policy import DiscoveryState, PolicyState
from proxy.ports.relay import RelayState
from proxy.ports.replica_state import ReplicaState
from proxy.ports.state import PoolState, TenantState
from proxy.ports.store import ProxyCard, StoreFault, StorePhase, StoreState
from proxy.wire.connection_faults import ConnectionFault
from proxy.wire.merged_exposition import merged
from tests.unit.adapters.telling import KNOWN, RECORD, STATE, telling

DEPLOY = (Path(__file__).parents[3] / "deploy" / "README.md").read_text("utf-8")
ROW = re.compile(r"^\| `(kvgate_[a-z0-9_]+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
TABLE = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(DEPLOY)}

UNITS = (
    "seconds",
    "bytes",
    "blocks",
    "tokens",
    "requests",
    "sequences",
    "leases",
    "replicas",
    "proxies",
    "steps_per_second",
    "ratio",
)
SEVERAL_UNITS = {"kvgate_limit", "kvgate_tenant_left"}  # by their label
COUNTS = {  # of things that the name itself says
    "kvgate_responses_known", "kvgate_retries_left", "kvgate_policy_faults", "kvgate_store_policies_differing",
    "kvgate_replica_engine_running", "kvgate_replica_engine_waiting", "kvgate_replica_engine_queue", "kvgate_replica_seats",
    "kvgate_pool_replicas_wanted", "kvgate_pool_replicas_known", "kvgate_websockets", "kvgate_process_tasks",
}  # fmt: skip
BOUNDS = {"kvgate_replica_prefill_tokens_max", "kvgate_body_bytes_held"}  # a unit, and a word that tells which
FLAGS = {
    "kvgate_guard_tripped", "kvgate_mode", "kvgate_store_phase", "kvgate_store_holds_scrape", "kvgate_replica_phase",
    "kvgate_worker_up", "kvgate_replica_binding", "kvgate_replica_enforced", "kvgate_replica_second_proxy",
}  # fmt: skip
DIMENSIONLESS = {"kvgate_replica_margin_z", "kvgate_replica_prefix_credit"}

NUMBERS = {
    name: 1 for name, kind in ReplicaState.__annotations__.items() if "int" in str(kind) or "float" in str(kind)
    if name != "forecasts_covered"
}  # fmt: skip
STORE = StoreState(
    shown="redis://h:6379", phase=StorePhase.SHARING, phase_age_s=1.0, proxies=(ProxyCard("a", "p", "1", "enforce", ""),),
    policies_differing=0, errors={StoreFault.TIMEOUT: 1}, refused={Answer.ROOM: 1}, granted=1,
    granted_ahead=1, ahead_refused=1, ahead_blocks=1.0, granted_apart=1, unanswered=1,
    rewrites=1, offers_made=1, offers_claimed=1, offers_passed=1, outages=1, holds={"a:1": True}, clock_offset_s=1.0,
    round_trip_s=0.001, last_error=None,
)  # fmt: skip
EVERYTHING = replace(
    STATE,
    replicas=(replace(KNOWN, second_proxy=True, binding="kv", **NUMBERS),),
    queue_by_class=(("default", 1, 10),),
    tenants=(TenantState("t", (("tokens_per_min", 5.0),), 12.0, 1),),
    pools=(PoolState("m", 1, 1.0, 1.0, 1.0, 1.0, 1.0),),
    store=STORE,
    policy=PolicyState(version="v", reloads={"good": 1}),
    discovery=DiscoveryState("dns", 1, 1.0, None),
    relay=RelayState(timeouts_total={"relay.idle": 1}, ejections_total=(("a:1", "failure_ratio", 1),)),
    mode_override_left_s=1.0,
    drain_override_left_s=(("a:1", 1.0),),
)


def exported() -> dict[str, tuple[str, frozenset[str]]]:
    """Return type and labels of everything that a process can tell, by name as the table has it."""
    telemetry = telling(EVERYTHING)
    full = Refusal(Outcome.TENANT_RATE, gate="tokens_per_min", message="", queue_position=2)
    demand = Demand("q", (PromptPart(10),), LengthClass("m"), 0.0, 9.0)
    told = replace(
        RECORD, ttft_target_s=1.0, tpot_target_s=1.0, itl_s=0.1, own_s=0.1, client_retry="x-envoy-attempt-count", demand=demand
    )
    telemetry.request_finished(told)
    telemetry.request_finished(replace(told, outcome=full.outcome, gate=full.gate, refusal=full))
    telemetry.connection_refused(ConnectionFault.MALFORMED)
    telemetry.store_called("reserve", 0.001)
    telemetry.loop_lag(0.001)
    found: dict[str, tuple[str, frozenset[str]]] = {}
    own = b"".join(telemetry.exposition_parts())
    text = (own + b"".join(merged({0: b"", 1: None}))).decode()
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[family.name + "_total" * (family.type == "counter")] = family.type, frozenset(labels)
    return {name: told for name, told in found.items() if name.startswith("kvgate_")}


def test_the_table_says_of_every_metric_what_is_exported_and_of_no_other() -> None:
    assert exported() == TABLE


@pytest.mark.parametrize("name", TABLE)
def test_a_name_says_its_unit(name: str) -> None:
    kind, _ = TABLE[name]
    if kind == "counter":
        assert name.endswith("_total")
    elif kind == "histogram":
        assert name.endswith(UNITS)
    else:
        assert name.endswith((*UNITS, "_info")) or name in SEVERAL_UNITS | COUNTS | BOUNDS | FLAGS | DIMENSIONLESS


def test_no_exception_is_kept_for_a_metric_that_is_gone() -> None:
    assert TABLE.keys() >= SEVERAL_UNITS | COUNTS | BOUNDS | FLAGS | DIMENSIONLESS
