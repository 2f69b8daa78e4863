"""A policy that changes while the process runs: every key is in force at once, or is told to wait for the restart."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from ipaddress import ip_network
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from proxy.app import building
from proxy.config.live import AT_RESTART, changes, taken_up
from proxy.config.settings import ServeSettings
from proxy.core.events import ReplicaFound
from proxy.core.policy import Policy, ReplicaPolicy, Store, TrafficClass
from proxy.core.replica import ReplicaFacts, ReplicaSample
from proxy.serving.replica_set import ReplicaParts
from proxy.serving.services import Services
from tests.support.builders import FakeClock, spec
from tests.support.local_store import LocalStore

PLAIN = (bool, int, float, str, bytes, Enum, NoneType)
LEFT_OUT = (ModuleType, type, CodeType, FrameType, BuiltinFunctionType, asyncio.AbstractEventLoop, asyncio.Task, LocalStore)
FIRST = Policy(
    replicas=(ReplicaPolicy("http://127.0.0.1:9", "a"), ReplicaPolicy("http://127.0.0.1:10", "b")),
    classes=(TrafficClass("chat"), TrafficClass("default")),
)


class StillFeed:
    """A replica that nobody looks at."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    async def probe(self) -> ReplicaFacts:
        raise AssertionError

    async def sample(self) -> ReplicaSample:
        raise AssertionError

    def bound(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    async def aclose(self) -> None:
        pass


Build = Callable[[Policy], Services]


@pytest.fixture
async def build(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Build]:
    """What ``kvgate serve`` builds, with one replica found and nothing started."""
    built: list[Services] = []
    clock = FakeClock()

    def parts(replica: ReplicaPolicy, scrape: Any, *_: object) -> ReplicaParts:
        return ReplicaParts(StillFeed(scrape.timeout_s), list(replica.headers), lambda _: [])

    monkeypatch.setattr(building, "replica_parts", parts)
    monkeypatch.setattr(building, "SystemClock", lambda: clock)
    monkeypatch.setattr(building, "proxy_name", lambda: "proxy")

    def make(policy: Policy) -> Services:
        services = building.build_services(policy, LocalStore(clock, 3.0), settings=ServeSettings())
        services.dispatcher.feed(ReplicaFound(spec("a")))
        built.append(services)
        return services

    yield make
    for services in built:
        await services.replicas.aclose()
        await services.counter.aclose()
        await services.upstream.aclose()
        services.dispatcher.close()


def pieces(root: object) -> dict[str, object]:
    """Every plain value that can be reached from ``root``, by the way to it: through attributes, containers, closures and partials."""
    found: dict[str, object] = {}
    seen: dict[int, object] = {}
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, PLAIN):
            found[path] = one
        elif not isinstance(one, LEFT_OUT) and id(one) not in seen:
            seen[id(one)] = one
            waiting += [(path + step, inner) for step, inner in steps(one)]
    return found


def steps(one: Any) -> Iterator[tuple[str, object]]:
    if isinstance(one, dict):
        shown = {f"[{key}]": value for key, value in one.items() if isinstance(key, str | int | tuple | Enum)}
        yield from sorted(shown.items(), key=lambda pair: pair[0])
    elif isinstance(one, list | tuple):
        yield from ((f"[{index}]", value) for index, value in enumerate(one))
    elif type(one).__module__.startswith(("proxy.", "tests.")):
        names = {name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())} | set(
            getattr(one, "__dict__", ())
        )
        yield from ((f".{name}", getattr(one, name)) for name in sorted(names) if hasattr(one, name))
    elif callable(one):
        yield from ((f".{name}", getattr(one, name)) for name in ("__self__", "func", "args", "keywords") if hasattr(one, name))
        for index, cell in enumerate(getattr(one, "__closure__", None) or ()):
            if hasattr(cell, "cell_contents"):
                yield f".cell{index}", cell.cell_contents


def others(value: Any, kind: Any) -> Iterator[Any]:
    """Values of the same kind that differ, the likeliest to be taken first."""
    if get_origin(kind) in {Union, UnionType}:
        for inner in get_args(kind):
            yield from others(value, inner) if inner is not NoneType else ()
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from (member for member in kind if member is not value)
    elif kind is bool:
        yield not value
    elif kind in {int, float}:
        yield kind(2 * (value or 0) + 1) if value is None or value > 1 else kind(value / 2 or 3)
    elif kind is str:
        yield f"{value or 'x'}1"
    elif get_origin(kind) is tuple:
        yield from () if not value else [()]
        yield tuple(next(others(None, inner)) for inner in get_args(kind) if inner is not ...)
    elif is_dataclass(kind):
        hints = get_type_hints(kind)
        yield kind(**{one.name: next(others(None, hints[one.name])) for one in fields(kind) if required(one)})
    elif "Network" in repr(kind):
        yield ip_network("10.0.0.0/8")


def required(one: Any) -> bool:
    return "MISSING" in repr(one.default) and "MISSING" in repr(one.default_factory)


def variants(value: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """``value`` with one leaf changed, for every leaf, by its name."""
    if is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        for one in fields(value):
            for name, changed in variants(getattr(value, one.name), hints[one.name]):
                try:
                    yield f".{one.name}{name}", replace(value, **{one.name: changed})
                except (AssertionError, ValueError):
                    continue  # a value that no file can have
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        yield from ((f"[0]{name}", (changed, *value[1:])) for name, changed in variants(value[0], type(value[0])))
        yield "[+]", (replace(value[0], name="new"), *value) if hasattr(value[0], "name") else value
    else:
        yield from (("", other) for other in others(value, kind))


EVERY = dict(variants(FIRST, Policy))


def test_every_leaf_of_a_policy_is_changed() -> None:
    sections = [one.name for one in fields(Policy)]
    assert [name for name in sections if not any(key.startswith(f".{name}") for key in EVERY)] == []
    assert len(EVERY) > 50
    for name, policy in EVERY.items():
        assert changes(FIRST, policy), name


async def test_every_key_rules_at_once_or_waits_for_the_restart(build: Build) -> None:
    """A process that took a policy up must hold what one holds that began with it, wherever the two policies make any difference."""
    first = pieces(build(FIRST))
    again = pieces(build(FIRST))
    noise = {path for path in first.keys() | again.keys() if first.get(path) != again.get(path)}
    stale: dict[str, list[str]] = {}
    waiting: dict[str, tuple[str, ...]] = {}
    for name, wanted in EVERY.items():
        effective, at_restart = taken_up(FIRST, wanted)
        if at_restart:
            assert effective == FIRST
            waiting[name] = at_restart
            continue
        anew = pieces(build(wanted))
        expected = {path: anew.get(path) for path in first.keys() | anew.keys() if anew.get(path) != first.get(path)}
        assert expected, name
        services = build(FIRST)
        services.live.rule(wanted, services.replicas.parts_of(wanted.replicas))
        await asyncio.gather(*services.replicas._retiring.values())
        held = pieces(services)
        left = [path for path, value in expected.items() if path not in noise and held.get(path) != value]
        if left:
            stale[name] = left
    assert stale == {}
    assert set(waiting) == {f".store.{one.name}" for one in fields(Store)} | {".tokenizer"}
    assert {key.split(".")[0] for keys in waiting.values() for key in keys} == set(AT_RESTART)


async def test_what_has_no_effect_is_told_and_changes_nothing_less(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    services = build(FIRST)
    text = b"replicas: [http://127.0.0.1:9]\nqueue: {wait_max: 1s}\nclasses: [{name: a, deadline: 5s}]\n"
    (warning,) = services.live.judge(text).warnings
    assert ":3:31: warning: classes[0].deadline: got 5 s; allowed up to 1 s" in warning
    assert services.live.take(text, 0.0)
    assert f"policy.warning {warning}" in caplog.text
